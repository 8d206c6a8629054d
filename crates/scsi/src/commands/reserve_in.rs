//! PERSISTENT RESERVE IN (SPC-4 6.15): READ KEYS, READ RESERVATION, REPORT CAPABILITIES and READ FULL STATUS.

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::reservations::{Kind, NexusName};
use crate::sense::Sense;
use crate::unit::LogicalUnit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReserveIn {
    what: What,
    allocation_len_bytes: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Keys,
    Reservation,
    Capabilities,
    FullStatus,
}

fn decode(cdb: &Cdb, what: What) -> Result<Command, Sense> {
    Ok(Command::ReserveIn(ReserveIn {
        what,
        allocation_len_bytes: cdb.u16(7),
    }))
}

pub(crate) fn decode_keys(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, What::Keys)
}

pub(crate) fn decode_reservation(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, What::Reservation)
}

pub(crate) fn decode_capabilities(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, What::Capabilities)
}

pub(crate) fn decode_full_status(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, What::FullStatus)
}

impl ReserveIn {
    pub(super) fn begin(self, unit: &LogicalUnit) -> Action {
        let state = unit.shared().look();
        let reservations = &state.reservations;
        let mut list = Vec::new();
        match self.what {
            What::Capabilities => {
                return reply(
                    capabilities(reservations.is_aptpl()),
                    self.allocation_len_bytes.into(),
                );
            }
            What::Keys => {
                let keys = reservations.registrations().iter();
                list.extend(keys.flat_map(|r| r.key.to_be_bytes()));
            }
            What::Reservation => {
                if let Some(kind) = reservations.held() {
                    list.extend(reservations.held_key().to_be_bytes());
                    list.extend([0, 0, 0, 0, 0, kind as u8, 0, 0]);
                }
            }
            What::FullStatus => {
                const R_HOLDER: u8 = 0x01;
                const ALL_TG_PT: u8 = 0x02;
                for r in reservations.registrations() {
                    let held = reservations
                        .held()
                        .filter(|_| reservations.is_holder(&r.name));
                    let holder = if held.is_some() { R_HOLDER } else { 0 };
                    let all = if r.all_ports { ALL_TG_PT } else { 0 };
                    let [high, low] = r.name.target_port.to_be_bytes();
                    let id = transport_id(&r.name);
                    list.extend(r.key.to_be_bytes());
                    list.extend([0, 0, 0, 0, holder | all, held.map_or(0, |kind| kind as u8)]);
                    list.extend([0, 0, 0, 0, high, low]);
                    list.extend((id.len() as u32).to_be_bytes());
                    list.extend(id);
                }
            }
        }
        let mut data = reservations.generation().to_be_bytes().to_vec();
        data.extend((list.len() as u32).to_be_bytes());
        data.extend(list);
        reply(data, self.allocation_len_bytes.into())
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
    let mask = Kind::ALL.iter().fold(0_u16, |mask, kind| {
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

/// The iSCSI TransportID of an initiator port, format 01b (SPC-4 7.6.4.6).
pub(super) fn transport_id(name: &NexusName) -> Vec<u8> {
    const ISCSI_PORT: u8 = 0x45;
    let mut text = name.initiator_port.clone().into_bytes();
    text.resize((text.len() + 1).next_multiple_of(4).max(20), 0);
    let mut id = vec![ISCSI_PORT, 0];
    id.extend((text.len() as u16).to_be_bytes());
    id.extend(text);
    id
}
