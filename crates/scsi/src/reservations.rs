//! Persistent reservations (SPC-4 5.13): which nexus is registered with which key, who holds the reservation and of
//! what type, and how each service action of PERSISTENT RESERVE OUT changes this.
//!
//! A registration belongs to an I_T nexus by name (initiator port and target port), not to a session, so it survives
//! logouts and, with APTPL, restarts.

mod request;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::nexus::NexusName;
use crate::registrations::{REGISTRATIONS_MAX, Registration, Registrations};
use crate::saved::{MALFORMED, truth};

pub(crate) use request::{PortNames, ReserveList, ReserveOutAction, ReserveRequest};

/// Reservation types (SPC-4 6.15.3.4). The discriminant is the wire value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ReservationType {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

impl ReservationType {
    pub(crate) const ALL: [ReservationType; 6] = [
        ReservationType::WriteExclusive,
        ReservationType::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrantsOnly,
        ReservationType::ExclusiveAccessRegistrantsOnly,
        ReservationType::WriteExclusiveAllRegistrants,
        ReservationType::ExclusiveAccessAllRegistrants,
    ];

    pub(crate) fn from_code(code: u8) -> Option<ReservationType> {
        ReservationType::ALL
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }

    pub(crate) fn excludes_readers(self) -> bool {
        matches!(
            self,
            ReservationType::ExclusiveAccess
                | ReservationType::ExclusiveAccessRegistrantsOnly
                | ReservationType::ExclusiveAccessAllRegistrants
        )
    }

    /// Whether every registrant holds the reservation.
    pub(crate) fn is_all_registrants(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusiveAllRegistrants
                | ReservationType::ExclusiveAccessAllRegistrants
        )
    }

    /// Whether every registrant is exempt from the reservation's restrictions.
    fn exempts_registrants(self) -> bool {
        !matches!(
            self,
            ReservationType::WriteExclusive | ReservationType::ExclusiveAccess
        )
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Reservation {
    kind: ReservationType,
    /// Who made the reservation; with the all-registrants types, every registrant is a holder.
    holder: NexusName,
}

/// The registrations and the reservation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    generation: u32,
    registrations: Registrations,
    reservation: Option<Reservation>,
    /// Activate persist through power loss, as set by the last REGISTER.
    aptpl: bool,
}

/// Why a service action was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReservationRefusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// ILLEGAL REQUEST, INVALID FIELD IN PARAMETER LIST at this byte.
    Parameter(u16),
    /// ILLEGAL REQUEST, INVALID FIELD IN CDB: there is no reservation to move.
    NothingToMove,
    /// ILLEGAL REQUEST, INVALID RELEASE OF PERSISTENT RESERVATION.
    WrongRelease,
    /// ILLEGAL REQUEST, INSUFFICIENT REGISTRATION RESOURCES.
    Resources,
}

/// The nexuses that a service action affects, besides the one that requested it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Lost their registration to a PREEMPT.
    pub(crate) registrations_preempted: BTreeSet<NexusName>,
    /// Lost their reservation and registration to a CLEAR.
    pub(crate) reservations_preempted: BTreeSet<NexusName>,
    /// Must be told that the reservation was released.
    pub(crate) reservations_released: BTreeSet<NexusName>,
}

impl Reservations {
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    pub(crate) fn is_aptpl(&self) -> bool {
        self.aptpl
    }

    pub(crate) fn key_of(&self, name: &NexusName) -> Option<u64> {
        let found = self.registrations.get(name);
        found.map(|registration| registration.key)
    }

    pub(crate) fn held(&self) -> Option<ReservationType> {
        self.reservation.as_ref().map(|r| r.kind)
    }

    /// The reservation's type and the nexus that made it.
    pub(crate) fn reservation(&self) -> Option<(ReservationType, &NexusName)> {
        self.reservation.as_ref().map(|r| (r.kind, &r.holder))
    }

