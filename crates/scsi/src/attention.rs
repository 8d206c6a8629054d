//! Unit attention conditions (SAM-5 5.14), which a nexus is told before its next command is served. Each
//! condition is established at most once for a nexus, and reported once; the number of nexuses that are
//! remembered is bounded.

use crate::sense::{Asc, Sense, SenseKey};
use std::collections::BTreeMap;

/// An I_T nexus: one initiator port at one target port, in iSCSI one session. The transport
/// numbers them and does not use a number again while anything remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub u64);

/// A unit attention condition; the first named is told first (SAM-5 5.14: resets precede).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Attention {
    /// Power on, or a reset: told to every new nexus.
    PowerOnOrReset,
    /// A LOGICAL UNIT RESET or TARGET WARM RESET.
    BusDeviceReset,
    /// The nexus was lost and established again.
    NexusLoss,
    /// Another nexus cleared this one's commands (CLEAR TASK SET).
    CommandsCleared,
    /// The medium was put back.
    MediumMayHaveChanged,
    /// A PREEMPT took this nexus's registration.
    RegistrationsPreempted,
    /// A CLEAR took the reservation and all registrations.
    ReservationsPreempted,
    /// A reservation that let this nexus in is gone.
    ReservationsReleased,
    /// The disk grew or shrank.
    CapacityChanged,
    /// Mode parameters changed.
    ModeParametersChanged,
    /// The target's LUNs changed.
    ReportedLunsChanged,
}

impl Attention {
    const ALL: [Attention; 11] = [
        Attention::PowerOnOrReset,
        Attention::BusDeviceReset,
        Attention::NexusLoss,
        Attention::CommandsCleared,
        Attention::MediumMayHaveChanged,
        Attention::RegistrationsPreempted,
        Attention::ReservationsPreempted,
        Attention::ReservationsReleased,
        Attention::CapacityChanged,
        Attention::ModeParametersChanged,
        Attention::ReportedLunsChanged,
    ];

    fn bit(self) -> u16 {
        1 << self as u8
    }

    /// How it is told.
    pub fn sense(self) -> Sense {
        let asc = match self {
            Attention::PowerOnOrReset => Asc::POWER_ON_OR_RESET,
            Attention::BusDeviceReset => Asc::BUS_DEVICE_RESET,
            Attention::NexusLoss => Asc::NEXUS_LOSS,
            Attention::CommandsCleared => Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR,
            Attention::MediumMayHaveChanged => Asc::MEDIUM_MAY_HAVE_CHANGED,
            Attention::RegistrationsPreempted => Asc::REGISTRATIONS_PREEMPTED,
            Attention::ReservationsPreempted => Asc::RESERVATIONS_PREEMPTED,
            Attention::ReservationsReleased => Asc::RESERVATIONS_RELEASED,
            Attention::CapacityChanged => Asc::CAPACITY_DATA_HAS_CHANGED,
            Attention::ModeParametersChanged => Asc::MODE_PARAMETERS_CHANGED,
            Attention::ReportedLunsChanged => Asc::REPORTED_LUNS_DATA_HAS_CHANGED,
        };
        Sense::new(SenseKey::UnitAttention, asc)
    }
}

/// The conditions that wait, by nexus: a bit each, so a repeated condition waits once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attentions {
    waiting: BTreeMap<NexusId, u16>,
}

/// A nexus that cannot be remembered because too many are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyNexuses;

impl Attentions {
    /// Nexuses remembered at most.
    pub(crate) const NEXUSES_MAX: usize = 4096;

    /// Makes sure that `nexus` is remembered; a new one finds [`Attention::PowerOnOrReset`].
    pub(crate) fn know(&mut self, nexus: NexusId) -> Result<(), TooManyNexuses> {
        if !self.waiting.contains_key(&nexus) {
            if self.waiting.len() >= Attentions::NEXUSES_MAX {
                return Err(TooManyNexuses);
            }
            self.waiting.insert(nexus, Attention::PowerOnOrReset.bit());
        }
        debug_assert!(self.waiting.len() <= Attentions::NEXUSES_MAX);
        Ok(())
    }

    /// Makes known a nexus that a port that has heard of the power-on has established again: it finds
    /// [`Attention::NexusLoss`] instead.
    pub(crate) fn know_again(&mut self, nexus: NexusId) {
        if self.waiting.len() < Attentions::NEXUSES_MAX {
            self.waiting.insert(nexus, Attention::NexusLoss.bit());
        }
    }

    /// Drops a nexus that ended.
    pub(crate) fn forget(&mut self, nexus: NexusId) {
        self.waiting.remove(&nexus);
    }

    /// Takes the condition that `nexus` is told next.
    pub(crate) fn take(&mut self, nexus: NexusId) -> Option<Attention> {
        let waiting = self
            .waiting
            .get_mut(&nexus)
            .filter(|waiting| **waiting != 0)?;
        let first = Attention::ALL
            .into_iter()
            .find(|a| *waiting & a.bit() != 0)?;
        *waiting &= !first.bit();
        Some(first)
    }

    /// Takes back one condition: the nexus has learnt it another way.
    pub(crate) fn withdraw(&mut self, nexus: NexusId, attention: Attention) {
        if let Some(waiting) = self.waiting.get_mut(&nexus) {
            *waiting &= !attention.bit();
        }
    }

    /// Tells one nexus, if it is known. One that is not yet will be told of the power-on.
    pub(crate) fn post_to(&mut self, attention: Attention, nexus: NexusId) {
        if let Some(waiting) = self.waiting.get_mut(&nexus) {
            *waiting |= attention.bit();
        }
    }

    /// Tells every nexus but `except`.
    pub(crate) fn post(&mut self, attention: Attention, except: Option<NexusId>) {
        for (nexus, waiting) in &mut self.waiting {
            if Some(*nexus) != except {
                *waiting |= attention.bit();
            }
        }
    }
}

#[cfg(test)]
mod tests;
