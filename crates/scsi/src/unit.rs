//! A logical unit: identity, shape and the way through a command from its CDB to its ending. What
//! initiators can change and what is remembered of each nexus lives in the [`SharedUnit`].

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::access::Access;
use crate::action::{Action, Ending, ParameterList};
use crate::attention::{Attention, NexusId};
use crate::commands::Command;
use crate::identity::Identity;
use crate::medium::{MediumError, MediumErrorKind, MediumOp};
use crate::mode::QueueError;
use crate::reservations::NexusName;
use crate::sense::{Asc, Sense, SenseFormat, SenseKey};
use crate::shape::{Shape, ShapeError};
use crate::shared::{Rights, SharedUnit, State};

/// One disk as its initiators see it, through one target port and on one thread.
#[derive(Debug)]
pub struct LogicalUnit {
    identity: Identity,
    /// Its length is that of `rights`.
    shape: Shape,
    /// Whether it refuses writes whatever initiators set (software write protection).
    is_read_only: bool,
    shared: Arc<SharedUnit>,
    rights: Rights,
    /// Nexuses that are known and have no unit attention pending, as of the version of `rights`.
    quiet: BTreeSet<NexusId>,
}

impl LogicalUnit {
    /// A disk of its own that no nexus has reached yet.
    ///
    /// # Errors
    /// [`ShapeError`] if no disk can have this shape.
    pub fn new(identity: Identity, shape: Shape) -> Result<LogicalUnit, ShapeError> {
        LogicalUnit::sharing(identity, shape, SharedUnit::new())
    }

    /// A further view of the disk whose state is `shared`.
    ///
    /// # Errors
    /// [`ShapeError`] if no disk can have this shape.
    pub fn sharing(
        identity: Identity,
        shape: Shape,
        shared: Arc<SharedUnit>,
    ) -> Result<LogicalUnit, ShapeError> {
        shape.check()?;
        let port = identity.port.relative_port;
        shared.change(|state| {
            state.ports.insert(port);
            // A volume that grew while its copies were made is as long as the first one says until
            // everybody is told.
            state.len_blocks.get_or_insert(shape.len_blocks);
        });
        Ok(LogicalUnit {
            identity,
            is_read_only: shape.read_only,
            shape,
            shared,
            rights: Rights::default(),
            quiet: BTreeSet::new(),
        })
    }

    /// Nobody reaches the disk through this view's target port any more.
    pub fn leave_port(&self) {
        let port = self.identity.port.relative_port;
        self.shared.change(|state| state.ports.remove(&port));
    }

    /// Its names.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its size and abilities.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Its length now, in logical blocks, also where another view was resized meanwhile.
    pub fn len_blocks(&mut self) -> u64 {
        self.refresh();
        self.shape.len_blocks
    }

    /// What it has in common with other views of the same disk.
    pub fn shared(&self) -> &Arc<SharedUnit> {
        &self.shared
    }

    /// Its mode parameters.
    pub(crate) fn mode(&self) -> &crate::mode::ModeParameters {
        &self.rights.mode
    }

    /// What an error does to other commands of the task set (control mode page, QERR).
    pub fn queue_error(&mut self) -> QueueError {
        self.refresh();
        self.rights.mode.current.queue_error
    }

    /// Whether a command that another nexus aborts ends with TASK ABORTED (control mode page,
    /// TAS), or without a word, and its nexus hears of it by a unit attention.
    pub fn tells_aborted(&mut self) -> bool {
        self.refresh();
        self.rights.mode.current.task_aborted_status
    }

    /// The format that sense data of this disk has in a CHECK CONDITION (control mode page,
    /// D_SENSE).
    pub fn sense_format(&self) -> SenseFormat {
        match self.rights.mode.current.descriptor_sense {
            true => SenseFormat::Descriptor,
            false => SenseFormat::Fixed,
        }
    }

    /// Gives the disk, all its copies, this number of logical blocks: it was resized. If that is
    /// another one, gives the old one, and every nexus is told of it once, through whichever copy it
    /// comes. Who has been told finds the new capacity: both change under one lock.
    ///
    /// # Errors
    /// [`ShapeError::Length`], and it stays as it was.
    pub fn resize(&mut self, len_blocks: u64) -> Result<Option<u64>, ShapeError> {
        Shape {
            len_blocks,
            ..self.shape.clone()
        }
        .check()?;
        let old = self.shared.change(|state| {
            let old = state.len_blocks.replace(len_blocks);
            let old = old.filter(|old| *old != len_blocks);
            if old.is_some() {
                state.attentions.post(Attention::CapacityChanged, None);
            }
            old
        });
        self.refresh();
        Ok(old)
    }

