//! Adds children to a concat, behind those that it has, while nobody uses it; [`join_in_use`](super::join_in_use) does it while
//! it is used. Each superblock says how many children there are, so the blocks are
//! written in an order in which a power cut leaves the old volume or the new one:
//!
//! 1. The superblocks of the new children. The volume is the old one still: its own children say nothing of them, and it opens
//!    without them.
//! 2. Those of the old children. The first of these makes it the new volume: from then on it cannot be opened without the
//!    new children, which are all complete.
//!
//! If only the first step was done, listing all children is enough to do the second: whoever opens them writes what is
//! missing before anything else, as nobody must write to the new children while the old volume can still be opened without
//! them. A concat that was used in between without them has raised the generation of its claims, so that they are
//! refused as older copies; they are written again by the next attempt.

use super::{
    Child, OpenStripe, WantedLayout,
    claim::check_age,
    claim_all,
    create::{check_blank, check_distinct, usable_bytes_of},
    give_up,
    joined::finish,
    superblock::{Layout, RESERVED_BYTES, Superblock, SuperblockRefusal},
    superblock_of, write_superblock,
};
use crate::{Result, SetClaim, kinds::NewLength};

/// The children of a concat to which some of them are new.
pub(super) struct Joining {
    /// All of them, as they are listed.
    all: Vec<Child>,
    /// Those that it has.
    old: Vec<Child>,
    new: Vec<Child>,
}

impl Joining {
    /// Finds out which of `children` are new. `None`: none is, or what they are is for [`OpenStripe`] to say.
    ///
    /// # Errors
    /// What keeps the old ones from opening; a new child that is not blank, too short, or has blocks too large.
    pub(super) async fn of(children: &[Child], wanted: WantedLayout) -> Result<Option<Joining>> {
        let WantedLayout::Concat = wanted else {
            return Ok(None);
        };
        let mut found = Vec::new();
        for child in children {
            child.check_len()?;
            let Some(block) = child.read_block(0).await? else {
                return Ok(None);
            };
            found.push(match Superblock::decode(&block) {
                Err(SuperblockRefusal::Blank) => None,
                _ => Some(superblock_of(&child.name, &block, wanted.name())?),
            });
        }
        let Some(is_old) = old_ones(&found) else {
            return Ok(None);
        };
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for ((child, superblock), is_old) in children.iter().zip(&found).zip(is_old) {
            match is_old {
                true => old.push(child.clone()),
                false => {
                    if superblock.is_none() {
                        let start = child.volume.read(0, RESERVED_BYTES as usize).await;
                        check_blank(child, &start.map_err(|error| child.blame(error))?)?;
                    }
                    new.push(child.clone());
                }
            }
        }
        let opened = OpenStripe::read(&old, wanted, None).await?;
        let block_size_bytes = opened.shape().block_size_bytes;
        for child in &new {
            usable_bytes_of(child, Layout::Concat.grain_bytes())?;
            let own = child.volume.shape().block_size_bytes;
            if own > block_size_bytes {
                return Err(child.refuse(format!(
                    "its blocks of {own} bytes are larger than the {block_size_bytes} that the concat has; add a \
                     disk with blocks of at most {block_size_bytes} bytes"
                )));
            }
        }
        Ok(Some(Joining {
            all: children.to_vec(),
            old,
            new,
        }))
    }

    /// Makes the new children part of the volume, under `claim`, which is on all of them.
    ///
    /// # Errors
    /// A child that another owner has, or that is an older copy; two children that are the same disk; the child's own
    /// error when an I/O fails. Each with the child.
    pub(super) async fn join(self, claim: SetClaim) -> Result<NewLength> {
        check_age(&self.old).await?;
        // What the labels of the new ones say is of no interest.
        claim_all(&self.all, &claim.for_new_set(false)).await?;
        let joined = self.write().await;
        give_up(&self.all).await;
        joined
    }

    async fn write(&self) -> Result<NewLength> {
        let opened = OpenStripe::read(&self.old, WantedLayout::Concat, None).await?;
        let added_bytes = self.write_new().await?;
        finish(&self.all).await?;
        let from_bytes = opened.shape().len_bytes();
        Ok(NewLength {
            from_bytes,
            to_bytes: from_bytes + added_bytes,
        })
    }

    /// All children, as they are listed.
    pub(super) fn all(&self) -> &[Child] {
        &self.all
    }

    /// The first step. Returns how many bytes they add.
    pub(super) async fn write_new(&self) -> Result<u64> {
        let first = self.old[0].read_superblock(Layout::Concat.name()).await?;
        let all = self.all.len() as u32;
        let mut superblocks = Vec::new();
        for (child_index, child) in (self.old.len() as u32..).zip(&self.new) {
            superblocks.push(Superblock {
                child_index,
                child_count: all,
                usable_bytes: usable_bytes_of(child, first.layout.grain_bytes())?,
                ..first.clone()
            });
        }
        for (child, superblock) in self.new.iter().zip(&superblocks) {
            write_superblock(child, superblock).await?;
        }
        check_distinct(&self.new, &superblocks).await?;
        Ok(superblocks.iter().map(|it| it.usable_bytes).sum())
    }
}

/// Which children are part of the volume already, by what was `found` on each. `None`: none is new, or they are not all of one
/// volume.
fn old_ones(found: &[Option<Superblock>]) -> Option<Vec<bool>> {
    let there = || found.iter().flatten();
    let volume = there().next()?.volume;
    let before = there().map(|it| it.child_count).min()?;
    let is_old = |it: &Superblock| it.child_index < before;
    // One old child that knows of the new ones makes them part of it.
    let is_joined = there().any(|it| is_old(it) && it.child_count > before);
    if is_joined || there().any(|it| it.volume != volume) {
        return None;
    }
    let old: Vec<bool> = found
        .iter()
        .map(|it| it.as_ref().is_some_and(is_old))
        .collect();
    old.contains(&false).then_some(old)
}
