//! What the `iscsi` volumes of a configuration may have in common, as it is written in a table of its own: every setting but
//! the disk itself.

use serde::Deserialize;
use toml::Spanned;

use super::{config::Policy, path_settings::PathSettings};
use crate::values::{ChapAlgorithm, Credentials, Size, Time, Wait};

/// `[initiator]`. A disk that does not write a setting itself has that of this table; [`Iscsi`](super::settings::Iscsi) says
/// what each is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IscsiDefaults {
    /// The initiator's name.
    pub name: Option<Spanned<String>>,
    /// The paths to the target that all of them are on.
    pub paths: Option<Spanned<Vec<PathSettings>>>,
    /// The number of sessions with each.
    pub sessions: Option<Spanned<usize>>,
    /// How a command chooses among them.
    pub policy: Option<Policy>,
    /// The TCP congestion control algorithm.
    pub congestion: Option<String>,
    /// A time limit.
    pub user_timeout: Option<Spanned<Time>>,
    /// The size of a buffer.
    pub send_buffer: Option<Spanned<Size>>,
    /// The size of a buffer.
    pub receive_buffer: Option<Spanned<Size>>,
    /// A time limit.
    pub wait_at_start: Option<Spanned<Time>>,
    /// The credentials that authenticate us.
    pub chap: Option<Spanned<Credentials>>,
    /// The credentials that authenticate the target.
    pub mutual: Option<Spanned<Credentials>>,
    /// The algorithms to offer.
    pub chap_algorithms: Option<Spanned<Vec<ChapAlgorithm>>>,
    /// Requests header digests.
    pub header_digest: Option<bool>,
    /// Requests data digests.
    pub data_digest: Option<bool>,
    /// A time limit.
    pub connect_timeout: Option<Spanned<Time>>,
    /// A time limit.
    pub request_timeout: Option<Spanned<Time>>,
    /// A time limit.
    pub ping_timeout: Option<Spanned<Time>>,
    /// A time limit.
    pub reconnect_timeout: Option<Spanned<Wait>>,
}
