//! The fence on one copy (rule 3): the steps, in order, after which nobody else's command is served there and nothing of
//! older fences can land any more.
//!
//! READ KEYS; REGISTER; RESERVE, or PREEMPT AND ABORT of the holder's older key; PREEMPT AND ABORT of every other older
//! key; LOGICAL UNIT RESET; keys and reservation are read again and must show this fence alone. A newer key seen at any
//! point ends it for good. A step that conflicts with another fence's begins it again.

use crate::key::Key;

/// How often a fence begins again before the copy counts as failed.
const ROUNDS_MAX: u8 = 8;

/// A command of the fence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// PERSISTENT RESERVE IN, READ KEYS.
    ReadKeys,
    /// PERSISTENT RESERVE OUT, REGISTER of the fence's key from no key, with APTPL.
    Register,
    /// PERSISTENT RESERVE IN, READ RESERVATION.
    ReadReservation,
    /// PERSISTENT RESERVE OUT, RESERVE: Exclusive Access, Registrants Only.
    Reserve,
    /// PERSISTENT RESERVE OUT, PREEMPT AND ABORT of this key; where it holds the reservation, of the same type.
    Preempt(Key),
    /// LOGICAL UNIT RESET.
    Reset,
}

/// What a copy answered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// The registered keys.
    Keys(Vec<u64>),
    /// The key that holds the reservation.
    Reservation(Option<u64>),
    /// GOOD.
    Good,
    /// RESERVATION CONFLICT.
    Conflict,
}

/// Where a fence stands after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Progress {
    /// This step is next.
    Next(Step),
    /// It is made.
    Made,
    /// A newer fence was seen: this owner is none any more.
    Superseded(Key),
    /// It cannot be made: something that is no mirror uses the copy under this key, or fences keep
    /// conflicting (`None`).
    Failed(Option<u64>),
}

/// A fence that is being made on one copy.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fence {
    key: Key,
    step: Step,
    /// Whether the last reading, after the reset, has begun.
    is_reset: bool,
    /// Older keys, to be preempted.
    older: Vec<Key>,
    rounds: u8,
}

impl Fence {
    /// A fence under `key`, and its first step.
    pub fn new(key: Key) -> (Fence, Step) {
        let fence = Fence {
            key,
            step: Step::ReadKeys,
            is_reset: false,
            older: Vec::new(),
            rounds: 0,
        };
        (fence, Step::ReadKeys)
    }

    /// Its key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The copy has answered the last step.
    ///
    /// # Panics
    /// If it is the answer to something else.
    pub fn answer(&mut self, answer: Answer) -> Progress {
        let next = match (self.step, answer) {
            (_, Answer::Conflict) => return self.again(),
            (Step::ReadKeys, Answer::Keys(keys)) => match self.read_keys(&keys) {
                Ok(next) => next,
                Err(end) => return end,
            },
            (Step::Register, Answer::Good) => Step::ReadReservation,
            (Step::ReadReservation, Answer::Reservation(holder)) => {
                match self.read_holder(holder) {
                    Ok(next) => next,
                    Err(end) => return end,
                }
            }
            (Step::Reserve, Answer::Good) => self.preempt_next(),
            (Step::Preempt(key), Answer::Good) => {
                self.older.retain(|older| *older != key);
                self.preempt_next()
            }
            (Step::Reset, Answer::Good) => {
                self.is_reset = true;
                Step::ReadKeys
            }
            (step, answer) => panic!("{answer:?} is no answer to {step:?}"),
        };
        self.step = next;
        Progress::Next(next)
    }

    fn again(&mut self) -> Progress {
        if self.rounds == ROUNDS_MAX {
            return Progress::Failed(None);
        }
        self.rounds += 1;
        self.step = Step::ReadKeys;
        self.is_reset = false;
        Progress::Next(self.step)
    }

    fn read_keys(&mut self, keys: &[u64]) -> Result<Step, Progress> {
        self.older.clear();
        for &raw in keys {
            match Key::from_raw(raw) {
                None => return Err(Progress::Failed(Some(raw))),
                Some(newer) if newer > self.key => return Err(Progress::Superseded(newer)),
                Some(older) if older < self.key => self.older.push(older),
                Some(_) => {}
            }
        }
        self.older.sort_unstable();
        self.older.dedup();
        if !self.is_reset {
            let is_registered = keys.contains(&self.key.raw());
            return Ok(if is_registered {
                Step::ReadReservation
            } else {
                Step::Register
            });
        }
        if self.older.is_empty() && keys.contains(&self.key.raw()) {
            Ok(Step::ReadReservation)
        } else {
            Err(self.again())
        }
    }

    fn read_holder(&mut self, holder: Option<u64>) -> Result<Step, Progress> {
        let holder = match holder.map(|raw| Key::from_raw(raw).ok_or(Progress::Failed(Some(raw)))) {
            Some(ours) => Some(ours?),
            None => None,
        };
        match holder {
            Some(newer) if newer > self.key => Err(Progress::Superseded(newer)),
            Some(own) if own == self.key && self.is_reset => Err(Progress::Made),
            _ if self.is_reset => Err(self.again()),
            Some(own) if own == self.key => Ok(self.preempt_next()),
            Some(older) => {
                // The holder comes first: with its key the reservation passes on.
                self.older.retain(|key| *key != older);
                self.older.insert(0, older);
                Ok(self.preempt_next())
            }
            None => Ok(Step::Reserve),
        }
    }

    fn preempt_next(&self) -> Step {
        self.older
            .first()
            .map_or(Step::Reset, |older| Step::Preempt(*older))
    }
}
