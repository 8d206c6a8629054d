//! Describes the machine a measurement ran on and how busy its processors were meanwhile, from /proc
//! (proc(5)).

use std::{collections::BTreeMap, fs, time::Instant};

use serde::{Deserialize, Serialize};

use crate::{
    others::{Others, ours_ns},
    usage::TICK_NS,
};

pub(crate) use crate::usage::{ended_ns, family_ns, process_ns};

/// A core busier than this may be the bottleneck.
const BUSY: f64 = 0.9;

/// The commit that this program was built from; empty if that is not known.
const COMMIT: &str = env!("SANSTONE_COMMIT");

/// The machine and the program, for reports.
pub fn facts() -> BTreeMap<String, String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let count = cpu.lines().filter(|line| line.starts_with("processor"));
    let model = model.map_or("unknown", |(_, name)| name);
    let kernel = read("/proc/sys/kernel/osrelease");
    let facts = [
        ("cpu", format!("{} × {model}", count.count())),
        ("kernel", kernel.trim().to_owned()),
        ("host", name()),
        ("sanstone", program()),
    ];
    facts.map(|(key, fact)| (key.to_owned(), fact)).into()
}

/// Non-idle time of all cores together, in nanoseconds.
pub(crate) fn machine_ns() -> u64 {
    let cores = cores(&fs::read_to_string("/proc/stat").unwrap_or_default());
    cores.iter().map(|core| core.busy * TICK_NS).sum()
}

/// This program: its version and its commit.
pub(crate) fn program() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match COMMIT {
        "" => version.to_owned(),
        commit => format!("{version} (commit {commit})"),
    }
}

/// The name of this machine.
pub(crate) fn name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.unwrap_or_default().trim().to_owned()
}

/// The processors' counters at the start of a run.
pub(crate) struct Watch {
    began: Instant,
    cores: Vec<Ticks>,
    own_ns: u64,
    ours_ns: u64,
    pid: Option<u32>,
    pid_ns: u64,
}

/// What the processors did during a run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Cpu {
    /// Processor time of this program; 100 is one core all the time.
    pub(crate) own_percent: f64,
    /// The same for the process given by the user.
    pub(crate) pid_percent: Option<f64>,
    /// Share of all processors used by neither of them, nor by what this program has started. Includes kernel work
    /// done for them that is not charged to any process.
    pub(crate) others: f64,
    /// Cores that were busy for more than nine tenths of the time.
    pub(crate) busy_cores: usize,
    /// All cores.
    pub(crate) cores: usize,
}

#[derive(Clone, Copy, Default)]
struct Ticks {
    busy: u64,
    all: u64,
}

impl Watch {
    /// Starts counting; `pid` is a process to observe besides this one.
    pub(crate) fn begin(pid: Option<u32>) -> Watch {
        // Reading all of /proc takes time that is not the measurement's.
        let ours_ns = ours_ns();
        Watch {
            began: Instant::now(),
            cores: cores(&fs::read_to_string("/proc/stat").unwrap_or_default()),
            own_ns: process_ns(std::process::id()),
            ours_ns,
            pid,
            pid_ns: pid.map_or(0, process_ns),
        }
    }

    /// What others did until now.
    pub(crate) fn others(self) -> Others {
        let began = self.began;
        let cpu = self.end();
        Others::new(cpu.others, began.elapsed().as_secs_f64(), cpu.cores)
    }

    pub(crate) fn end(self) -> Cpu {
        let elapsed_ns = self.began.elapsed().as_nanos().max(1) as f64;
        let now = cores(&fs::read_to_string("/proc/stat").unwrap_or_default());
        let percent = |ns: u64| 100.0 * ns as f64 / elapsed_ns;
        let own = percent(process_ns(std::process::id()).saturating_sub(self.own_ns));
        let pid = self
            .pid
            .map(|pid| process_ns(pid).saturating_sub(self.pid_ns));
        let pid_percent = pid.map(percent);
        let busy: Vec<f64> = now
            .iter()
            .zip(&self.cores)
            .map(|(now, before)| {
                let all = now.all.saturating_sub(before.all).max(1);
                now.busy.saturating_sub(before.busy) as f64 / all as f64
            })
            .collect();
        let count = busy.len().max(1) as f64;
        let ours = percent(ours_ns().saturating_sub(self.ours_ns));
        let known = (ours + pid_percent.unwrap_or(0.0)) / 100.0 / count;
        Cpu {
            own_percent: own,
            pid_percent,
            others: (busy.iter().sum::<f64>() / count - known).max(0.0),
            busy_cores: busy.iter().filter(|part| **part > BUSY).count(),
            cores: busy.len(),
        }
    }
}

/// The per-core lines of /proc/stat.
fn cores(stat: &str) -> Vec<Ticks> {
    let cores = stat.lines().filter(|line| {
        let name = line.split(' ').next().unwrap_or_default();
        name.len() > 3 && name.starts_with("cpu")
    });
    cores
        .map(|line| {
            let fields = line.split_ascii_whitespace().skip(1).flat_map(str::parse);
            // Guest time, after the eighth field, is already included in the first two.
            let fields: Vec<u64> = fields.take(8).collect();
            let idle: u64 = fields.iter().skip(3).take(2).sum();
            let all = fields.iter().sum();
            Ticks {
                busy: all - idle,
                all,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_read_without_their_sum_and_without_idle_time() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 0 5 80 5 0 0 0 3 0\ncpu1 0 0 0 100 0 0 0 0 0 0\nintr 5\n";
        let cores = cores(stat);
        assert_eq!(cores.len(), 2);
        assert_eq!((cores[0].busy, cores[0].all), (15, 100));
        assert_eq!((cores[1].busy, cores[1].all), (0, 100));
    }
}
