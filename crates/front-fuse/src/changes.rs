//! When the file was last changed, as `stat` reports it: programs that keep copies of it (rsync, tar, backups) go by
//! these times, so each change moves them, and no later change can have an earlier time.
//!
//! A change costs its lane one store: of the lane's time, into a place of the lane's own. Whoever asks for the times
//! looks at all places, and turns the newest that it has not seen yet into a time of day. The times stay in memory.
//! After a restart they are those of the restart, as nobody knows what has become of the volume in between.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use engine::{Instant, time};

/// Nanoseconds since 1970, negative before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp(i64);

const SECOND_NS: i64 = 1_000_000_000;

impl Timestamp {
    /// As `stat` has it: seconds since 1970, and less than 10^9 nanoseconds. What lies beyond the years 1677 to 2262
    /// becomes the closest time within them.
    pub fn new(seconds: i64, nanoseconds: u32) -> Timestamp {
        let whole = seconds.saturating_mul(SECOND_NS);
        Timestamp(whole.saturating_add(nanoseconds.into()))
    }

    /// The whole seconds since 1970, and the nanoseconds beyond.
    pub(crate) fn parts(self) -> (i64, u32) {
        let nanoseconds = self.0.rem_euclid(SECOND_NS);
        (self.0.div_euclid(SECOND_NS), nanoseconds as u32)
    }

    /// The time of a change that came after `self`: `at`, unless the clock has been set back. Many programs compare
    /// whole seconds, so it is then at least a second later, or a change would go unnoticed for as long as the clock
    /// takes to catch up.
    fn then(self, at: Timestamp) -> Timestamp {
        match self.0.saturating_sub(at.0) {
            ..0 => at,
            0..SECOND_NS => Timestamp(self.0.saturating_add(1)),
            SECOND_NS.. => Timestamp(self.0.saturating_add(SECOND_NS)),
        }
    }
}

/// The times of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileTimes {
    /// The last access, as far as somebody has set it: reads do not move it.
    pub accessed: Timestamp,
    /// The last change of the content.
    pub modified: Timestamp,
    /// The last change of the content or of the times.
    pub changed: Timestamp,
}

/// The time that somebody gives the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// That of the request.
    Now,
    /// This one.
    To(Timestamp),
}

/// Times that somebody gives the file; the others stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetTimes {
    /// Of the last access.
    pub accessed: Option<SetTime>,
    /// Of the last change of the content.
    pub modified: Option<SetTime>,
}

/// The same moment by the lanes' clock and by the time of day.
#[derive(Clone, Copy)]
struct Now {
    lane: Instant,
    day: Timestamp,
}

impl Now {
    fn read() -> Now {
        let lane = time::now();
        // Read after it, so that no change comes out earlier than it was.
        let day = time::since_unix_epoch();
        let seconds = i64::try_from(day.as_secs()).unwrap_or(i64::MAX);
        Now {
            lane,
            day: Timestamp::new(seconds, day.subsec_nanos()),
        }
    }

    /// The time of day when the lanes' clock was at `at`.
    fn day_of(self, at: Instant) -> Timestamp {
        let ago = i64::try_from(self.lane.since(at).as_nanos()).unwrap_or(i64::MAX);
        Timestamp(self.day.0.saturating_sub(ago))
    }
}

/// The last change by each lane, and what has been told of them.
pub(crate) struct Changes {
    lanes: Box<[LaneMark]>,
    told: Mutex<Announced>,
}

/// The time of a lane's last change; 0 if there was none. In a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct LaneMark(AtomicU64);

struct Announced {
    /// The marks that the times cover.
    marks: Box<[u64]>,
    len_bytes: u64,
    /// When somebody last asked. Changes that were not seen then came later.
    asked: Timestamp,
    times: FileTimes,
}

impl Changes {
    /// Of a file of `len_bytes` that changed just now, served on so many lanes.
    pub(crate) fn new(lanes: usize, len_bytes: u64) -> Changes {
        let now = Now::read().day;
        let times = FileTimes {
            accessed: now,
            modified: now,
            changed: now,
        };
        Changes {
            lanes: (0..lanes).map(|_| LaneMark::default()).collect(),
            told: Mutex::new(Announced {
                marks: (0..lanes).map(|_| 0).collect(),
                len_bytes,
                asked: now,
                times,
            }),
        }
    }

    /// Notes a change by `lane`, which calls this itself, before whoever made the change is answered.
    pub(crate) fn mark(&self, lane: usize) {
        let LaneMark(mark) = &self.lanes[lane];
        // Nobody else writes it. Two changes within one tick of the clock have different marks.
        let next = mark.load(Ordering::Relaxed) + 1;
        mark.store(next.max(time::now().as_ns()), Ordering::Release);
    }

    /// The times of the file, which has `len_bytes` by now, after it has been given those of `set`.
    pub(crate) fn times(&self, len_bytes: u64, set: Option<SetTimes>) -> FileTimes {
        self.times_at(Now::read(), len_bytes, set)
    }

    fn times_at(&self, now: Now, len_bytes: u64, set: Option<SetTimes>) -> FileTimes {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let told = &mut *told;
        let mut newest = None;
        for (LaneMark(mark), seen) in self.lanes.iter().zip(&mut told.marks) {
            let mark = mark.load(Ordering::Acquire);
            if *seen != mark {
                *seen = mark;
                newest = newest.max(Some(now.day_of(Instant::from_ns(mark))));
            }
        }
        if told.len_bytes != len_bytes {
            told.len_bytes = len_bytes;
            newest = Some(now.day);
        }
        let before = told.times.changed.max(told.asked);
        if let Some(at) = newest {
            told.times.changed = before.then(at);
            told.times.modified = told.times.changed;
        }
        if let Some(set) = set {
            let given = |time| match time {
                SetTime::Now => now.day,
                SetTime::To(at) => at,
            };
            told.times.changed = told.times.changed.max(before).then(now.day);
            told.times.accessed = set.accessed.map_or(told.times.accessed, given);
            told.times.modified = set.modified.map_or(told.times.modified, given);
        }
        told.asked = told.asked.max(now.day);
        told.times
    }
}

#[cfg(test)]
mod tests;
