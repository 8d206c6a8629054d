//! The clients: libiscsi's, compiled for the run; our own, in this process; and the floors, the least that any target must
//! pay: the same bytes through TCP and the same I/O on the same file, each by a program that does nothing else
//! (`floor.c`).

use crate::target::{Medium, Target};
use engine::cpu_time;
use engine::task;
use harness::directory::Directory;
use harness::initiator::{at_url, on_lane, opened};
use harness::libiscsi::{Done, Load, compile, compile_client};
use harness::process::Daemon;
use lab::load::{Lun, Stop, Workload, generate};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use volume::SharedVolume;

/// The compiled programs, and the server of bare TCP, which runs on the core that this thread has when it starts.
pub(crate) struct Programs {
    pub(crate) client: PathBuf,
    floor: PathBuf,
    server: Daemon,
    port: u16,
    _directory: Directory,
}

impl Programs {
    pub(crate) fn new() -> Programs {
        let directory = Directory::new();
        let client = compile_client(directory.path());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/floor.c");
        let floor = compile(&[&source], &directory.join("floor"));
        let port = harness::free_port();
        let mut serve = Command::new(&floor);
        serve.args(["serve", &port.to_string()]);
        let mut server = Daemon::start(&serve, directory.join("floor.log"));
        server.wait_for_port(port);
        Programs {
            client,
            floor,
            server,
            port,
            _directory: directory,
        }
    }

    /// The bytes of a load through TCP alone.
    pub(crate) fn bare_tcp(&self, load: &Load, seconds: f64) -> Done {
        let end = [self.port.to_string()];
        self.floor("tcp", &end, load, seconds, &[self.server.pid().to_string()])
    }

    /// The I/O of a load on the target's file alone; `None` if it has none of ours.
    pub(crate) fn file_alone(&self, target: &Target, load: &Load, seconds: f64) -> Option<Done> {
        let caching = match target.medium {
            Some(Medium::DirectFile) => "direct",
            _ => "cached",
        };
        let file = [target.file()?, caching.to_owned()];
        Some(self.floor("file", &file, load, seconds, &[]))
    }

    fn floor(&self, what: &str, on: &[String], load: &Load, seconds: f64, pid: &[String]) -> Done {
        let mut command = Command::new(&self.floor);
        command.arg(what).args(on).arg(load.operation);
        command.args([load.size_bytes, load.depth, load.rate].map(|number| number.to_string()));
        command.arg(seconds.to_string()).args(pid);
        Done::of(&mut command, seconds)
    }
}

/// A load of our own initiator on this many sessions, after a warm-up of a tenth of its time.
pub(crate) fn own(target: &Target, workload: &Workload, sessions: usize, seconds: f64) -> Done {
    on_lane(async {
        let disks = (0..sessions).map(|_| Box::pin(opened(at_url(&target.url))));
        let disks = task::join_all(disks).await;
        let volumes = disks.iter().map(|disk| disk.clone() as SharedVolume);
        let luns: Vec<Lun> = volumes.map(Lun::from).collect();
        let run = async |seed, seconds| {
            let workload = Workload {
                seed,
                ..workload.clone()
            };
            let time = Duration::from_secs_f64(seconds);
            let done = generate(&luns, &workload, time, &Stop::default()).await;
            done.unwrap_or_else(|error| panic!("{}: {error}", target.name))
        };
        run(1, seconds / 10.0).await;
        let before = [target.pid, std::process::id()].map(spent_us);
        let done = run(0, seconds).await;
        let after = [target.pid, std::process::id()].map(spent_us);
        for disk in disks {
            disk.close().await;
        }
        let quantile_us = |q| done.latency_ns.value_at_quantile(q) as f64 / 1e3;
        let ios = done.ios.max(1) as f64;
        Done {
            iops: done.iops(),
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            target_us: (after[0] - before[0]) / ios,
            client_us: (after[1] - before[1]) / ios,
        }
    })
}

/// CPU time of a process so far, in microseconds.
pub(crate) fn spent_us(pid: u32) -> f64 {
    let spent = cpu_time::of_process(pid).expect("a process that runs");
    spent.as_secs_f64() * 1e6
}
