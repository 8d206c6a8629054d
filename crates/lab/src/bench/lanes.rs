//! Measures one LUN served by two lanes: the CPU time of an I/O compared with one lane, and how the work is
//! divided between the lanes. Client and target together have only two cores, so throughput cannot show this;
//! the target's CPU time can.
//!
//! A target with one lane is measured twice: on a core of its own, and on a core shared with its client, as
//! each of two lanes has to do. The first shows the total cost of two lanes, the second the cost of sharing
//! the LUN alone.

use std::{rc::Rc, thread, time::Duration};

use engine::{Lane, LaneConfig, task};
use serde::Serialize;
use volume::{IscsiDisk, SharedVolume};

use super::{
    Case, Settings, case,
    own::{fill, open},
    peers::{Cores, Medium, Peer, Places, pin, pin_to},
    usage,
};
use crate::{
    Error, Result,
    load::{self, Operation, Order},
    statistics::Median,
};

/// What the report calls it.
pub(super) const NAME: &str = "4K random read, depth 32, one LUN over two lanes";
const CASE: Case = case(NAME, Operation::Read, Order::Random, 4096, 2, 32);

/// What each set-up cost.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Lanes {
    pub(super) setups: Vec<SetupReport>,
}

/// One set-up: a number of lanes on given cores, and clients on given cores, each client with two sessions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SetupReport {
    pub(super) name: &'static str,
    pub(super) samples: Vec<LanesSample>,
}

/// One run of a set-up.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LanesSample {
    /// I/Os per second.
    pub(super) iops: f64,
    /// CPU time of the target's process per I/O, in microseconds.
    pub(super) target_us: f64,
    /// Each lane's share of the lanes' CPU time, largest first.
    pub(super) shares: Vec<f64>,
}

impl Lanes {
    pub(super) fn target_us(&self, setup: usize) -> f64 {
        self.median(setup, |sample| sample.target_us)
    }

    pub(super) fn iops(&self, setup: usize) -> f64 {
        self.median(setup, |sample| sample.iops)
    }

    /// The busiest lane's share of the work.
    pub(super) fn greatest_share(&self, setup: usize) -> f64 {
        self.median(setup, |sample| {
            sample.shares.first().copied().unwrap_or(f64::NAN)
        })
    }

    fn median(&self, setup: usize, of: impl Fn(&LanesSample) -> f64) -> f64 {
        Median::of_each(&self.setups[setup].samples, of).median
    }
}

/// Measures the three set-ups in turn.
pub(super) fn run(
    settings: &Settings,
    cores: &Cores,
    places: &Places,
    told: &mut impl FnMut(&str),
) -> Result<Lanes> {
    let setups = [
        ("1 lane", vec![cores.target], vec![cores.client]),
        ("1, shared core", vec![cores.target], vec![cores.target]),
        (
            "2 lanes",
            vec![cores.target, cores.client],
            vec![cores.target, cores.client],
        ),
    ];
    let mut peers = Vec::new();
    for (name, target_cores, _) in &setups {
        pin_to(target_cores)?;
        let peer = Peer::sanstone(
            &settings.binary,
            target_cores.len(),
            Medium::Memory,
            None,
            places,
        )?;
        pin(cores.client)?;
        told(&format!("{NAME}: filling the disk of {name}"));
        let lane =
            Lane::new(&LaneConfig::default()).map_err(|e| Error::bench_io("starting a lane", e))?;
        fill(&lane, &peer)?;
        peers.push(peer);
    }
    let mut reports: Vec<SetupReport> = setups
        .iter()
        .map(|(name, ..)| SetupReport {
            name,
            samples: Vec::new(),
        })
        .collect();
    for round in 0..settings.rounds {
        told(&format!(
            "round {} of {}: {NAME}",
            round + 1,
            settings.rounds
        ));
        for ((report, peer), (_, _, client_cores)) in reports.iter_mut().zip(&peers).zip(&setups) {
            report.samples.push(measure(settings, peer, client_cores)?);
        }
    }
    Ok(Lanes { setups: reports })
}

/// One run: one thread with two sessions on each of the client's cores. The figures include the login, which
/// is negligible.
fn measure(settings: &Settings, peer: &Peer, client_cores: &[usize]) -> Result<LanesSample> {
    let (process_ns, lanes_ns) = (usage::process_ns(peer.pid), usage::lanes_ns(peer.pid));
    let done: Vec<load::Done> = thread::scope(|scope| {
        let clients: Vec<_> = client_cores
            .iter()
            .map(|&core| scope.spawn(move || client(peer, core, settings.duration)))
            .collect();
        let ended = clients.into_iter().map(|client| {
            let ended = client.join();
            ended.map_err(|_| Error::bench("a client's thread panicked"))?
        });
        ended.collect::<Result<_>>()
    })?;
    let ios: u64 = done.iter().map(|done| done.ios).sum();
    let iops = done.iter().map(load::Done::iops).sum();
    let spent = usage::process_ns(peer.pid).saturating_sub(process_ns);
    let spent_by_lane = usage::lanes_ns(peer.pid)
        .into_iter()
        .map(|(id, ns)| ns.saturating_sub(lanes_ns.get(&id).copied().unwrap_or(0)))
        .collect();
    Ok(LanesSample {
        iops,
        target_us: spent as f64 / 1e3 / ios.max(1) as f64,
        shares: shares(spent_by_lane),
    })
}

fn client(peer: &Peer, core: usize, duration: Duration) -> Result<load::Done> {
    pin(core)?;
    let lane =
        Lane::new(&LaneConfig::default()).map_err(|e| Error::bench_io("starting a lane", e))?;
    lane.block_on(async {
        let disks = task::join_all((0..CASE.sessions).map(|_| Box::pin(open(peer)))).await;
        let disks: Vec<Rc<IscsiDisk>> = disks.into_iter().collect::<Result<_>>()?;
        let volumes: Vec<SharedVolume> = disks.iter().map(|d| d.clone() as SharedVolume).collect();
        let done = load::run(&volumes, CASE.load, duration, 0).await;
        for disk in disks {
            disk.close().await;
        }
        done.map_err(|error| Error::bench(format!("{NAME}: {error}")))
    })
}

/// Each one's share of the total, largest first.
fn shares(mut spent: Vec<u64>) -> Vec<f64> {
    spent.sort_unstable_by(|a, b| b.cmp(a));
    let all = spent.iter().sum::<u64>().max(1);
    spent.into_iter().map(|ns| ns as f64 / all as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_parts_of_all_the_greatest_first() {
        assert_eq!(shares(vec![10, 30]), [0.75, 0.25]);
        assert_eq!(shares(vec![0, 0]), [0.0, 0.0]);
    }
}
