//! The state that all views of a logical unit share. There is one view for each lane and each target port through
//! which a volume is served.
//!
//! The state exists once, behind a lock that plain I/O never takes. Each view keeps an extract (its [`Rights`]) with
//! the version of the state it was made from, and compares versions before every command. A change raises the version
//! before its command is answered, so once the initiator knows of the change, no command is judged by the old state.
//! What changes nothing that an extract shows does not raise it: every extract would be made anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::attention::{Attention, Attentions};
use crate::copy::CopyResult;
use crate::kept::Kept;
use crate::key_floor::KeyFloor;
use crate::mode::ModeParameters;
use crate::nexus::{NexusId, NexusName};
use crate::remembered::Remembered;
use crate::reservations::{ReservationType, Reservations};
use crate::sanitize_state::SanitizeState;

/// The shared state of a logical unit.
#[derive(Debug, Default)]
pub struct SharedUnit {
    version: AtomicU64,
    state: Mutex<UnitState>,
}

/// Everything that initiators can change and that outlives a command.
#[derive(Debug, Default)]
pub(crate) struct UnitState {
    pub(crate) attentions: Attentions,
    /// The names of the nexuses that are logged in.
    names: BTreeMap<NexusId, NexusName>,
    /// How often a nexus got or lost its name.
    namings: u64,
    /// The nexuses that the persistent reservation lets in, for [`Rights`], with what they were worked out from.
    exempt: Option<(ExemptBasis, Exempt)>,
    /// Names of nexuses that received the power-on report, logged in or not. A nexus that is forgotten gets it once more.
    power_on_acknowledged: Remembered<()>,
    /// Those of them that have not received the report that the software has restarted since.
    resumed: BTreeSet<NexusName>,
    /// Names of nexuses that knew another disk under this unit's LUN, with the reports of it that they have not received.
    /// One that is forgotten hears only of the power-on.
    replacements: Remembered<Vec<Attention>>,
    /// Relative identifiers of the target ports that lead to the unit.
    pub(crate) ports: BTreeSet<u16>,
    pub(crate) reservations: Reservations,
    /// The lowest key that is let in, where there is one.
    pub(crate) floor: Option<KeyFloor>,
    /// The holder of the unit by RESERVE (6).
    pub(crate) reserved_by: Option<NexusId>,
    /// The same of a nexus whose port only reads, which keeps out only those of its kind.
    pub(crate) reserved_by_reader: Option<NexusId>,
    /// The nexuses that prevent the medium's removal.
    pub(crate) preventing: BTreeSet<NexusId>,
    pub(crate) ejected: bool,
    pub(crate) sanitize: Option<SanitizeState>,
    /// No sanitize may begin, because the unit is about to be removed.
    pub(crate) bars_sanitize: bool,
    /// Results of EXTENDED COPY, oldest first.
    pub(crate) copies: Vec<CopyResult>,
    pub(crate) mode: ModeParameters,
    /// The number of logical blocks, once there is a view.
    pub(crate) len_blocks: Option<u64>,
    /// Whether the volume below refuses writes, once there is a view.
    pub(crate) is_protected: Option<bool>,
}

/// The type of the persistent reservation, or of what a floor amounts to, and the nexuses exempt from its restrictions.
type Exempt = Option<(ReservationType, Arc<BTreeSet<NexusId>>)>;
/// What [`Exempt`] follows from: who is registered, who holds the reservation, which keys are let in and in which generation
/// of the registrations, who is logged in.
type ExemptBasis = (
    (u64, Option<(ReservationType, NexusName)>),
    Option<(KeyFloor, u32)>,
    u64,
);

/// All of the state that an extract shows or follows from.
#[derive(PartialEq)]
struct Shown {
    exempt: ExemptBasis,
    /// A view also keeps which nexuses have no pending unit attention.
    attentions: u64,
    reserved_by: Option<NexusId>,
    reserved_by_reader: Option<NexusId>,
    ejected: bool,
    sanitizing: bool,
    mode: ModeParameters,
    len_blocks: Option<u64>,
    is_protected: bool,
}

/// A view's extract of the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rights {
    version: u64,
    pub(crate) reserved_by: Option<NexusId>,
    /// Counts only in a view whose port only reads.
    pub(crate) reserved_by_reader: Option<NexusId>,
    pub(crate) persistent: Exempt,
    pub(crate) ejected: bool,
    /// Whether a sanitize is running or has failed.
    pub(crate) sanitizing: bool,
    pub(crate) mode: ModeParameters,
    pub(crate) len_blocks: Option<u64>,
    pub(crate) is_protected: bool,
}

impl SharedUnit {
    /// The state of a logical unit that nobody has accessed yet.
    pub fn new() -> Arc<SharedUnit> {
        Arc::default()
    }

    /// The part of the state that must survive a restart (registrations made with APTPL, saved mode pages), as text;
    /// `None` if there is nothing to keep.
    pub fn save(&self) -> Option<String> {
        let state = self.look();
        text(&state.reservations, &state.mode, state.sanitize)
    }

