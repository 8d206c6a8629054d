//! Whether a client moves its payload fast enough: takes its replies, and sends the data of its writes.
//!
//! Until it has done so, the payload occupies memory. A client may be slow as long as nobody else needs that memory, if
//! it moves anything at all. While others are short of memory of the same pool, it must move within ten seconds as much
//! as it holds all that time, but never more than one MiB: even clients that share a link of 10 Mbit/s move that much. It
//! may do so in leaps: what counts is how far it is behind that rate, and who moves faster is never ten seconds behind.
//! What its requests wait for, and what they hold while our own medium works on them, does not count.

use std::fmt;

use engine::{Duration, Instant};

use super::{Held, NexusMemory, RESERVE_BYTES};

/// Within this time a client must move as much as it holds of the memory that others need.
const TURNOVER_MAX: Duration = Duration::from_secs(10);
/// More is never demanded in that time, however much a client holds: it cannot choose how fast its link is.
const TURNOVER_BYTES_MAX: usize = 1 << 20;

/// What a client moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moving {
    /// It takes replies.
    Replies,
    /// It sends the data of writes.
    Data,
}

/// How far a client is with replies that it has to take, or with data that it has to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientPace {
    /// The bytes that it has moved since the connection began.
    pub moved_bytes: u64,
    /// The memory that is occupied until it has moved the rest.
    pub held: Held,
}

/// How a client is too slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TooSlow {
    /// It has moved nothing for this long.
    Still(Moving, Duration),
    /// It keeps memory from others.
    Hoards {
        /// What it moves too slowly.
        moving: Moving,
        /// How fast it was.
        rate_bytes_per_s: u64,
        /// How much memory it held meanwhile, in bytes.
        held_bytes: usize,
    },
}

/// The pace of one client in each direction.
#[derive(Debug)]
pub struct Paces {
    replies: Pace,
    data: Pace,
}

impl Paces {
    /// For a client that may take nothing of its replies for as long as `replies_patience`, and send nothing of its data
    /// for as long as `data_patience`.
    pub fn new(replies_patience: Duration, data_patience: Duration) -> Paces {
        Paces {
            replies: Pace::new(Moving::Replies, replies_patience),
            data: Pace::new(Moving::Data, data_patience),
        }
    }

    /// Checks the client, which has `memory` once it is a nexus; to be called about once a second. `None` for `replies`:
    /// there are none for it to take; for `data`: it has none to send.
    ///
    /// # Errors
    /// [`TooSlow`]: the connection should end.
    pub fn check(
        &mut self,
        now: Instant,
        memory: Option<&NexusMemory>,
        replies: Option<ClientPace>,
        data: Option<ClientPace>,
    ) -> Result<(), TooSlow> {
        let wanted = memory.map(NexusMemory::wanted).unwrap_or_default();
        // Both, so that neither loses track of time.
        let check = |pace: &mut Pace, progress: Option<ClientPace>| {
            let progress = progress.map(|it| (it.moved_bytes, it.held.of(&wanted)));
            pace.check(now, progress)
        };
        let taking = check(&mut self.replies, replies);
        taking.and(check(&mut self.data, data))
    }
}

/// The pace of one client in one direction.
#[derive(Debug)]
struct Pace {
    moving: Moving,
    /// How long it may move nothing.
    patience: Duration,
    /// When it had last moved something, and how much by then.
    still: Option<(Instant, u64)>,
    wanted: Option<DemandPeriod>,
}

/// A time in which others needed memory that the client held.
#[derive(Debug)]
struct DemandPeriod {
    /// When the client was not behind for the last time, how much it had moved by then, and the least of that memory that
    /// it has held since, in bytes.
    since: Instant,
    moved_before: u64,
    held_bytes: usize,
    /// The last check: when, how much the client had moved, and what it held.
    last: (Instant, u64, usize),
    /// How far it is behind.
    behind: Duration,
}

