//! The login phase (RFC 7143 §6.3, §11.12, §11.13): code shared by both roles. The stages are SecurityNegotiation,
//! LoginOperationalNegotiation and FullFeaturePhase; `target` and `initiator` implement the two ends, `chap` the
//! authentication in the first stage.

mod chap;
mod initiator;
mod request;
mod target;

pub use chap::{Authentication, Chap, ChapAccount, ChapAlgorithm, ChapSecret, Taken};
pub(crate) use initiator::{InitiatorLogin, InitiatorStep};
pub use request::{LoginReport, LoginRequest};
pub(crate) use target::{TargetLogin, TargetStep};

pub(crate) use crate::pdu::CONTINUE;

/// The stages as encoded in CSG and NSG (RFC 7143 §11.12.3).
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
pub(crate) const FULL_FEATURE: u8 = 3;
/// The T bit: ready to leave the stage.
pub(crate) const TRANSIT: u8 = 0x80;

/// Longest data segment in the login phase: the default MaxRecvDataSegmentLength.
pub(crate) const LOGIN_TEXT_LEN_MAX: usize = 8192;

/// The names of all keys that are understood in some phase, for tests that send each of them.
pub fn all_keys() -> impl Iterator<Item = &'static str> {
    crate::params::names().chain(chap::KEYS)
}

/// The T bit and NSG of a login PDU.
#[derive(Clone, Copy, Debug)]
struct Transition {
    transit: bool,
    next: u8,
}

impl Transition {
    /// The current stage (CSG) and the requested transition.
    fn of(flags: u8) -> (u8, Transition) {
        (
            flags >> 2 & 3,
            Transition {
                transit: flags & TRANSIT != 0,
                next: flags & 3,
            },
        )
    }

    fn is_legal_after(self, current: u8) -> bool {
        self.next > current && matches!(self.next, OPERATIONAL | FULL_FEATURE)
    }
}

/// Initiator part of the session identifier, ISID: six bytes (RFC 7143 §11.12.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Isid(pub [u8; 6]);

impl Isid {
    /// An ISID of the "random" format: 24 bits that distinguish the initiators of different hosts, and a qualifier
    /// that distinguishes their sessions.
    pub fn random(host: [u8; 3], qualifier: u16) -> Isid {
        let [high, low] = qualifier.to_be_bytes();
        Isid([0x80, host[0], host[1], host[2], high, low])
    }
}

/// What a session is for (RFC 7143 §13.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionType {
    /// For SCSI commands.
    Normal,
    /// For SendTargets only.
    Discovery,
}