    /// Has every known nexus told of `attention` once, except the one that caused it. A task
    /// management function or another layer uses it: resets, cleared commands, a changed LUN
    /// list. A reset also ends what belongs to nexuses: RESERVE (6), prevented removal, mode
    /// parameters that were not saved.
    pub fn post(&self, attention: Attention, except: Option<NexusId>) {
        self.shared.change(|state| {
            if matches!(
                attention,
                Attention::PowerOnOrReset | Attention::BusDeviceReset
            ) {
                state.reset();
            }
            if attention == Attention::PowerOnOrReset {
                state.forget_power_on_heard();
            }
            state.attentions.post(attention, except);
        });
    }

    /// Has one nexus told of `attention`, once.
    pub fn tell(&self, nexus: NexusId, attention: Attention) {
        self.shared
            .change(|state| state.attentions.post_to(attention, nexus));
    }

    /// Takes the unit attention pending for a nexus, for transports without sense data.
    pub fn take_attention(&self, nexus: NexusId) -> Option<Attention> {
        let mut state = self.shared.look();
        state.attentions.know(nexus).ok()?;
        self.take_from(&mut state, nexus)
    }

    /// Makes a nexus known by name before its first command, so that it finds its registrations
    /// again: `initiator_port` is `<iSCSI name>,i,0x<ISID>` (RFC 7143 §4.4.4). One that was
    /// [told of the power-on](LogicalUnit::power_on_heard) before is told that its nexus was lost, not of a power-on: nothing
    /// that it had cached here is gone. Gives whether it was.
    pub fn establish(&self, nexus: NexusId, initiator_port: &str) -> bool {
        let name = NexusName {
            initiator_port: initiator_port.to_ascii_lowercase(),
            target_port: self.identity.port.relative_port,
        };
        self.shared.change(|state| {
            let has_heard = state.has_heard_power_on(&name);
            if has_heard {
                state.attentions.know_again(nexus);
            }
            state.names.insert(nexus, name);
            has_heard
        })
    }

    /// Remembers that a nexus has *received* the unit attention of the power-on: until the unit
    /// is powered on again, its port does not have to hear of it.
    pub fn power_on_heard(&self, nexus: NexusId) {
        self.shared.look().power_on_heard(nexus);
    }

    /// Forgets a nexus that ended. Transports must call it, or the table of nexuses fills up and
    /// new ones get BUSY for their commands.
    pub fn forget(&mut self, nexus: NexusId) {
        self.quiet.remove(&nexus);
        self.shared.change(|state| state.forget(nexus));
    }

    /// The name of a nexus; one that was not established has its number for one.
    pub(crate) fn name_of(&self, state: &State, nexus: NexusId) -> NexusName {
        let known = state.names.get(&nexus).cloned();
        known.unwrap_or_else(|| NexusName {
            initiator_port: format!("{},i,0x0", nexus.0),
            target_port: self.identity.port.relative_port,
        })
    }

    fn refresh(&mut self) {
        if self.shared.refresh(&mut self.rights) {
            self.quiet.clear();
            self.shape.read_only = self.is_read_only || self.rights.mode.current.write_protect;
            self.shape.len_blocks = self.rights.len_blocks.unwrap_or(self.shape.len_blocks);
        }
    }

    /// Takes a command: `cdb` as received, padded or not. Nothing is transferred yet, and a
    /// failure found here costs no data-out.
    ///
    /// The first command of a new nexus, other than INQUIRY, REPORT LUNS and REQUEST SENSE, is
    /// answered with a unit attention instead (SAM-5 5.14), and so is the first after a change.
    /// With 4096 nexuses remembered a new one gets BUSY.
    pub fn begin(&mut self, nexus: NexusId, cdb: &[u8]) -> Action {
        self.refresh();
        let command = Command::decode(cdb);
        if !self.quiet.contains(&nexus) {
            if let Some(answer) = self.tell_first(nexus, &command) {
                return answer;
            }
        }
        if let Ok(command) = &command {
            if !self.rights.allow(nexus, command.access()) {
                return Action::End(Ending::CONFLICT);
            }
            if self.rights.sanitizing && !command.passes_sanitize() {
                // Another sanitize may follow a failed one; two at a time may not.
                if let Some(progress) = self.shared.look().sanitize {
                    return Action::End(Ending::check(progress.sense()));
                }
            }
            if self.is_ejected() && command.needs_medium() {
                let sense = Sense::new(SenseKey::NotReady, Asc::MEDIUM_NOT_PRESENT);
                return Action::End(Ending::check(sense));
            }
        }
        let mut action = command
            .and_then(|command| command.begin(self, nexus))
            .into();
        if let Action::Parameters(list) = &mut action {
            list.nexus = nexus;
        }
        action
    }

    /// Takes the unit attention pending for a nexus. That the medium may have changed concerns only ports
    /// that can eject and load it.
    fn take_from(&self, state: &mut State, nexus: NexusId) -> Option<Attention> {
        std::iter::from_fn(|| state.attentions.take(nexus))
            .find(|attention| self.shape.removable || *attention != Attention::MediumMayHaveChanged)
    }

