//! What a stripe or concat asks of all of its children for its user, who may be a mirror that has it as a copy. Each child has
//! room for what is [noted](Order::Note) there, in the MiB before its data: whether one of them was set back alone is seen
//! by nothing else.

use engine::{Buf, task::join_all};

use super::{
    Stripe,
    superblock::{RESERVED_BYTES, SUPERBLOCK_BYTES},
};
use crate::{
    Durability, Result, fallback,
    member::{BLOCK_BYTES, Order, Report},
};

/// Where the slots begin on a child.
const NOTES_AT: u64 = RESERVED_BYTES / 2;

/// Where `slot` begins on a child.
pub(super) fn place(slot: usize) -> u64 {
    NOTES_AT + (slot * BLOCK_BYTES) as u64
}

impl Stripe {
    /// Reads a block by `order`. If it was only looked at, one that another owner's reservation hides is read from the child that
    /// has it.
    pub(super) async fn read_block(&self, at: u64, order: fn(u64) -> Order) -> Result<Report> {
        let lane = self.opened.followed().await?;
        let Some(place) = lane.members.map.single(at, SUPERBLOCK_BYTES as u64) else {
            return fallback::member(self, order(at)).await;
        };
        let below = order(RESERVED_BYTES + place.at);
        let read = lane.children[place.child].member(below).await;
        read.map_err(|error| lane.blame(place.child, error))
    }

    /// Asks each child, and returns what all of them answer.
    pub(super) async fn ask_all(&self, order: &Order) -> Result<Vec<Report>> {
        let lane = self.opened.followed().await?;
        let asked = lane
            .children
            .iter()
            .map(|child| child.member(order.clone()));
        let answers = join_all(asked).await.into_iter().enumerate();
        answers
            .map(|(child, answer)| answer.map_err(|error| lane.blame(child, error)))
            .collect()
    }

    /// Notes `block` in `slot` on each child, and on what those are made of.
    pub(super) async fn note(&self, slot: usize, block: &[u8]) -> Result<Report> {
        self.state.check_claim()?;
        let lane = self.opened.followed().await?;
        let notes = lane.children.iter().map(|child| {
            let block = Buf::copy_of(block).into();
            child.write(place(slot), block, Durability::Fua)
        });
        for (child, noted) in join_all(notes).await.into_iter().enumerate() {
            noted.map_err(|error| lane.blame(child, error))?;
        }
        self.ask_all(&Order::Note(slot, block.to_vec())).await?;
        Ok(Report::Noted)
    }

    /// What is noted in `slot` on each child, and on what those are made of.
    pub(super) async fn notes(&self, slot: usize) -> Result<Report> {
        let lane = self.opened.followed().await?;
        // They are there to be read also while another owner has the children, or nothing may be read for a restart.
        let reads = lane.children.iter();
        let reads = reads.map(|child| child.member(Order::Read(place(slot))));
        let mut notes = Vec::new();
        for (child, read) in join_all(reads).await.into_iter().enumerate() {
            match read.map_err(|error| lane.blame(child, error))? {
                Report::Block(block) => notes.push(block),
                _ => return fallback::member(self, Order::Notes(slot)).await,
            }
        }
        for below in self.ask_all(&Order::Notes(slot)).await? {
            if let Report::Notes(below) = below {
                notes.extend(below);
            }
        }
        Ok(Report::Notes(notes))
    }
}