impl Pace {
    /// For a client that may move nothing for as long as `patience`.
    fn new(moving: Moving, patience: Duration) -> Pace {
        Pace {
            moving,
            patience,
            still: None,
            wanted: None,
        }
    }

    /// Checks the client: how many bytes it has moved, and how much memory it holds that others need. `None`: it has
    /// nothing to move.
    fn check(&mut self, now: Instant, progress: Option<(u64, usize)>) -> Result<(), TooSlow> {
        let Some((moved_bytes, held_bytes)) = progress else {
            *self = Pace::new(self.moving, self.patience);
            return Ok(());
        };
        self.check_movement(now, moved_bytes)?;
        // The reserve that every client has suffices for so little.
        match held_bytes > RESERVE_BYTES {
            true => self.check_turnover(now, moved_bytes, held_bytes),
            false => {
                self.wanted = None;
                Ok(())
            }
        }
    }

    fn check_movement(&mut self, now: Instant, moved_bytes: u64) -> Result<(), TooSlow> {
        match self.still {
            Some((since, before)) if before == moved_bytes => match now - since > self.patience {
                true => Err(TooSlow::Still(self.moving, self.patience)),
                false => Ok(()),
            },
            _ => {
                self.still = Some((now, moved_bytes));
                Ok(())
            }
        }
    }

    fn check_turnover(
        &mut self,
        now: Instant,
        moved_bytes: u64,
        held_bytes: usize,
    ) -> Result<(), TooSlow> {
        let this = (now, moved_bytes, held_bytes);
        let begin = || DemandPeriod {
            since: now,
            moved_before: moved_bytes,
            held_bytes,
            last: this,
            behind: Duration::ZERO,
        };
        let wanted = self.wanted.get_or_insert_with(begin);
        let (then, moved_before, held_before) = std::mem::replace(&mut wanted.last, this);
        // What it has taken since then it had no time to move.
        let demanded = demanded_bytes(held_bytes.min(held_before));
        wanted.held_bytes = wanted.held_bytes.min(held_bytes);
        let moved = moved_bytes.saturating_sub(moved_before);
        let ahead_ms = TURNOVER_MAX.as_millis() as u64 * moved / demanded;
        wanted.behind =
            (wanted.behind + (now - then)).saturating_sub(Duration::from_millis(ahead_ms));
        if wanted.behind.is_zero() {
            *wanted = begin();
        }
        if wanted.behind <= TURNOVER_MAX {
            return Ok(());
        }
        let moved = moved_bytes.saturating_sub(wanted.moved_before);
        let rate = u128::from(moved) * 1000 / (now - wanted.since).as_millis().max(1);
        let held_bytes = wanted.held_bytes;
        self.wanted = Some(begin());
        Err(TooSlow::Hoards {
            moving: self.moving,
            rate_bytes_per_s: rate as u64,
            held_bytes,
        })
    }
}