    /// Whether its medium has been ejected. A port that shows the disk as one that is not removable goes
    /// on with it: its initiators know no way to load it again.
    fn is_ejected(&self) -> bool {
        self.rights.ejected && self.shape.removable
    }

    /// Reports the unit attention pending for a nexus, unless the command is one that does not wait for it
    /// (SPC-4: INQUIRY, REPORT LUNS, REQUEST SENSE).
    fn tell_first(&mut self, nexus: NexusId, command: &Result<Command, Sense>) -> Option<Action> {
        let shared = self.shared.clone();
        let mut state = shared.look();
        if state.attentions.know(nexus).is_err() {
            return Some(Action::End(Ending::BUSY));
        }
        let name = self.name_of(&state, nexus);
        state.names.entry(nexus).or_insert(name);
        match command {
            Ok(Command::Inquiry(_)) => None,
            Ok(Command::ReportLuns(_)) => {
                state
                    .attentions
                    .withdraw(nexus, Attention::ReportedLunsChanged);
                None
            }
            Ok(Command::RequestSense(request)) => {
                let waiting = self.take_from(&mut state, nexus).map(Attention::sense);
                let waiting = waiting.or(state.sanitize.map(crate::commands::Progress::sense));
                Some(Action::Reply(request.reply(waiting.unwrap_or(Sense::NONE))))
            }
            _ => match self.take_from(&mut state, nexus) {
                Some(attention) => Some(Action::End(Ending::check(attention.sense()))),
                None => {
                    self.quiet.insert(nexus);
                    None
                }
            },
        }
    }

    /// Whether a command that waited (for its data-out, say) may still be done: its nexus may
    /// have been fenced off, or the medium be gone or protected since.
    ///
    /// # Errors
    /// How to end it instead.
    pub fn recheck(&mut self, nexus: NexusId, op: &MediumOp) -> Result<(), Ending> {
        self.refresh();
        let access = match op.changes() {
            true => Access::Change,
            false => Access::Read,
        };
        if !self.rights.allow(nexus, access) {
            return Err(Ending::CONFLICT);
        }
        if self.rights.sanitizing {
            if let Some(progress) = self.shared.look().sanitize {
                return Err(Ending::check(progress.sense()));
            }
        }
        if self.is_ejected() {
            let sense = Sense::new(SenseKey::NotReady, Asc::MEDIUM_NOT_PRESENT);
            return Err(Ending::check(sense));
        }
        match op.changes() && !matches!(op, MediumOp::Flush { .. }) {
            true => self.shape.check_writable().map_err(Ending::check),
            false => Ok(()),
        }
    }

    /// Goes on with a command whose parameter list has arrived. Never asks for another.
    pub fn resume(&mut self, list: ParameterList, data: &[u8]) -> Action {
        self.refresh();
        let (nexus, len) = (list.nexus, list.len_bytes as usize);
        if !self.rights.allow(nexus, list.command.access()) {
            return Action::End(Ending::CONFLICT);
        }
        let result = list.check_offered(data.len() as u64);
        result
            .and_then(|()| list.command.resume(self, nexus, &data[..len]))
            .into()
    }

    /// The ending of a command whose [`MediumOp`](crate::MediumOp) is done.
    pub fn complete(&self, result: Result<(), MediumError>) -> Ending {
        let Err(error) = result else {
            return Ending::GOOD;
        };
        let (key, asc) = match error.kind {
            MediumErrorKind::Read => (SenseKey::MediumError, Asc::UNRECOVERED_READ_ERROR),
            MediumErrorKind::Write | MediumErrorKind::Flush => {
                (SenseKey::MediumError, Asc::WRITE_ERROR)
            }
            MediumErrorKind::Failed => (SenseKey::HardwareError, Asc::INTERNAL_TARGET_FAILURE),
            MediumErrorKind::NotReady => (SenseKey::NotReady, Asc::CAUSE_NOT_REPORTABLE),
            MediumErrorKind::WriteProtected => (SenseKey::DataProtect, Asc::WRITE_PROTECTED),
            MediumErrorKind::OutOfSpace => (SenseKey::DataProtect, Asc::SPACE_ALLOCATION_FAILED),
            MediumErrorKind::Miscompare { .. } => {
                (SenseKey::Miscompare, Asc::MISCOMPARE_DURING_VERIFY)
            }
            MediumErrorKind::Aborted => (SenseKey::AbortedCommand, Asc::NO_ADDITIONAL_SENSE),
        };
        let information = match error.kind {
            MediumErrorKind::Miscompare { offset_bytes } => Some(offset_bytes),
            _ => error.lba,
        };
        Ending::check(Sense {
            information,
            ..Sense::new(key, asc)
        })
    }
}

#[cfg(test)]
mod tests;
