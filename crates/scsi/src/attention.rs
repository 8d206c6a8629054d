//! Unit attention conditions (SAM-5 5.14), which a nexus is told of before its next command is served. Each condition
//! is pending at most once per nexus, and is reported once. The number of nexuses remembered is bounded.

use std::collections::BTreeMap;

use crate::nexus::NexusId;
use crate::sense::{Asc, Sense, SenseKey};

/// A unit attention condition. Earlier variants are reported first (SAM-5 5.14: resets take precedence).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Attention {
    /// Power on, or a reset; reported to every new nexus.
    PowerOnOrReset,
    /// A LOGICAL UNIT RESET or TARGET WARM RESET.
    BusDeviceReset,
    /// The nexus was lost and reestablished.
    NexusLoss,
    /// Another nexus cleared this one's commands (CLEAR TASK SET).
    CommandsCleared,
    /// The medium was reloaded.
    MediumMayHaveChanged,
    /// A PREEMPT removed this nexus's registration.
    RegistrationsPreempted,
    /// A CLEAR removed the reservation and all registrations.
    ReservationsPreempted,
    /// A reservation that this nexus was registered under was released.
    ReservationsReleased,
    /// The disk's capacity changed.
    CapacityChanged,
    /// Mode parameters changed.
    ModeParametersChanged,
    /// The LUN has become another disk since an earlier session of the initiator port.
    InquiryChanged,
    /// The target's list of LUNs changed.
    ReportedLunsChanged,
}

impl Attention {
    const ALL: [Attention; 12] = [
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
        Attention::InquiryChanged,
        Attention::ReportedLunsChanged,
    ];

    fn bit(self) -> u16 {
        1 << self as u8
    }

    /// The sense data that reports it.
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
            Attention::InquiryChanged => Asc::INQUIRY_DATA_HAS_CHANGED,
            Attention::ReportedLunsChanged => Asc::REPORTED_LUNS_DATA_HAS_CHANGED,
        };
        Sense::new(SenseKey::UnitAttention, asc)
    }
}

/// The pending conditions by nexus: one bit each, so a repeated condition is pending once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attentions {
    waiting: BTreeMap<NexusId, u16>,
    /// How often a condition became pending.
    posted: u64,
}

/// The nexus cannot be remembered, because too many already are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyNexuses;

impl Attentions {
    /// Maximum number of nexuses remembered.
    pub(crate) const NEXUSES_MAX: usize = 4096;

    /// How many nexuses are remembered.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How often a condition became pending that was not: until it grows, a nexus without one has none.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Ensures that `nexus` is remembered; a new one starts with [`Attention::PowerOnOrReset`].
    pub(crate) fn know(&mut self, nexus: NexusId) -> Result<(), TooManyNexuses> {
        if !self.waiting.contains_key(&nexus) {
            if self.waiting.len() >= Attentions::NEXUSES_MAX {
                return Err(TooManyNexuses);
            }
            self.waiting.insert(nexus, Attention::PowerOnOrReset.bit());
            self.posted += 1;
        }
        assert!(self.waiting.len() <= Attentions::NEXUSES_MAX);
        Ok(())
    }

    /// Adds a nexus whose port has already received the power-on report: it starts with `first` instead.
    pub(crate) fn know_again(&mut self, nexus: NexusId, first: Attention) {
        if self.waiting.len() < Attentions::NEXUSES_MAX {
            self.waiting.insert(nexus, first.bit());
            self.posted += 1;
        }
    }

    /// Forgets a nexus that ended.
    pub(crate) fn forget(&mut self, nexus: NexusId) {
        self.waiting.remove(&nexus);
    }

    /// Clears and returns the condition to report to `nexus` next.
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

    /// Clears one condition, which the nexus has learned of in another way.
    pub(crate) fn withdraw(&mut self, nexus: NexusId, attention: Attention) {
        if let Some(waiting) = self.waiting.get_mut(&nexus) {
            *waiting &= !attention.bit();
        }
    }

    /// Establishes a condition for one nexus, if it is known. An unknown nexus will be told of the power-on anyway.
    pub(crate) fn post_to(&mut self, attention: Attention, nexus: NexusId) {
        if let Some(waiting) = self.waiting.get_mut(&nexus) {
            self.posted += u64::from(*waiting & attention.bit() == 0);
            *waiting |= attention.bit();
        }
    }

    /// Establishes a condition for every known nexus except `except`.
    pub(crate) fn post(&mut self, attention: Attention, except: Option<NexusId>) {
        for (nexus, waiting) in &mut self.waiting {
            if Some(*nexus) != except {
                self.posted += u64::from(*waiting & attention.bit() == 0);
                *waiting |= attention.bit();
            }
        }
    }
}

#[cfg(test)]
mod tests;