    /// The reservation's key as reported by READ RESERVATION: 0 if all registrants hold it.
    pub(crate) fn held_key(&self) -> u64 {
        match &self.reservation {
            Some(r) if !r.kind.is_all_registrants() => self.key_of(&r.holder).unwrap_or(0),
            _ => 0,
        }
    }

    /// Whether the nexus holds the reservation. With the all-registrants types, every current registrant does,
    /// whoever made the reservation (SPC-4 5.13.10).
    pub(crate) fn is_holder(&self, name: &NexusName) -> bool {
        self.reservation
            .as_ref()
            .is_some_and(|r| match r.kind.is_all_registrants() {
                true => self.key_of(name).is_some(),
                false => r.holder == *name,
            })
    }

    /// Whether the reservation allows this nexus everything.
    pub(crate) fn exempts(&self, name: &NexusName) -> bool {
        self.reservation.as_ref().is_none_or(|r| {
            self.is_holder(name) || r.kind.exempts_registrants() && self.key_of(name).is_some()
        })
    }

    /// REGISTER (with the existing key that must match) and REGISTER AND IGNORE EXISTING KEY (with `None`), for
    /// `names`, of which the first is the requesting nexus (SPC-4 5.13.7).
    pub(crate) fn register(
        &mut self,
        names: &[NexusName],
        existing: Option<u64>,
        key: u64,
        all_ports: bool,
        aptpl: bool,
    ) -> Result<Effects, ReservationRefusal> {
        let own = &names[0];
        let before = self.key_of(own);
        if existing.is_some_and(|existing| existing != before.unwrap_or(0)) {
            return Err(ReservationRefusal::Conflict);
        }
        let mut effects = Effects::default();
        if key == 0 {
            // From an unregistered nexus this is a no-op, whatever its APTPL says (SPC-4 5.13.7).
            if before.is_some() {
                effects = self.unregister(own);
                self.generation = self.generation.wrapping_add(1);
                self.aptpl = aptpl && !self.registrations.is_empty();
                self.check();
            }
            return Ok(effects);
        }
        let new = names.iter().filter(|n| self.key_of(n).is_none()).count();
        if self.registrations.len() + new > REGISTRATIONS_MAX {
            return Err(ReservationRefusal::Resources);
        }
        for name in names {
            self.registrations.set(name, key, all_ports);
        }
        self.aptpl = aptpl;
        self.generation = self.generation.wrapping_add(1);
        self.check();
        Ok(effects)
    }

    /// The invariants after every service action: a bounded number of registrations, each with a key, and a
    /// reservation only while a registrant holds it.
    fn check(&self) {
        assert!(self.registrations.len() <= REGISTRATIONS_MAX);
        assert!(
            self.reservation.as_ref().is_none_or(|r| {
                let all = r.kind.is_all_registrants() && !self.registrations.is_empty();
                all || self.key_of(&r.holder).is_some()
            }),
            "nobody registered holds the reservation"
        );
        assert!(
            self.registrations.iter().all(|(_, r)| r.key != 0),
            "a registration without a key"
        );
    }

    /// Removes a registration, and the reservation with its (last) holder.
    fn unregister(&mut self, name: &NexusName) -> Effects {
        let was_holder = self.is_holder(name);
        self.registrations.remove(name);
        let mut effects = Effects::default();
        if let Some(r) = self.reservation.clone().filter(|_| was_holder) {
            if !r.kind.is_all_registrants() || self.registrations.is_empty() {
                self.reservation = None;
                if r.kind.exempts_registrants() {
                    effects.reservations_released = self.names();
                }
            }
        }
        effects
    }

    fn names(&self) -> BTreeSet<NexusName> {
        self.registrations
            .iter()
            .map(|(name, _)| name.clone())
            .collect()
    }

    fn check_key(&self, name: &NexusName, key: u64) -> Result<(), ReservationRefusal> {
        match self.key_of(name) {
            Some(registered) if registered == key => Ok(()),
            _ => Err(ReservationRefusal::Conflict),
        }
    }

