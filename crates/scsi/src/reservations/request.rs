//! A request of PERSISTENT RESERVE OUT (SPC-4 6.16) as it has been parsed, and what it does to the reservations.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Effects, ReservationRefusal, ReservationType, Reservations};
use crate::ending::Ending;
use crate::nexus::NexusName;
use crate::registrations::REGISTRATIONS_MAX;
use crate::sense::{Asc, Sense, SenseKey};

/// Service actions, by their codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReserveOutAction {
    Register = 0,
    Reserve = 1,
    Release = 2,
    Clear = 3,
    Preempt = 4,
    PreemptAndAbort = 5,
    RegisterAndIgnore = 6,
    RegisterAndMove = 7,
}

/// A service action with its parameter list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReserveRequest {
    pub(crate) action: ReserveOutAction,
    pub(crate) kind: Option<ReservationType>,
    pub(crate) list: ReserveList,
}

impl ReserveRequest {
    /// Whether the commands of nexuses that lose their registration are aborted.
    pub(crate) fn aborts(&self) -> bool {
        self.action == ReserveOutAction::PreemptAndAbort
    }

    /// The key that it registers, if it does.
    pub(crate) fn registers(&self) -> Option<u64> {
        let registers = matches!(
            self.action,
            ReserveOutAction::Register
                | ReserveOutAction::RegisterAndIgnore
                | ReserveOutAction::RegisterAndMove
        );
        let key = self.list.action_key;
        (registers && key != 0).then_some(key)
    }

    /// The key of who clears, if it does.
    pub(crate) fn clears(&self) -> Option<u64> {
        (self.action == ReserveOutAction::Clear).then_some(self.list.key)
    }