/// How much a client that holds `held_bytes` must move within [`TURNOVER_MAX`].
fn demanded_bytes(held_bytes: usize) -> u64 {
    held_bytes.min(TURNOVER_BYTES_MAX) as u64
}

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KIB: f64 = 1024.0;
        match *self {
            TooSlow::Still(Moving::Replies, time) => {
                write!(f, "it has read no replies for {time:?}")
            }
            TooSlow::Still(Moving::Data, time) => {
                write!(
                    f,
                    "it has sent nothing for {time:?} of a request that it began"
                )
            }
            TooSlow::Hoards {
                moving,
                rate_bytes_per_s,
                held_bytes,
            } => {
                let did = match moving {
                    Moving::Replies => "read its replies",
                    Moving::Data => "sent the data of its writes",
                };
                let (rate, held) = (rate_bytes_per_s as f64 / KIB, held_bytes as f64 / KIB);
                let least = demanded_bytes(held_bytes) as f64 / KIB / TURNOVER_MAX.as_secs_f64();
                write!(
                    f,
                    "it {did} at {rate:.1} KiB/s while others needed the {held:.0} KiB of memory that it held; \
                     it takes {least:.1} KiB/s, or fewer requests at a time"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const MIB: usize = 1 << 20;

    fn pace() -> Pace {
        Pace::new(Moving::Replies, PATIENCE)
    }

    fn at(second: u64) -> Instant {
        Instant::from_ns(second * 1_000_000_000)
    }

    /// Checks a client that moves `rate` bytes a second once a second; returns in which second it was too slow.
    fn ends(pace: &mut Pace, rate: u64, held_bytes: usize) -> Option<(u64, TooSlow)> {
        (0..1000).find_map(|second| {
            let checked = pace.check(at(second), Some((rate * second, held_bytes)));
            checked.err().map(|slow| (second, slow))
        })
    }

    #[test]
    fn a_client_that_moves_nothing_is_too_slow_even_if_nobody_needs_its_memory() {
        let still = TooSlow::Still(Moving::Replies, PATIENCE);
        assert_eq!(ends(&mut pace(), 0, 0), Some((31, still)));
        assert_eq!(still.to_string(), "it has read no replies for 30s");
        assert_eq!(ends(&mut pace(), 1, 0), None);
    }

    #[test]
    fn a_client_whose_memory_others_need_moves_it_within_ten_seconds_or_ends() {
        let (second, slow) = ends(&mut pace(), 1024, 4 * MIB).expect("too slow");
        assert_eq!(second, 11);
        assert_eq!(
            slow.to_string(),
            "it read its replies at 1.0 KiB/s while others needed the 4096 KiB of memory that it held; it takes \
             102.4 KiB/s, or fewer requests at a time"
        );
        assert_eq!(ends(&mut pace(), 105_000, 4 * MIB), None);
        assert_eq!(ends(&mut pace(), 27_000, MIB / 4), None);
        assert_eq!(ends(&mut pace(), 1, RESERVE_BYTES), None);
    }

    #[test]
    fn a_client_that_moves_fast_enough_may_move_in_leaps() {
        // What a system takes at a time, however slowly its reader reads.
        const LEAP: u64 = 900 << 10;
        let mut pace = pace();
        for second in 0..1000 {
            let moved = second * (110 << 10) / LEAP * LEAP;
            let checked = pace.check(at(second), Some((moved, 4 * MIB)));
            assert_eq!(checked, Ok(()), "second {second}");
        }
        // Having been fast before is no excuse.
        let stands = (1000..1040).find(|second| {
            let checked = pace.check(at(*second), Some((1000 * (110 << 10), 4 * MIB)));
            checked.is_err()
        });
        assert!(stands.is_some_and(|second| second <= 1012), "{stands:?}");
    }

    #[test]
    fn only_time_in_which_it_had_something_to_move_and_others_needed_memory_counts() {
        let mut pace = pace();
        for second in 0..100 {
            let progress = match second % 10 {
                0 => None,
                5 => Some((1, 0)),
                _ => Some((1, MIB)),
            };
            let checked = pace.check(at(second), progress);
            assert_eq!(checked, Ok(()), "second {second}");
        }
    }

    #[test]
    fn a_client_is_measured_by_what_it_held_all_the_time() {
        // It moves 15 KiB a second, and holds little but for one second in four.
        let mut pace = pace();
        let check = |pace: &mut Pace, second, held_bytes| {
            pace.check(at(second), Some((second * (15 << 10), held_bytes)))
        };
        for second in 0..100 {
            let held = if second % 4 == 2 { 4 * MIB } else { 128 << 10 };
            assert_eq!(check(&mut pace, second, held), Ok(()), "second {second}");
        }
        let slow = (100..120).find_map(|second| check(&mut pace, second, MIB).err());
        let held = |slow| match slow {
            TooSlow::Hoards { held_bytes, .. } => held_bytes,
            TooSlow::Still(..) => 0,
        };
        assert_eq!(slow.map(held), Some(MIB));
    }
}
