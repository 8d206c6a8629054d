//! Chooses the offset and the length of the next I/O.

use engine::random::SplitMix64;

use super::{Order, Workload};

/// Step of the strided order, in places.
const STRIDE: u64 = 17;
/// Zipf's exponent.
const EXPONENT: f64 = 0.99;

/// An I/O to perform.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Io {
    pub(super) at: u64,
    pub(super) len: usize,
    pub(super) is_read: bool,
}

/// One of the volumes of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadVolume {
    pub(super) index: usize,
    /// How many there are.
    pub(super) of: usize,
}

/// The sequence of I/Os on one volume.
pub(super) struct IoSequence {
    order: Order,
    read_percent: u64,
    /// Each length with the cumulative weight up to it.
    sizes: Vec<(usize, u64)>,
    span_bytes: u64,
    /// Where the order continues: an offset in bytes, or a place in the strided order.
    next: u64,
    /// The first place of the current round of the strided order.
    round: u64,
    random: SplitMix64,
    zipf: Vec<Zipf>,
}

impl IoSequence {
    /// For the first `span_bytes` of a volume, which must hold the longest I/O.
    pub(super) fn new(workload: &Workload, span_bytes: u64, part: LoadVolume) -> IoSequence {
        let mut sum = 0;
        let sizes = workload.sizes.iter().map(|(size, weight)| {
            sum += weight;
            (*size, sum)
        });
        let sizes: Vec<(usize, u64)> = sizes.collect();
        let zipf = match workload.order {
            Order::Zipf => sizes
                .iter()
                .map(|(size, _)| Zipf::new(span_bytes / *size as u64))
                .collect(),
            _ => Vec::new(),
        };
        let mut random = SplitMix64::new(workload.seed);
        let size = workload.size_bytes_max() as u64;
        let count = (span_bytes / size).max(1);
        // A given number of I/Os is one pass over the span, from its beginning.
        let begin = match workload.ios_max {
            Some(_) => 0,
            None => random.below(count),
        };
        let (index, of) = (part.index as u64, part.of.max(1) as u64);
        let place = (begin + index * count / of) % count;
        IoSequence {
            order: workload.order,
            read_percent: workload.read_percent,
            sizes,
            span_bytes,
            next: match workload.order {
                Order::Strided => place,
                _ => place * size,
            },
            round: place % STRIDE.min(count),
            random: SplitMix64::new(random.bits().wrapping_add(index)),
            zipf,
        }
    }

    pub(super) fn next(&mut self) -> Io {
        let index = self.size();
        let len = self.sizes[index].0;
        let size = len as u64;
        let count = self.span_bytes / size;
        let at = match self.order {
            Order::Random => self.random.below(count) * size,
            Order::Zipf => {
                let rank = self.zipf[index].next(&mut self.random);
                // Hashing the rank scatters the hot places.
                SplitMix64::new(rank).below(count) * size
            }
            Order::Sequential => {
                let at = match self.next + size <= self.span_bytes {
                    true => self.next,
                    false => 0,
                };
                self.next = at + size;
                at
            }
            Order::Backward => {
                let end = match self.next >= size {
                    true => self.next,
                    false => count * size,
                };
                self.next = end - size;
                self.next
            }
            Order::Strided => {
                if self.next >= count {
                    self.round = (self.round + 1) % STRIDE.min(count);
                    self.next = self.round;
                }
                let place = self.next;
                self.next += STRIDE;
                place * size
            }
        };
        Io {
            at,
            len,
            is_read: self.read_percent >= 100 || self.random.below(100) < self.read_percent,
        }
    }

    /// Draws the next length.
    fn size(&mut self) -> usize {
        if self.sizes.len() == 1 {
            return 0;
        }
        let all = self.sizes.last().map_or(0, |(_, sum)| *sum);
        let drawn = self.random.below(all);
        self.sizes.partition_point(|(_, sum)| *sum <= drawn)
    }
}

/// Zipf-distributed ranks from 1, by rejection-inversion (Hörmann and Derflinger, 1996), which needs no
/// precomputed sum.
struct Zipf {
    count: f64,
    /// The integral of the hat function at the first rank and past the last.
    first: f64,
    last: f64,
    /// Within this distance a rank is accepted without a further test.
    shortcut: f64,
}

impl Zipf {
    fn new(count: u64) -> Zipf {
        let count = count.max(1) as f64;
        Zipf {
            count,
            first: integral(1.5) - 1.0,
            last: integral(count + 0.5),
            shortcut: 2.0 - inverse(integral(2.5) - 2.0_f64.powf(-EXPONENT)),
        }
    }

    fn next(&self, random: &mut SplitMix64) -> u64 {
        loop {
            let drawn = self.last + random.unit() * (self.first - self.last);
            let near = inverse(drawn);
            let rank = near.round().clamp(1.0, self.count);
            if rank - near <= self.shortcut || drawn >= integral(rank + 0.5) - rank.powf(-EXPONENT)
            {
                return rank as u64;
            }
        }
    }
}

