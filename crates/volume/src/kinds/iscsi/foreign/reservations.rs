//! The persistent reservations of a [`Foreign`](super::Foreign) target: those of our own disk, which belong to I_T nexuses,
//! or those of a target that lets fewer in.

use std::collections::BTreeMap;

use scsi::{
    Action, DiskShape, Identity, LogicalUnit, NexusId, RegistrationReport, SenseKey, Status,
    TargetPort, UnitReport, opcode,
};

use super::{BLOCK_BYTES, Group, Response};

/// Whom a reservation for registrants lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetsIn {
    /// Every I_T nexus that is registered (SPC-4 5.13).
    Registrants,
    /// The same, but of the initiator that holds it, and in its portal group, that initiator port alone.
    HoldingPort,
}

/// What is reserved, as the portal groups see it.
pub(super) struct Reservations {
    lets_in: LetsIn,
    groups: BTreeMap<u16, LogicalUnit>,
    ports: BTreeMap<NexusId, String>,
    /// How often a reservation has ended.
    pub(super) ends: u64,
}

impl Reservations {
    /// None yet, of a disk that is reached through these portal groups.
    pub(super) fn new(lets_in: LetsIn, groups: &[Group], len_blocks: u64) -> Reservations {
        let shape = DiskShape::new(BLOCK_BYTES, len_blocks);
        let identity = |tag| Identity {
            vendor: "FOREIGN".into(),
            product: "disk".into(),
            revision: "1".into(),
            serial: "1".into(),
            uuid: [1; 16],
            port: TargetPort {
                target_name: "iqn.2026-11.example:foreign".into(),
                portal_group_tag: tag,
                relative_port: tag,
                port_group: tag,
            },
        };
        let first = LogicalUnit::new(identity(groups[0].0), shape.clone());
        let shared = first.expect("a disk").shared().clone();
        let view = |Group(tag): &Group| {
            let unit = LogicalUnit::sharing(identity(*tag), shape.clone(), shared.clone());
            (*tag, unit.expect("the same disk"))
        };
        Reservations {
            lets_in,
            groups: groups.iter().map(view).collect(),
            ports: BTreeMap::new(),
            ends: 0,
        }
    }

    /// Who is registered, and who has reserved it.
    pub(super) fn report(&self) -> UnitReport {
        let any = self.groups.values().next();
        any.map(|unit| unit.shared().report()).unwrap_or_default()
    }

    /// A nexus begins; it hears of no power-on.
    pub(super) fn begin(&mut self, nexus: NexusId, Group(tag): Group, port: &str) {
        self.ports.insert(nexus, port.to_owned());
        let unit = &self.groups[&tag];
        unit.establish(nexus, port);
        while unit.take_attention(nexus).is_some() {}
    }

    /// It has ended.
    pub(super) fn end(&mut self, nexus: NexusId, Group(tag): Group) {
        self.ports.remove(&nexus);
        if let Some(unit) = self.groups.get_mut(&tag) {
            unit.forget(nexus);
        }
    }

    /// How a command ends because of what is reserved, or because it asks for that; `None`: it is executed.
    pub(super) fn answer(
        &mut self,
        nexus: NexusId,
        group: Group,
        cdb: &[u8],
        data: &[u8],
    ) -> Option<Response> {
        let is_kept_out = self.is_kept_out(nexus, group, cdb);
        let was_reserved = self.report().reservation.is_some();
        let unit = self.groups.get_mut(&group.0)?;
        let ending = match unit.begin(nexus, cdb) {
            Action::End(ending) => ending,
            _ if is_kept_out => return Some(Response::status(Status::ReservationConflict as u8)),
            Action::Reply(data) if cdb[0] == opcode::PERSISTENT_RESERVE_IN => {
                return Some(Response::with(&data));
            }
            Action::Parameters(list) if cdb[0] == opcode::PERSISTENT_RESERVE_OUT => {
                match unit.resume(list, data) {
                    Action::Change(change) => {
                        let prepared = change.prepare(unit);
                        let made = prepared.and_then(|prepared| prepared.commit(unit));
                        let is_free = unit.shared().report().reservation.is_none();
                        self.ends += u64::from(was_reserved && is_free);
                        match made {
                            Ok(_) => return Some(Response::took(data.len() as u64)),
                            Err(ending) => ending,
                        }
                    }
                    Action::End(ending) => ending,
                    _ => return None,
                }
            }
            _ => return None,
        };
        match (ending.status, ending.sense) {
            (Status::CheckCondition, Some(sense))
                if sense.key == SenseKey::UnitAttention
                    || cdb[0] == opcode::PERSISTENT_RESERVE_OUT =>
            {
                Some(Response {
                    sense: sense.encode(unit.sense_format()),
                    ..Response::status(ending.status as u8)
                })
            }
            // What our own disk does not know is this one's business.
            (Status::CheckCondition, _) => None,
            (status, _) => Some(Response::status(status as u8)),
        }
    }

    /// Whether it is another port of the holder's, and the command is none that everybody may send.
    fn is_kept_out(&self, nexus: NexusId, Group(tag): Group, cdb: &[u8]) -> bool {
        const REGISTER: u8 = opcode::reserve_out::REGISTER;
        const REGISTER_AND_IGNORE: u8 = opcode::reserve_out::REGISTER_AND_IGNORE_EXISTING_KEY;
        let is_for_all = match (cdb[0], cdb[1] & 0x1f) {
            (opcode::PERSISTENT_RESERVE_OUT, action) => {
                matches!(action, REGISTER | REGISTER_AND_IGNORE)
            }
            (opcode::TEST_UNIT_READY | opcode::INQUIRY | opcode::PERSISTENT_RESERVE_IN, _) => true,
            _ => false,
        };
        let report = self.report();
        let holder = report.reservation.and_then(|it| it.holder);
        let (Some(holder), Some(port)) = (holder, self.ports.get(&nexus)) else {
            return false;
        };
        let name_of = |port: &str| port.split(",i,").next().unwrap_or_default().to_owned();
        let is_there =
            |it: &RegistrationReport| it.initiator_port == holder && it.target_port == tag;
        self.lets_in == LetsIn::HoldingPort
            && !is_for_all
            && report.registrations.iter().any(is_there)
            && name_of(&holder) == name_of(port)
            && holder != *port
    }
}
