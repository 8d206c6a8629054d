//! A logical unit as one port and one thread see it: its identity, its shape, and its extract of the state that
//! initiators can change, which lives with what is remembered of each nexus in the [`SharedUnit`].

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::access::Access;
use crate::attention::Attention;
use crate::identity::Identity;
use crate::medium::{Denied, MediumOp};
use crate::mode::QueueError;
use crate::nexus::{NexusId, NexusName};
use crate::sanitize_state::SanitizeState;
use crate::sense::SenseFormat;
use crate::shape::{DiskShape, DiskShapeError};
use crate::shared::{Rights, SharedUnit, UnitState};

/// What visiting one entry of the state costs (a registration, a nexus), in bytes of memory that are moved in that time.
const VISIT_BYTES: usize = 512;
/// To name or forget a nexus costs as much as so many visits.
const NAMING_VISITS: usize = 8;

/// One disk as its initiators see it, through one target port and on one thread.
#[derive(Debug)]
pub struct LogicalUnit {
    identity: Identity,
    /// Its length is always that of `rights`.
    shape: DiskShape,
    /// Whether it refuses writes through this port, regardless of what lies below and of software write protection (SWP),
    /// which initiators control.
    is_read_only: bool,
    shared: Arc<SharedUnit>,
    rights: Rights,
    /// Known nexuses without a pending unit attention, as of the version of `rights`.
    quiet: BTreeSet<NexusId>,
    /// See [`LogicalUnit::take_work`].
    work_bytes: Cell<usize>,
}

impl LogicalUnit {
    /// A disk with its own state, not yet accessed by any nexus.
    ///
    /// # Errors
    /// [`DiskShapeError`] if no disk can have this shape.
    pub fn new(identity: Identity, shape: DiskShape) -> Result<LogicalUnit, DiskShapeError> {
        LogicalUnit::sharing(identity, shape, SharedUnit::new())
    }

    /// Another view of the disk whose state is `shared`.
    ///
    /// # Errors
    /// [`DiskShapeError`] if no disk can have this shape.
    pub fn sharing(
        identity: Identity,
        shape: DiskShape,
        shared: Arc<SharedUnit>,
    ) -> Result<LogicalUnit, DiskShapeError> {
        shape.check()?;
        let port = identity.port.relative_port;
        shared.change(|state| {
            state.ports.insert(port);
            // A volume may grow while its views are being created; all of them use the first one's length until the
            // growth is announced.
            state.len_blocks.get_or_insert(shape.len_blocks);
        });
        Ok(LogicalUnit {
            identity,
            is_read_only: shape.read_only,
            shape,
            shared,
            rights: Rights::default(),
            quiet: BTreeSet::new(),
            work_bytes: Cell::new(0),
        })
    }

    /// What the calls of this view have cost since this was last asked, in bytes of memory that are moved in that time,
    /// as far as it grows with what initiators have left here: registrations, nexuses, names. Whoever shares a thread
    /// with others charges it to the nexus that caused it.
    pub fn take_work(&self) -> usize {
        self.work_bytes.take()
    }

    /// Counts entries of the state that were visited.
    pub(crate) fn worked(&self, visited: usize) {
        let bytes = visited.saturating_mul(VISIT_BYTES);
        self.work_bytes
            .set(self.work_bytes.get().saturating_add(bytes));
    }

    /// Records that the disk can no longer be reached through this view's target port.
    pub fn leave_port(&self) {
        let port = self.identity.port.relative_port;
        self.shared.change(|state| state.ports.remove(&port));
    }

    /// The disk's names.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The disk's size and capabilities.
    pub fn shape(&self) -> &DiskShape {
        &self.shape
    }

    /// The current length in logical blocks, even if another view was resized.
    pub fn len_blocks(&mut self) -> u64 {
        self.refresh();
        self.shape.len_blocks
    }

    /// The state shared with other views of the same disk.
    pub fn shared(&self) -> &Arc<SharedUnit> {
        &self.shared
    }

    /// What the last refresh has found.
    pub(crate) fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Whether a nexus is known and had no pending unit attention at the last refresh.
    pub(crate) fn is_quiet(&self, nexus: NexusId) -> bool {
        self.quiet.contains(&nexus)
    }

    /// Records that.
    pub(crate) fn set_quiet(&mut self, nexus: NexusId) {
        self.quiet.insert(nexus);
    }

    /// The mode parameters.
    pub(crate) fn mode(&self) -> &crate::mode::ModeParameters {
        &self.rights.mode
    }

    /// How an error affects other commands of the task set (control mode page, QERR).
    pub fn queue_error(&mut self) -> QueueError {
        self.refresh();
        self.rights.mode.current.queue_error
    }

    /// Whether a command aborted by another nexus ends with TASK ABORTED (control mode page, TAS). Otherwise it ends
    /// silently, and its nexus gets a unit attention.
    pub fn tells_aborted(&mut self) -> bool {
        self.refresh();
        self.rights.mode.current.task_aborted_status
    }

