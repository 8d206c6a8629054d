//! The cross-check: the same load by libiscsi's own load generator, so that our figures do not rest
//! on our own initiator alone; and what that client costs beside ours.

use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use super::{
    Case, Sample, case,
    peers::{Cores, Peer},
    usage::{self, Usage},
};
use crate::{
    Error, Result,
    load::{Operation, Order},
};

/// What the report calls it.
pub(super) const NAME: &str = "cross-check by iscsi-perf, 4K random read, depth 32";
/// The load: iscsi-perf is told the same.
pub(super) const CASE: Case = case(NAME, Operation::Read, Order::Random, 4096, 1, 32);
/// For how long each of the two runs; iscsi-perf counts in whole seconds.
pub(super) const DURATION: Duration = Duration::from_secs(2);

/// What iscsi-perf found, and our own initiator right before it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CrossCheck {
    /// I/Os per second.
    pub iops: f64,
    /// CPU time of the target's process per I/O, in microseconds.
    pub target_us: f64,
    /// CPU time of iscsi-perf per I/O, in microseconds.
    pub client_us: f64,
    /// The same load by our initiator.
    pub own: Sample,
}

impl CrossCheck {
    /// Our initiator's CPU time per I/O as a part of libiscsi's.
    pub(super) fn client_ratio(&self) -> f64 {
        self.own.client_us / self.client_us
    }
}

/// Runs iscsi-perf on a peer; `None` where it is not installed.
pub(super) fn run(peer: &Peer, own: Sample, cores: &Cores) -> Result<Option<CrossCheck>> {
    let children_ns = usage::children_ns();
    let usage = Usage::begin(peer.pid, cores.target);
    let output = Command::new("timeout")
        .args(["10", "iscsi-perf", "-r", "-b", "8", "-m", "32", "-t"])
        .arg(DURATION.as_secs().to_string())
        .arg(format!(
            "iscsi://{}/{}/{}",
            peer.address, peer.target, peer.lun
        ))
        .output()
        .map_err(|e| Error::bench_io("iscsi-perf", e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(iops) = average_iops(&text) else {
        return Ok(None);
    };
    let ios = iops * DURATION.as_secs_f64();
    let client_ns = usage::children_ns().saturating_sub(children_ns);
    Ok(Some(CrossCheck {
        iops,
        target_us: usage.target_us(ios as u64),
        client_us: client_ns as f64 / 1e3 / ios.max(1.0),
        own,
    }))
}

/// The figure behind the last "iops average".
fn average_iops(text: &str) -> Option<f64> {
    let (_, rest) = text.rsplit_once("iops average ")?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}
