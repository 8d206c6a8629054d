//! What our initiator makes of targets that are not ours.

use engine::Payload;

use super::foreign::Foreign;
use crate::{Durability, ErrorKind, Volume};

/// A disk like most.
fn usual() -> Foreign {
    Foreign {
        len_blocks: 2048,
        unmap_max_blocks: u32::MAX,
        unmap_max_descriptors: 1,
        ..Foreign::default()
    }
}

#[test]
fn a_write_that_the_target_takes_a_part_of_has_failed() {
    for (len, taken) in [(4096, 512), (4096, 0), (512 << 10, 511 << 10)] {
        usual().with(async |disk, foreign| {
            let write = || disk.write(0, Payload::zeroes(len), Durability::Cached);
            write().await.expect("all of it was taken");
            foreign.takes_max_bytes.set(Some(taken));
            let error = write().await.expect_err("the rest is nowhere");
            assert_eq!(error.kind(), ErrorKind::Protocol);
            let said = format!("took {taken} of {len} bytes");
            assert!(error.to_string().contains(&said), "{error}");
        });
    }
}

#[test]
fn a_reset_that_may_have_lost_writes_fails_the_flush() {
    const UNIT_ATTENTION: u8 = 0x06;
    const I_T_NEXUS_LOSS: u8 = 0x07;
    for (ascq, loses) in [
        (0x00, true),
        (0x01, true),
        (0x02, true),
        (0x04, true),
        (I_T_NEXUS_LOSS, false),
    ] {
        usual().with(async |disk, foreign| {
            let write = disk.write(0, Payload::zeroes(512), Durability::Cached);
            write.await.expect("a write");
            foreign.sense.set(Some([UNIT_ATTENTION, 0x29, ascq]));
            disk.read(0, 512).await.expect("it is sent again");
            let flushed = disk.flush().await.map_err(|error| error.kind());
            let expected = match loses {
                true => Err(ErrorKind::FlushFailed),
                false => Ok(()),
            };
            assert_eq!(flushed, expected, "29h/{ascq:02x}h");
        });
    }
}

#[test]
fn a_discard_is_cut_to_what_the_target_unmaps_at_once() {
    let foreign = Foreign {
        unmap_max_blocks: 100,
        ..usual()
    };
    foreign.with(async |disk, foreign| {
        disk.discard(8 * 512, 256 * 512).await.expect("in pieces");
        let pieces = [(8, 100), (108, 100), (208, 56)];
        assert_eq!(foreign.unmapped.take(), pieces);
    });
}

#[test]
fn a_target_that_unmaps_nothing_at_once_has_no_unmap() {
    for (unmap_max_blocks, unmap_max_descriptors) in [(0, 1), (100, 0)] {
        let foreign = Foreign {
            unmap_max_blocks,
            unmap_max_descriptors,
            ..usual()
        };
        foreign.with(async |disk, foreign| {
            assert_eq!(disk.shape().discard, None);
            disk.discard(0, 256 * 512).await.expect("it may do nothing");
            assert_eq!(foreign.unmapped.take(), []);
        });
    }
}

#[test]
fn no_command_is_longer_than_the_target_takes() {
    const LEN: usize = 250 * 512;
    for (transfer_max_blocks, write_same_max_blocks, transfers, same) in [
        (0, 0, &[250][..], &[250][..]),
        (100, 120, &[100, 100, 50], &[120, 120, 10]),
        (300, u64::MAX, &[250], &[250]),
    ] {
        let foreign = Foreign {
            transfer_max_blocks,
            write_same_max_blocks,
            ..usual()
        };
        foreign.with(async |disk, foreign| {
            let read = disk.read(0, LEN).await.expect("a read");
            assert_eq!(read.len(), LEN);
            assert_eq!(foreign.transferred.take(), transfers);
            let write = disk.write(0, Payload::zeroes(LEN), Durability::Cached);
            write.await.expect("a write");
            assert_eq!(foreign.transferred.take(), transfers);
            let zeroes = disk.write_zeroes(0, LEN as u64, true, Durability::Cached);
            zeroes.await.expect("zeroes");
            assert_eq!(foreign.transferred.take(), same);
        });
    }
}