    /// The sense data format of this disk in a CHECK CONDITION (control mode page, D_SENSE).
    pub fn sense_format(&self) -> SenseFormat {
        match self.rights.mode.current.descriptor_sense {
            true => SenseFormat::Descriptor,
            false => SenseFormat::Fixed,
        }
    }

    /// Resizes the disk, in all its views, to this many logical blocks. If that is a change, returns the old length
    /// and establishes a unit attention for every nexus, reported once through whichever view it uses. An initiator
    /// that has seen the attention sees the new capacity, because both change under one lock.
    ///
    /// # Errors
    /// [`DiskShapeError::Length`]; the length stays unchanged.
    pub fn resize(&mut self, len_blocks: u64) -> Result<Option<u64>, DiskShapeError> {
        DiskShape {
            len_blocks,
            ..self.shape.clone()
        }
        .check()?;
        let old = self.shared.change(|state| {
            let old = state.len_blocks.replace(len_blocks);
            let old = old.filter(|old| *old != len_blocks);
            if old.is_some() {
                state.attentions.post(Attention::CapacityChanged, None);
                self.worked(state.nexuses_len());
            }
            old
        });
        self.refresh();
        Ok(old)
    }

    /// Records whether the volume below refuses writes, in all views. Returns whether that is a change; then it establishes
    /// a unit attention for every nexus (MODE PARAMETERS CHANGED).
    pub fn protect(&mut self, is_protected: bool) -> bool {
        if self.shared.look().is_protected == Some(is_protected) {
            return false;
        }
        let is_change = self.shared.change(|state| {
            let before = state.is_protected.replace(is_protected);
            let is_change = before.is_some_and(|before| before != is_protected);
            if is_change {
                state
                    .attentions
                    .post(Attention::ModeParametersChanged, None);
            }
            is_change
        });
        self.refresh();
        is_change
    }

    /// Establishes the unit attention `attention` for every known nexus except the one that caused it. Used by task
    /// management and other layers: resets, cleared commands, a changed LUN list. A reset also drops what belongs to
    /// nexuses: RESERVE (6), prevented removal, mode parameters that were not saved.
    pub fn post(&self, attention: Attention, except: Option<NexusId>) {
        self.shared.change(|state| {
            if matches!(
                attention,
                Attention::PowerOnOrReset | Attention::BusDeviceReset
            ) {
                state.reset();
            }
            if attention == Attention::PowerOnOrReset {
                state.forget_power_on_acknowledged();
            }
            state.attentions.post(attention, except);
            self.worked(state.nexuses_len());
        });
    }

    /// Establishes the unit attention `attention` for one nexus.
    pub fn tell(&self, nexus: NexusId, attention: Attention) {
        self.shared
            .change(|state| state.attentions.post_to(attention, nexus));
    }

    /// Clears and returns the pending unit attention of a nexus, for transports without sense data.
    pub fn take_attention(&self, nexus: NexusId) -> Option<Attention> {
        let mut state = self.shared.look();
        state.attentions.know(nexus).ok()?;
        self.take_from(&mut state, nexus)
    }

    /// Announces a nexus by name before its first command, so that it finds its persistent registrations:
    /// `initiator_port` is `<iSCSI name>,i,0x<ISID>` (RFC 7143 §4.4.4). A name that has already
    /// [received the power-on report](LogicalUnit::acknowledged) gets a nexus loss instead of another power-on,
    /// since nothing that it had cached here is gone; that of a reset if the software has
    /// [restarted](SharedUnit::resume) since. One that [knew another disk](LogicalUnit::has_replaced) is told
    /// that the inquiry data and the LUNs have changed.
    ///
    /// Returns the reports that its port gets again in its next session unless it
    /// [acknowledges](LogicalUnit::acknowledged) them now.
    pub fn establish(&self, nexus: NexusId, initiator_port: &str) -> Vec<Attention> {
        let name = self.nexus_name(initiator_port);
        self.worked(NAMING_VISITS);
        self.shared.change(|state| {
            let mut unacknowledged = Vec::new();
            match state.first_report(&name) {
                Some((first, is_needed)) => {
                    state.attentions.know_again(nexus, first);
                    unacknowledged.extend(is_needed.then_some(first));
                }
                None => unacknowledged.push(Attention::PowerOnOrReset),
            }
            let changes = state.replacement_unacknowledged(&name);
            if !changes.is_empty() && state.attentions.know(nexus).is_ok() {
                for &changed in &changes {
                    state.attentions.post_to(changed, nexus);
                }
                unacknowledged.extend(changes);
            }
            state.name(nexus, name);
            unacknowledged
        })
    }

    /// Records that initiator port `initiator_port` has known another disk under this unit's LUN: it is told whenever it
    /// is [established](LogicalUnit::establish), until it has acknowledged that.
    pub fn has_replaced(&self, initiator_port: &str) {
        let name = self.nexus_name(initiator_port);
        self.shared.look().has_replaced(name);
    }

