//! A volume for testing layers: memory that delays and reorders, fails and can be held, counts the calls, and knows
//! what a power cut would leave.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use engine::{Buf, Duration, Lane, LaneConfig, LaneFuture, Payload, sync::Notify, time};

use crate::{
    Claim, Discard, Durability, Error, ErrorKind, Len, ReadOnly, Result, Shape, Volume,
    local_claim,
    member::{Order, Report},
};

/// Runs `future` on a lane of its own.
pub(crate) fn on_lane<T>(future: impl Future<Output = T>) -> T {
    let lane = Lane::new(&LaneConfig::default()).expect("io_uring works here");
    lane.block_on(future)
}

/// A small seeded random number generator (xorshift64*).
pub(crate) struct Random(Cell<u64>);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    /// A number below `n`.
    pub(crate) fn below(&self, n: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0.set(x);
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    pub(crate) fn bytes(&self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallKind {
    Read,
    Write(Durability),
    Flush,
    Discard,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordedCall {
    pub(crate) kind: CallKind,
    pub(crate) at: u64,
    pub(crate) len: u64,
}

pub(crate) struct TestVolume {
    pub(crate) shape: Shape,
    pub(crate) data: RefCell<Vec<u8>>,
    /// What is certain to remain after a power cut now.
    pub(crate) durable: RefCell<Vec<u8>>,
    /// All calls, in order.
    pub(crate) calls: RefCell<Vec<RecordedCall>>,
    /// Each call pauses up to this long before and after its effect.
    pub(crate) pause_us_max: Cell<u64>,
    /// Calls for which this is true fail; a failing write has changed its first half.
    pub(crate) fails: Cell<fn(&RecordedCall) -> bool>,
    /// Calls for which this is true wait, after their effect, until it is set again.
    held: Cell<fn(&RecordedCall) -> bool>,
    released: Notify,
    claim: RefCell<Option<Claim>>,
    random: Random,
    running: Cell<usize>,
    pub(crate) running_max: Cell<usize>,
}

impl TestVolume {
    pub(crate) fn new(len: usize) -> Rc<Self> {
        TestVolume::with(len, |_| {})
    }

    pub(crate) fn with(len: usize, change: impl FnOnce(&mut Shape)) -> Rc<Self> {
        let mut shape = Shape {
            block_size_bytes: 512,
            physical_block_bytes: 4096,
            len: Len::new(len as u64),
            volatile_cache: true,
            read_only: ReadOnly::default(),
            discard: Some(Discard {
                granularity_bytes: 4096,
                reads_zeroes: true,
            }),
            optimal_io_bytes: 64 << 10,
            compare_and_write_max_bytes: 0,
        };
        change(&mut shape);
        Rc::new(TestVolume {
            shape,
            data: RefCell::new(vec![0; len]),
            durable: RefCell::new(vec![0; len]),
            calls: RefCell::default(),
            pause_us_max: Cell::new(0),
            fails: Cell::new(|_| false),
            held: Cell::new(|_| false),
            released: Notify::new(),
            claim: RefCell::default(),
            random: Random::new(len as u64),
            running: Cell::new(0),
            running_max: Cell::new(0),
        })
    }

    pub(crate) fn hold(&self, held: fn(&RecordedCall) -> bool) {
        self.held.set(held);
        self.released.notify();
    }

    /// Forgets the claim without releasing it.
    pub(crate) fn crash(&self) -> Option<Claim> {
        self.claim.take()
    }

    /// The number of calls of `kind` since the last [`TestVolume::forget`].
    pub(crate) fn count(&self, kind: CallKind) -> usize {
        let calls = self.calls.borrow();
        calls.iter().filter(|call| call.kind == kind).count()
    }

    pub(crate) fn forget(&self) {
        self.calls.borrow_mut().clear();
        self.running_max.set(0);
    }

    async fn pause(&self) {
        if self.pause_us_max.get() > 0 {
            let pause = self.random.below(self.pause_us_max.get());
            time::sleep(Duration::from_micros(pause)).await;
        }
    }

    async fn call<T>(&self, call: RecordedCall, effect: impl FnOnce(bool) -> T) -> Result<T> {
        self.calls.borrow_mut().push(call);
        self.running.set(self.running.get() + 1);
        self.running_max
            .set(self.running_max.get().max(self.running.get()));
        self.pause().await;
        let fails = (self.fails.get())(&call);
        let output = effect(fails);
        self.released
            .wait_for(|| (!(self.held.get())(&call)).then_some(()))
            .await;
        self.pause().await;
        self.running.set(self.running.get() - 1);
        if fails {
            return Err(Error::new(
                ErrorKind::Medium,
                format!("{call:?} is to fail"),
            ));
        }
        Ok(output)
    }

    async fn change(&self, kind: CallKind, at: u64, data: Payload) -> Result<()> {
        let len = data.len() as u64;
        self.shape.check_write(at, len)?;
        self.call(RecordedCall { kind, at, len }, |fails| {
            let changed = if fails { data.len() / 2 } else { data.len() };
            let range = at as usize..at as usize + changed;
            data.copy_to(0, &mut self.data.borrow_mut()[range.clone()]);
            if kind == CallKind::Write(Durability::Fua) && !fails {
                data.copy_to(0, &mut self.durable.borrow_mut()[range]);
            }
        })
        .await
    }
}

impl Volume for TestVolume {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            self.shape.check(at, len as u64)?;
            let call = RecordedCall {
                kind: CallKind::Read,
                at,
                len: len as u64,
            };
            self.call(call, |_| {
                Buf::copy_of(&self.data.borrow()[at as usize..at as usize + len]).into()
            })
            .await
        })
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.change(CallKind::Write(durability), at, data))
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let call = RecordedCall {
                kind: CallKind::Flush,
                at: 0,
                len: 0,
            };
            self.call(call, |fails| {
                if !fails {
                    self.durable
                        .borrow_mut()
                        .copy_from_slice(&self.data.borrow());
                }
            })
            .await
        })
    }

    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        LaneFuture::new(async move {
            let report = local_claim::follow(self, &order, true).await?;
            if let Order::Take(claim) = order {
                self.claim.replace(Some(claim));
            }
            Ok(report)
        })
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            match self.claim.take() {
                None => Ok(()),
                Some(claim) => {
                    claim.close();
                    local_claim::release(self, &claim).await
                }
            }
        })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.change(CallKind::Discard, at, Payload::zeroes(len as usize)))
    }

    crate::fall_back!();
}
