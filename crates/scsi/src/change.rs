//! Changes of a unit's state that outlive their command and perhaps a restart: PERSISTENT RESERVE OUT, MODE SELECT,
//! and the exit from a failed sanitize.
//!
//! A change takes effect only once it is durable: a command that fails has changed nothing, and no initiator sees a
//! reservation that a power cut could undo. So there are two steps, with the transport's write in between:
//! [`Change::prepare`] returns what must be written, and [`Prepared::commit`] makes the change.

use crate::attention::Attention;
use crate::ending::Ending;
use crate::mode::Control;
use crate::nexus::NexusId;
use crate::reservations::{Effects, Reservations, ReserveRequest};
use crate::sanitize_state::SanitizeState;
use crate::sense::{Asc, Sense, SenseKey};
use crate::shared::UnitState;
use crate::unit::LogicalUnit;

/// To write a registration as a line of text costs as much as so many visits of one.
const LINES_PER_VISIT: usize = 4;

/// A requested change. Between its preparation and its commit, no other change of the same logical unit may be in
/// progress on any lane, because each is prepared against the current state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub(crate) nexus: NexusId,
    pub(crate) what: ChangeKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Reservations(ReserveRequest),
    Mode { values: Control, save: bool },
    LeaveFailure,
}

/// A change that is ready to be committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    nexus: NexusId,
    after: After,
    keep: Option<Option<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum After {
    Reservations {
        reservations: Reservations,
        effects: Effects,
        aborts: bool,
    },
    Mode {
        values: Control,
        save: bool,
    },
    LeaveFailure,
}

/// The effects of a change beyond its own command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// Nexuses whose commands must be aborted without an answer. Before the command is answered with GOOD, wait for
    /// their I/O to end on every lane.
    pub abort: Vec<NexusId>,
}

impl Change {
    /// The key that it registers, if it does.
    pub fn registers(&self) -> Option<u64> {
        match &self.what {
            ChangeKind::Reservations(request) => request.registers(),
            _ => None,
        }
    }

    /// The key of the nexus that ends all registrations and the reservation (CLEAR), if it does.
    pub fn clears(&self) -> Option<u64> {
        match &self.what {
            ChangeKind::Reservations(request) => request.clears(),
            _ => None,
        }
    }

    /// Works out the change against the unit's current state, without changing anything.
    ///
    /// # Errors
    /// How the command ends if the change is not possible.
    pub fn prepare(&self, unit: &LogicalUnit) -> Result<Prepared, Ending> {
        let state = unit.shared().look();
        unit.worked(match &self.what {
            ChangeKind::Reservations(request) => request.visits(&state.reservations, &state.ports),
            ChangeKind::Mode { .. } | ChangeKind::LeaveFailure => 0,
        });
        let mut mode = state.mode.clone();
        let mut sanitize = state.sanitize;
        let (after, keep) = match &self.what {
            ChangeKind::Reservations(request) => {
                not_reserved(&state)?;
                let floor = state.floor.as_ref();
                if floor.is_some_and(|floor| request.keys().any(|key| floor.is_below(key))) {
                    return Err(Ending::CONFLICT);
                }
                let name = unit.name_of(&state, self.nexus);
                let mut reservations = state.reservations.clone();
                let effects = request.perform(&mut reservations, &state.ports, &name)?;
                let keep = state.reservations.is_kept() || reservations.is_kept();
                let after = After::Reservations {
                    reservations,
                    effects,
                    aborts: request.aborts(),
                };
                (after, keep)
            }
            ChangeKind::Mode { values, save } => {
                let (values, save) = (*values, *save);
                if save {
                    mode.saved = values;
                }
                // Write it even if unchanged: the previous attempt to persist it may have failed.
                (After::Mode { values, save }, save)
            }
            ChangeKind::LeaveFailure => {
                SanitizeState::may_leave(sanitize)?;
                sanitize = None;
                // Even without a failure, for the same reason.
                (After::LeaveFailure, true)
            }
        };
        let reservations = match &after {
            After::Reservations { reservations, .. } => reservations,
            _ => &state.reservations,
        };
        let keep = keep.then(|| crate::shared::text(reservations, &mode, sanitize));
        if keep.is_some() {
            unit.worked(LINES_PER_VISIT * reservations.registrations().len());
        }
        Ok(Prepared {
            nexus: self.nexus,
            keep,
            after,
        })
    }
}

impl Prepared {
    /// The ending if the change could not be persisted.
    pub fn not_kept() -> Ending {
        Ending::check(Sense::new(
            SenseKey::HardwareError,
            Asc::INTERNAL_TARGET_FAILURE,
        ))
    }

    /// What must be on persistent media before the commit: the text that [`SharedUnit::save`] will return afterwards;
    /// `None` if that has not changed.
    ///
    /// [`SharedUnit::save`]: crate::SharedUnit::save
    pub fn to_keep(&self) -> Option<Option<String>> {
        self.keep.clone()
    }

    /// Makes the change; every view of the unit sees it from its next command on.
    ///
    /// # Errors
    /// How the command ends if the unit changed in the meantime, as when a RESERVE (6) came before a PERSISTENT
    /// RESERVE OUT could commit. The unit's current state must then be persisted again.
    pub fn commit(self, unit: &LogicalUnit) -> Result<Changed, Ending> {
        let mut visited = 0;
        let result = unit.shared().change(|state| {
            visited = state.nexuses_len();
            self.make(state)
        });
        unit.worked(visited);
        result
    }

    fn make(self, state: &mut UnitState) -> Result<Changed, Ending> {
        let nexus = self.nexus;
        match self.after {
            After::Reservations {
                reservations,
                effects,
                aborts,
            } => {
                not_reserved(state)?;
                state.reservations = reservations;
                let mut changed = Changed::default();
                if aborts {
                    let lost = &effects.registrations_preempted;
                    changed
                        .abort
                        .extend(state.nexuses(|name| lost.contains(name)));
                }
                for (names, attention) in [
                    (
                        effects.reservations_released,
                        Attention::ReservationsReleased,
                    ),
                    (
                        effects.registrations_preempted,
                        Attention::RegistrationsPreempted,
                    ),
                    (
                        effects.reservations_preempted,
                        Attention::ReservationsPreempted,
                    ),
                ] {
                    state.tell(&names, attention, nexus);
                }
                Ok(changed)
            }
            After::Mode { values, save } => {
                if state.mode.current != values {
                    state.mode.current = values;
                    state
                        .attentions
                        .post(Attention::ModeParametersChanged, Some(nexus));
                }
                if save {
                    state.mode.saved = values;
                }
                Ok(Changed::default())
            }
            After::LeaveFailure => {
                SanitizeState::may_leave(state.sanitize)?;
                state.sanitize = None;
                Ok(Changed::default())
            }
        }
    }
}

/// Fails if another nexus got the unit by RESERVE (6) while the parameter list arrived or the change was persisted.
fn not_reserved(state: &UnitState) -> Result<(), Ending> {
    match state.reserved_by {
        Some(_) => Err(Ending::CONFLICT),
        None => Ok(()),
    }
}
