//! PERSISTENT RESERVE IN (SPC-4 6.15): READ KEYS, READ RESERVATION, REPORT CAPABILITIES and READ FULL STATUS.

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::nexus::NexusName;
use crate::reservations::ReservationType;
use crate::sense::Sense;
use crate::unit::LogicalUnit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReserveIn {
    what: ReserveInAction,
    allocation_len_bytes: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReserveInAction {
    Keys,
    Reservation,
    Capabilities,
    FullStatus,
}

fn decode(cdb: &Cdb, what: ReserveInAction) -> Result<Command, Sense> {
    Ok(Command::ReserveIn(ReserveIn {
        what,
        allocation_len_bytes: cdb.u16(7),
    }))
}

pub(crate) fn decode_keys(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, ReserveInAction::Keys)
}

pub(crate) fn decode_reservation(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, ReserveInAction::Reservation)
}

pub(crate) fn decode_capabilities(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, ReserveInAction::Capabilities)
}

pub(crate) fn decode_full_status(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, ReserveInAction::FullStatus)
}

impl ReserveIn {
    pub(super) fn begin(self, unit: &LogicalUnit) -> Action {
        let state = unit.shared().look();
        let reservations = &state.reservations;
        let room = usize::from(self.allocation_len_bytes);
        let mut list = Limited::new(room);
        match self.what {
            ReserveInAction::Capabilities => {
                return reply(
                    capabilities(reservations.is_aptpl()),
                    self.allocation_len_bytes.into(),
                );
            }
            ReserveInAction::Keys => {
                unit.worked(reservations.registrations().len());
                for (_, r) in reservations.registrations().in_order() {
                    list.extend(&r.key.to_be_bytes());
                }
            }
            ReserveInAction::Reservation => {
                if let Some(kind) = reservations.held() {
                    list.extend(&reservations.held_key().to_be_bytes());
                    list.extend(&[0, 0, 0, 0, 0, kind as u8, 0, 0]);
                }
            }
            ReserveInAction::FullStatus => {
                const R_HOLDER: u8 = 0x01;
                const ALL_TG_PT: u8 = 0x02;
                unit.worked(reservations.registrations().len());
                let held = reservations.reservation();
                for (name, r) in reservations.registrations().in_order() {
                    let id_len = transport_id_len(name);
                    if list.is_full() {
                        list.skip(24 + id_len);
                        continue;
                    }
                    let held = held.filter(|(kind, by)| kind.is_all_registrants() || *by == name);
                    let holder = if held.is_some() { R_HOLDER } else { 0 };
                    let all = if r.all_ports { ALL_TG_PT } else { 0 };
                    let kind = held.map_or(0, |(kind, _)| kind as u8);
                    let [high, low] = name.target_port.to_be_bytes();
                    list.extend(&r.key.to_be_bytes());
                    list.extend(&[0, 0, 0, 0, holder | all, kind]);
                    list.extend(&[0, 0, 0, 0, high, low]);
                    list.extend(&(id_len as u32).to_be_bytes());
                    list.extend(&transport_id(name));
                }
            }
        }
        let mut data = reservations.generation().to_be_bytes().to_vec();
        data.extend((list.len as u32).to_be_bytes());
        data.extend(list.bytes);
        reply(data, self.allocation_len_bytes.into())
    }
}

/// A list of which only the beginning is built: as much as the initiator has room for. Its length is that of the whole.
struct Limited {
    bytes: Vec<u8>,
    len: usize,
    max: usize,
}

impl Limited {
    fn new(max: usize) -> Limited {
        Limited {
            bytes: Vec::new(),
            len: 0,
            max,
        }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= self.max
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        if !self.is_full() {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn skip(&mut self, len: usize) {
        self.len += len;
    }
}

/// REPORT CAPABILITIES (SPC-4 6.15.4).
fn capabilities(aptpl: bool) -> Vec<u8> {
    const CRH: u8 = 0x10;
    const SIP_C: u8 = 0x08;
    const ATP_C: u8 = 0x04;
    const PTPL_C: u8 = 0x01;
    const TMV: u8 = 0x80;
    const PTPL_A: u8 = 0x01;
    let mask = ReservationType::ALL.iter().fold(0_u16, |mask, kind| {
        // Types 1 to 7 are in the first byte, type 8 in the second.
        mask | match *kind as u8 {
            8 => 0x0001,
            code => 0x0100 << code,
        }
    });
    let [high, low] = mask.to_be_bytes();
    let active = if aptpl { PTPL_A } else { 0 };
    vec![
        0,
        8,
        CRH | SIP_C | ATP_C | PTPL_C,
        TMV | active,
        high,
        low,
        0,
        0,
    ]
}

fn transport_id_len(name: &NexusName) -> usize {
    4 + (name.initiator_port.len() + 1).next_multiple_of(4).max(20)
}

/// The iSCSI TransportID of an initiator port, format 01b (SPC-4 7.6.4.6).
pub(super) fn transport_id(name: &NexusName) -> Vec<u8> {
    const ISCSI_PORT: u8 = 0x45;
    let mut text = name.initiator_port.as_bytes().to_vec();
    text.resize(transport_id_len(name) - 4, 0);
    let mut id = vec![ISCSI_PORT, 0];
    id.extend((text.len() as u16).to_be_bytes());
    id.extend(text);
    id
}
