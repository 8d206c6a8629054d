//! Shared test fixtures: disks, a nexus with no pending unit attention, and CDBs.

use crate::{
    Action, Asc, Change, Changed, Discard, DiskShape, Ending, Identity, LogicalUnit, MediumOp,
    NexusId, Sense, SenseKey, TargetPort,
};

pub(crate) const NEXUS: NexusId = NexusId(7);
pub(crate) const OTHER: NexusId = NexusId(8);
/// 1 GiB of 512-byte blocks.
pub(crate) const LEN_BLOCKS: u64 = 1 << 21;

pub(crate) fn identity() -> Identity {
    Identity {
        vendor: "SANSTONE".into(),
        product: "disk".into(),
        revision: "0.1".into(),
        serial: "0123456789abcdef".into(),
        uuid: 0x1122_3344_5566_4788_99AA_BBCC_DDEE_FF00_u128.to_be_bytes(),
        port: TargetPort {
            target_name: "iqn.2026-11.io.sanstone:t0".into(),
            portal_group_tag: 1,
            relative_port: 2,
            port_group: 3,
        },
    }
}

pub(crate) fn thick() -> DiskShape {
    DiskShape::new(512, LEN_BLOCKS)
}

/// A disk with every optional capability.
pub(crate) fn thin() -> DiskShape {
    let discard = Discard {
        granularity_blocks: 8,
        alignment_blocks: 0,
        zeroes_after_discard: true,
        unmap_blocks_max: 1 << 16,
        unmap_ranges_max: 4,
    };
    DiskShape {
        discard: Some(discard),
        atomic_blocks_max: 64,
        ..thick()
    }
}

/// A disk that has reported the power-on to [`NEXUS`].
pub(crate) fn unit(shape: DiskShape) -> LogicalUnit {
    let mut unit = LogicalUnit::new(identity(), shape).unwrap();
    assert_eq!(
        sense(unit.begin(NEXUS, &[0; 6])).key,
        SenseKey::UnitAttention
    );
    unit
}

/// The answer of a fresh disk to one command.
pub(crate) fn run(shape: DiskShape, cdb: &[u8]) -> Action {
    unit(shape).begin(NEXUS, cdb)
}

/// The answer of a fresh disk to one command with a parameter list.
pub(crate) fn run_with(shape: DiskShape, cdb: &[u8], data: &[u8]) -> Action {
    let mut unit = unit(shape);
    match unit.begin(NEXUS, cdb) {
        Action::Parameters(list) => unit.resume(list, data),
        other => panic!("{other:?} takes no parameter list"),
    }
}

pub(crate) fn data(action: Action) -> Vec<u8> {
    match action {
        Action::Reply(data) => data,
        other => panic!("no data in {other:?}"),
    }
}

pub(crate) fn medium(action: Action) -> MediumOp {
    match action {
        Action::Medium(op) => op,
        other => panic!("nothing for the medium in {other:?}"),
    }
}

pub(crate) fn sense(action: Action) -> Sense {
    match action {
        Action::End(Ending {
            sense: Some(sense), ..
        }) => sense,
        other => panic!("no sense in {other:?}"),
    }
}

/// Two views of one disk, as on two lanes; [`NEXUS`] uses the first and [`OTHER`] the second, and both have received
/// the power-on report.
pub(crate) fn two_views(shape: DiskShape) -> (LogicalUnit, LogicalUnit) {
    let mut first = LogicalUnit::new(identity(), shape.clone()).unwrap();
    let mut second = LogicalUnit::sharing(identity(), shape, first.shared().clone()).unwrap();
    first.establish(NEXUS, "iqn.2026-11.test:a,i,0x000000000001");
    second.establish(OTHER, "iqn.2026-11.test:b,i,0x000000000001");
    sense(first.begin(NEXUS, &[0; 6]));
    sense(second.begin(OTHER, &[0; 6]));
    (first, second)
}

/// Runs a command with its parameter list to completion.
pub(crate) fn settle(unit: &mut LogicalUnit, nexus: NexusId, cdb: &[u8], data: &[u8]) -> Ending {
    let action = match unit.begin(nexus, cdb) {
        Action::Parameters(list) => unit.resume(list, data),
        other => other,
    };
    match action {
        Action::End(ending) => ending,
        Action::Change(change) => made(unit, &change).map_or_else(|e| e, |_| Ending::GOOD),
        other => panic!("{other:?} is no ending"),
    }
}

/// Makes a change as if everything to be persisted had been persisted.
pub(crate) fn made(unit: &LogicalUnit, change: &Change) -> Result<Changed, Ending> {
    let prepared = change.prepare(unit)?;
    let to_keep = prepared.to_keep();
    let changed = prepared.commit(unit)?;
    if let Some(kept) = to_keep {
        assert_eq!(kept, unit.shared().save(), "what was kept is what is");
    }
    Ok(changed)
}

pub(crate) fn good() -> Action {
    Action::End(Ending::GOOD)
}

pub(crate) fn out_of_range(action: Action) -> bool {
    sense(action).asc == Asc::LBA_OUT_OF_RANGE
}

pub(crate) fn write_protected(action: Action) -> bool {
    let sense = sense(action);
    sense.key == SenseKey::DataProtect && sense.asc == Asc::WRITE_PROTECTED
}

/// A 10-byte CDB with flags in byte 1.
pub(crate) fn cdb_10(opcode: u8, flags: u8, lba: u32, blocks: u16) -> Vec<u8> {
    let mut cdb = vec![opcode, flags];
    cdb.extend(lba.to_be_bytes());
    cdb.push(0);
    cdb.extend(blocks.to_be_bytes());
    cdb.push(0);
    cdb
}

/// A 12-byte CDB with flags in byte 1.
pub(crate) fn cdb_12(opcode: u8, flags: u8, lba: u32, blocks: u32) -> Vec<u8> {
    let mut cdb = vec![opcode, flags];
    cdb.extend(lba.to_be_bytes());
    cdb.extend(blocks.to_be_bytes());
    cdb.extend([0, 0]);
    cdb
}

/// A 16-byte CDB with flags (or the service action) in byte 1.
pub(crate) fn cdb_16(opcode: u8, flags: u8, lba: u64, blocks: u32) -> Vec<u8> {
    let mut cdb = vec![opcode, flags];
    cdb.extend(lba.to_be_bytes());
    cdb.extend(blocks.to_be_bytes());
    cdb.extend([0, 0]);
    cdb
}
