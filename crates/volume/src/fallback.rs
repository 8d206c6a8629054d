//! Answers for leaves that have nothing better. [`Volume`](crate::Volume) has no default methods, so that no layer
//! silently loses a request for its child; a leaf opts in by calling these, or [`fall_back!`](crate::fall_back) for
//! all of them.

use engine::{LaneFuture, Payload};

use crate::{
    Allocation, CompareOutcome, Durability, Error, ErrorKind, Result, Volume, local_fence,
    member::{BLOCK_BYTES, Order, Report},
};

/// The length written at a time by [`write_zeroes`], in bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// For a volume that does not know what occupies space: everything may.
pub fn allocation(volume: &dyn Volume, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
    LaneFuture::new(async move {
        volume.shape().check(at, len)?;
        Ok(Allocation {
            is_mapped: true,
            len_bytes: len,
        })
    })
}

/// For a volume that nobody else can open, or that is reached through its parent alone: it is that one's, and needs no
/// label.
pub fn member(volume: &dyn Volume, order: Order) -> LaneFuture<'_, Result<Report>> {
    LaneFuture::new(async move {
        match order {
            Order::Read(at) | Order::Peek(at) => {
                let block = volume.read(at, BLOCK_BYTES).await?;
                Ok(Report::Block(block.to_vec()))
            }
            Order::Take(_) => Ok(Report::Taken(None)),
            Order::Label(_) => Ok(Report::Labelled),
            Order::Fence(key, step) => local_fence::follow(volume, key, step).await,
            Order::Prove => Ok(Report::Proved),
            Order::Look => Ok(Report::Looks(volume.shape().looks())),
            Order::Suits => Ok(Report::Suits),
            Order::Renew => Ok(Report::Renewed),
            Order::Note(..) => Ok(Report::Noted),
            Order::Notes(_) => Ok(Report::Notes(Vec::new())),
        }
    })
}

/// For a volume whose [`Volume::atomic_writes`] is `None`: refuses.
pub fn write_atomic<'a>() -> LaneFuture<'a, Result<()>> {
    let why = "the volume does not support atomic writes";
    LaneFuture::new(async move { Err(Error::new(ErrorKind::Configuration, why)) })
}

/// For a volume whose [`Shape::compare_and_write_max_bytes`](crate::Shape::compare_and_write_max_bytes) is 0: refuses.
pub fn compare_and_write<'a>() -> LaneFuture<'a, Result<CompareOutcome>> {
    let why = "the volume does not compare before it writes";
    LaneFuture::new(async move { Err(Error::new(ErrorKind::Configuration, why)) })
}

/// For a volume without a zeroing command: writes zeroes.
pub fn write_zeroes(
    volume: &dyn Volume,
    at: u64,
    len: u64,
    durability: Durability,
) -> LaneFuture<'_, Result<()>> {
    LaneFuture::new(async move {
        volume.shape().check_write(at, len)?;
        let mut done = 0;
        while done < len {
            let piece = PIECE_BYTES.min(len - done);
            let zeroes = Payload::zeroes(piece as usize);
            volume.write(at + done, zeroes, durability).await?;
            done += piece;
        }
        Ok(())
    })
}

/// In an `impl Volume`: implements every method for which this module has an answer.
#[macro_export]
macro_rules! fall_back {
    () => {
        fn allocation(
            &self,
            at: u64,
            len: u64,
        ) -> ::engine::LaneFuture<'_, $crate::Result<$crate::Allocation>> {
            $crate::fallback::allocation(self, at, len)
        }

        fn atomic_writes(&self) -> Option<$crate::AtomicWrites> {
            None
        }

        fn write_atomic(
            &self,
            _: u64,
            _: ::engine::Payload,
            _: $crate::Durability,
        ) -> ::engine::LaneFuture<'_, $crate::Result<()>> {
            $crate::fallback::write_atomic()
        }

        fn compare_and_write(
            &self,
            _: u64,
            _: ::engine::Payload,
            _: $crate::Durability,
        ) -> ::engine::LaneFuture<'_, $crate::Result<$crate::CompareOutcome>> {
            $crate::fallback::compare_and_write()
        }

        fn write_zeroes(
            &self,
            at: u64,
            len: u64,
            _may_discard: bool,
            durability: $crate::Durability,
        ) -> ::engine::LaneFuture<'_, $crate::Result<()>> {
            $crate::fallback::write_zeroes(self, at, len, durability)
        }
    };
}
