//! What other programs used of the processors during a measurement: it is named, because it changes the figures.

use std::{collections::BTreeMap, fs};

use serde::{Deserialize, Serialize};

use crate::machine::family_ns;

/// If others used more than this share of all processors, the figures are affected.
const SHARE_MAX: f64 = 0.05;

/// The kernel samples what a processor does this many times a second (USER_HZ, which is 100 on every Linux).
const TICKS_PER_S: f64 = 100.0;

/// A share from n samples is off by half of 1/√n at most; no more than this many times that is taken for chance.
const DEVIATIONS: f64 = 3.0;

/// At most this many measurements are named.
const NAMED_MAX: usize = 3;

/// The flag of the kernel's own threads in /proc/PID/stat.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// What others did during one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Others {
    /// Their share of all processors.
    pub(crate) share: f64,
    /// Time that all processors had together, in seconds.
    pub(crate) processors_s: f64,
}

impl Others {
    /// Of a measurement of this many seconds on this many processors.
    pub(crate) fn new(share: f64, seconds: f64, cores: usize) -> Others {
        Others {
            share,
            processors_s: seconds * cores as f64,
        }
    }

    /// Whether chance does not explain it.
    fn is_much(&self) -> bool {
        let samples = (self.processors_s * TICKS_PER_S).max(1.0);
        self.share > SHARE_MAX + DEVIATIONS * 0.5 / samples.sqrt()
    }
}

/// A note if other programs ran during one of these measurements, which have names, or during all together. It names
/// those with the most.
pub(crate) fn told(measured: &[(String, Others)], has_pid: bool) -> Option<String> {
    let processors_s: f64 = measured.iter().map(|(_, of)| of.processors_s).sum();
    let used_s: f64 = measured
        .iter()
        .map(|(_, of)| of.share * of.processors_s)
        .sum();
    let all = Others {
        share: used_s / processors_s.max(f64::MIN_POSITIVE),
        processors_s,
    };
    if !all.is_much() && !measured.iter().any(|(_, of)| of.is_much()) {
        return None;
    }
    // Rounds of a comparison have the same name.
    let mut worst: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, of) in measured
        .iter()
        .filter(|(_, of)| all.is_much() || of.is_much())
    {
        let known = worst.entry(name).or_default();
        *known = known.max(of.share);
    }
    let mut worst: Vec<(&str, f64)> = worst
        .into_iter()
        .filter(|(_, share)| *share > SHARE_MAX)
        .collect();
    worst.sort_by(|a, b| b.1.total_cmp(&a.1));
    let named = worst.iter().take(NAMED_MAX);
    let named = named.map(|(name, share)| format!("{:.0} % during {name}", 100.0 * share));
    let besides = match has_pid {
        true => "this program, those it starts and the process of --pid",
        false => "this program and those it starts",
    };
    Some(format!(
        "beside other work: programs other than {besides} used {:.0} % of the processors over all ({}), including \
         targets on this machine; figures of an idle machine may differ",
        100.0 * all.share,
        named.collect::<Vec<_>>().join(", ")
    ))
}

/// CPU time so far of this program, of those it has started with theirs, and of the kernel's own threads, which serve
/// them: those of loop devices, file systems and writes. Where the kernel's threads are hidden, as in a container, theirs
/// counts as others'.
pub(crate) fn ours_ns() -> u64 {
    /// /proc counts in these.
    const TICK_NS: u64 = (1e9 / TICKS_PER_S) as u64;
    let all = processes();
    let own = std::process::id();
    let is_ours = |mut pid: u32| {
        // A parent may have ended in between, and its number been given to another, so the way up has an end.
        for _ in 0..=all.len() {
            if pid == own {
                return true;
            }
            match all.get(&pid) {
                Some(process) => pid = process.parent,
                None => return false,
            }
        }
        false
    };
    all.iter()
        .map(|(pid, process)| match process {
            process if process.is_kernels => process.ticks * TICK_NS,
            _ if is_ours(*pid) => family_ns(*pid),
            _ => 0,
        })
        .sum()
}

/// What /proc tells of a process.
struct OtherProcess {
    parent: u32,
    is_kernels: bool,
    ticks: u64,
}

fn processes() -> BTreeMap<u32, OtherProcess> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let process = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((pid, OtherProcess::of(&stat)?))
    };
    entries.filter_map(process).collect()
}

impl OtherProcess {
    /// From /proc/PID/stat (proc(5)).
    fn of(stat: &str) -> Option<OtherProcess> {
        // The command's name may contain anything; it ends at the last parenthesis.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
        Some(OtherProcess {
            parent: u32::try_from(number(1)?).ok()?,
            is_kernels: number(6)? & KERNEL_THREAD != 0,
            ticks: number(11)? + number(12)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };

    use super::*;
    use crate::machine::process_ns;

    fn measured(all: &[(&str, f64, f64)]) -> Vec<(String, Others)> {
        let each = |(name, share, seconds): &(&str, f64, f64)| {
            ((*name).to_owned(), Others::new(*share, *seconds, 2))
        };
        all.iter().map(each).collect()
    }

    #[test]
    fn the_disturbed_measurement_is_named_though_most_were_not() {
        let mut all = measured(&[("reads", 0.01, 5.0); 20]);
        assert_eq!(told(&all, false), None);
        all.extend(measured(&[("writes", 0.4, 5.0), ("writes", 0.45, 5.0)]));
        let note = told(&all, true).expect("it is much");
        assert!(note.contains("(45 % during writes)"), "{note}");
        assert!(note.contains("--pid"), "{note}");
    }

    #[test]
    fn chance_in_short_measurements_is_not_taken_for_others() {
        // 60 ms are 12 samples: one or two more than there should be mean nothing.
        let short = measured(&[("short", 0.15, 0.06), ("other", 0.0, 0.06)]);
        assert_eq!(told(&short, false), None);
        // Many of them mean something together.
        let note = told(&measured(&[("short", 0.15, 0.06); 200]), false).expect("it is much");
        assert!(note.contains("15 % during short"), "{note}");
        assert_eq!(told(&[], false), None);
    }

    #[test]
    fn what_this_program_has_started_is_not_others() {
        let before = ours_ns();
        // A grandchild that has ended, and a child that is alive.
        let spin = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
        let mut child = Command::new("sh")
            .args([
                "-c",
                &format!("sh -c '{spin}'; {spin}; echo spun; read end"),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        let read = BufReader::new(output).read_line(&mut line);
        let (of_child_ns, of_both_ns) = (process_ns(child.id()), family_ns(child.id()));
        let used_ns = ours_ns() - before;
        drop(child.stdin.take());
        child.wait().expect("a child of ours");
        read.expect("it tells");
        assert!(of_both_ns > of_child_ns && of_child_ns > 0, "{of_both_ns}");
        assert!(used_ns >= of_both_ns, "{used_ns} of {of_both_ns}");
        assert!(ours_ns() - before >= of_both_ns, "it has ended and counts");
    }

    #[test]
    fn a_process_is_read_behind_any_name() {
        let stat = "7 (a) b (c) S 3 7 7 0 -1 2097216 0 0 0 0 20 3 500 60 20 0 2 0 9";
        let process = OtherProcess::of(stat).expect("it is whole");
        assert_eq!((process.parent, process.ticks), (3, 23));
        assert!(process.is_kernels);
        assert!(OtherProcess::of("").is_none());
    }
}
