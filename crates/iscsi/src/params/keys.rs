//! The negotiable keys: name, range, result function, and whether the key is relevant in a discovery session (RFC
//! 7143 §13, table of §13 "Text Keys").

use super::{OperationalConfig, SessionParameters};

/// The keys that both sides negotiate or declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParameterKey {
    HeaderDigest,
    DataDigest,
    MaxConnections,
    InitialR2T,
    ImmediateData,
    MaxRecvDataSegmentLength,
    MaxBurstLength,
    FirstBurstLength,
    DefaultTime2Wait,
    DefaultTime2Retain,
    MaxOutstandingR2T,
    DataPduInOrder,
    DataSequenceInOrder,
    ErrorRecoveryLevel,
    TaskReporting,
    ProtocolLevel,
    IfMarker,
    OfMarker,
    IfMarkInt,
    OfMarkInt,
    StageTimes,
}

/// How the values of both sides combine into one (RFC 7143 §6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A list in order of preference; None and CRC32C are supported.
    Digest,
    /// Yes if either side says Yes.
    Or,
    /// Yes if both sides say Yes.
    And,
    /// The smaller number, within a range.
    Minimum(u32, u32),
    /// The larger number, within a range.
    Maximum(u32, u32),
    /// Each side declares its own value, within a range; not answered.
    Declared(u32, u32),
    /// Always answered with this value: obsolete keys (§13, "IFMarker ..."), and keys with a fixed result.
    Fixed(&'static str),
}

const SEGMENT_MAX: u32 = (1 << 24) - 1;

/// Name, key, rule, and whether it is irrelevant in a discovery session.
const TABLE: [(&str, ParameterKey, Rule, bool); 21] = [
    (
        "HeaderDigest",
        ParameterKey::HeaderDigest,
        Rule::Digest,
        false,
    ),
    ("DataDigest", ParameterKey::DataDigest, Rule::Digest, false),
    (
        "MaxConnections",
        ParameterKey::MaxConnections,
        Rule::Minimum(1, 65535),
        true,
    ),
    ("InitialR2T", ParameterKey::InitialR2T, Rule::Or, true),
    (
        "ImmediateData",
        ParameterKey::ImmediateData,
        Rule::And,
        true,
    ),
    (
        "MaxRecvDataSegmentLength",
        ParameterKey::MaxRecvDataSegmentLength,
        Rule::Declared(512, SEGMENT_MAX),
        false,
    ),
    (
        "MaxBurstLength",
        ParameterKey::MaxBurstLength,
        Rule::Minimum(512, SEGMENT_MAX),
        true,
    ),
    (
        "FirstBurstLength",
        ParameterKey::FirstBurstLength,
        Rule::Minimum(512, SEGMENT_MAX),
        true,
    ),
    (
        "DefaultTime2Wait",
        ParameterKey::DefaultTime2Wait,
        Rule::Maximum(0, 3600),
        false,
    ),
    (
        "DefaultTime2Retain",
        ParameterKey::DefaultTime2Retain,
        Rule::Minimum(0, 3600),
        false,
    ),
    (
        "MaxOutstandingR2T",
        ParameterKey::MaxOutstandingR2T,
        Rule::Minimum(1, 65535),
        true,
    ),
    (
        "DataPDUInOrder",
        ParameterKey::DataPduInOrder,
        Rule::Or,
        true,
    ),
    (
        "DataSequenceInOrder",
        ParameterKey::DataSequenceInOrder,
        Rule::Or,
        true,
    ),
    (
        "ErrorRecoveryLevel",
        ParameterKey::ErrorRecoveryLevel,
        Rule::Minimum(0, 2),
        false,
    ),
    (
        "TaskReporting",
        ParameterKey::TaskReporting,
        Rule::Fixed("RFC3720"),
        true,
    ),
    (
        "iSCSIProtocolLevel",
        ParameterKey::ProtocolLevel,
        Rule::Minimum(0, 31),
        true,
    ),
    // Obsolete. For the first two, "No" is allowed besides "Reject", and RFC 3720 initiators expect it. The intervals
    // must be rejected; NotUnderstood is forbidden for all of them.
    ("IFMarker", ParameterKey::IfMarker, Rule::Fixed("No"), false),
    ("OFMarker", ParameterKey::OfMarker, Rule::Fixed("No"), false),
    (
        "IFMarkInt",
        ParameterKey::IfMarkInt,
        Rule::Fixed("Reject"),
        false,
    ),
    (
        "OFMarkInt",
        ParameterKey::OfMarkInt,
        Rule::Fixed("Reject"),
        false,
    ),
    // A private extension (§13.22), named after the reversed domain of the project.
    (
        "X-io.sanstone.StageTimes",
        ParameterKey::StageTimes,
        Rule::And,
        true,
    ),
];

