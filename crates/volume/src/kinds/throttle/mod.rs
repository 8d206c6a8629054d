//! The `throttle` layer: a volume behind a link of limited rate in each direction.
//!
//! Only payload counts: reads in one direction, writes in the other. Each direction is an unbuffered queue: a
//! transfer departs when the link is free, and the link is busy until its last bit has left. Departure times are
//! computed rather than awaited piece by piece, so timers that fire late have no lasting effect: over any time longer
//! than [`CREDIT`] the rate is exact. A latency would be longer by that lateness each time, so with one the lane waits
//! [exactly](time::Sleep::exactly).
//!
//! An idle link accumulates at most [`CREDIT`] of unused time, so that consecutive small requests need no timer each,
//! and still no burst is longer than that.

pub mod settings;

use std::{cell::Cell, time::Duration};

use engine::{LaneFuture, Payload, time};

use crate::{CompareOutcome, Durability, Result, SharedVolume, Volume, values::Rate};

/// The idle time that a link may catch up on.
pub const CREDIT: Duration = Duration::from_millis(1);

/// A volume at the end of a link.
pub struct Throttle {
    inner: SharedVolume,
    reads: LinkDirection,
    writes: LinkDirection,
    latency: Duration,
}

impl Throttle {
    /// `inner` behind a link that moves `rate` in each direction and adds `latency` to each request.
    pub fn new(inner: SharedVolume, rate: Rate, latency: Duration) -> Self {
        Throttle {
            inner,
            reads: LinkDirection::new(rate),
            writes: LinkDirection::new(rate),
            latency,
        }
    }

    /// Waits until `len` bytes have gone over `link` and the latency has passed.
    async fn cross(&self, link: &LinkDirection, len: usize) {
        let now = time::now();
        let left_ns = link.depart(now.as_ns(), len as u64);
        let arrival = time::Instant::from_ns(left_ns.max(now.as_ns())) + self.latency;
        if arrival > now {
            self.sleep_until(arrival).await;
        }
    }

    async fn wait_latency(&self) {
        if !self.latency.is_zero() {
            self.sleep_until(time::now() + self.latency).await;
        }
    }

    fn sleep_until(&self, at: time::Instant) -> time::Sleep {
        let sleep = time::sleep_until(at);
        match self.latency.is_zero() {
            true => sleep,
            false => sleep.exactly(),
        }
    }
}

/// One direction of the link.
struct LinkDirection {
    bits_per_s: u64,
    /// When the last accepted bit leaves: in the lane's nanoseconds, plus a fraction of a nanosecond in units of
    /// 1/`bits_per_s`.
    free_ns: Cell<u64>,
    beyond: Cell<u64>,
}

impl LinkDirection {
    fn new(rate: Rate) -> Self {
        LinkDirection {
            bits_per_s: rate.bits_per_s(),
            free_ns: Cell::new(0),
            beyond: Cell::new(0),
        }
    }

    /// Accepts `len` bytes at `now_ns`; returns when the last of them leaves, which may be in the past.
    fn depart(&self, now_ns: u64, len: u64) -> u64 {
        let earliest = now_ns.saturating_sub(CREDIT.as_nanos() as u64);
        if self.free_ns.get() < earliest {
            self.free_ns.set(earliest);
            self.beyond.set(0);
        }
        let rate = u128::from(self.bits_per_s);
        let busy = u128::from(len) * 8 * 1_000_000_000 + u128::from(self.beyond.get());
        self.beyond.set((busy % rate) as u64);
        let whole_ns = u64::try_from(busy / rate).unwrap_or(u64::MAX);
        self.free_ns
            .set(self.free_ns.get().saturating_add(whole_ns));
        self.free_ns.get()
    }
}

impl Volume for Throttle {
    crate::pass_on! { self => self.inner; shape, member, close, allocation, atomic_writes }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            let data = self.inner.read(at, len).await?;
            self.cross(&self.reads, len).await;
            Ok(data)
        })
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.shape().check(at, data.len() as u64)?;
            self.cross(&self.writes, data.len()).await;
            self.inner.write(at, data, durability).await
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.wait_latency().await;
            self.inner.flush().await
        })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.wait_latency().await;
            self.inner.discard(at, len).await
        })
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.shape().check(at, data.len() as u64)?;
            self.cross(&self.writes, data.len()).await;
            self.inner.write_atomic(at, data, durability).await
        })
    }

    fn compare_and_write(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        LaneFuture::new(async move {
            self.shape().check(at, data.len() as u64 / 2)?;
            self.cross(&self.writes, data.len()).await;
            self.inner.compare_and_write(at, data, durability).await
        })
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.wait_latency().await;
            self.inner
                .write_zeroes(at, len, may_discard, durability)
                .await
        })
    }
}

