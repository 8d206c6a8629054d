//! What the owner knows of one copy's bitmap (rule 11): which regions are marked there for certain, and which should be.
//!
//! Each block of the bitmap has at most one write on its way. While that may land or not, a region counts as marked only
//! if it is marked either way.

use crate::{
    op::OpId,
    planted::{Bug, is_planted},
    regions::{Regions, WORDS_PER_BLOCK},
};

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Bitmap {
    /// What should be marked.
    pub(crate) wanted: Regions,
    /// What the last write that has ended marked.
    durable: Regions,
    /// For each block, the write that is on its way.
    writing: Vec<Option<(OpId, Vec<u64>)>>,
}

impl Bitmap {
    /// The bitmap of a copy on which `marked` was found.
    pub(crate) fn found(marked: Regions) -> Bitmap {
        let blocks = marked.0.len().div_ceil(WORDS_PER_BLOCK);
        Bitmap {
            wanted: marked.clone(),
            durable: marked,
            writing: vec![None; blocks],
        }
    }

    /// Whether `region` is marked for certain.
    pub(crate) fn is_marked(&self, region: usize) -> bool {
        self.durable.contains(region) && self.is_kept_marked(region)
    }

    /// Whether no write that is on its way clears `region`.
    fn is_kept_marked(&self, region: usize) -> bool {
        let word = region / 64;
        let writing = &self.writing[word / WORDS_PER_BLOCK];
        let bit = 1 << (region % 64);
        writing
            .as_ref()
            .is_none_or(|(_, words)| words[word % WORDS_PER_BLOCK] & bit != 0)
            || is_planted(Bug::ClearOvertaken)
    }

    /// A block that has to be written, with its content: the write `id` is on its way from here on.
    pub(crate) fn write(&mut self, id: OpId) -> Option<(usize, Vec<u64>)> {
        for (block, writing) in self.writing.iter_mut().enumerate() {
            let words = self.wanted.block(block);
            if writing.is_none() && words != self.durable.block(block) {
                *writing = Some((id, words.to_vec()));
                return Some((block, words.to_vec()));
            }
        }
        None
    }

    /// Whether what should be marked is what is.
    pub(crate) fn is_settled(&self) -> bool {
        self.wanted == self.durable && self.writing.iter().all(Option::is_none)
    }

    /// Whether the write `id` is on its way.
    pub(crate) fn is_writing(&self, id: OpId) -> bool {
        self.writing.iter().flatten().any(|(one, _)| *one == id)
    }

    /// The write `id`, if it is one of this bitmap, has ended. After one that has failed nothing of its block counts as
    /// marked.
    pub(crate) fn ended(&mut self, id: OpId, is_good: bool) {
        for (block, writing) in self.writing.iter_mut().enumerate() {
            if let Some((_, mut words)) = writing.take_if(|(one, _)| *one == id) {
                if !is_good {
                    words.fill(0);
                }
                let start = block * WORDS_PER_BLOCK;
                self.durable.0[start..start + words.len()].copy_from_slice(&words);
            }
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn ids(&mut self) -> impl Iterator<Item = &mut OpId> {
        self.writing.iter_mut().flatten().map(|(id, _)| id)
    }
}
