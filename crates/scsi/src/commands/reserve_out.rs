//! PERSISTENT RESERVE OUT (SPC-4 6.16): parses the parameter list and applies it to the reservations.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Command;
use crate::action::{Action, Ending};
use crate::attention::NexusId;
use crate::cdb::Cdb;
use crate::change::{self, Change};
use crate::registrations::REGISTRATIONS_MAX;
use crate::reservations::{Effects, Kind, NexusName, Refusal, Reservations};
use crate::sense::{Asc, Sense, SenseKey};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReserveOut {
    what: What,
    scope: u8,
    kind: u8,
    list_len_bytes: u32,
}

/// Service actions, by their codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Register = 0,
    Reserve = 1,
    Release = 2,
    Clear = 3,
    Preempt = 4,
    PreemptAndAbort = 5,
    RegisterAndIgnore = 6,
    RegisterAndMove = 7,
}

const LIST_LEN: u32 = 24;
/// Limits the TransportIDs of SPEC_I_PT.
const LIST_LEN_MAX: u32 = 8192;
/// The longest name of an initiator port: an iSCSI name of 223 bytes (RFC 7143 §4.2.7.1), `,i,0x`, an ISID of 12 digits.
const PORT_NAME_LEN_MAX: usize = 223 + ISID_SEPARATOR.len() + ISID_LEN_MAX;
const ISID_SEPARATOR: &str = ",i,0x";
const ISID_LEN_MAX: usize = 12;
const LIST_LENGTH_ERROR: Sense =
    Sense::new(SenseKey::IllegalRequest, Asc::PARAMETER_LIST_LENGTH_ERROR);

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    let what = match cdb.u8(1) & 0x1F {
        0 => What::Register,
        1 => What::Reserve,
        2 => What::Release,
        3 => What::Clear,
        4 => What::Preempt,
        5 => What::PreemptAndAbort,
        6 => What::RegisterAndIgnore,
        7 => What::RegisterAndMove,
        _ => return Err(Sense::invalid_cdb_field(1, Some(4))),
    };
    Ok(Command::ReserveOut(ReserveOut {
        what,
        scope: cdb.u8(2) >> 4,
        kind: cdb.u8(2) & 0x0F,
        list_len_bytes: cdb.u32(5),
    }))
}

impl ReserveOut {
    pub(super) fn begin(self) -> Result<Action, Sense> {
        let reserving = matches!(
            self.what,
            What::Reserve | What::Release | What::Preempt | What::PreemptAndAbort
        );
        if reserving && self.scope != 0 {
            return Err(Sense::invalid_cdb_field(2, Some(7)));
        }
        if matches!(self.what, What::Reserve | What::Release)
            && Kind::from_code(self.kind).is_none()
        {
            return Err(Sense::invalid_cdb_field(2, Some(3)));
        }
        if !(LIST_LEN..=LIST_LEN_MAX).contains(&self.list_len_bytes) {
            return Err(LIST_LENGTH_ERROR);
        }
        Ok(Command::ReserveOut(self).wants(self.list_len_bytes))
    }

    pub(super) fn resume(self, nexus: NexusId, data: &[u8]) -> Result<Action, Sense> {
        let list = List::parse(self.what, data)?;
        let what = change::What::Reservations(Request { out: self, list });
        Ok(Action::Change(Change { nexus, what }))
    }
}

/// A service action with its parameter list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    out: ReserveOut,
    list: List,
}

