//! The login phase (RFC 7143 §6.3, §11.12, §11.13): what both roles share. Stages go from
//! SecurityNegotiation over LoginOperationalNegotiation to FullFeaturePhase; `target` and
//! `initiator` hold the two ends.

mod status;

pub use status::LoginStatus;

/// Initiator part of the session identifier, ISID: six bytes (RFC 7143 §11.12.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Isid(pub [u8; 6]);

impl Isid {
    /// An ISID of the "random" format: 24 bits that tell initiators of one host apart and a
    /// qualifier that tells their sessions apart.
    pub fn random(host: [u8; 3], qualifier: u16) -> Isid {
        let [high, low] = qualifier.to_be_bytes();
        Isid([0x80, host[0], host[1], host[2], high, low])
    }
}

/// What a session is for (RFC 7143 §13.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionType {
    /// SCSI commands.
    Normal,
    /// SendTargets only.
    Discovery,
}
