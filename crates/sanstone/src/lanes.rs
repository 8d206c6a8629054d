//! Starts one thread for each CPU that this process may use, pinned to it and driving one lane. If another
//! number of lanes is configured, the threads are not pinned: only the scheduler knows which CPUs are free.

use std::{
    sync::mpsc,
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};
use engine::{
    Lane, LaneConfig, LaneHandle, Waiting,
    cross::{Sender, channel},
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The calling thread's lane and the threads of the others.
pub(crate) struct Lanes {
    /// The calling thread's lane; the caller drives it.
    pub(crate) first: Lane,
    others: Vec<(LaneHandle, Sender<()>, JoinHandle<()>)>,
}

impl Lanes {
    /// Starts `count` lanes, or one for each CPU of the affinity mask. The first belongs to the
    /// calling thread.
    pub(crate) fn start(count: Option<usize>, waiting: Waiting) -> Result<Lanes> {
        let config = LaneConfig {
            waiting,
            ..LaneConfig::default()
        };
        let mask = sched_getaffinity(None).context("asking for the CPUs of this process")?;
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|&cpu| mask.is_set(cpu))
            .collect();
        let count = count.unwrap_or(cpus.len()).max(1);
        let mut cpu_of_lane = cpus.iter().copied().cycle();
        let pinned = count == cpus.len();
        if let (true, Some(cpu)) = (pinned, cpu_of_lane.next()) {
            pin(cpu);
        }
        let first = Lane::new(&config).context("starting a lane")?;
        let mut others = Vec::new();
        for (index, cpu) in (1..count).zip(cpu_of_lane) {
            others.push(start_thread(index, &config, pinned.then_some(cpu))?);
        }
        Ok(Lanes { first, others })
    }

    /// Reaches every lane, the first one first.
    pub(crate) fn handles(&self) -> Vec<LaneHandle> {
        let others = self.others.iter().map(|(handle, ..)| handle.clone());
        std::iter::once(self.first.handle()).chain(others).collect()
    }

    /// Ends the other lanes' threads.
    pub(crate) fn stop(self) {
        for (_, stop, thread) in self.others {
            drop(stop);
            // A lane that panicked has already ended the process.
            let _ = thread.join();
        }
    }
}

fn start_thread(
    index: usize,
    config: &LaneConfig,
    cpu: Option<usize>,
) -> Result<(LaneHandle, Sender<()>, JoinHandle<()>)> {
    let config = config.clone();
    let (started, handle) = mpsc::channel();
    let (stop, stopped) = channel::<()>();
    let thread = thread::Builder::new()
        .name(format!("lane-{index}"))
        .spawn(move || {
            if let Some(cpu) = cpu {
                pin(cpu);
            }
            match Lane::new(&config) {
                Ok(lane) => {
                    let _ = started.send(Ok(lane.handle()));
                    lane.block_on(stopped.receive());
                }
                Err(error) => drop(started.send(Err(error))),
            }
        })?;
    let handle = handle
        .recv()
        .context("a lane's thread ended")?
        .context("starting a lane")?;
    Ok((handle, stop, thread))
}

/// Pins the current thread to one CPU. If that is refused, it runs unpinned.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "a lane could not be pinned to its CPU");
    }
}