    /// RESERVE (SPC-4 5.13.9).
    pub(crate) fn reserve(
        &mut self,
        name: &NexusName,
        key: u64,
        kind: ReservationType,
    ) -> Result<Effects, ReservationRefusal> {
        self.check_key(name, key)?;
        match &self.reservation {
            None => {
                self.reservation = Some(Reservation {
                    kind,
                    holder: name.clone(),
                });
                Ok(Effects::default())
            }
            Some(r) if self.is_holder(name) && r.kind == kind => Ok(Effects::default()),
            Some(_) => Err(ReservationRefusal::Conflict),
        }
    }

    /// RELEASE (SPC-4 5.13.11.2.2). A nexus that does not hold the reservation succeeds without effect.
    pub(crate) fn release(
        &mut self,
        name: &NexusName,
        key: u64,
        kind: ReservationType,
    ) -> Result<Effects, ReservationRefusal> {
        self.check_key(name, key)?;
        let Some(held) = self.held().filter(|_| self.is_holder(name)) else {
            return Ok(Effects::default());
        };
        if held != kind {
            return Err(ReservationRefusal::WrongRelease);
        }
        self.reservation = None;
        let mut effects = Effects::default();
        if held.exempts_registrants() {
            effects.reservations_released = self.names();
        }
        Ok(effects)
    }

