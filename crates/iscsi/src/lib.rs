//! The iSCSI protocol of RFC 7143 without I/O: bytes and time go in, bytes and events come out. Sockets, clocks and
//! threads belong to the driver.
//!
//! [`TargetConnection`] and [`InitiatorConnection`] are the two ends of one connection. A driver frames what it
//! receives ([`frame::frame`]), hands each PDU to `receive`, drains `poll_event` before the next PDU, and sends
//! whatever `poll_transmit` returns. The machines deal in lengths and offsets: the payload of commands stays with the
//! driver, in the buffer it keeps for each [`TaskId`]. Time is a `u64` of nanoseconds from any fixed origin.
//!
//! A session has one connection (MaxConnections=1) and no recovery within it (ErrorRecoveryLevel=0): an error that a
//! Reject cannot resolve ends the connection.
#![forbid(unsafe_code)]

mod error;
pub mod frame;
mod initiator_connection;
mod login;
mod lun;
pub mod params;
pub mod pdu;
mod sequence;
mod stage_times;
mod status;
mod target_connection;
mod task;
pub mod text;
mod transmit;

pub use error::{CloseReason, Error};
pub use initiator_connection::{
    InitiatorConfig, InitiatorConnection, InitiatorEvent, OutgoingCommand, Residual, TaskResult,
};
pub use login::{
    Authentication, Chap, ChapAccount, ChapAlgorithm, ChapSecret, Isid, LoginReport, LoginRequest,
    SessionType, Taken, all_keys,
};
pub use lun::LunField;
pub use params::{OperationalConfig, SessionParameters};
pub use stage_times::StageTimes;
pub use status::LoginStatus;
pub use target_connection::{
    AsyncMessage, CommandRequest, Outcome, ReceivedCdb, SendTargets, TargetConfig,
    TargetConnection, TargetEvent, TaskManagementRequest,
};
pub use task::{Direction, RxData, TaskId};
pub use text::TargetRecord;
pub use transmit::{Transmit, TransmitData};
