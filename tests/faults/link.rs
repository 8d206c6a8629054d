//! The link to the target is really cut: packets vanish without notification. If that is shorter than the time limits,
//! it is a pause; if longer, requests fail in time, and the disk works again afterwards.

use engine::{Buf, Duration, Payload, task, time};
use harness::directory::Directory;
use harness::initiator::{Awake, at_url, on_lane, opened};
use harness::links::Links;
use harness::process::Daemon;
use harness::sanstone::{IQN, binary, target_table};
use std::net::TcpStream;
use std::rc::Rc;
use volume::{Durability, IscsiConfig, IscsiDisk, Volume};

const PORT: u16 = 3260;

/// A target at the far end of a link. The fields are dropped in this order.
struct Far {
    _daemon: Daemon,
    link: Links,
    _directory: Directory,
}

impl Far {
    fn new() -> Option<Far> {
        let (link, directory) = (Links::new(1)?, Directory::new());
        let volume =
            "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\", cache = \"direct\" }\n";
        let table = target_table(PORT, &["disk"]).replace("127.0.0.1", &link.far_address(0));
        let file = directory.write("sanstone.toml", format!("{volume}{table}"));
        let mut command = link.command();
        command.arg(binary()).args(["serve", "-c"]).arg(file);
        let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
        let address = format!("{}:{PORT}", link.far_address(0));
        daemon.wait_until(|| TcpStream::connect(&address).is_ok());
        Some(Far {
            _daemon: daemon,
            link,
            _directory: directory,
        })
    }

    fn with_limits(&self, request_s: u64, reconnect_s: u64) -> IscsiConfig {
        let address = self.link.far_address(0);
        let mut config = at_url(&format!("iscsi://{address}:{PORT}/{IQN}/0"));
        config.connect_timeout = Duration::from_secs(1);
        config.request_timeout = Duration::from_secs(request_s);
        config.reconnect_timeout = Duration::from_secs(reconnect_s);
        config
    }
}

/// 16 durable writes that begin now.
fn writes(disk: &Rc<IscsiDisk>, byte: u8) -> Vec<task::JoinHandle<volume::Result<()>>> {
    let write = |i: u64| {
        let disk = disk.clone();
        let data: Payload = Buf::copy_of(&[byte; 4096]).into();
        task::spawn(async move { disk.write(i * 4096, data, Durability::Fua).await })
    };
    (0..16).map(write).collect()
}

async fn all_hold(disk: &IscsiDisk, byte: u8) {
    let read = disk.read(0, 16 * 4096).await.expect("a read").to_vec();
    assert!(read.iter().all(|&found| found == byte));
}

#[test]
fn a_cut_link_is_a_pause_or_an_error_in_time() {
    let Some(far) = Far::new() else {
        return harness::skip("a network namespace needs root and iproute2");
    };
    on_lane(async {
        // Within the time limit of a request: the same session continues.
        let disk = opened(far.with_limits(60, 60)).await;
        far.link.cut(0);
        let writing = writes(&disk, 1);
        time::sleep(Duration::from_secs(2)).await;
        far.link.mend(0);
        for result in task::join_all(writing).await {
            result.expect("it waited");
        }
        all_hold(&disk, 1).await;
        disk.flush().await.expect("a flush");

        // Beyond it, but within the limit for reconnecting: a new session, and no error.
        let disk = opened(far.with_limits(1, 60)).await;
        far.link.cut(0);
        let writing = writes(&disk, 2);
        time::sleep(Duration::from_secs(4)).await;
        far.link.mend(0);
        for result in task::join_all(writing).await {
            result.expect("it was sent again");
        }
        all_hold(&disk, 2).await;

        // Beyond both: errors in time, and afterwards the disk works again.
        let disk = opened(far.with_limits(1, 2)).await;
        far.link.cut(0);
        let begun = Awake::begin();
        for result in task::join_all(writes(&disk, 3)).await {
            result.expect_err("nothing arrives");
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(6), "errors came after {took:?}");
        far.link.mend(0);
        // TCP retransmits lost segments on its own schedule, which may be after the limits.
        let deadline = time::now() + Duration::from_secs(60);
        while let Err(error) = task::join_all(writes(&disk, 4))
            .await
            .into_iter()
            .collect::<volume::Result<()>>()
        {
            assert!(time::now() < deadline, "the link is back: {error}");
        }
        all_hold(&disk, 4).await;
    });
}
