//! Our own initiator as the client: at full speed for the second table, and with the first table's loads for
//! a comparison with libiscsi.

use std::{rc::Rc, time::Duration};

use engine::{Lane, task};
use volume::{IscsiConfig, IscsiDisk, Multipath, SharedVolume};

use super::{
    Case, Sample,
    peers::Peer,
    stock::{OurClientSample, StockCase},
    usage::{Usage, process_ns},
};
use crate::{
    Error, Result,
    load::{self, Stop, Workload},
};

/// Writes the peer's whole disk, so that no measurement pays for first touching memory.
pub(super) fn fill(lane: &Lane, peer: &Peer) -> Result<()> {
    lane.block_on(async {
        let disk = open(peer).await?;
        let filled = load::fill(&*disk).await;
        disk.close().await;
        filled.map_err(|error| Error::bench(format!("filling {}: {error}", peer.name)))
    })
}

/// Refuses a disk that holds data, which [`fill`] and the loads would overwrite.
pub(super) fn check_free(lane: &Lane, peer: &Peer) -> Result<()> {
    lane.block_on(async {
        let disk = open(peer).await?;
        let volume = disk.clone() as SharedVolume;
        let free = load::is_free_to_write(&volume).await;
        disk.close().await;
        match free {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Call(format!(
                "--with {}: {}/{} at {} holds data, and the benchmark writes to it: name an empty disk, or add \
                 --overwrite if all of its data may be lost",
                peer.name, peer.target, peer.lun, peer.address
            ))),
            Err(error) => Err(Error::bench(format!("reading {}: {error}", peer.name))),
        }
    })
}

/// One case on one peer.
pub(super) fn measure(
    lane: &Lane,
    peer: &Peer,
    case: Case,
    duration: Duration,
    core: usize,
) -> Result<Sample> {
    lane.block_on(async {
        let disks = task::join_all((0..case.sessions).map(|_| Box::pin(open(peer)))).await;
        let disks: Vec<Rc<IscsiDisk>> = disks.into_iter().collect::<Result<_>>()?;
        let volumes: Vec<SharedVolume> = disks.iter().map(|d| d.clone() as SharedVolume).collect();
        let failed = |error: volume::Error| Error::bench(format!("{}: {error}", peer.name));
        // Warm-up: fills caches and windows.
        load::run(&volumes, case.load, duration / 10, 0)
            .await
            .map_err(failed)?;
        let usage = Usage::begin(peer.pid, core);
        let done = load::run(&volumes, case.load, duration, 1)
            .await
            .map_err(failed)?;
        let sample = usage.end(&done);
        for disk in disks {
            disk.close().await;
        }
        Ok(sample)
    })
}

/// Runs a load of the first table on a peer with our own initiator. As with libiscsi, a warm-up of a tenth of
/// the time precedes it.
pub(super) fn measure_as_libiscsi(
    lane: &Lane,
    peer: &Peer,
    case: StockCase,
    duration: Duration,
) -> Result<OurClientSample> {
    let workload = case.workload();
    lane.block_on(async {
        let disk = open(peer).await?;
        let luns = [(disk.clone() as SharedVolume).into()];
        let run = async |workload: &Workload, duration| {
            let done = load::generate(&luns, workload, duration, &Stop::default()).await;
            done.map_err(|error| Error::bench(format!("{}: {error}", peer.name)))
        };
        let warm_up = Workload {
            seed: workload.seed + 1,
            ..workload.clone()
        };
        run(&warm_up, duration / 10).await?;
        let own = std::process::id();
        let before_ns = process_ns(own);
        let done = run(&workload, duration).await?;
        let spent = Duration::from_nanos(process_ns(own).saturating_sub(before_ns));
        disk.close().await;
        Ok(OurClientSample::new(&done, spent))
    })
}

pub(super) async fn open(peer: &Peer) -> Result<Rc<IscsiDisk>> {
    IscsiDisk::open(IscsiConfig {
        address: peer.address,
        target_name: peer.target.clone(),
        lun: peer.lun,
        initiator_name: "iqn.2026-11.io.sanstone:bench".into(),
        isid: volume::next_isid(),
        multipath: Multipath::default(),
        chap: None,
        header_digest: false,
        data_digest: false,
        stage_times: false,
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(30),
        reconnect_timeout: Duration::from_secs(1),
    })
    .await
    .map_err(|error| Error::bench(format!("{}: {error}", peer.name)))
}
