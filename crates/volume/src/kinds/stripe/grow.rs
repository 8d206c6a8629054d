//! Gives a stripe or concat the length that its grown children have room for: writes their superblocks again. A stripe takes
//! as much of each child as the smallest has. In a concat only the last child may grow: what is behind the others begins
//! where they end. New children of a concat [join](super::join) it instead.
//!
//! The write may be interrupted. Then the children of a stripe say different lengths, of which the smallest holds: the data
//! below it lies where it did. The next attempt ends the work.

use super::{
    Child, OpenStripe, WantedLayout, give_up, join,
    superblock::{Layout, RESERVED_BYTES, Superblock},
    write_superblock,
};
use crate::{Error, ErrorKind, Result, SetClaim, Shape, kinds::NewLength};

/// Grows the volume of `children` under `claim`.
///
/// # Errors
/// What [`OpenStripe::open`] refuses; a child that is read-only; the child's own error when an I/O fails. Each but the second
/// names the child.
pub(super) async fn grow(
    children: &[Child],
    wanted: WantedLayout,
    claim: SetClaim,
) -> Result<NewLength> {
    if let Some(joining) = join::Joining::of(children, wanted).await? {
        return joining.join(claim).await;
    }
    let opened = OpenStripe::claimed_as(children, wanted, &claim).await?;
    let grown = write(children, wanted, &opened).await;
    give_up(children).await;
    grown
}

async fn write(children: &[Child], wanted: WantedLayout, opened: &OpenStripe) -> Result<NewLength> {
    let from_bytes = opened.shape().len_bytes();
    if opened.claim().is_none() {
        let why = "a child is read-only, so nothing can be written to it";
        return Err(Error::new(ErrorKind::ReadOnly, why));
    }
    let next = lengthen(children, wanted).await?;
    let to_bytes = match opened.layout() {
        Layout::Stripe { .. } => next[0].usable_bytes * children.len() as u64,
        Layout::Concat => next.iter().map(|child| child.usable_bytes).sum(),
    };
    assert!(to_bytes >= from_bytes, "a volume never shrinks");
    Ok(NewLength {
        from_bytes,
        to_bytes,
    })
}

/// Writes the superblocks of `children`, which are claimed, with the lengths that they have room for. Returns them.
///
/// # Errors
/// The error of a child that could not be read or written.
pub(super) async fn lengthen(children: &[Child], wanted: WantedLayout) -> Result<Vec<Superblock>> {
    let mut superblocks = Vec::new();
    for child in children {
        superblocks.push(child.read_superblock(wanted.name()).await?);
    }
    let next = next(children, &superblocks);
    for ((child, before), next) in children.iter().zip(&superblocks).zip(&next) {
        if before != next {
            write_superblock(child, next).await?;
        }
    }
    Ok(next)
}

/// The data that a child of this shape has room for, in bytes.
pub(super) fn usable_bytes(shape: &Shape, layout: &Layout) -> u64 {
    let grain = layout.grain_bytes();
    shape.len_bytes().saturating_sub(RESERVED_BYTES) / grain * grain
}

