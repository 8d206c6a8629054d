//! A floor under the reservation keys of one family, whose keys are ordered as they were made. Once there is one, the unit
//! is used by registered nexuses alone, and no key of the family below the floor registers, reserves, preempts or resets
//! any more: whoever has such a key has been superseded, also where the reservation that said so is lost.
//!
//! Keys outside the family are nobody's who could have been superseded: whether they let in is the reservation's to say.

use std::ops::RangeInclusive;

use crate::saved::MALFORMED;

/// A floor, as whoever keeps it durably tells it to the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFloor {
    /// All keys of the family.
    pub family: RangeInclusive<u64>,
    /// The lowest of them that is let in.
    pub lowest: u64,
    /// Where whoever keeps it has found it, as a byte of the disk.
    pub kept_at: u64,
}

/// What is saved of a floor beside the state of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedFloor {
    /// The lowest key that was let in.
    pub lowest: u64,
    /// Where the floor was found.
    pub kept_at: u64,
}

impl KeyFloor {
    /// The line to save.
    pub fn save(&self) -> String {
        format!("floor {:016x} {}\n", self.lowest, self.kept_at)
    }

    /// Whether `key` belongs to somebody who has been superseded.
    pub(crate) fn is_below(&self, key: u64) -> bool {
        self.family.contains(&key) && key < self.lowest
    }

    /// Whether a nexus that is registered with `key` (`None`: not at all) may use and reset the unit.
    pub(crate) fn admits(&self, key: Option<u64>) -> bool {
        key.is_some_and(|key| !self.is_below(key))
    }
}

impl SavedFloor {
    /// What was saved, given in words. The error says what is wrong with it.
    pub(crate) fn restore(values: &[&str]) -> Result<SavedFloor, &'static str> {
        let saved = match *values {
            [lowest, kept_at] => u64::from_str_radix(lowest, 16)
                .ok()
                .zip(kept_at.parse().ok()),
            _ => None,
        };
        let (lowest, kept_at) = saved.ok_or(MALFORMED)?;
        Ok(SavedFloor { lowest, kept_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::*;
    use crate::{Action, Ending, LogicalUnit, NexusId};

    const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    const WRITE: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
    const REGISTER: u8 = 6;
    const RESERVE: u8 = 1;
    const CLEAR: u8 = 3;
    const PREEMPT: u8 = 4;

    /// A key of the family.
    const fn key(number: u64) -> u64 {
        0xA5 << 56 | number
    }

    fn over(lowest: u64) -> KeyFloor {
        KeyFloor {
            family: key(0)..=key(99),
            lowest,
            kept_at: 0,
        }
    }

    fn out(unit: &mut LogicalUnit, nexus: NexusId, action: u8, keys: (u64, u64)) -> Ending {
        let mut list = [keys.0.to_be_bytes(), keys.1.to_be_bytes()].concat();
        list.extend([0; 8]);
        settle(unit, nexus, &[0x5F, action, 6, 0, 0, 0, 0, 0, 24, 0], &list)
    }

    fn may_use(unit: &mut LogicalUnit, nexus: NexusId) -> bool {
        let [reads, writes] = [READ, WRITE].map(|cdb| match unit.begin(nexus, &cdb) {
            Action::Medium(op) => unit.recheck(nexus, &op).is_ok(),
            refused => {
                assert_eq!(refused, Action::End(Ending::CONFLICT));
                false
            }
        });
        assert!(reads == writes && writes == unit.may_reset(nexus));
        writes
    }

    #[test]
    fn below_a_floor_nobody_gets_in_although_the_reservation_is_lost() {
        let (mut old, mut new) = two_views(thick());
        assert!(may_use(&mut old, NEXUS));
        let waiting = medium(old.begin(NEXUS, &WRITE));
        new.shared().set_floor(Some(over(key(5))));
        assert!(old.recheck(NEXUS, &waiting).is_err(), "it was queued");
        assert!(!may_use(&mut old, NEXUS) && !may_use(&mut new, OTHER));
        assert_eq!(old.begin(NEXUS, &RESERVE_6), Action::End(Ending::CONFLICT));
        assert_eq!(
            out(&mut old, NEXUS, REGISTER, (0, key(4))),
            Ending::CONFLICT
        );
        assert!(!may_use(&mut old, NEXUS));
        assert_eq!(out(&mut new, OTHER, REGISTER, (0, key(5))), Ending::GOOD);
        assert!(may_use(&mut new, OTHER) && !may_use(&mut old, NEXUS));
    }

    #[test]
    fn who_takes_a_higher_key_in_place_of_its_own_goes_on() {
        let (mut first, mut second) = two_views(thick());
        assert_eq!(out(&mut first, NEXUS, REGISTER, (0, key(4))), Ending::GOOD);
        assert_eq!(out(&mut second, OTHER, REGISTER, (0, key(4))), Ending::GOOD);
        assert_eq!(out(&mut first, NEXUS, RESERVE, (key(4), 0)), Ending::GOOD);
        first.shared().set_floor(Some(over(key(5))));
        assert!(!may_use(&mut first, NEXUS) && !may_use(&mut second, OTHER));
        assert_eq!(out(&mut first, NEXUS, REGISTER, (0, key(5))), Ending::GOOD);
        assert!(may_use(&mut first, NEXUS) && !may_use(&mut second, OTHER));
    }

    #[test]
    fn who_was_registered_before_is_let_in_no_more_and_can_neither_reserve_nor_preempt() {
        let (mut old, mut new) = two_views(thick());
        assert_eq!(out(&mut old, NEXUS, REGISTER, (0, key(4))), Ending::GOOD);
        assert_eq!(out(&mut old, NEXUS, RESERVE, (key(4), 0)), Ending::GOOD);
        new.shared().set_floor(Some(over(key(5))));
        assert_eq!(out(&mut new, OTHER, REGISTER, (0, key(5))), Ending::GOOD);
        assert!(!may_use(&mut old, NEXUS) && may_use(&mut new, OTHER));
        for action in [RESERVE, PREEMPT, CLEAR] {
            let ended = out(&mut old, NEXUS, action, (key(4), key(5)));
            assert_eq!(ended, Ending::CONFLICT, "{action}");
        }
        assert_eq!(
            out(&mut new, OTHER, PREEMPT, (key(5), key(4))),
            Ending::GOOD
        );
        assert!(may_use(&mut new, OTHER));
    }

    #[test]
    fn keys_of_others_are_the_reservations_to_judge() {
        let (mut first, mut second) = two_views(thick());
        first.shared().set_floor(Some(over(key(5))));
        assert_eq!(out(&mut first, NEXUS, REGISTER, (0, 1)), Ending::GOOD);
        assert!(may_use(&mut first, NEXUS) && !may_use(&mut second, OTHER));
        first.shared().set_floor(None);
        assert!(may_use(&mut second, OTHER));
    }
}
