//! One LUN served by two lanes: the CPU time of an I/O compared with one lane, and how the work is divided. Client and
//! target together have only two cores, so throughput cannot show this; the target's CPU time can. A target with one lane
//! is measured twice: on a core of its own, and on one shared with its client, as each of two lanes has to do. The first
//! shows the total cost of two lanes, the second that of sharing the LUN alone.

use crate::clients::{own, spent_us};
use crate::target::{Medium, Target};
use crate::{Cores, pin};
use harness::libiscsi::Done;
use harness::samples::Samples;
use lab::load::{Operation, Workload};
use std::path::Path;
use std::thread;

pub(crate) const NAME: &str = "4K random read, depth 32, one LUN over two lanes";

/// A number of lanes on some cores, and two sessions on each of some cores.
struct Setup {
    name: &'static str,
    target: Target,
    client_cores: Vec<usize>,
}

pub(crate) fn run(cores: &Cores, directory: &Path, rounds: usize, seconds: f64) -> Samples {
    let both = vec![cores.target, cores.client];
    let setups = [
        ("1 lane", vec![cores.target], vec![cores.client]),
        ("1, shared core", vec![cores.target], vec![cores.target]),
        ("2 lanes", both.clone(), both),
    ];
    let setups = setups.map(|(name, target_cores, client_cores)| {
        pin(&target_cores);
        let target = Target::own(target_cores.len(), Medium::Memory, None, directory);
        pin(&[cores.client]);
        target.fill();
        Setup {
            name,
            target,
            client_cores,
        }
    });
    let mut samples = Samples::default();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}: {NAME}", round + 1);
        for setup in &setups {
            setup.measure(seconds, &mut samples);
        }
    }
    println!("\n{NAME}");
    for Setup { name, .. } in &setups {
        let median = |figure| samples.median(&format!("{name}, {figure}"));
        let [iops, us, share] = ["IOPS", "target µs", "busiest lane %"].map(median);
        if let (Some(iops), Some(us), Some(share)) = (iops, us, share) {
            println!("  {name:<14} {iops} IOPS, target {us} µs/IO, busiest lane {share} %");
        }
    }
    samples
}

impl Setup {
    /// The figures include the logins, which are negligible.
    fn measure(&self, seconds: f64, samples: &mut Samples) {
        let pid = self.target.pid;
        let (before_us, lanes_before) = (spent_us(pid), lanes_ns(pid));
        let load = Workload::closed(Operation::Read, 4096, 2 * 32);
        let done: Vec<Done> = thread::scope(|scope| {
            let clients = self.client_cores.iter().map(|&core| {
                let load = &load;
                scope.spawn(move || {
                    pin(&[core]);
                    own(&self.target, load, 2, seconds)
                })
            });
            let clients: Vec<_> = clients.collect();
            let done = clients.into_iter().map(|client| client.join());
            done.map(|done| done.expect("a client's load")).collect()
        });
        // Of the warm-ups as well.
        let ios: f64 = done.iter().map(|done| done.iops * seconds * 1.1).sum();
        let lanes = lanes_ns(pid).into_iter().zip(lanes_before);
        let lanes: Vec<f64> = lanes.map(|(after, before)| after - before).collect();
        let busiest = lanes.iter().copied().fold(0.0, f64::max) / lanes.iter().sum::<f64>();
        let mut note = |figure, value| samples.note(format!("{}, {figure}", self.name), value);
        note("IOPS", done.iter().map(|done| done.iops).sum());
        note("target µs", (spent_us(pid) - before_us) / ios);
        note("busiest lane %", busiest * 100.0);
    }
}

/// CPU time of each lane of a `sanstone` process, in nanoseconds, always in the same order. The first lane is the main
/// thread; the others have names.
fn lanes_ns(pid: u32) -> Vec<f64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process that runs");
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let lanes = tasks.filter_map(|task| {
        let task = task.ok()?.path();
        let is_first = task.ends_with(pid.to_string());
        let is_lane = is_first || read(task.join("comm")).starts_with("lane-");
        let spent = read(task.join("schedstat"));
        let spent_ns = spent.split(' ').next()?.parse().ok()?;
        is_lane.then_some((task, spent_ns))
    });
    let mut lanes: Vec<(_, f64)> = lanes.collect();
    lanes.sort_by(|one, other| one.0.cmp(&other.0));
    lanes.into_iter().map(|(_, spent_ns)| spent_ns).collect()
}
