//! PERSISTENT RESERVE OUT (SPC-4 6.16): its CDB and its parameter list.

use super::Command;
use crate::action::{Action, ParameterList};
use crate::cdb::Cdb;
use crate::change::{Change, ChangeKind};
use crate::nexus::NexusId;
use crate::reservations::{
    PortNames, ReservationType, ReserveList, ReserveOutAction, ReserveRequest,
};
use crate::sense::Sense;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReserveOut {
    action: ReserveOutAction,
    scope: u8,
    kind: u8,
    list_len_bytes: u32,
}

const LIST_LEN: u32 = 24;
/// Limits the TransportIDs of SPEC_I_PT.
const LIST_LEN_MAX: u32 = 8192;
/// The longest name of an initiator port: an iSCSI name of 223 bytes (RFC 7143 §4.2.7.1), `,i,0x`, an ISID of 12 digits.
const PORT_NAME_LEN_MAX: usize = 223 + ISID_SEPARATOR.len() + ISID_LEN_MAX;
const ISID_SEPARATOR: &str = ",i,0x";
const ISID_LEN_MAX: usize = 12;

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    let action = match cdb.u8(1) & 0x1F {
        0 => ReserveOutAction::Register,
        1 => ReserveOutAction::Reserve,
        2 => ReserveOutAction::Release,
        3 => ReserveOutAction::Clear,
        4 => ReserveOutAction::Preempt,
        5 => ReserveOutAction::PreemptAndAbort,
        6 => ReserveOutAction::RegisterAndIgnore,
        7 => ReserveOutAction::RegisterAndMove,
        _ => return Err(Sense::invalid_cdb_field(1, Some(4))),
    };
    Ok(Command::ReserveOut(ReserveOut {
        action,
        scope: cdb.u8(2) >> 4,
        kind: cdb.u8(2) & 0x0F,
        list_len_bytes: cdb.u32(5),
    }))
}

impl ReserveOut {
    pub(super) fn begin(self) -> Result<Action, Sense> {
        let reserving = matches!(
            self.action,
            ReserveOutAction::Reserve
                | ReserveOutAction::Release
                | ReserveOutAction::Preempt
                | ReserveOutAction::PreemptAndAbort
        );
        if reserving && self.scope != 0 {
            return Err(Sense::invalid_cdb_field(2, Some(7)));
        }
        if matches!(
            self.action,
            ReserveOutAction::Reserve | ReserveOutAction::Release
        ) && ReservationType::from_code(self.kind).is_none()
        {
            return Err(Sense::invalid_cdb_field(2, Some(3)));
        }
        if !(LIST_LEN..=LIST_LEN_MAX).contains(&self.list_len_bytes) {
            return Err(Sense::LIST_LENGTH_ERROR);
        }
        Ok(Action::Parameters(ParameterList::new(self.list_len_bytes)))
    }

    pub(super) fn resume(self, nexus: NexusId, data: &[u8]) -> Result<Action, Sense> {
        let request = ReserveRequest {
            action: self.action,
            kind: ReservationType::from_code(self.kind),
            list: parse(self.action, data)?,
        };
        let what = ChangeKind::Reservations(request);
        Ok(Action::Change(Change { nexus, what }))
    }
}

/// The parameter list (SPC-4 6.16.3, 6.16.4).
fn parse(action: ReserveOutAction, data: &[u8]) -> Result<ReserveList, Sense> {
    let (Some(head), true) = (data.first_chunk::<24>(), data.len() >= 24) else {
        return Err(Sense::LIST_LENGTH_ERROR);
    };
    let u64_at = |at: usize| Cdb::new(&head[at..]).u64(0);
    let mut list = ReserveList {
        key: u64_at(0),
        action_key: u64_at(8),
        ..ReserveList::default()
    };
    if action == ReserveOutAction::RegisterAndMove {
        list.unregister = head[17] & 0x02 != 0;
        list.aptpl = head[17] & 0x01 != 0;
        list.target_port = u16::from_be_bytes([head[18], head[19]]);
        list.initiators = transport_ids(&data[20..], 20)?;
        return Ok(list);
    }
    let flags = head[20];
    list.aptpl = flags & 0x01 != 0;
    if matches!(
        action,
        ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore
    ) {
        list.all_tg_pt = flags & 0x04 != 0;
        list.spec_i_pt = flags & 0x08 != 0;
    }
    match (list.spec_i_pt, action) {
        (true, ReserveOutAction::Register) => list.initiators = transport_ids(&data[24..], 24)?,
        (true, _) => return Err(Sense::invalid_parameter(20, Some(3))),
        (false, _) if data.len() != 24 => return Err(Sense::LIST_LENGTH_ERROR),
        (false, _) => {}
    }
    Ok(list)
}

/// A four-byte length, then iSCSI TransportIDs with an ISID (SPC-4 7.6.4.6, format 01b). One without an ISID would
/// mean every port of an initiator, of which there is no list.
fn transport_ids(data: &[u8], at: u16) -> Result<PortNames, Sense> {
    let wrong = Sense::invalid_parameter(at, None);
    let (len, mut rest) = data
        .split_first_chunk::<4>()
        .ok_or(Sense::LIST_LENGTH_ERROR)?;
    if u32::from_be_bytes(*len) as usize != rest.len() {
        return Err(Sense::LIST_LENGTH_ERROR);
    }
    let mut names = PortNames::default();
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
