//! The errors that calls return, and the reasons why connections end.

use crate::status::LoginStatus;

/// An error of this crate: a protocol violation by the peer, or a call that is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A data segment longer than we declared (RFC 7143 §13.12).
    #[error(
        "the peer announced a data segment of {len} bytes in a PDU with opcode {opcode:#04x}, \
         but at most {max} are accepted"
    )]
    DataSegmentTooLong {
        /// Opcode of the PDU.
        opcode: u8,
        /// Announced length in bytes.
        len: u32,
        /// The limit in bytes.
        max: u32,
    },
    /// Additional header segments longer than any known use requires (RFC 7143 §11.2.1.5).
    #[error("the peer announced {len} bytes of additional headers; at most {max} are accepted")]
    AhsTooLong {
        /// Announced length in bytes.
        len: u32,
        /// The limit in bytes.
        max: u32,
    },
    /// The header digest does not match (RFC 7143 §7.7).
    #[error(
        "header digest {received:#010x} received, {computed:#010x} computed: damaged in transit"
    )]
    HeaderDigest {
        /// As received.
        received: u32,
        /// Computed over the bytes received.
        computed: u32,
    },
    /// The data digest does not match (RFC 7143 §7.7).
    #[error("data digest {received:#010x} received, {computed:#010x} computed: damaged in transit")]
    DataDigest {
        /// As received.
        received: u32,
        /// Computed over the bytes received.
        computed: u32,
    },
    /// An opcode that this role does not accept.
    #[error("the peer sent a PDU with opcode {opcode:#04x}, which is not allowed {phase}")]
    UnexpectedOpcode {
        /// The opcode, six bits.
        opcode: u8,
        /// The phase in which it came.
        phase: &'static str,
    },
    /// A header field whose value violates the protocol.
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
    /// A sequence number that is not the expected one.
    #[error("the peer sent {field} {received} in a {pdu} PDU instead of {expected}")]
    Sequence {
        /// The PDU's name.
        pdu: &'static str,
        /// The field's name in RFC 7143.
        field: &'static str,
        /// As received.
        received: u32,
        /// The expected number.
        expected: u32,
    },
    /// Text that does not consist of `key=value` pairs as defined in RFC 7143 §6.1.
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
    /// CHAP failed, or its configuration cannot work.
    #[error("authentication: {0}")]
    Authentication(&'static str),
    /// A configured limit was exceeded.
    #[error("the peer exceeded the limit of {max} {what}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// The data handed to `receive` does not match the header: a bug in the driver.
    #[error("receive() was given {given} data bytes for a PDU whose header says {announced}")]
    DataMismatch {
        /// Bytes the driver supplied (inline bytes only, where they are needed).
        given: u32,
        /// Length announced by the header.
        announced: u32,
    },
    /// The task has ended, or never existed.
    #[error("there is no such task: it has ended")]
    NoSuchTask,
    /// The command window or the task table is full; try again after the next `Done`.
    #[error("the command window is closed: wait until a command has completed")]
    WindowClosed,
    /// The call is not allowed in the connection's phase or for the task's kind.
    #[error("this call is not possible now: {0}")]
    WrongState(&'static str),
    /// A value that cannot be encoded on the wire.
    #[error("{what} is {value}, but must be {expected}")]
    Argument {
        /// The argument's name.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        expected: &'static str,
    },
}

/// Why a connection ended. The machine accepts nothing after this; the driver sends what `poll_transmit` still
/// returns (a last answer or a Reject) and closes the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// A logout exchange completed.
    Logout,
    /// The login was refused, by this end (target) or by the peer (initiator).
    LoginRefused {
        /// The status of the Login Response.
        status: LoginStatus,
        /// Where to go instead (TargetAddress), for the redirection statuses.
        target_address: Option<String>,
    },
    /// A ping was not answered in time.
    PingTimeout,
    /// The peer announced that it drops the connection or session (Async Message).
    DroppedByPeer,
    /// The peer violated the protocol, or the driver passed invalid data.
    Protocol(Error),
}
