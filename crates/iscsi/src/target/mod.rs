//! The target's end of a connection.

mod config;
mod event;

pub use config::TargetConfig;
pub use event::{
    AsyncMessage, Cdb, CommandRequest, LoginRequest, Outcome, SendTargets, TargetEvent,
    TaskManagementRequest,
};

use crate::error::Error;
use crate::frame::FrameLimits;
use crate::login::LoginStatus;
use crate::task::{RxData, TaskId};
use crate::text::TargetRecord;
use crate::transmit::Transmit;

/// The target's end of one connection, from its first byte to its last.
#[derive(Debug)]
pub struct TargetConnection {}

impl TargetConnection {
    /// A connection that waits for the first Login Request.
    pub fn new(config: TargetConfig) -> TargetConnection {
        unreachable!("filled in by the next commits")
    }

    /// What [`frame`](crate::frame::frame) accepts now. Ask again after each `receive`.
    pub fn frame_limits(&self) -> FrameLimits {
        unreachable!("filled in by the next commits")
    }

    /// Whether the driver may hand over the next PDU. False while too many replies wait to be
    /// sent, while the driver owes an answer to a login event, and after the end.
    pub fn wants_read(&self) -> bool {
        unreachable!("filled in by the next commits")
    }

    /// Takes one PDU: its 48 header bytes, its additional headers, its data. May be called as
    /// soon as the headers are there for payload PDUs ([`RxData::Length`]).
    pub fn receive(&mut self, now: u64, bhs: &[u8; 48], ahs: &[u8], data: RxData<'_>) {
        unreachable!("filled in by the next commits")
    }

    /// The next event, in order.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        unreachable!("filled in by the next commits")
    }

    /// The next PDU to send, in order. Numbers (StatSN, ExpCmdSN, MaxCmdSN) are stamped now.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        unreachable!("filled in by the next commits")
    }

    /// Ends the connection because of something only the driver sees: a framing or digest error.
    /// `Closed(Protocol(error))` follows.
    pub fn fail(&mut self, error: Error) {
        unreachable!("filled in by the next commits")
    }

    /// Answers `LoginRequest`: go on. `portal_group_tag` is that of the portal used (0 to 65535,
    /// RFC 7143 §13.9).
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is open.
    pub fn login_continue(&mut self, portal_group_tag: u16) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Answers `SessionRequest`: the session begins under `tsih`, not 0 (RFC 7143 §11.13.3).
    /// `LoggedIn` follows.
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is open, [`Error::Argument`] if `tsih` is 0.
    pub fn login_accept(&mut self, tsih: u16) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Answers `LoginRequest` or `SessionRequest` with a refusal; `target_address` goes with the
    /// redirection statuses (`host:port[,tag]`). `Closed` follows.
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is open.
    pub fn login_reject(
        &mut self,
        status: LoginStatus,
        target_address: Option<&str>,
    ) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Answers `SendTargets`. The list is cut into as many Text Responses as the initiator's
    /// MaxRecvDataSegmentLength needs.
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is open.
    pub fn send_targets(&mut self, targets: &[TargetRecord]) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// The driver has room for the task's write data up to offset `end` (bytes, at most
    /// `write_len`; may be raised later): R2Ts go out for what has not come unsolicited.
    /// `DataComplete` follows once data up to `end` and all unsolicited data are there. Returns
    /// at once with that event queued if they are already.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`]; [`Error::WrongState`] after an outcome was given;
    /// [`Error::Argument`] beyond `write_len` or below what was asked before.
    pub fn solicit(&mut self, task: TaskId, end: u32) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Sends the next `len` bytes of the task's read data (offsets count on from call to call;
    /// what is beyond `read_len` is cut off), and with `outcome` ends the task: in the last
    /// Data-In if it is GOOD without sense, else in a SCSI Response.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`]; [`Error::WrongState`] after an outcome was given.
    pub fn data_in(
        &mut self,
        task: TaskId,
        len: u32,
        outcome: Option<Outcome<'_>>,
    ) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Ends the task with a SCSI Response. If write data is still on its way it is dropped, and
    /// the response waits for its end.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`]; [`Error::WrongState`] after an outcome was given.
    pub fn respond(&mut self, task: TaskId, outcome: Outcome<'_>) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Forgets the task without a response, because task management aborted it. Data still on
    /// its way is dropped.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`].
    pub fn abort(&mut self, task: TaskId) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Answers `TaskManagement` with a response code (RFC 7143 §11.6.1).
    ///
    /// # Errors
    /// [`Error::NoSuchTask`].
    pub fn task_management_response(&mut self, task: TaskId, response: u8) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Answers `Logout` (response 0: closed). `Closed(Logout)` follows once it is sent.
    ///
    /// # Errors
    /// [`Error::WrongState`] if no such event is open.
    pub fn logout_response(&mut self, response: u8) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Sends a NOP-In that the initiator must answer within `timeout_ns`; `Pong` or
    /// `Closed(PingTimeout)` follows. Does nothing while one is open or before full feature
    /// phase.
    pub fn ping(&mut self, now: u64, timeout_ns: u64) {
        unreachable!("filled in by the next commits")
    }

    /// Sends an Async Message. Does nothing before full feature phase.
    pub fn async_message(&mut self, message: AsyncMessage) {
        unreachable!("filled in by the next commits")
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due, if ever.
    pub fn next_timeout(&self) -> Option<u64> {
        unreachable!("filled in by the next commits")
    }

    /// Call at or after [`next_timeout`](Self::next_timeout).
    pub fn handle_timeout(&mut self, now: u64) {
        unreachable!("filled in by the next commits")
    }

    /// The session's parameters: defaults until `LoggedIn`.
    pub fn parameters(&self) -> &crate::params::SessionParameters {
        unreachable!("filled in by the next commits")
    }

    /// Tasks and task management functions open now.
    pub fn tasks_len(&self) -> usize {
        unreachable!("filled in by the next commits")
    }
}
