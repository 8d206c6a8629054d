//! What can go wrong: refusals a driver gets from a call, and why a connection ended.

use crate::status::LoginStatus;

/// An error of this crate: something the peer sent, or a call the machine cannot follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A data segment beyond what we declared (RFC 7143 §13.12).
    #[error(
        "the peer announced a data segment of {len} bytes in a PDU with opcode {opcode:#04x}, \
         but at most {max} are accepted"
    )]
    DataSegmentTooLong {
        /// Opcode of the PDU.
        opcode: u8,
        /// Announced length in bytes.
        len: u32,
        /// The bound in bytes.
        max: u32,
    },
    /// Additional header segments longer than any known use (RFC 7143 §11.2.1.5).
    #[error("the peer announced {len} bytes of additional headers; at most {max} are accepted")]
    AhsTooLong {
        /// Announced length in bytes.
        len: u32,
        /// The bound in bytes.
        max: u32,
    },
    /// The header digest does not match (RFC 7143 §7.7).
    #[error(
        "header digest {received:#010x} received, {computed:#010x} computed: damaged in transit"
    )]
    HeaderDigest {
        /// As received.
        received: u32,
        /// Over the bytes received.
        computed: u32,
    },
    /// The data digest does not match (RFC 7143 §7.7).
    #[error("data digest {received:#010x} received, {computed:#010x} computed: damaged in transit")]
    DataDigest {
        /// As received.
        received: u32,
        /// Over the bytes received.
        computed: u32,
    },
    /// An opcode that this role does not take.
    #[error("the peer sent a PDU with opcode {opcode:#04x}, which is not allowed {phase}")]
    UnexpectedOpcode {
        /// The opcode, six bits.
        opcode: u8,
        /// When it came.
        phase: &'static str,
    },
    /// A header field whose value breaks the protocol.
    #[error("the peer sent {field} {value:#x} in a {pdu} PDU: {why}")]
    Field {
        /// The PDU's name.
        pdu: &'static str,
        /// The field's name in RFC 7143.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What was expected.
        why: &'static str,
    },
    /// A number that must follow another one does not.
    #[error("the peer sent {field} {received} in a {pdu} PDU where {expected} was due")]
    Sequence {
        /// The PDU's name.
        pdu: &'static str,
        /// The field's name in RFC 7143.
        field: &'static str,
        /// As received.
        received: u32,
        /// What was due.
        expected: u32,
    },
    /// Text that is not `key=value` pairs as RFC 7143 §6.1 has them.
    #[error("the peer sent malformed negotiation text: {0}")]
    Text(String),
    /// A key whose value is not acceptable or is missing.
    #[error("the negotiation of {key} failed with the value {value:?}: {why}")]
    Key {
        /// The key's name.
        key: String,
        /// The value received.
        value: String,
        /// What was expected.
        why: &'static str,
    },
    /// CHAP failed, or is configured in a way that cannot work.
    #[error("authentication: {0}")]
    Authentication(&'static str),
    /// More than a configured bound allows.
    #[error("the peer exceeded the limit of {max} {what}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The bound.
        max: usize,
    },
    /// The data handed to `receive` does not fit the header: a fault of the driver.
    #[error("receive() was given {given} data bytes for a PDU whose header says {announced}")]
    DataMismatch {
        /// What the driver gave (inline bytes only, where they are needed).
        given: u32,
        /// What the header says.
        announced: u32,
    },
    /// The task has ended, or was never there.
    #[error("there is no such task: it has ended")]
    NoSuchTask,
    /// The command window or the task table is full; try again after the next `Done`.
    #[error("the command window is closed: wait until a command has completed")]
    WindowClosed,
    /// The call does not fit the connection's phase or the task's kind.
    #[error("this call is not possible now: {0}")]
    WrongState(&'static str),
    /// A value that the wire format cannot carry.
    #[error("{what} is {value}, but must be {expected}")]
    Argument {
        /// Which argument.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        expected: &'static str,
    },
}

/// Why a connection ended. After it a machine takes nothing more; the driver sends what
/// `poll_transmit` still gives (a last answer or Reject) and closes the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// After the logout exchange.
    Logout,
    /// The login was refused, by us (target) or by the peer (initiator).
    LoginRefused {
        /// What the Login Response says.
        status: LoginStatus,
        /// Where to go instead (TargetAddress), for the redirection statuses.
        target_address: Option<String>,
    },
    /// A ping was not answered in time.
    PingTimeout,
    /// The peer announced that it drops the connection or session (Async Message).
    DroppedByPeer,
    /// The peer broke the protocol, or the driver handed over something impossible.
    Protocol(Error),
}
