//! Computes from a recording what a power cut could have left.
//!
//! A write must have survived if it succeeded and was durable, or if it completed before a sync began that succeeded
//! before the cut. Any other write that had begun may have survived not at all, completely, or, unless it was atomic,
//! in some of its sectors. Each write takes effect at one moment between its begin and its end, so either of two
//! concurrent writes may be the later one.

use std::collections::BTreeMap;

use engine::random::SplitMix64;

use super::{Content, Event, Recording, SECTOR_BYTES};

/// Which of the writes that need not survive a power cut do survive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survivors {
    /// None.
    None,
    /// All, completely.
    All,
    /// Random, from this seed: some not at all, some completely, some torn.
    Drawn(u64),
}

struct RecordedWrite<'a> {
    at: u64,
    content: &'a Content,
    durable: bool,
    atomic: bool,
    begun: usize,
    ended: Option<usize>,
    must_survive: bool,
}

impl Recording {
    /// Changes `image` from what the file held when the recording began to what a power cut after the first `cut`
    /// events could have left. Ignores writes beyond its end.
    pub fn replay(&self, cut: usize, survivors: Survivors, image: &mut [u8]) {
        let events = self.lock();
        let events = &events[..cut];
        let mut draw = Draw::new(survivors, cut);
        let mut in_order: Vec<(u64, RecordedWrite<'_>)> = writes(events)
            .into_iter()
            .map(|write| {
                let last = write.ended.unwrap_or(cut);
                // Leaves room between two events for the random moments of many writes.
                let moment = (write.begun as u64) << 20;
                let span = ((last - write.begun) as u64) << 20;
                (moment + draw.below(span.max(1)), write)
            })
            .collect();
        in_order.sort_by_key(|(moment, _)| *moment);
        for (_, write) in &in_order {
            let survives = if write.must_survive {
                WriteFate::Whole
            } else {
                draw.fate(write.atomic)
            };
            apply(write, survives, &mut draw, image);
        }
    }
}

fn writes(events: &[Event]) -> Vec<RecordedWrite<'_>> {
    let mut writes: BTreeMap<usize, RecordedWrite<'_>> = BTreeMap::new();
    let mut ended_before_sync: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut ended_well: Vec<usize> = Vec::new();
    for (position, event) in events.iter().enumerate() {
        match event {
            Event::WriteBegun {
                id,
                at,
                content,
                durable,
                atomic,
            } => {
                let write = RecordedWrite {
                    at: *at,
                    content,
                    durable: *durable,
                    atomic: *atomic,
                    begun: position,
                    ended: None,
                    must_survive: false,
                };
                writes.insert(*id, write);
            }
            Event::WriteEnded { id, ok } => {
                if let Some(write) = writes.get_mut(id) {
                    write.ended = Some(position);
                    write.must_survive = *ok && write.durable;
                    if *ok {
                        ended_well.push(*id);
                    }
                }
            }
            Event::SyncBegun { id } => {
                ended_before_sync.insert(*id, ended_well.clone());
            }
            Event::SyncEnded { id, ok } => {
                let covered = ended_before_sync.remove(id).unwrap_or_default();
                if *ok {
                    for id in covered {
                        if let Some(write) = writes.get_mut(&id) {
                            write.must_survive = true;
                        }
                    }
                }
            }
        }
    }
    writes.into_values().collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteFate {
    Lost,
    Whole,
    Torn,
}

fn apply(write: &RecordedWrite<'_>, fate: WriteFate, draw: &mut Draw, image: &mut [u8]) {
    if fate == WriteFate::Lost {
        return;
    }
    let Ok(at) = usize::try_from(write.at) else {
        return;
    };
    let end = image.len().min(at + write.content.len() as usize);
    let mut start = at;
    while start < end {
        let next = ((start / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
        if fate == WriteFate::Whole || draw.below(2) == 0 {
            write.content.copy_to(start - at, &mut image[start..next]);
        }
        start = next;
    }
}

struct Draw {
    survivors: Survivors,
    random: SplitMix64,
}

impl Draw {
    fn new(survivors: Survivors, cut: usize) -> Self {
        let seed = match survivors {
            Survivors::Drawn(seed) => seed,
            Survivors::None | Survivors::All => 0,
        };
        Draw {
            survivors,
            random: SplitMix64::new(seed ^ (cut as u64).rotate_left(32)),
        }
    }

    /// A random number below `end`; zero if nothing is random.
    fn below(&mut self, end: u64) -> u64 {
        match self.survivors {
            Survivors::Drawn(_) => self.random.below(end),
            Survivors::None | Survivors::All => 0,
        }
    }

    fn fate(&mut self, is_atomic: bool) -> WriteFate {
        match self.survivors {
            Survivors::None => WriteFate::Lost,
            Survivors::All => WriteFate::Whole,
            Survivors::Drawn(_) => match self.below(3) {
                0 => WriteFate::Lost,
                2 if !is_atomic => WriteFate::Torn,
                _ => WriteFate::Whole,
            },
        }
    }
}