    /// The floor under the keys that are let in has become this one.
    pub fn set_floor(&self, floor: Option<KeyFloor>) {
        self.change(|state| state.floor = floor);
    }

    /// The floor under the keys that are let in.
    pub fn floor(&self) -> Option<KeyFloor> {
        self.look().floor.clone()
    }

    /// Lets no sanitize begin until [`SharedUnit::admit_sanitize`]; false if one is running, which changes nothing.
    pub fn bar_sanitize(&self) -> bool {
        let mut state = self.look();
        let is_running = matches!(state.sanitize, Some(SanitizeState::Running(_)));
        state.bars_sanitize |= !is_running;
        !is_running
    }

    /// Lets a sanitize begin again.
    pub fn admit_sanitize(&self) {
        self.look().bars_sanitize = false;
    }

    /// The number of logical blocks as initiators know it; `None` before the first access.
    pub fn len_blocks(&self) -> Option<u64> {
        self.look().len_blocks
    }

    /// Restores what [`SharedUnit::save`] returned before a restart.
    pub fn restore(&self, kept: Kept) {
        self.change(|state| {
            state.reservations = kept.reservations;
            state.mode = kept.mode;
            state.sanitize = kept.sanitize;
        });
    }

    /// Makes the unit go on after a restart of the software alone, which has lost no data: the `ports` that
    /// [received](crate::LogicalUnit::acknowledged) the last power-on report get that of a reset instead of another one.
    /// What is not one of its lines is skipped: such a port is told of a power-on.
    pub fn resume(&self, ports: &[String]) {
        let mut state = self.look();
        for name in ports.iter().filter_map(|line| NexusName::parse(line)) {
            if state.acknowledge_power_on(&name) {
                state.resumed.insert(name);
            }
        }
    }

    /// Locks the state without changing anything that views keep extracts of.
    pub(crate) fn look(&self) -> MutexGuard<'_, UnitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state; every view sees the change from its next command on.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut UnitState) -> T) -> T {
        let mut state = self.look();
        let before = state.shown();
        let result = change(&mut state);
        if state.shown() != before {
            self.version.fetch_add(1, Ordering::Release);
        }
        result
    }

    /// Brings a view's extract up to date. `None` if it already was, else how many entries of the state were visited.
    #[inline]
    pub(crate) fn refresh(&self, rights: &mut Rights) -> Option<usize> {
        let is_stale = self.version.load(Ordering::Acquire) != rights.version;
        is_stale.then(|| self.extract(rights))
    }

    /// Rebuilds a view's extract.
    #[cold]
    fn extract(&self, rights: &mut Rights) -> usize {
        let mut state = self.look();
        let (persistent, visited) = state.exempt();
        // An extract holds nothing but what is shown: otherwise a change of it would not raise the version.
        let Shown {
            exempt: _,
            attentions: _,
            reserved_by,
            reserved_by_reader,
            ejected,
            sanitizing,
            mode,
            len_blocks,
            is_protected,
        } = state.shown();
        *rights = Rights {
            version: self.version.load(Ordering::Acquire),
            reserved_by,
            reserved_by_reader,
            persistent,
            ejected,
            sanitizing,
            mode,
            len_blocks,
            is_protected,
        };
        visited
    }
}

/// The text that must survive a restart; `None` if there is nothing to keep.
pub(crate) fn text(
    reservations: &Reservations,
    mode: &ModeParameters,
    sanitize: Option<SanitizeState>,
) -> Option<String> {
    let text = reservations.save() + &mode.save() + &SanitizeState::save(sanitize);
    (!text.is_empty()).then_some(text)
}

impl UnitState {
    /// The first report for a nexus, by its name, that has received the power-on report, and whether its next session
    /// needs it too unless it is acknowledged; `None` for other nexuses.
    pub(crate) fn first_report(&self, name: &NexusName) -> Option<(Attention, bool)> {
        let has_acknowledged = self.power_on_acknowledged.has(name);
        has_acknowledged.then(|| match self.resumed.contains(name) {
            true => (Attention::BusDeviceReset, true),
            false => (Attention::NexusLoss, false),
        })
    }

    /// Records that a nexus has received the power-on report. Returns its name if that is new.
    pub(crate) fn power_on_acknowledged(&mut self, nexus: NexusId) -> Option<NexusName> {
        let name = self.names.get(&nexus).cloned()?;
        self.acknowledge_power_on(&name).then_some(name)
    }

    /// The same for a nexus by its name; false if that is known.
    fn acknowledge_power_on(&mut self, name: &NexusName) -> bool {
        let is_new = !self.power_on_acknowledged.has(name);
        if is_new {
            self.power_on_acknowledged.insert(name.clone(), ());
        }
        is_new
    }

    /// Records that a nexus has received the report of a reset.
    pub(crate) fn reset_acknowledged(&mut self, nexus: NexusId) {
        if let Some(name) = self.names.get(&nexus) {
            self.resumed.remove(name);
        }
    }

    /// Forgets who received earlier power-on reports, because a new one is being established.
    pub(crate) fn forget_power_on_acknowledged(&mut self) {
        self.power_on_acknowledged.clear();
        self.resumed.clear();
    }