    /// CLEAR (SPC-4 5.13.11.2.7).
    pub(crate) fn clear(
        &mut self,
        name: &NexusName,
        key: u64,
    ) -> Result<Effects, ReservationRefusal> {
        self.check_key(name, key)?;
        let effects = Effects {
            reservations_preempted: self.names(),
            ..Effects::default()
        };
        self.registrations.retain(|_, _| false);
        self.reservation = None;
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// PREEMPT, and the common part of PREEMPT AND ABORT (SPC-4 5.13.11.2.4, 5.13.11.2.6).
    pub(crate) fn preempt(
        &mut self,
        name: &NexusName,
        key: u64,
        victim: u64,
        kind: Option<ReservationType>,
    ) -> Result<Effects, ReservationRefusal> {
        self.check_key(name, key)?;
        let held = self.held();
        let all = held.is_some_and(ReservationType::is_all_registrants);
        if victim == 0 && !all {
            return Err(ReservationRefusal::Parameter(8));
        }
        let takes_over = match held {
            None => false,
            Some(_) if all => victim == 0,
            Some(_) => self.held_key() == victim,
        };
        let is_victim = |of: &NexusName, r: &Registration| match all && victim == 0 {
            true => of != name,
            false => r.key == victim,
        };
        if !takes_over && !self.registrations.iter().any(|(of, r)| is_victim(of, r)) {
            return Err(ReservationRefusal::Conflict);
        }
        let kind = match (takes_over, kind) {
            (true, None) => return Err(ReservationRefusal::Parameter(0)),
            (true, kind) => kind,
            (false, _) => None,
        };
        // A nexus that preempts its own key stays registered only if it takes over the reservation.
        let keeps_own = takes_over || self.key_of(name) != Some(victim);
        let mut effects = Effects::default();
        let lost = self
            .registrations
            .retain(|of, r| !is_victim(of, r) || of == name && keeps_own);
        if let Some(kind) = kind {
            if held.is_some_and(|held| held != kind) {
                effects.reservations_released = self.names();
            }
            self.reservation = Some(Reservation {
                kind,
                holder: name.clone(),
            });
        } else if all && self.registrations.is_empty() {
            self.reservation = None;
        }
        effects.registrations_preempted = lost.into_iter().filter(|of| of != name).collect();
        self.generation = self.generation.wrapping_add(1);
        assert!(
            self.key_of(name).is_some() || !self.is_holder(name),
            "the preempting nexus holds the disk without a registration"
        );
        self.check();
        Ok(effects)
    }

    /// REGISTER AND MOVE (SPC-4 5.13.8): moves the reservation to `to`, registered with `new_key`.
    pub(crate) fn move_to(
        &mut self,
        name: &NexusName,
        key: u64,
        to: &NexusName,
        new_key: u64,
        unregister: bool,
        aptpl: bool,
    ) -> Result<Effects, ReservationRefusal> {
        self.check_key(name, key)?;
        let kind = self.held().ok_or(ReservationRefusal::NothingToMove)?;
        if !self.is_holder(name) || kind.is_all_registrants() {
            return Err(ReservationRefusal::Conflict);
        }
        if new_key == 0 {
            return Err(ReservationRefusal::Parameter(8));
        }
        if to == name {
            return Err(ReservationRefusal::Parameter(24));
        }
        let full = self.registrations.len() >= REGISTRATIONS_MAX;
        if full && self.key_of(to).is_none() {
            return Err(ReservationRefusal::Resources);
        }
        self.registrations.set(to, new_key, false);
        self.reservation = Some(Reservation {
            kind,
            holder: to.clone(),
        });
        if unregister {
            self.registrations.remove(name);
        }
        self.aptpl = aptpl;
        self.generation = self.generation.wrapping_add(1);
        self.check();
        Ok(Effects::default())
    }

    /// Whether [`Reservations::save`] returns any text.
    pub(crate) fn is_kept(&self) -> bool {
        self.aptpl && (!self.registrations.is_empty() || self.reservation.is_some())
    }

    /// What decides which nexuses the reservation lets in; equal before and after a change that changes nobody's rights.
    pub(crate) fn rights(&self) -> (u64, Option<(ReservationType, NexusName)>) {
        let held = self.reservation.as_ref();
        let held = held.map(|r| (r.kind, r.holder.clone()));
        (self.registrations.changes(), held)
    }

    /// One line per registration and one for the reservation, if APTPL says to keep them.
    pub(crate) fn save(&self) -> String {
        let mut text = String::new();
        if !self.aptpl {
            return text;
        }
        for (name, r) in self.registrations.in_order() {
            let all = u8::from(r.all_ports);
            let (port, name) = (name.target_port, &name.initiator_port);
            let _ = writeln!(text, "registration {:016x} {port} {all} {name}", r.key);
        }
        if let Some(r) = &self.reservation {
            let _ = writeln!(text, "reservation {} {}", r.kind as u8, r.holder.line());
        }
        text
    }

    /// Restores what one line of [`Reservations::save`] says, given in words. The error says what is wrong with it.
    pub(crate) fn restore(&mut self, words: &[&str]) -> Result<(), &'static str> {
        match *words {
            ["registration", key, port, all, initiator] => {
                let name = NexusName::restore(port, initiator)?;
                let is_hexadecimal = key.bytes().all(|byte| byte.is_ascii_hexdigit());
                let key = u64::from_str_radix(key, 16).ok().filter(|_| is_hexadecimal);
                let key = key.filter(|&key| key != 0).ok_or(MALFORMED)?;
                if self.key_of(&name).is_some() {
                    return Err("registers a nexus for the second time");
                }
                if self.registrations.len() >= REGISTRATIONS_MAX {
                    return Err("is one registration too many");
                }
                self.aptpl = true;
                self.registrations.set(&name, key, truth(all)?);
            }
            ["reservation", kind, port, initiator] => {
                let holder = NexusName::restore(port, initiator)?;
                let kind = kind.parse().ok().and_then(ReservationType::from_code);
                let kind = kind.ok_or(MALFORMED)?;
                if self.reservation.is_some() {
                    return Err("is there for the second time");
                }
                let is_held = match kind.is_all_registrants() {
                    true => !self.registrations.is_empty(),
                    false => self.key_of(&holder).is_some(),
                };
                if !is_held {
                    return Err("is the reservation of a nexus without a registration");
                }
                self.reservation = Some(Reservation { kind, holder });
            }
            _ => return Err(MALFORMED),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