    fn nexus_name(&self, initiator_port: &str) -> NexusName {
        NexusName {
            initiator_port: initiator_port.to_ascii_lowercase().into(),
            target_port: self.identity.port.relative_port,
        }
    }

    /// Records that a nexus has *received* a unit attention that [`LogicalUnit::establish`] returned. Its port is not
    /// told again: of the power-on until the next one, of the changed inquiry data and the changed LUNs until the LUN is
    /// another disk again. Returns the line that [`SharedUnit::resume`] needs after a restart of the software, if its port
    /// has been told of the power-on for the first time.
    pub fn acknowledged(&self, nexus: NexusId, attention: Attention) -> Option<String> {
        let mut state = self.shared.look();
        match attention {
            Attention::PowerOnOrReset => {
                let name = state.power_on_acknowledged(nexus)?;
                return Some(name.line());
            }
            Attention::BusDeviceReset => state.reset_acknowledged(nexus),
            Attention::InquiryChanged | Attention::ReportedLunsChanged => {
                state.replacement_acknowledged(nexus, attention);
            }
            _ => {}
        }
        None
    }

    /// Forgets a nexus that ended. Transports must call this, or the nexus table fills up and commands of new nexuses
    /// end with BUSY.
    pub fn forget(&mut self, nexus: NexusId) {
        self.quiet.remove(&nexus);
        self.worked(NAMING_VISITS);
        self.shared.change(|state| state.forget(nexus));
    }

    /// The name of a nexus; a nexus that was not announced is named by its number.
    pub(crate) fn name_of(&self, state: &UnitState, nexus: NexusId) -> NexusName {
        let known = state.names().get(&nexus).cloned();
        known.unwrap_or_else(|| NexusName {
            initiator_port: format!("{},i,0x0", nexus.0).into(),
            target_port: self.identity.port.relative_port,
        })
    }

    /// Whether the floor under the keys, if there is one, lets in `nexus`.
    pub(crate) fn admits(&self, state: &UnitState, nexus: NexusId) -> bool {
        let key = || state.reservations.key_of(&self.name_of(state, nexus));
        let floor = state.floor.as_ref();
        floor.is_none_or(|floor| floor.admits(key()))
    }

    /// Whether `nexus` may reset the unit, or end the commands of others there: it may unless it has been superseded.
    pub fn may_reset(&self, nexus: NexusId) -> bool {
        self.admits(&self.shared.look(), nexus)
    }

    /// Brings the view up to date with the shared state.
    pub(crate) fn refresh(&mut self) {
        if let Some(visited) = self.shared.refresh(&mut self.rights) {
            self.worked(visited);
            self.quiet.clear();
            self.shape.read_only = self.is_read_only || self.rights.mode.current.write_protect;
            self.shape.is_protected = self.rights.is_protected;
            self.shape.len_blocks = self.rights.len_blocks.unwrap_or(self.shape.len_blocks);
            if self.shape.reads_only {
                let rights = &mut self.rights;
                rights.reserved_by = rights.reserved_by.or(rights.reserved_by_reader);
            }
        }
    }

    /// Clears and returns the pending unit attention of a nexus. A possible medium change is only reported on ports
    /// where the medium is removable.
    pub(crate) fn take_from(&self, state: &mut UnitState, nexus: NexusId) -> Option<Attention> {
        std::iter::from_fn(|| state.attentions.take(nexus))
            .find(|attention| self.shape.removable || *attention != Attention::MediumMayHaveChanged)
    }

    /// Whether the medium counts as ejected on this port. A port that presents the disk as non-removable keeps using
    /// it, since its initiators could not load it again.
    pub(crate) fn is_ejected(&self) -> bool {
        self.rights.ejected && self.shape.removable
    }

    /// Checks whether a command that waited (say, for its data-out) may still be performed: in the meantime its nexus
    /// may have been fenced off, or the medium ejected or write-protected.
    ///
    /// # Errors
    /// Why it may not.
    pub fn recheck(&mut self, nexus: NexusId, op: &MediumOp) -> Result<(), Denied> {
        self.refresh();
        let access = match op.changes() {
            true => Access::Change,
            false => Access::Read,
        };
        if !self.rights.allow(nexus, access) {
            return Err(Denied::ReservationConflict);
        }
        if self.rights.sanitizing {
            match self.shared.look().sanitize {
                Some(SanitizeState::Running(done_65536ths)) => {
                    return Err(Denied::Sanitizing { done_65536ths });
                }
                Some(SanitizeState::Failed { .. }) => return Err(Denied::SanitizeFailed),
                None => {}
            }
        }
        if self.is_ejected() {
            return Err(Denied::NoMedium);
        }
        let writes = op.changes() && !matches!(op, MediumOp::Flush { .. });
        match writes && self.shape.read_only {
            true => Err(Denied::WriteProtected),
            false => Ok(()),
        }
    }
}
