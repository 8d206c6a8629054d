//! A snapshot of a logical unit for administrators: who is registered with it, who holds it, and what prevents its
//! use.

use crate::nexus::NexusName;
use crate::reservations::ReservationType;
use crate::sanitize_state::SanitizeState;
use crate::shared::SharedUnit;

/// A logical unit's state, as initiators have left it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitReport {
    /// Persistent reservation registrations, in the order in which they were made.
    pub registrations: Vec<RegistrationReport>,
    /// The persistent reservation.
    pub reservation: Option<ReservationReport>,
    /// The initiator port that holds the unit by RESERVE (6).
    pub reserved_by: Option<String>,
    /// Whether an initiator has write-protected the disk for all (SWP in the control mode page).
    pub is_write_protected: bool,
    /// Whether the medium is ejected.
    pub is_ejected: bool,
    /// A sanitize that is running or has failed.
    pub sanitize: Option<SanitizeReport>,
}

/// One registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationReport {
    /// `<iSCSI name>,i,0x<ISID>` (RFC 7143 §4.4.4).
    pub initiator_port: String,
    /// Relative target port identifier.
    pub target_port: u16,
    /// The reservation key.
    pub key: u64,
}

/// The persistent reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationReport {
    /// Its type, as named in SPC-4 6.15.3.4.
    pub kind: &'static str,
    /// The initiator port that holds it; `None` if all registrants do.
    pub holder: Option<String>,
}

/// The state of a sanitize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SanitizeReport {
    /// It is running.
    Running {
        /// SanitizeState, 0 to 100.
        percent: u8,
    },
    /// It failed.
    Failed,
}

impl SharedUnit {
    /// The unit's current state.
    pub fn report(&self) -> UnitReport {
        let state = self.look();
        let registrations = state.reservations.registrations().in_order().into_iter();
        let registrations = registrations.map(|(name, registration)| RegistrationReport {
            initiator_port: name.initiator_port.to_string(),
            target_port: name.target_port,
            key: registration.key,
        });
        let port = |name: &NexusName| name.initiator_port.to_string();
        let held = state.reservations.reservation();
        UnitReport {
            registrations: registrations.collect(),
            reservation: held.map(|(kind, holder)| ReservationReport {
                kind: name_of(kind),
                holder: (!kind.is_all_registrants()).then(|| port(holder)),
            }),
            reserved_by: state.reserved_by.map(|nexus| {
                let name = state.names().get(&nexus);
                name.map_or_else(|| format!("nexus {}", nexus.0), port)
            }),
            is_write_protected: state.mode.current.write_protect,
            is_ejected: state.ejected,
            sanitize: state.sanitize.map(|progress| match progress {
                SanitizeState::Running(part) => SanitizeReport::Running {
                    percent: (u32::from(part) * 100 / 65536) as u8,
                },
                SanitizeState::Failed { .. } => SanitizeReport::Failed,
            }),
        }
    }
}

fn name_of(kind: ReservationType) -> &'static str {
    match kind {
        ReservationType::WriteExclusive => "Write Exclusive",
        ReservationType::ExclusiveAccess => "Exclusive Access",
        ReservationType::WriteExclusiveRegistrantsOnly => "Write Exclusive - Registrants Only",
        ReservationType::ExclusiveAccessRegistrantsOnly => "Exclusive Access - Registrants Only",
        ReservationType::WriteExclusiveAllRegistrants => "Write Exclusive - All Registrants",
        ReservationType::ExclusiveAccessAllRegistrants => "Exclusive Access - All Registrants",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexus::NexusId;

    #[test]
    fn it_names_registrants_holder_and_type() {
        let unit = SharedUnit::default();
        assert_eq!(unit.report(), UnitReport::default());
        let name = NexusName {
            initiator_port: "iqn.2026-11.test:a,i,0x1".into(),
            target_port: 3,
        };
        unit.change(|state| {
            let reservations = &mut state.reservations;
            let names = std::slice::from_ref(&name);
            let registered = reservations.register(names, None, 7, false, false);
            registered.expect("there is room");
            let reserved =
                reservations.reserve(&name, 7, ReservationType::WriteExclusiveRegistrantsOnly);
            reserved.expect("it is free");
            state.name(NexusId(1), name.clone());
            state.reserved_by = Some(NexusId(1));
            state.sanitize = Some(SanitizeState::Running(32768));
            state.mode.current.write_protect = true;
        });
        let report = unit.report();
        let registration = RegistrationReport {
            initiator_port: name.initiator_port.to_string(),
            target_port: 3,
            key: 7,
        };
        assert_eq!(report.registrations, [registration]);
        let reservation = ReservationReport {
            kind: "Write Exclusive - Registrants Only",
            holder: Some(name.initiator_port.to_string()),
        };
        assert_eq!(report.reservation, Some(reservation));
        assert_eq!(report.reserved_by, Some(name.initiator_port.to_string()));
        assert!(report.is_write_protected);
        let half = SanitizeReport::Running { percent: 50 };
        assert_eq!(report.sanitize, Some(half));
    }
}
