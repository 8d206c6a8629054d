//! The initiator's end of a connection.

mod event;

pub use event::{Command, InitiatorConfig, InitiatorEvent, Residual, TaskResult};

use crate::error::Error;
use crate::frame::FrameLimits;
use crate::lun::Lun;
use crate::task::{RxData, TaskId};
use crate::transmit::Transmit;

/// The initiator's end of one connection, from its first byte to its last.
#[derive(Debug)]
pub struct InitiatorConnection {}

impl InitiatorConnection {
    /// A connection whose first Login Request is ready to be sent.
    pub fn new(config: InitiatorConfig) -> InitiatorConnection {
        unreachable!("filled in by the next commits")
    }

    /// What [`frame`](crate::frame::frame) accepts now. Ask again after each `receive`.
    pub fn frame_limits(&self) -> FrameLimits {
        unreachable!("filled in by the next commits")
    }

    /// Whether the driver may hand over the next PDU. False while too many replies wait to be
    /// sent, and after the end.
    pub fn wants_read(&self) -> bool {
        unreachable!("filled in by the next commits")
    }

    /// Takes one PDU: its 48 header bytes, its additional headers, its data. May be called as
    /// soon as the headers are there for payload PDUs ([`RxData::Length`]).
    pub fn receive(&mut self, now: u64, bhs: &[u8; 48], ahs: &[u8], data: RxData<'_>) {
        unreachable!("filled in by the next commits")
    }

    /// The next event, in order.
    pub fn poll_event(&mut self) -> Option<InitiatorEvent> {
        unreachable!("filled in by the next commits")
    }

    /// The next PDU to send, in order. `ends` is never set.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        unreachable!("filled in by the next commits")
    }

    /// Ends the connection because of something only the driver sees: a framing or digest error.
    /// `Closed(Protocol(error))` follows.
    pub fn fail(&mut self, error: Error) {
        unreachable!("filled in by the next commits")
    }

    /// Sends a command. The payload of a write is asked for by `poll_transmit` piece by piece
    /// until `Done`.
    ///
    /// # Errors
    /// [`Error::WindowClosed`]: try again after the next `Done`; [`Error::WrongState`] outside
    /// of a normal session's full feature phase; [`Error::Argument`].
    pub fn submit(&mut self, command: Command<'_>) -> Result<TaskId, Error> {
        unreachable!("filled in by the next commits")
    }

    /// Whether [`submit`](Self::submit) would take a command now.
    pub fn can_submit(&self) -> bool {
        unreachable!("filled in by the next commits")
    }

    /// Aborts a task: ABORT TASK. `Done` for `task` comes before `TaskManagementDone` for the
    /// identity returned.
    ///
    /// # Errors
    /// [`Error::NoSuchTask`] if it has ended; [`Error::WindowClosed`] if the task table is full.
    pub fn abort(&mut self, task: TaskId) -> Result<TaskId, Error> {
        unreachable!("filled in by the next commits")
    }

    /// Sends a task management function (2 abort task set, 4 clear task set, 5 logical unit
    /// reset, 6 target warm reset, 7 target cold reset; RFC 7143 §11.5.1) for `lun`.
    ///
    /// # Errors
    /// [`Error::WindowClosed`] if the task table is full; [`Error::WrongState`] before login.
    pub fn task_management(&mut self, function: u8, lun: Lun) -> Result<TaskId, Error> {
        unreachable!("filled in by the next commits")
    }

    /// Asks for targets: `SendTargets=All` in a discovery session, `SendTargets=` in a normal
    /// one. `Targets` follows.
    ///
    /// # Errors
    /// [`Error::WrongState`] before login or while such a request is open.
    pub fn discover(&mut self) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Asks to close the session; `Closed(Logout)` follows.
    ///
    /// # Errors
    /// [`Error::WrongState`] before login or if asked before.
    pub fn logout(&mut self) -> Result<(), Error> {
        unreachable!("filled in by the next commits")
    }

    /// Sends a NOP-Out that the target must answer within `timeout_ns`; `Pong` or
    /// `Closed(PingTimeout)` follows. Does nothing while one is open or before login.
    pub fn ping(&mut self, now: u64, timeout_ns: u64) {
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
