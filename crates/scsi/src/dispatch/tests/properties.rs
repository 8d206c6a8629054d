//! Properties that hold for every CDB and every parameter list, valid or not.

use super::*;
use crate::medium::Extent;
use crate::opcodes::TABLE;
use proptest::prelude::*;

fn shapes() -> impl Strategy<Value = DiskShape> {
    let sizes = prop_oneof![
        Just((512, LEN_BLOCKS)),
        Just((4096, 3)),
        Just((512, 1 << 54))
    ];
    (sizes, any::<(bool, bool, bool)>()).prop_map(|((block_size, len), flags)| {
        let (discard, read_only, write_cache) = flags;
        let discard = if discard { thin().discard } else { None };
        DiskShape {
            discard,
            read_only,
            write_cache,
            ..DiskShape::new(block_size, len)
        }
    })
}

/// Mostly existing commands with small field values, so that many are accepted.
fn cdbs() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => Just(0_u8), 2 => 0..16_u8, 1 => any::<u8>()];
    let known = (0..TABLE.rows.len(), prop::collection::vec(byte, 15)).prop_map(|(row, bytes)| {
        let row = &TABLE.rows[row];
        let mut cdb = vec![row.opcode];
        cdb.extend(bytes);
        if let Some(service_action) = row.service_action {
            cdb[1] = cdb[1] & 0xE0 | service_action;
        }
        cdb
    });
    prop_oneof![8 => known, 1 => prop::collection::vec(any::<u8>(), 0..20)]
}

/// Bytes for a parameter list: often zeroes or a valid UNMAP header.
fn lists() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => Just(0_u8), 1 => any::<u8>()];
    prop::collection::vec(byte, 0..128)
}

fn extents(op: &MediumOp) -> Vec<Extent> {
    match op {
        MediumOp::Unmap { extents } => extents.clone(),
        MediumOp::Read { extent, .. }
        | MediumOp::LbaStatus { extent, .. }
        | MediumOp::Write { extent, .. }
        | MediumOp::Flush { extent }
        | MediumOp::Verify { extent }
        | MediumOp::Compare { extent }
        | MediumOp::CompareSame { extent, .. }
        | MediumOp::WriteSame { extent, .. }
        | MediumOp::WriteVerify { extent, .. }
        | MediumOp::CompareAndWrite { extent, .. }
        | MediumOp::OrWrite { extent, .. }
        | MediumOp::WriteAtomic { extent, .. }
        | MediumOp::Zero { extent, .. } => vec![*extent],
    }
}

fn check(shape: &DiskShape, action: &Action) -> Result<(), TestCaseError> {
    match action {
        Action::Medium(op) => {
            for extent in extents(op) {
                prop_assert!(extent.blocks > 0);
                let end = extent
                    .offset_bytes()
                    .checked_add(extent.len_bytes())
                    .unwrap();
                prop_assert!(end <= shape.len_blocks * u64::from(shape.block_size_bytes));
            }
            let writes = matches!(
                op,
                MediumOp::Write { .. }
                    | MediumOp::WriteVerify { .. }
                    | MediumOp::CompareAndWrite { .. }
                    | MediumOp::OrWrite { .. }
                    | MediumOp::WriteAtomic { .. }
                    | MediumOp::WriteSame { .. }
                    | MediumOp::Zero { .. }
                    | MediumOp::Unmap { .. }
            );
            prop_assert!(!(writes && shape.read_only));
            let unmaps = matches!(
                op,
                MediumOp::Unmap { .. } | MediumOp::Zero { unmap: true, .. }
            );
            prop_assert!(!(unmaps && shape.discard.is_none()));
            let limit = u64::from(shape.transfer_blocks_max) * u64::from(shape.block_size_bytes);
            prop_assert!(op.data_in_len_bytes().max(op.data_out_len_bytes()) <= limit);
        }
        Action::End(ending) => {
            let check = ending.status == Status::CheckCondition;
            prop_assert_eq!(check, ending.sense.is_some());
            if let Some(sense) = ending.sense {
                prop_assert_eq!(sense.encode(SenseFormat::Fixed).len(), 18);
                let descriptor = sense.encode(SenseFormat::Descriptor);
                prop_assert_eq!(usize::from(descriptor[7]) + 8, descriptor.len());
            }
        }
        Action::Reply(data) => prop_assert!(data.len() <= 4096),
        Action::Parameters(list) => {
            prop_assert!(list.len_bytes() <= 65535);
        }
        Action::Eject(eject) => {
            prop_assert!(shape.removable);
            prop_assert_eq!(eject.flush.span(), None);
        }
        Action::Copy(copy) => prop_assert!(copy.segments.len() <= 16),
        Action::Overwrite(overwrite) => {
            prop_assert_eq!(overwrite.pattern.len(), shape.block_size_bytes as usize);
            prop_assert!(!shape.read_only && (1..32).contains(&overwrite.passes));
        }
        Action::Change(_) => {}
        Action::ReportLuns(request) => {
            prop_assert!(matches!(request.reply(&[]), Action::Reply(_)));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_command_reaches_outside_its_disk(shape in shapes(), cdb in cdbs(), data in lists()) {
        let mut unit = unit(shape.clone());
        let action = unit.begin(NEXUS, &cdb);
        check(&shape, &action)?;
        let Action::Parameters(list) = action else { return Ok(()) };
        let mut exact = data.clone();
        exact.resize(list.len_bytes() as usize, 0);
        // Once with the offered data, and once with exactly the wanted length.
        for data in [data, exact] {
            let action = unit.resume(list.clone(), &data);
            prop_assert!(!matches!(action, Action::Parameters(_)));
            check(&shape, &action)?;
        }
    }

    #[test]
    fn no_command_reaches_anything_where_there_is_no_disk(cdb in cdbs()) {
        let action = absent::begin(&identity(), &cdb);
        prop_assert!(!matches!(action, Action::Medium(_) | Action::Parameters(_)));
        prop_assert!(action != good());
    }
}