impl std::fmt::Debug for Throttle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Throttle({} bit/s, {:?})",
            self.reads.bits_per_s, self.latency
        )
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use engine::{Lane, LaneConfig, cost, sim::World, task};
    use proptest::prelude::*;

    use super::*;
    use crate::{contract, kinds::ram::Region};

    fn throttled(len: u64, rate: &str, latency: Duration) -> SharedVolume {
        let ram = Region::new(len, 512).expect("memory").on_lane();
        let rate = rate.parse().expect("a rate");
        Rc::new(Throttle::new(Rc::new(ram), rate, latency))
    }

    #[test]
    fn keeps_the_contract() {
        contract::run(|_| {
            LaneFuture::new(async { Ok(throttled(1 << 20, "40Gbit/s", Duration::ZERO)) })
        });
    }

    #[test]
    fn both_directions_move_their_rate_at_once() {
        const PIECE: usize = 64 << 10;
        const PIECES: usize = 200;
        let world = World::new(1);
        world.block_on(&world.host("client"), async {
            let volume = throttled(1 << 20, "1Gbit/s", Duration::ZERO);
            let began = time::now();
            let mut running = Vec::new();
            for lane in 0..4 {
                for write in [false, true] {
                    let volume = volume.clone();
                    running.push(task::spawn(async move {
                        for _ in 0..PIECES / 4 {
                            let at = lane * PIECE as u64;
                            if write {
                                let data = Payload::zeroes(PIECE);
                                volume
                                    .write(at, data, Durability::Cached)
                                    .await
                                    .expect("ram");
                            } else {
                                volume.read(at, PIECE).await.expect("ram");
                            }
                        }
                    }));
                }
            }
            task::join_all(running).await;
            let took = time::now().since(began).as_secs_f64();
            let exact = (PIECE * PIECES * 8) as f64 / 1e9;
            // Faster by at most the credit, and hardly slower.
            assert!(
                took >= exact - CREDIT.as_secs_f64(),
                "{took} s, not {exact} s"
            );
            assert!(took <= exact * 1.01, "{took} s, not {exact} s");
        });
    }

    #[test]
    fn latency_is_added_to_every_request() {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let latency = Duration::from_millis(5);
            let volume = throttled(1 << 20, "10Gbit/s", latency);
            for operation in 0..4 {
                let began = time::now();
                match operation {
                    0 => volume.read(0, 512).await.map(drop),
                    1 => {
                        volume
                            .write(0, Payload::zeroes(512), Durability::Cached)
                            .await
                    }
                    2 => volume.flush().await,
                    _ => volume.discard(0, 512).await,
                }
                .expect("ram");
                assert!(time::now().since(began) >= latency, "operation {operation}");
            }
        });
    }

    /// How often a lane slept for some requests.
    fn sleeps(rate: &str, latency: Duration) -> u64 {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let volume = throttled(1 << 20, rate, latency);
            let before = cost::sleeps();
            for _ in 0..5 {
                volume.read(0, 1 << 20).await.expect("ram");
                volume.flush().await.expect("ram");
            }
            cost::sleeps() - before
        })
    }

    #[test]
    fn a_lane_does_not_sleep_past_the_latency_and_needs_no_spinning_for_the_rate() {
        assert_eq!(sleeps("40000Gbit/s", Duration::from_micros(80)), 0);
        assert!(sleeps("1Gbit/s", Duration::ZERO) > 0);
    }

    proptest! {
        /// Whatever the arrival times: no interval moves more than its rate plus the credit, and a link that always
        /// has work moves exactly its rate.
        #[test]
        fn the_rate_is_exact(
            bits_per_s in 1_000u64..20_000_000_000,
            requests in prop::collection::vec((0u64..3_000_000, 1u64..2_000_000), 1..60),
        ) {
            let link = LinkDirection::new(Rate::from_bits_per_s(bits_per_s).expect("above zero"));
            let start_ns = 10_000_000_000u64;
            let (mut now_ns, mut bits) = (start_ns, 0u128);
            let mut last_ns = 0;
            for (pause_ns, len) in requests {
                now_ns += pause_ns;
                let left_ns = link.depart(now_ns, len);
                bits += u128::from(len) * 8;
                prop_assert!(left_ns >= last_ns, "in order");
                last_ns = left_ns;
                let span_ns = u128::from(left_ns) + CREDIT.as_nanos() - u128::from(start_ns);
                // Rounded down by less than a nanosecond in total.
                prop_assert!(bits * 1_000_000_000 < (span_ns + 1) * u128::from(bits_per_s));
            }
            // From here on the link is busy: additional data takes exactly its time.
            let busy_from = link.depart(now_ns, 1 << 20);
            let mut end_ns = busy_from;
            for _ in 0..100 {
                end_ns = link.depart(now_ns, 12_345);
            }
            let exact = u128::from(12_345u64 * 100 * 8) * 1_000_000_000 / u128::from(bits_per_s);
            let took = u128::from(end_ns - busy_from);
            prop_assert!(took.abs_diff(exact) <= 1, "{} ns, not {}", took, exact);
        }
    }
}
