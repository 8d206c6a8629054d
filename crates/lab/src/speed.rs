//! How fast something went: what two measurements are compared by, whoever made them.

use serde::Serialize;

/// The speed of something, for comparisons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Speed {
    /// Operations per second.
    pub(crate) per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// The mean and quantiles of the service time, where it is known: from when an I/O was sent. In an open loop `p50_us` and `p99_us`
    /// count from when it was due, except for fio's, which does not know that moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_mean_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_p99_us: Option<f64>,
    /// Arrivals of an open loop that had not started when the time was over, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_begun: Option<u64>,
    /// Operations per second for each percent of a processor that the watched process took.
    pub(crate) per_percent: Option<f64>,
}
