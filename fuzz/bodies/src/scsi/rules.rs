//! What every answer of the disk must keep to, whatever it was asked.

use scsi::{Action, DiskShape, Ending, Extent, MediumOp, Sense, SenseFormat, Status};

/// Longest parameter list that a transport has to find memory for.
const LIST_LEN_MAX: u32 = 64 << 10;

/// Holds an action against its CDB and the disk.
pub(super) fn check(action: &Action, cdb: &[u8], shape: &DiskShape) {
    match action {
        Action::End(ending) => check_ending(ending, cdb),
        Action::Reply(data) => {
            let most = allocation_len(cdb);
            assert!(
                data.len() as u64 <= most,
                "{} bytes of {most} for {cdb:x?}",
                data.len()
            );
        }
        Action::Medium(op) => check_medium(op, cdb, shape),
        Action::Parameters(list) => {
            assert!(
                list.len_bytes() <= LIST_LEN_MAX,
                "{} for {cdb:x?}",
                list.len_bytes()
            );
            if let Some(len) = list_len(cdb) {
                assert_eq!(u64::from(list.len_bytes()), len, "the list of {cdb:x?}");
            }
        }
        _ => {}
    }
    let (data_in, data_out) = (action.data_in_len_bytes(), action.data_out_len_bytes());
    assert!(data_in == 0 || data_out == 0, "{action:?} wants both ways");
}

/// Sense data come with CHECK CONDITION and only with it.
pub(super) fn check_ending(ending: &Ending, cdb: &[u8]) {
    let is_check = ending.status == Status::CheckCondition;
    assert_eq!(ending.sense.is_some(), is_check, "{ending:?}");
    if let Some(sense) = &ending.sense {
        check_sense(sense, cdb);
    }
}

/// Sense data are well-formed in both formats, and point into the CDB if they point there.
pub(super) fn check_sense(sense: &Sense, cdb: &[u8]) {
    let fixed = sense.encode(SenseFormat::Fixed);
    assert_eq!((fixed.len(), fixed[0] & 0x7f, fixed[7]), (18, 0x70, 10));
    assert_eq!((fixed[2], fixed[12]), (sense.key as u8, sense.asc.code));
    let descriptor = sense.encode(SenseFormat::Descriptor);
    assert_eq!(
        (descriptor[0], usize::from(descriptor[7])),
        (0x72, descriptor.len() - 8)
    );
    assert!(descriptor.len() <= 252, "longer than sense data may be");
    let mut rest = &descriptor[8..];
    while let [_, len, ..] = rest {
        let len = usize::from(*len) + 2;
        rest = rest.get(len..).expect("descriptors add up");
    }
    assert!(rest.is_empty());
    if fixed[15] & 0xc0 == 0xc0 && sense.key as u8 == 5 {
        let byte = usize::from(u16::from_be_bytes([fixed[16], fixed[17]]));
        assert!(
            byte <= cdb.len().max(1),
            "it points at byte {byte} of {cdb:x?}"
        );
    }
}

fn field(cdb: &[u8], at: usize, len: usize) -> u64 {
    let byte = |at: usize| u64::from(cdb.get(at).copied().unwrap_or(0));
    (at..at + len).fold(0, |value, at| value << 8 | byte(at))
}

/// ALLOCATION LENGTH, which stands at the same place in most CDBs of a length.
fn allocation_len(cdb: &[u8]) -> u64 {
    match cdb[0] {
        0x12 => field(cdb, 3, 2),
        // READ CAPACITY (10) has none and gives eight bytes.
        0x25 => 8,
        0x00..=0x1f => field(cdb, 4, 1),
        0x20..=0x5f => field(cdb, 7, 2),
        0x80..=0x9f => field(cdb, 10, 4),
        _ => field(cdb, 6, 4),
    }
}

/// PARAMETER LIST LENGTH of the commands that have one.
fn list_len(cdb: &[u8]) -> Option<u64> {
    Some(match cdb[0] {
        0x15 => field(cdb, 4, 1),
        0x42 | 0x48 | 0x55 => field(cdb, 7, 2),
        0x5f => field(cdb, 5, 4),
        0x83 => field(cdb, 10, 4),
        _ => return None,
    })
}