    /// Records that a nexus, by its name, has known another disk under this unit's LUN.
    pub(crate) fn has_replaced(&mut self, name: NexusName) {
        let reports = vec![Attention::InquiryChanged, Attention::ReportedLunsChanged];
        self.replacements.insert(name, reports);
    }

    /// The reports that a nexus, by its name, has known another disk here, as far as it has not received them.
    pub(crate) fn replacement_unacknowledged(&self, name: &NexusName) -> Vec<Attention> {
        self.replacements.get(name).cloned().unwrap_or_default()
    }

    /// Records that a nexus has received one of the reports that it knew another disk.
    pub(crate) fn replacement_acknowledged(&mut self, nexus: NexusId, attention: Attention) {
        let Some(name) = self.names.get(&nexus) else {
            return;
        };
        let Some(reports) = self.replacements.get_mut(name) else {
            return;
        };
        reports.retain(|report| *report != attention);
        if reports.is_empty() {
            self.replacements.remove(name);
        }
    }

    /// The names of the nexuses that are logged in.
    pub(crate) fn names(&self) -> &BTreeMap<NexusId, NexusName> {
        &self.names
    }

    /// The number of nexuses that a change may concern.
    pub(crate) fn nexuses_len(&self) -> usize {
        self.names.len().max(self.attentions.len())
    }

    /// Names a nexus that has logged in.
    pub(crate) fn name(&mut self, nexus: NexusId, name: NexusName) {
        self.names.insert(nexus, name);
        self.namings += 1;
    }

    /// The logged-in nexuses whose names are `wanted`.
    pub(crate) fn nexuses(&self, wanted: impl Fn(&NexusName) -> bool) -> BTreeSet<NexusId> {
        let named = self.names.iter().filter(|(_, name)| wanted(name));
        named.map(|(nexus, _)| *nexus).collect()
    }

    fn shown(&self) -> Shown {
        Shown {
            exempt: self.exempt_basis(),
            attentions: self.attentions.posted(),
            reserved_by: self.reserved_by,
            reserved_by_reader: self.reserved_by_reader,
            ejected: self.ejected,
            sanitizing: self.sanitize.is_some(),
            mode: self.mode.clone(),
            len_blocks: self.len_blocks,
            is_protected: self.is_protected.unwrap_or(false),
        }
    }

    fn exempt_basis(&self) -> ExemptBasis {
        let (reservations, floor) = (&self.reservations, self.floor.clone());
        // A nexus that changes its key stays registered, but may be let in by the new one.
        let floor = floor.map(|floor| (floor, reservations.generation()));
        (reservations.rights(), floor, self.namings)
    }

    /// The nexuses that the persistent reservation and the floor let in, and how many were asked about for that.
    fn exempt(&mut self) -> (Exempt, usize) {
        let by = self.exempt_basis();
        if let Some((_, exempt)) = self.exempt.as_ref().filter(|(of, _)| *of == by) {
            return (exempt.clone(), 0);
        }
        let (reservations, floor) = (&self.reservations, self.floor.as_ref());
        // Over a floor nobody gets in unregistered, whatever has become of the reservation.
        let by_floor = floor.map(|_| ReservationType::ExclusiveAccessRegistrantsOnly);
        let exempt = by_floor.or(reservations.held()).map(|kind| {
            let admits =
                |name: &NexusName| floor.is_none_or(|it| it.admits(reservations.key_of(name)));
            let nexuses = self.nexuses(|name| reservations.exempts(name) && admits(name));
            (kind, Arc::new(nexuses))
        });
        let visited = exempt.as_ref().map_or(0, |_| self.names.len());
        self.exempt = Some((by, exempt.clone()));
        (exempt, visited)
    }

    /// Establishes a unit attention for the nexuses with these names, except the one that caused it.
    pub(crate) fn tell(
        &mut self,
        names: &BTreeSet<NexusName>,
        attention: Attention,
        except: NexusId,
    ) {
        if names.is_empty() {
            return;
        }
        for nexus in self.nexuses(|name| names.contains(name)) {
            if nexus != except {
                self.attentions.post_to(attention, nexus);
            }
        }
    }

    /// Resets the unit: drops what belongs to nexuses rather than to their names (SAM-5 6.3.3).
    pub(crate) fn reset(&mut self) {
        self.reserved_by = None;
        self.reserved_by_reader = None;
        self.preventing.clear();
        self.mode.reset();
    }

    /// Drops a nexus that ended, with everything that belonged to it alone.
    pub(crate) fn forget(&mut self, nexus: NexusId) {
        self.attentions.forget(nexus);
        self.namings += u64::from(self.names.remove(&nexus).is_some());
        self.preventing.remove(&nexus);
        self.copies.retain(|result| !result.is_of(nexus));
        self.release(nexus);
    }

    /// Ends what a nexus has reserved by RESERVE (6).
    pub(crate) fn release(&mut self, nexus: NexusId) {
        for holder in [&mut self.reserved_by, &mut self.reserved_by_reader] {
            holder.take_if(|holder| *holder == nexus);
        }
    }
}

#[cfg(test)]
mod tests;