/// The names of all of them.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|entry| entry.0)
}

impl ParameterKey {
    /// The keys that an initiator offers, in this order, unless [not worth offering](Key::is_offered).
    pub(crate) const OFFERED: [ParameterKey; 15] = [
        ParameterKey::HeaderDigest,
        ParameterKey::DataDigest,
        ParameterKey::ErrorRecoveryLevel,
        ParameterKey::MaxRecvDataSegmentLength,
        ParameterKey::DefaultTime2Wait,
        ParameterKey::DefaultTime2Retain,
        ParameterKey::MaxConnections,
        ParameterKey::InitialR2T,
        ParameterKey::ImmediateData,
        ParameterKey::MaxBurstLength,
        ParameterKey::FirstBurstLength,
        ParameterKey::MaxOutstandingR2T,
        ParameterKey::DataPduInOrder,
        ParameterKey::DataSequenceInOrder,
        ParameterKey::StageTimes,
    ];

    /// Whether an initiator with this configuration offers the key. Keys outside the RFC are offered only if the
    /// configuration asks for them.
    pub(crate) fn is_offered(self, config: &OperationalConfig) -> bool {
        self != ParameterKey::StageTimes || config.stage_times
    }

    pub(crate) fn from_name(name: &str) -> Option<ParameterKey> {
        TABLE
            .iter()
            .find(|entry| entry.0 == name)
            .map(|entry| entry.1)
    }

    fn entry(self) -> &'static (&'static str, ParameterKey, Rule, bool) {
        // The table is in the order of the variants (a test checks it).
        &TABLE[self as usize]
    }

    pub(crate) fn name(self) -> &'static str {
        self.entry().0
    }

    pub(crate) fn rule(self) -> Rule {
        self.entry().2
    }

    pub(crate) fn irrelevant_in_discovery(self) -> bool {
        self.entry().3
    }

    /// The configured value; booleans as 0 and 1.
    pub(crate) fn wanted(self, config: &OperationalConfig) -> u32 {
        match self {
            ParameterKey::HeaderDigest => config.header_digest.into(),
            ParameterKey::DataDigest => config.data_digest.into(),
            ParameterKey::InitialR2T => config.initial_r2t.into(),
            ParameterKey::ImmediateData => config.immediate_data.into(),
            ParameterKey::MaxRecvDataSegmentLength => config.max_recv_data_segment_length,
            ParameterKey::MaxBurstLength => config.max_burst_length,
            ParameterKey::FirstBurstLength => {
                config.first_burst_length.min(config.max_burst_length)
            }
            ParameterKey::DefaultTime2Wait => config.default_time2wait_s.into(),
            ParameterKey::DefaultTime2Retain => config.default_time2retain_s.into(),
            ParameterKey::MaxOutstandingR2T => config.max_outstanding_r2t.into(),
            ParameterKey::MaxConnections
            | ParameterKey::DataPduInOrder
            | ParameterKey::DataSequenceInOrder => 1,
            ParameterKey::ProtocolLevel => 1,
            ParameterKey::ErrorRecoveryLevel | ParameterKey::TaskReporting => 0,
            ParameterKey::IfMarker
            | ParameterKey::OfMarker
            | ParameterKey::IfMarkInt
            | ParameterKey::OfMarkInt => 0,
            ParameterKey::StageTimes => config.stage_times.into(),
        }
    }

    /// Stores the agreed value; for a declared key, the peer's.
    pub(crate) fn store(self, value: u32, parameters: &mut SessionParameters) {
        match self {
            ParameterKey::HeaderDigest => parameters.digests.header = value != 0,
            ParameterKey::DataDigest => parameters.digests.data = value != 0,
            ParameterKey::InitialR2T => parameters.initial_r2t = value != 0,
            ParameterKey::ImmediateData => parameters.immediate_data = value != 0,
            ParameterKey::MaxRecvDataSegmentLength => {
                parameters.max_send_data_segment_length = value
            }
            ParameterKey::MaxBurstLength => parameters.max_burst_length = value,
            ParameterKey::FirstBurstLength => parameters.first_burst_length = value,
            ParameterKey::DefaultTime2Wait => parameters.default_time2wait_s = value as u16,
            ParameterKey::DefaultTime2Retain => parameters.default_time2retain_s = value as u16,
            ParameterKey::MaxOutstandingR2T => parameters.max_outstanding_r2t = value as u16,
            ParameterKey::StageTimes => parameters.stage_times = value != 0,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_keys() {
        for (index, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.1 as usize, index, "{}", entry.0);
            assert_eq!(ParameterKey::from_name(entry.0), Some(entry.1));
        }
    }
}