impl Request {
    /// Whether the commands of nexuses that lose their registration are aborted.
    pub(crate) fn aborts(&self) -> bool {
        self.out.what == What::PreemptAndAbort
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
                Refusal::Conflict => Ending::CONFLICT,
                Refusal::Parameter(byte) => Ending::check(Sense::invalid_parameter(byte, None)),
                Refusal::NothingToMove => Ending::check(Sense::invalid_cdb_field(1, Some(4))),
                Refusal::WrongRelease => illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION),
                Refusal::Resources => illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES),
            })
    }

    fn try_perform(
        &self,
        reservations: &mut Reservations,
        ports: &BTreeSet<u16>,
        name: &NexusName,
    ) -> Result<Effects, Refusal> {
        let list = &self.list;
        let kind = Kind::from_code(self.out.kind);
        match self.out.what {
            What::Register | What::RegisterAndIgnore => self.register(reservations, ports, name),
            What::Reserve => match kind {
                Some(kind) => reservations.reserve(name, list.key, kind),
                None => Err(Refusal::Parameter(0)),
            },
            What::Release => match kind {
                Some(kind) => reservations.release(name, list.key, kind),
                None => Err(Refusal::Parameter(0)),
            },
            What::Clear => reservations.clear(name, list.key),
            What::Preempt | What::PreemptAndAbort => {
                reservations.preempt(name, list.key, list.action_key, kind)
            }
            What::RegisterAndMove => {
                let Some(initiator) = list.initiators.iter().next() else {
                    return Err(Refusal::Parameter(20));
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
    ) -> Result<Effects, Refusal> {
        let list = &self.list;
        let existing = (self.out.what == What::Register).then_some(list.key);
        let own_key = reservations.key_of(name);
        if existing.is_some_and(|existing| existing != own_key.unwrap_or(0)) {
            return Err(Refusal::Conflict);
        }
        if list.spec_i_pt && own_key.is_some() {
            return Err(Refusal::Parameter(20));
        }
        // Not worked out first: a list of many initiators at many ports names hundreds of thousands. Whom it names besides
        // this nexus must not be registered yet, so there has to be room for all of them.
        let room = match list.initiators.count {
            0 => 2 * REGISTRATIONS_MAX,
            _ => REGISTRATIONS_MAX - reservations.registrations().len(),
        };
        if list.action_key != 0 && self.named(ports) > room {
            return Err(Refusal::Resources);
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
            return Err(Refusal::Conflict);
        }
        // To unregister, nobody else needs to be named.
        let initiators = list.initiators.iter().filter(|_| list.action_key != 0);
        for initiator in initiators {
            let named = everywhere(initiator.into());
            let is_taken = |name: &NexusName| reservations.key_of(name).is_some();
            if named.iter().any(is_taken) {
                return Err(Refusal::Parameter(24));
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
struct List {
    key: u64,
    action_key: u64,
    spec_i_pt: bool,
    all_tg_pt: bool,
    aptpl: bool,
    /// REGISTER AND MOVE: UNREG, RELATIVE TARGET PORT IDENTIFIER.
    unregister: bool,
    target_port: u16,
    /// Initiator ports given as TransportIDs.
    initiators: Names,
}

/// Names of initiator ports, in one piece: there may be hundreds, and most lists of so many are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Names {
    /// In lower case, with a line break after each.
    lines: String,
    count: usize,
}

impl Names {
    fn push(&mut self, name: &str) {
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

impl List {
    fn parse(what: What, data: &[u8]) -> Result<List, Sense> {
        let (Some(head), true) = (data.first_chunk::<24>(), data.len() >= 24) else {
            return Err(LIST_LENGTH_ERROR);
        };
        let u64_at = |at: usize| Cdb::new(&head[at..]).u64(0);
        let mut list = List {
            key: u64_at(0),
            action_key: u64_at(8),
            ..List::default()
        };
        if what == What::RegisterAndMove {
            list.unregister = head[17] & 0x02 != 0;
            list.aptpl = head[17] & 0x01 != 0;
            list.target_port = u16::from_be_bytes([head[18], head[19]]);
            list.initiators = transport_ids(&data[20..], 20)?;
            return Ok(list);
        }
        let flags = head[20];
        list.aptpl = flags & 0x01 != 0;
        if matches!(what, What::Register | What::RegisterAndIgnore) {
            list.all_tg_pt = flags & 0x04 != 0;
            list.spec_i_pt = flags & 0x08 != 0;
        }
        match (list.spec_i_pt, what) {
            (true, What::Register) => list.initiators = transport_ids(&data[24..], 24)?,
            (true, _) => return Err(Sense::invalid_parameter(20, Some(3))),
            (false, _) if data.len() != 24 => return Err(LIST_LENGTH_ERROR),
            (false, _) => {}
        }
        Ok(list)
    }
}

/// A four-byte length, then iSCSI TransportIDs with an ISID (SPC-4 7.6.4.6, format 01b). One without an ISID would
/// mean every port of an initiator, of which there is no list.
fn transport_ids(data: &[u8], at: u16) -> Result<Names, Sense> {
    let wrong = Sense::invalid_parameter(at, None);
    let (len, mut rest) = data.split_first_chunk::<4>().ok_or(LIST_LENGTH_ERROR)?;
    if u32::from_be_bytes(*len) as usize != rest.len() {
        return Err(LIST_LENGTH_ERROR);
    }
    let mut names = Names::default();
    while let Some((head, tail)) = rest.split_first_chunk::<4>() {
        const ISCSI_PORT: u8 = 0x45;
        let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if head[0] != ISCSI_PORT || len > tail.len() {
            return Err(wrong);
        }
        let (name, after) = tail.split_at(len);
        let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|_| wrong)?;
        if !is_port_name(text) {
            return Err(wrong);
        }
        names.push(text);
        rest = after;
    }
    match rest {
        [] => Ok(names),
        _ => Err(wrong),
    }
}

/// Whether `text` can be the name of an initiator port: names are kept, listed and shown, so they are no longer than an
/// initiator's can be.
fn is_port_name(text: &str) -> bool {
    let forbidden = |c: char| c.is_whitespace() || c.is_control();
    let has_forbidden = match text.is_ascii() {
        true => !text.bytes().all(|byte| byte.is_ascii_graphic()),
        false => text.contains(forbidden),
    };
    let Some((name, isid)) = text.rsplit_once(ISID_SEPARATOR) else {
        return false;
    };
    let is_isid = (1..=ISID_LEN_MAX).contains(&isid.len());
    !name.is_empty()
        && text.len() <= PORT_NAME_LEN_MAX
        && !has_forbidden
        && is_isid
        && isid.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
