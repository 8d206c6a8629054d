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