/// The superblocks of the same children with the lengths that they have now. Where a child of a concat has grown and is
/// not the last, a line of the log says that this is not used.
fn next(children: &[Child], superblocks: &[Superblock]) -> Vec<Superblock> {
    let usable = |child: &Child, superblock: &Superblock| {
        usable_bytes(child.volume.shape(), &superblock.layout)
    };
    let all = || children.iter().zip(superblocks);
    let smallest = all()
        .map(|(child, superblock)| usable(child, superblock))
        .min();
    all()
        .map(|(child, superblock)| {
            let has = usable(child, superblock);
            let is_last = superblock.child_index + 1 == superblock.child_count;
            let usable_bytes = match superblock.layout {
                Layout::Stripe { .. } => smallest.unwrap_or(has),
                Layout::Concat if is_last => has,
                Layout::Concat => superblock.usable_bytes,
            };
            if has > superblock.usable_bytes && superblock.layout == Layout::Concat && !is_last {
                let name = &child.name;
                tracing::warn!(
                    child = name,
                    "it has grown, but is not the last child of its concat: what it has grown by is not used"
                );
            }
            Superblock {
                usable_bytes,
                ..superblock.clone()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::FileExt,
    };

    use engine::{Buf, Lane, LaneConfig, LaneHandle, Payload};

    use crate::{
        Durability,
        graph::{NewLength, NewStripe, tests::graph},
        kinds::stripe::superblock::SUPERBLOCK_BYTES,
        scratch::Scratch,
    };

    const MIB: u64 = 1 << 20;
    const STRIPE: &str =
        r#"db.stripe = { of = [{ file = { path = "a" } }, { file = { path = "b" } }] }"#;
    const CONCAT: &str =
        r#"db.concat = { of = [{ file = { path = "a" } }, { file = { path = "b" } }] }"#;

    fn set_len(scratch: &Scratch, name: &str, mib: u64) {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(scratch.file(name));
        file.and_then(|file| file.set_len(mib * MIB)).expect("room");
    }

    async fn create(text: &str, scratch: &Scratch, home: &LaneHandle) {
        let new = NewStripe {
            uuid: uuid::Uuid::from_u128(7),
            created_unix_s: 1,
            force: false,
            from: None,
        };
        let mut graph = graph(text, scratch.path());
        graph
            .create_stripe("db", home, &new)
            .await
            .expect("blank files");
        graph.close().await;
    }

    async fn grow(text: &str, scratch: &Scratch, home: &LaneHandle) -> NewLength {
        let mut graph = graph(text, scratch.path());
        let grown = graph
            .grow_stripe("db", home)
            .await
            .expect("it grows, or stays");
        graph.close().await;
        grown
    }

    /// Fills it, or finds what was filled in, up to this length. Returns its length.
    async fn filled(
        text: &str,
        scratch: &Scratch,
        home: &LaneHandle,
        (len, fill): (u64, bool),
    ) -> u64 {
        let mut graph = graph(text, scratch.path());
        let tree = graph.open("db", home).await.expect("it opens");
        let volume = tree.on_lane().await.expect("a volume");
        for at in (0..len).step_by(64 << 10) {
            let byte = (at >> 16) as u8 | 1;
            if fill {
                let data = Payload::from(Buf::copy_of(&[byte; 64 << 10]));
                volume
                    .write(at, data, Durability::Cached)
                    .await
                    .expect("a write");
            } else {
                let read = volume.read(at, 64 << 10).await.expect("a read").to_vec();
                assert!(read.iter().all(|it| *it == byte), "{at}");
            }
        }
        let len_bytes = tree.shape().len_bytes();
        // All of it is there.
        volume
            .read(len_bytes - 512, 512)
            .await
            .expect("the last block");
        volume.flush().await.expect("a flush");
        drop((volume, tree));
        graph.close().await;
        len_bytes
    }

    #[test]
    fn a_stripe_takes_what_its_smallest_child_has_and_its_data_stays() {
        let (scratch, lane) = (
            Scratch::new(),
            Lane::new(&LaneConfig::default()).expect("a ring"),
        );
        let home = lane.handle();
        lane.block_on(async {
            for name in ["a", "b"] {
                set_len(&scratch, name, 3);
            }
            create(STRIPE, &scratch, &home).await;
            let of = |mib| NewLength {
                from_bytes: 4 * MIB,
                to_bytes: mib * MIB,
            };
            assert_eq!(
                filled(STRIPE, &scratch, &home, (4 * MIB, true)).await,
                4 * MIB
            );
            set_len(&scratch, "a", 9);
            assert_eq!(grow(STRIPE, &scratch, &home).await, of(4));
            set_len(&scratch, "b", 6);
            let before = ["a", "b"].map(|name| {
                let block = fs::read(scratch.file(name)).expect("ours");
                block[..SUPERBLOCK_BYTES].to_vec()
            });
            assert_eq!(grow(STRIPE, &scratch, &home).await, of(10));
            assert_eq!(
                filled(STRIPE, &scratch, &home, (4 * MIB, false)).await,
                10 * MIB
            );
            // The write was interrupted: one child says what it said before.
            for (name, before) in ["a", "b"].iter().zip(before) {
                let file = File::options().write(true).open(scratch.file(name));
                file.and_then(|file| file.write_all_at(&before, 0))
                    .expect("ours");
                assert_eq!(
                    filled(STRIPE, &scratch, &home, (4 * MIB, false)).await,
                    4 * MIB
                );
                assert_eq!(grow(STRIPE, &scratch, &home).await, of(10));
            }
            assert_eq!(
                filled(STRIPE, &scratch, &home, (4 * MIB, false)).await,
                10 * MIB
            );
        });
    }

    #[test]
    fn of_a_concat_only_the_last_child_grows() {
        let (scratch, lane) = (
            Scratch::new(),
            Lane::new(&LaneConfig::default()).expect("a ring"),
        );
        let home = lane.handle();
        lane.block_on(async {
            for name in ["a", "b"] {
                set_len(&scratch, name, 3);
            }
            create(CONCAT, &scratch, &home).await;
            assert_eq!(
                filled(CONCAT, &scratch, &home, (4 * MIB, true)).await,
                4 * MIB
            );
            let to = |mib| NewLength {
                from_bytes: 4 * MIB,
                to_bytes: mib * MIB,
            };
            set_len(&scratch, "a", 9);
            assert_eq!(grow(CONCAT, &scratch, &home).await, to(4));
            set_len(&scratch, "b", 6);
            assert_eq!(grow(CONCAT, &scratch, &home).await, to(7));
            assert_eq!(
                filled(CONCAT, &scratch, &home, (4 * MIB, false)).await,
                7 * MIB
            );
        });
    }

    /// `CONCAT` with a third child.
    const LONGER: &str = r#"db.concat = { of = [
        { file = { path = "c" } }, { file = { path = "a" } }, { file = { path = "b" } },
    ] }"#;

    async fn refused(text: &str, scratch: &Scratch, home: &LaneHandle) -> String {
        let mut graph = graph(text, scratch.path());
        let refused = match graph.open("db", home).await {
            Ok(_) => panic!("it opens"),
            Err(error) => error.to_string(),
        };
        graph.close().await;
        refused
    }

    fn superblock(scratch: &Scratch, name: &str) -> Vec<u8> {
        let block = fs::read(scratch.file(name)).expect("ours");
        block[..SUPERBLOCK_BYTES].to_vec()
    }

    #[test]
    fn a_concat_takes_another_child_and_its_data_stays() {
        let (scratch, lane) = (
            Scratch::new(),
            Lane::new(&LaneConfig::default()).expect("a ring"),
        );
        let home = lane.handle();
        lane.block_on(async {
            for name in ["a", "b", "c"] {
                set_len(&scratch, name, 3);
            }
            create(CONCAT, &scratch, &home).await;
            filled(CONCAT, &scratch, &home, (4 * MIB, true)).await;
            let told = refused(LONGER, &scratch, &home).await;
            assert!(told.contains("`sanstone volume grow`"), "{told}");
            let before = ["a", "b"].map(|name| superblock(&scratch, name));
            let grown = NewLength {
                from_bytes: 4 * MIB,
                to_bytes: 6 * MIB,
            };
            assert_eq!(grow(LONGER, &scratch, &home).await, grown);
            assert_eq!(
                filled(LONGER, &scratch, &home, (4 * MIB, false)).await,
                6 * MIB
            );
            let told = refused(CONCAT, &scratch, &home).await;
            assert!(told.contains("has 3 children"), "{told}");
            // It was interrupted after the first, or before any, of the old children was told.
            for interrupted in [&["b"][..], &["a", "b"]] {
                for (name, before) in ["a", "b"].iter().zip(&before) {
                    if interrupted.contains(name) {
                        let file = File::options().write(true).open(scratch.file(name));
                        file.and_then(|file| file.write_all_at(before, 0))
                            .expect("ours");
                    }
                }
                let len = filled(LONGER, &scratch, &home, (4 * MIB, false)).await;
                assert_eq!(len, 6 * MIB, "{interrupted:?}");
                // Whoever opens it ends the work before it is used.
                let told = refused(CONCAT, &scratch, &home).await;
                assert!(told.contains("has 3 children"), "{told}");
            }
        });
    }

    #[test]
    fn what_is_not_blank_or_too_short_does_not_join_a_concat() {
        let (scratch, lane) = (
            Scratch::new(),
            Lane::new(&LaneConfig::default()).expect("a ring"),
        );
        let home = lane.handle();
        lane.block_on(async {
            for name in ["a", "b", "c"] {
                set_len(&scratch, name, 3);
            }
            create(CONCAT, &scratch, &home).await;
            let refused = async || {
                let mut graph = graph(LONGER, scratch.path());
                let grown = graph.grow_stripe("db", &home).await;
                graph.close().await;
                grown.expect_err("it does not join").to_string()
            };
            let file = File::options().write(true).open(scratch.file("c"));
            let file = file.expect("ours");
            file.write_all_at(&[1], 8192).expect("room");
            let told = refused().await;
            assert!(told.contains("nonzero byte at 8192"), "{told}");
            file.write_all_at(&[0], 8192).expect("room");
            file.set_len(MIB).expect("room");
            let told = refused().await;
            assert!(told.contains("at least one unit"), "{told}");
            // A child that the concat has is missing, and two are blank.
            set_len(&scratch, "c", 3);
            fs::rename(scratch.file("b"), scratch.file("away")).expect("ours");
            set_len(&scratch, "b", 3);
            let told = refused().await;
            assert!(told.contains("child 1 is missing"), "{told}");
        });
    }
}
