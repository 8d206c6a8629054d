//! Text.

/// One target of a discovery answer (RFC 7143 Appendix C).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRecord {
    /// TargetName, an iSCSI name.
    pub name: String,
    /// TargetAddress values: `domainname[:port][,portal-group-tag]`; IPv6 in brackets.
    pub addresses: Vec<String>,
}