/// The integral of x to the power of -[`EXPONENT`], and its inverse.
fn integral(x: f64) -> f64 {
    (x.powf(1.0 - EXPONENT) - 1.0) / (1.0 - EXPONENT)
}

fn inverse(y: f64) -> f64 {
    (y * (1.0 - EXPONENT) + 1.0).powf(1.0 / (1.0 - EXPONENT))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{super::Operation, *};

    const ONLY: LoadVolume = LoadVolume { index: 0, of: 1 };

    /// The first `count` places of one pass over a span.
    fn starts(order: Order, places_of_span: u64, count: usize) -> Vec<u64> {
        starts_of(
            order,
            ONLY,
            Some(places_of_span),
            0,
            (places_of_span, count),
        )
    }

    fn starts_of(
        order: Order,
        part: LoadVolume,
        ios_max: Option<u64>,
        seed: u64,
        (places_of_span, count): (u64, usize),
    ) -> Vec<u64> {
        let workload = Workload {
            order,
            ios_max,
            seed,
            ..Workload::closed(Operation::Read, 512, 1)
        };
        // A partial place at the end is never touched.
        let mut places = IoSequence::new(&workload, places_of_span * 512 + 100, part);
        (0..count).map(|_| places.next().at / 512).collect()
    }

    #[test]
    fn sessions_with_one_disk_begin_apart_and_each_visits_all_of_it() {
        for (order, first) in [
            (Order::Sequential, [0, 25, 50, 75]),
            (Order::Backward, [99, 24, 49, 74]),
            (Order::Strided, [0, 25, 50, 75]),
        ] {
            for (index, first) in first.into_iter().enumerate() {
                let part = LoadVolume { index, of: 4 };
                let mut visited = starts_of(order, part, Some(400), 0, (100, 100));
                assert_eq!(visited[0], first, "{order:?}");
                visited.sort_unstable();
                let all: Vec<u64> = (0..100).collect();
                assert_eq!(visited, all, "{order:?} of session {index}");
            }
        }
    }

    #[test]
    fn loads_with_one_seed_are_alike_and_others_go_elsewhere() {
        let orders = [Order::Random, Order::Sequential, Order::Backward];
        for order in orders.into_iter().chain([Order::Strided, Order::Zipf]) {
            let of = |seed| starts_of(order, ONLY, None, seed, (1 << 20, 32));
            assert_eq!(of(7), of(7), "{order:?}");
            assert_ne!(of(7), of(8), "{order:?}");
        }
        let second = LoadVolume { index: 1, of: 2 };
        let of = |part| starts_of(Order::Random, part, None, 7, (1 << 20, 32));
        assert_ne!(of(ONLY), of(second), "each volume has its own places");
    }

    #[test]
    fn orders_visit_every_place() {
        assert_eq!(starts(Order::Sequential, 3, 5), [0, 1, 2, 0, 1]);
        assert_eq!(starts(Order::Backward, 3, 5), [2, 1, 0, 2, 1]);
        assert_eq!(starts(Order::Strided, 40, 5), [0, 17, 34, 1, 18]);
        for order in [Order::Sequential, Order::Backward, Order::Strided] {
            for span in [1, 16, 17, 18, 100] {
                let mut visited = starts(order, span, span as usize);
                visited.sort_unstable();
                let all: Vec<u64> = (0..span).collect();
                assert_eq!(visited, all, "{order:?} over {span}");
            }
        }
        let random = starts(Order::Random, 64, 2000);
        assert!((0..64).all(|place| random.contains(&place)));
    }

    #[test]
    fn zipf_has_the_frequencies_of_its_law() {
        let zipf = Zipf::new(1000);
        let mut random = SplitMix64::new(1);
        let mut counts = BTreeMap::new();
        const DRAWN: u32 = 200_000;
        for _ in 0..DRAWN {
            let rank = zipf.next(&mut random);
            assert!((1..=1000).contains(&rank));
            *counts.entry(rank).or_insert(0_u32) += 1;
        }
        let sum: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-EXPONENT)).sum();
        for rank in [1_u64, 2, 10, 100] {
            let expected = f64::from(DRAWN) * (rank as f64).powf(-EXPONENT) / sum;
            let found = f64::from(counts[&rank]);
            assert!(
                (found - expected).abs() < 5.0 * expected.sqrt(),
                "rank {rank}: {found} instead of {expected}"
            );
        }
    }

    #[test]
    fn sizes_and_directions_come_as_often_as_they_are_to() {
        let mut workload = Workload::closed(Operation::Read, 4096, 1);
        workload.read_percent = 70;
        workload.sizes = vec![(4096, 3), (65536, 1)];
        let mut places = IoSequence::new(&workload, 1 << 20, ONLY);
        let ios: Vec<Io> = (0..10_000).map(|_| places.next()).collect();
        assert!(ios.iter().all(|io| io.at + io.len as u64 <= 1 << 20));
        let reads = ios.iter().filter(|io| io.is_read).count();
        assert!((6800..7200).contains(&reads), "{reads}");
        let long = ios.iter().filter(|io| io.len == 65536).count();
        assert!((2350..2650).contains(&long), "{long}");
    }
}
