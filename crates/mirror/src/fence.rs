//! The fence on one copy (rule 3): the steps, in order, after which nobody else's command is served there and nothing of
//! older fences can land any more.
//!
//! READ KEYS; REGISTER; RESERVE, or PREEMPT AND ABORT of the holder's older key; PREEMPT AND ABORT of every other older
//! key, and of what guests have left behind; LOGICAL UNIT RESET; keys and reservation are read again and must show this
//! fence alone. A newer key seen at any point ends it for good. A step that conflicts with another fence's begins it again.

use crate::key::FenceKey;

/// How often a fence begins again before the copy counts as failed.
const ROUNDS_MAX: u8 = 8;

/// A command of the fence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FenceCommand {
    /// PERSISTENT RESERVE IN, READ KEYS.
    ReadKeys,
    /// PERSISTENT RESERVE OUT, REGISTER of the fence's key from no key, with APTPL.
    Register,
    /// PERSISTENT RESERVE IN, READ RESERVATION.
    ReadReservation,
    /// PERSISTENT RESERVE OUT, RESERVE: Exclusive Access, Registrants Only.
    Reserve,
    /// PERSISTENT RESERVE OUT, PREEMPT AND ABORT of this key; where it holds the reservation, of the same type.
    Preempt(FenceKey),
    /// LOGICAL UNIT RESET.
    Reset,
}

/// What a copy answered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum FenceAnswer {
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
pub enum FenceProgress {
    /// This step is next.
    Next(FenceCommand),
    /// It is made.
    Made,
    /// A newer fence was seen: this owner is none any more.
    Superseded(FenceKey),
    /// It cannot be made: something that is no mirror uses the copy under this key, or fences keep
    /// conflicting (`None`).
    Failed(Option<u64>),
}

/// A fence that is being made on one copy.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fence {
    key: FenceKey,
    step: FenceCommand,
    /// Whether the last reading, after the reset, has begun.
    is_reset: bool,
    /// Older keys, to be preempted.
    older: Vec<FenceKey>,
    rounds: u8,
}

impl Fence {
    /// A fence under `key`, and its first step.
    pub fn new(key: FenceKey) -> (Fence, FenceCommand) {
        let fence = Fence {
            key,
            step: FenceCommand::ReadKeys,
            is_reset: false,
            older: Vec::new(),
            rounds: 0,
        };
        (fence, FenceCommand::ReadKeys)
    }

    /// Its key.
    pub fn key(&self) -> FenceKey {
        self.key
    }

    /// The copy has answered the last step.
    ///
    /// # Panics
    /// If it is the answer to something else.
    pub fn answer(&mut self, answer: FenceAnswer) -> FenceProgress {
        let next = match (self.step, answer) {
            (_, FenceAnswer::Conflict) => return self.again(),
            (FenceCommand::ReadKeys, FenceAnswer::Keys(keys)) => match self.read_keys(&keys) {
                Ok(next) => next,
                Err(end) => return end,
            },
            (FenceCommand::Register, FenceAnswer::Good) => FenceCommand::ReadReservation,
            (FenceCommand::ReadReservation, FenceAnswer::Reservation(holder)) => {
                match self.read_holder(holder) {
                    Ok(next) => next,
                    Err(end) => return end,
                }
            }
            (FenceCommand::Reserve, FenceAnswer::Good) => self.preempt_next(),
            (FenceCommand::Preempt(key), FenceAnswer::Good) => {
                self.older.retain(|older| *older != key);
                self.preempt_next()
            }
            (FenceCommand::Reset, FenceAnswer::Good) => {
                self.is_reset = true;
                FenceCommand::ReadKeys
            }
            (step, answer) => panic!("{answer:?} is no answer to {step:?}"),
        };
        self.step = next;
        FenceProgress::Next(next)
    }

    fn again(&mut self) -> FenceProgress {
        if self.rounds == ROUNDS_MAX {
            return FenceProgress::Failed(None);
        }
        self.rounds += 1;
        self.step = FenceCommand::ReadKeys;
        self.is_reset = false;
        FenceProgress::Next(self.step)
    }

    fn read_keys(&mut self, keys: &[u64]) -> Result<FenceCommand, FenceProgress> {
        self.older.clear();
        for &raw in keys {
            match FenceKey::from_raw(raw).or(FenceKey::guest_from_raw(raw)) {
                None => return Err(FenceProgress::Failed(Some(raw))),
                Some(newer) if newer > self.key => return Err(FenceProgress::Superseded(newer)),
                Some(older) if older < self.key => self.older.push(older),
                Some(_) => {}
            }
        }
        self.older.sort_unstable();
        self.older.dedup();
        if !self.is_reset {
            let is_registered = keys.contains(&self.key.raw());
            return Ok(if is_registered {
                FenceCommand::ReadReservation
            } else {
                FenceCommand::Register
            });
        }
        if self.older.is_empty() && keys.contains(&self.key.raw()) {
            Ok(FenceCommand::ReadReservation)
        } else {
            Err(self.again())
        }
    }

    fn read_holder(&mut self, holder: Option<u64>) -> Result<FenceCommand, FenceProgress> {
        let holder = match holder
            .map(|raw| FenceKey::from_raw(raw).ok_or(FenceProgress::Failed(Some(raw))))
        {
            Some(ours) => Some(ours?),
            None => None,
        };
        match holder {
            Some(newer) if newer > self.key => Err(FenceProgress::Superseded(newer)),
            Some(own) if own == self.key && self.is_reset => Err(FenceProgress::Made),
            _ if self.is_reset => Err(self.again()),
            Some(own) if own == self.key => Ok(self.preempt_next()),
            Some(older) => {
                // The holder comes first: with its key the reservation passes on.
                self.older.retain(|key| *key != older);
                self.older.insert(0, older);
                Ok(self.preempt_next())
            }
            None => Ok(FenceCommand::Reserve),
        }
    }

    fn preempt_next(&self) -> FenceCommand {
        self.older
            .first()
            .map_or(FenceCommand::Reset, |older| FenceCommand::Preempt(*older))
    }
}
