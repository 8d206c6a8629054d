//! In place of a volume that did not open, for a kind that goes on without it.

use engine::{LaneFuture, Payload};

use crate::{
    Allocation, AtomicWrites, CompareOutcome, Durability, Error, ReadOnly, Result, Shape, Volume,
    member::{Order, Report},
};

/// A volume of no length that fails with one error.
pub(super) struct Missing {
    shape: Shape,
    error: Error,
}

/// The shape of what is not there.
pub(super) fn shape() -> Shape {
    Shape::absent(ReadOnly::new(true))
}

impl Missing {
    pub(super) fn new(error: Error) -> Missing {
        Missing {
            shape: shape(),
            error,
        }
    }

    fn fail<T: 'static>(&self) -> LaneFuture<'_, Result<T>> {
        LaneFuture::new(async { Err(self.error.clone()) })
    }
}

impl Volume for Missing {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, _: u64, _: usize) -> LaneFuture<'_, Result<Payload>> {
        self.fail()
    }

    fn write(&self, _: u64, _: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        self.fail()
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        self.fail()
    }

    fn member(&self, _: Order) -> LaneFuture<'_, Result<Report>> {
        self.fail()
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    fn discard(&self, _: u64, _: u64) -> LaneFuture<'_, Result<()>> {
        self.fail()
    }

    fn allocation(&self, _: u64, _: u64) -> LaneFuture<'_, Result<Allocation>> {
        self.fail()
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        None
    }

    fn write_atomic(&self, _: u64, _: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        self.fail()
    }

    fn compare_and_write(
        &self,
        _: u64,
        _: Payload,
        _: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        self.fail()
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool, _: Durability) -> LaneFuture<'_, Result<()>> {
        self.fail()
    }
}
