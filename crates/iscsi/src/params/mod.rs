//! Operational parameters of a session (RFC 7143 §13): the configured wishes of one side, and the values both sides
//! agreed on. `keys` defines each key's range and result function, `negotiate` the exchange.

mod keys;
mod negotiate;
#[cfg(test)]
mod tests;

use crate::frame::Digests;
pub(crate) use negotiate::Negotiation;

/// The keys of RFC 7143 §13 that are not negotiated.
const OTHERS: [&str; 9] = [
    "AuthMethod",
    "InitiatorName",
    "InitiatorAlias",
    "TargetName",
    "TargetAlias",
    "TargetAddress",
    "TargetPortalGroupTag",
    "SessionType",
    "SendTargets",
];

/// Whether RFC 7143 defines a key with this name, in any phase.
pub(crate) fn is_known(name: &str) -> bool {
    keys::ParameterKey::from_name(name).is_some() || OTHERS.contains(&name)
}

/// The names of all keys that are not about authentication.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    keys::names().chain(OTHERS)
}

/// The values this side asks for; the peer may lower them (RFC 7143 §13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationalConfig {
    /// HeaderDigest, §13.1: `true` prefers CRC32C; `false` prefers None as initiator, and accepts only None as
    /// target.
    pub header_digest: bool,
    /// DataDigest, §13.1: the same.
    pub data_digest: bool,
    /// InitialR2T, §13.10: `true` forbids unsolicited Data-Out (result: OR).
    pub initial_r2t: bool,
    /// ImmediateData, §13.11: `true` allows data in the command PDU (result: AND).
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength that we declare, §13.12: 512 to 2^24 - 1 bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxBurstLength, §13.13: 512 to 2^24 - 1 bytes (result: minimum).
    pub max_burst_length: u32,
    /// FirstBurstLength, §13.14: 512 to 2^24 - 1 bytes (result: minimum).
    pub first_burst_length: u32,
    /// DefaultTime2Wait, §13.15: 0 to 3600 s (result: maximum).
    pub default_time2wait_s: u16,
    /// DefaultTime2Retain, §13.16: 0 to 3600 s (result: minimum).
    pub default_time2retain_s: u16,
    /// MaxOutstandingR2T, §13.17: 1 to 65535 (result: minimum).
    pub max_outstanding_r2t: u16,
    /// X-io.sanstone.StageTimes, a private extension (§13.22): `true` offers it as initiator and accepts it as
    /// target, so that commands may ask for their [`StageTimes`](crate::StageTimes) (result: AND).
    pub stage_times: bool,
}

impl Default for OperationalConfig {
    /// Suits a database's disk: writes up to 256 KiB travel with their command; segments of 512 KiB, bursts of 1 MiB,
    /// no digests.
    fn default() -> OperationalConfig {
        OperationalConfig {
            header_digest: false,
            data_digest: false,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: 512 * 1024,
            max_burst_length: 1024 * 1024,
            first_burst_length: 256 * 1024,
            default_time2wait_s: 2,
            default_time2retain_s: 0,
            max_outstanding_r2t: 4,
            stage_times: false,
        }
    }
}

/// The agreed parameters. MaxConnections is always 1, ErrorRecoveryLevel 0, DataPDUInOrder and DataSequenceInOrder
/// Yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionParameters {
    /// The digests of all PDUs after login, in both directions.
    pub digests: Digests,
    /// Whether unsolicited Data-Out PDUs are forbidden.
    pub initial_r2t: bool,
    /// Whether a command PDU may carry data.
    pub immediate_data: bool,
    /// Longest data segment this side accepts, in bytes.
    pub max_recv_data_segment_length: u32,
    /// Longest data segment the peer accepts, in bytes.
    pub max_send_data_segment_length: u32,
    /// Longest sequence of Data-In, or of Data-Out for one R2T, in bytes.
    pub max_burst_length: u32,
    /// Maximum unsolicited data per command, immediate data included, in bytes.
    pub first_burst_length: u32,
    /// Seconds to wait before logging in again after a dropped connection.
    pub default_time2wait_s: u16,
    /// Seconds for which tasks are kept after a dropped connection.
    pub default_time2retain_s: u16,
    /// Maximum number of open R2Ts per command.
    pub max_outstanding_r2t: u16,
    /// Whether commands may ask for their [`StageTimes`](crate::StageTimes).
    pub stage_times: bool,
}

impl Default for SessionParameters {
    /// The defaults of RFC 7143 §13 for keys that were not negotiated.
    fn default() -> SessionParameters {
        SessionParameters {
            digests: Digests::default(),
            initial_r2t: true,
            immediate_data: true,
            max_recv_data_segment_length: 8192,
            max_send_data_segment_length: 8192,
            max_burst_length: 262_144,
            first_burst_length: 65_536,
            default_time2wait_s: 2,
            default_time2retain_s: 20,
            max_outstanding_r2t: 1,
            stage_times: false,
        }
    }
}
