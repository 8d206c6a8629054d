//! A change of a unit's state that outlives its command and perhaps a restart: PERSISTENT RESERVE OUT,
//! MODE SELECT, the exit from a failed sanitize.
//!
//! It takes effect only when it is durable: a command that ends with an error has changed nothing, and no
//! initiator sees a reservation that a power cut takes back. So there are two steps, and the transport
//! writes between them: [`Change::prepare`] gives what has to be written, [`Prepared::commit`] makes the
//! change.

use crate::action::Ending;
use crate::attention::{Attention, NexusId};
use crate::commands::reserve_out::Request;
use crate::mode::Control;
use crate::reservations::{Effects, Reservations};
use crate::sense::{Asc, Sense, SenseKey};
use crate::shared::State;
use crate::unit::LogicalUnit;

/// A change that is asked for. From its preparation to its commit no other one of the same logical
/// unit may be under way, on any lane: each is prepared for the state that it finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub(crate) nexus: NexusId,
    pub(crate) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Reservations(Request),
    Mode { values: Control, save: bool },
    LeaveFailure,
}

/// A change that can be made.
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

/// What a change has done that reaches further than its command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// Whose commands to abort, without an answer, and wait for the end of their I/O on every lane,
    /// before the command is answered with GOOD.
    pub abort: Vec<NexusId>,
}

impl Change {
    /// What it makes of the unit as it is now. Nothing changes yet.
    ///
    /// # Errors
    /// How its command ends if it cannot be made.
    pub fn prepare(&self, unit: &LogicalUnit) -> Result<Prepared, Ending> {
        let state = unit.shared().look();
        let mut mode = state.mode.clone();
        let mut sanitize = state.sanitize;
        let (after, keep) = match &self.what {
            What::Reservations(request) => {
                not_reserved(&state)?;
                let name = unit.name_of(&state, self.nexus);
                let mut reservations = state.reservations.clone();
                let effects = request.perform(&mut reservations, &state.ports, &name)?;
                let keep = !state.reservations.save().is_empty() || !reservations.save().is_empty();
                let after = After::Reservations {
                    reservations,
                    effects,
                    aborts: request.aborts(),
                };
                (after, keep)
            }
            What::Mode { values, save } => {
                let (values, save) = (*values, *save);
                if save {
                    mode.saved = values;
                }
                // Also of what is saved already: to keep it may have failed the last time.
                (After::Mode { values, save }, save)
            }
            What::LeaveFailure => {
                crate::commands::sanitize::may_leave(sanitize)?;
                sanitize = None;
                // Also without a failure, for the same reason.
                (After::LeaveFailure, true)
            }
        };
        let reservations = match &after {
            After::Reservations { reservations, .. } => reservations,
            _ => &state.reservations,
        };
        Ok(Prepared {
            nexus: self.nexus,
            keep: keep.then(|| crate::shared::text(reservations, &mode, sanitize)),
            after,
        })
    }
}

impl Prepared {
    /// The ending when what has to be kept could not be.
    pub fn not_kept() -> Ending {
        Ending::check(Sense::new(
            SenseKey::HardwareError,
            Asc::INTERNAL_TARGET_FAILURE,
        ))
    }

    /// What must be on persistent media before the commit, as [`SharedUnit::save`] gives it
    /// afterwards; `None` when that has not changed.
    ///
    /// [`SharedUnit::save`]: crate::SharedUnit::save
    pub fn to_keep(&self) -> Option<Option<String>> {
        self.keep.clone()
    }

    /// Makes the change; every copy of the unit knows of it from its next command on.
    ///
    /// # Errors
    /// How its command ends if something else has come between, which PERSISTENT RESERVE OUT finds
    /// of RESERVE (6). What was kept is then to be kept again as it is.
    pub fn commit(self, unit: &LogicalUnit) -> Result<Changed, Ending> {
        let nexus = self.nexus;
        unit.shared().change(|state| match self.after {
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
                crate::commands::sanitize::may_leave(state.sanitize)?;
                state.sanitize = None;
                Ok(Changed::default())
            }
        })
    }
}

/// The unit may have been given to one by RESERVE (6) while the list came or something was kept.
fn not_reserved(state: &State) -> Result<(), Ending> {
    match state.reserved_by {
        Some(_) => Err(Ending::CONFLICT),
        None => Ok(()),
    }
}