    /// The keys in whose name it acts afterwards, or already does. To unregister takes none.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        let acts = !matches!(
            self.action,
            ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore
        );
        let acting = acts.then_some(self.list.key);
        acting.into_iter().chain(self.registers())
    }

    /// How many registrations performing the request visits, at most.
    pub(crate) fn visits(&self, reservations: &Reservations, ports: &BTreeSet<u16>) -> usize {
        reservations.registrations().len() + self.named(ports).min(2 * REGISTRATIONS_MAX)
    }

    /// How many nexuses it names.
    fn named(&self, ports: &BTreeSet<u16>) -> usize {
        let ports = if self.list.all_tg_pt { ports.len() } else { 1 };
        (1 + self.list.initiators.count) * ports.max(1)
    }

    /// Performs the request on `reservations`, for the nexus `name` of a unit reachable through `ports`. On an error,
    /// discard `reservations`.
    ///
    /// # Errors
    /// The ending of the command.
    pub(crate) fn perform(
        &self,
        reservations: &mut Reservations,
        ports: &BTreeSet<u16>,
        name: &NexusName,
    ) -> Result<Effects, Ending> {
        let illegal = |asc| Ending::check(Sense::new(SenseKey::IllegalRequest, asc));
        self.try_perform(reservations, ports, name)
            .map_err(|refusal| match refusal {
                ReservationRefusal::Conflict => Ending::CONFLICT,
                ReservationRefusal::Parameter(byte) => {
                    Ending::check(Sense::invalid_parameter(byte, None))
                }
                ReservationRefusal::NothingToMove => {
                    Ending::check(Sense::invalid_cdb_field(1, Some(4)))
                }
                ReservationRefusal::WrongRelease => {
                    illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION)
                }
                ReservationRefusal::Resources => illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES),
            })
    }

    fn try_perform(
        &self,
        reservations: &mut Reservations,
        ports: &BTreeSet<u16>,
        name: &NexusName,
    ) -> Result<Effects, ReservationRefusal> {
        let list = &self.list;
        match self.action {
            ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore => {
                self.register(reservations, ports, name)
            }
            ReserveOutAction::Reserve => match self.kind {
                Some(kind) => reservations.reserve(name, list.key, kind),
                None => Err(ReservationRefusal::Parameter(0)),
            },
            ReserveOutAction::Release => match self.kind {
                Some(kind) => reservations.release(name, list.key, kind),
                None => Err(ReservationRefusal::Parameter(0)),
            },
            ReserveOutAction::Clear => reservations.clear(name, list.key),
            ReserveOutAction::Preempt | ReserveOutAction::PreemptAndAbort => {
                reservations.preempt(name, list.key, list.action_key, self.kind)
            }
            ReserveOutAction::RegisterAndMove => {
                let Some(initiator) = list.initiators.iter().next() else {
                    return Err(ReservationRefusal::Parameter(20));
                };
                let to = NexusName {
                    initiator_port: initiator.into(),
                    target_port: list.target_port,
                };
                reservations.move_to(
                    name,
                    list.key,
                    &to,
                    list.action_key,
                    list.unregister,
                    list.aptpl,
                )
            }
        }
    }

    /// REGISTER and REGISTER AND IGNORE EXISTING KEY (SPC-4 5.13.7). SPEC_I_PT names further
    /// initiator ports, none of which may already be registered. ALL_TG_PT means all ports of this target device,
    /// because a volume has one logical unit for each target that serves it.
    fn register(
        &self,
        reservations: &mut Reservations,
        ports: &BTreeSet<u16>,
        name: &NexusName,
    ) -> Result<Effects, ReservationRefusal> {
        let list = &self.list;
        let existing = (self.action == ReserveOutAction::Register).then_some(list.key);
        let own_key = reservations.key_of(name);
        if existing.is_some_and(|existing| existing != own_key.unwrap_or(0)) {
            return Err(ReservationRefusal::Conflict);
        }
        if list.spec_i_pt && own_key.is_some() {
            return Err(ReservationRefusal::Parameter(20));
        }
        // Not worked out first: a list of many initiators at many ports names hundreds of thousands. Whom it names besides
        // this nexus must not be registered yet, so there has to be room for all of them.
        let room = match list.initiators.count {
            0 => 2 * REGISTRATIONS_MAX,
            _ => REGISTRATIONS_MAX - reservations.registrations().len(),
        };
        if list.action_key != 0 && self.named(ports) > room {
            return Err(ReservationRefusal::Resources);
        }
        let everywhere = |initiator_port: Arc<str>| {
            let others = ports.iter().filter(|_| list.all_tg_pt).copied();
            let ports = [name.target_port].into_iter().chain(others);
            let name = |target_port| NexusName {
                initiator_port: initiator_port.clone(),
                target_port,
            };
            ports.map(name).collect::<Vec<_>>()
        };
        let mut names = everywhere(name.initiator_port.clone());
        // Each of its registrations is treated as if the request, with the same key, had come to that port.
        let differs = |key: u64| existing.is_some_and(|existing| existing != key);
        let keys = names.iter().filter_map(|name| reservations.key_of(name));
        if list.action_key != 0 && keys.into_iter().any(differs) {
            return Err(ReservationRefusal::Conflict);
        }
        // To unregister, nobody else needs to be named.
        let initiators = list.initiators.iter().filter(|_| list.action_key != 0);
        for initiator in initiators {
            let named = everywhere(initiator.into());
            let is_taken = |name: &NexusName| reservations.key_of(name).is_some();
            if named.iter().any(is_taken) {
                return Err(ReservationRefusal::Parameter(24));
            }
            names.extend(named);
        }
        reservations.register(
            &dedup(names),
            existing,
            list.action_key,
            list.all_tg_pt,
            list.aptpl,
        )
    }
}

fn dedup(names: Vec<NexusName>) -> Vec<NexusName> {
    let mut seen = std::collections::BTreeSet::new();
    names
        .into_iter()
        .filter(|name| seen.insert(name.clone()))
        .collect()
}

/// The parameter list (SPC-4 6.16.3, 6.16.4).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReserveList {
    pub(crate) key: u64,
    pub(crate) action_key: u64,
    pub(crate) spec_i_pt: bool,
    pub(crate) all_tg_pt: bool,
    pub(crate) aptpl: bool,
    /// REGISTER AND MOVE: UNREG, RELATIVE TARGET PORT IDENTIFIER.
    pub(crate) unregister: bool,
    pub(crate) target_port: u16,
    /// Initiator ports given as TransportIDs.
    pub(crate) initiators: PortNames,
}

/// Names of initiator ports, in one piece: there may be hundreds, and most lists of so many are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PortNames {
    /// In lower case, with a line break after each.
    lines: String,
    count: usize,
}

impl PortNames {
    pub(crate) fn push(&mut self, name: &str) {
        let start = self.lines.len();
        self.lines.push_str(name);
        self.lines[start..].make_ascii_lowercase();
        self.lines.push('\n');
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        self.lines.split_terminator('\n')
    }
}