/// LBA and number of blocks of the commands that read and write.
fn io_fields(cdb: &[u8]) -> Option<(u64, u64)> {
    Some(match cdb[0] {
        0x08 | 0x0a => {
            let blocks = field(cdb, 4, 1);
            let lba = field(cdb, 1, 3) & 0x1f_ffff;
            (lba, if blocks == 0 { 256 } else { blocks })
        }
        0x28 | 0x2a | 0x2e => (field(cdb, 2, 4), field(cdb, 7, 2)),
        0xa8 | 0xaa | 0xae => (field(cdb, 2, 4), field(cdb, 6, 4)),
        0x88 | 0x8a | 0x8b | 0x8e => (field(cdb, 2, 8), field(cdb, 10, 4)),
        0x89 => (field(cdb, 2, 8), field(cdb, 13, 1)),
        0x9c => (field(cdb, 2, 8), field(cdb, 12, 2)),
        _ => return None,
    })
}

/// The extent lies on the disk and is not empty; its bytes can be counted.
fn check_extent(extent: &Extent, shape: &DiskShape) {
    let end = extent
        .lba
        .checked_add(extent.blocks)
        .expect("the last block has a number");
    assert!(
        extent.blocks > 0 && end <= shape.len_blocks,
        "{extent:?} on {shape:?}"
    );
    assert_eq!(extent.block_size_bytes, shape.block_size_bytes);
    let block = u64::from(extent.block_size_bytes);
    assert_eq!(extent.lba.checked_mul(block), Some(extent.offset_bytes()));
    assert_eq!(extent.blocks.checked_mul(block), Some(extent.len_bytes()));
}

fn check_medium(op: &MediumOp, cdb: &[u8], shape: &DiskShape) {
    let flushes = matches!(op, MediumOp::Flush { .. });
    assert!(
        !shape.read_only || !op.changes() || flushes,
        "{op:?} on a read-only disk"
    );
    if let Some(span) = op.span() {
        check_extent(&span, shape);
    }
    let transfer_max = u64::from(shape.transfer_blocks_max);
    match op {
        MediumOp::Read { extent, .. }
        | MediumOp::Write { extent, .. }
        | MediumOp::WriteVerify { extent, .. }
        | MediumOp::OrWrite { extent, .. }
        | MediumOp::Compare { extent } => {
            check_extent(extent, shape);
            assert!(extent.blocks <= transfer_max, "{op:?} is too long");
        }
        MediumOp::CompareAndWrite { extent, .. } => {
            assert!(extent.blocks <= shape.compare_write_blocks_max.into());
            assert_eq!(op.data_out_len_bytes(), 2 * extent.len_bytes());
        }
        MediumOp::WriteAtomic { extent, .. } => {
            assert!(extent.blocks <= shape.atomic_blocks_max.into());
        }
        MediumOp::WriteSame { extent, block } => {
            assert!(extent.blocks <= shape.write_same_blocks_max);
            assert_eq!(block.len(), shape.block_size_bytes as usize);
        }
        MediumOp::CompareSame { block, .. } => {
            assert_eq!(block.len(), shape.block_size_bytes as usize);
        }
        MediumOp::Zero { extent, unmap } => {
            assert!(extent.blocks <= shape.write_same_blocks_max);
            assert!(!unmap || shape.discard.is_some());
        }
        MediumOp::Unmap { extents } => {
            let discard = shape.discard.expect("only where there is discard");
            extents
                .iter()
                .for_each(|extent| check_extent(extent, shape));
            assert!(extents.len() <= discard.unmap_ranges_max.into());
            let blocks: u64 = extents.iter().map(|extent| extent.blocks).sum();
            assert!(blocks <= discard.unmap_blocks_max.into());
        }
        MediumOp::LbaStatus { extent, len_bytes } => {
            check_extent(extent, shape);
            assert!(u64::from(*len_bytes) <= allocation_len(cdb).min(24) && *len_bytes > 0);
        }
        MediumOp::Flush { extent } | MediumOp::Verify { extent } => check_extent(extent, shape),
    }
    if let (Some((lba, blocks)), Some(span)) = (io_fields(cdb), op.span()) {
        assert_eq!(
            (span.lba, span.blocks),
            (lba, blocks),
            "the extent of {cdb:x?}"
        );
        let halves = if cdb[0] == 0x89 { 2 } else { 1 };
        let len = halves * blocks * u64::from(shape.block_size_bytes);
        let moved = op.data_in_len_bytes() + op.data_out_len_bytes();
        assert_eq!(moved, len, "the length of {cdb:x?}");
    }
}
