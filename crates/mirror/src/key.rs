//! Reservation keys. A key names one fence: the epoch of the owner that makes it, and its number within the epoch
//! (rule 2). Keys are ordered as the fences were made, so that whoever sees a higher one knows that it is superseded.

use std::ops::RangeInclusive;

/// The top byte of our keys: no other software that is known to reserve disks uses it.
const TAG: u64 = 0xA5;
const TAG_SHIFT: u32 = 56;
const EPOCH_SHIFT: u32 = 24;

/// The upper half of the keys of guests.
const GUEST: u64 = 0x4753_5453;
const GUEST_SHIFT: u32 = 32;

/// The highest epoch that a key has room for: one claim a second for 136 years.
pub const EPOCH_MAX: u64 = (1 << (TAG_SHIFT - EPOCH_SHIFT)) - 1;
/// The highest number of a fence within its epoch.
pub const NUMBER_MAX: u32 = (1 << EPOCH_SHIFT) - 1;

/// The key of one fence: SPC-5's eight bytes as a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FenceKey(u64);

impl FenceKey {
    /// All keys of mirrors.
    pub const ALL: RangeInclusive<u64> =
        TAG << TAG_SHIFT | 1 << EPOCH_SHIFT..=TAG << TAG_SHIFT | ((1 << TAG_SHIFT) - 1);

    /// The key of fence `number` within `epoch`.
    ///
    /// # Panics
    /// If it has no room for them, or `epoch` is 0.
    pub fn new(epoch: u64, number: u32) -> FenceKey {
        assert!(
            (1..=EPOCH_MAX).contains(&epoch) && number <= NUMBER_MAX,
            "keys have room for it"
        );
        FenceKey(TAG << TAG_SHIFT | epoch << EPOCH_SHIFT | u64::from(number))
    }

    /// The key that a copy reported as `raw`, if it is one of a mirror.
    pub fn from_raw(raw: u64) -> Option<FenceKey> {
        let key = FenceKey(raw);
        FenceKey::ALL.contains(&raw).then_some(key)
    }

    /// A key of somebody who only looks at a copy that others have reserved, and registers for as long. One that is killed
    /// meanwhile leaves it behind: it is older than the key of any fence, and none of it.
    pub fn guest(number: u32) -> FenceKey {
        FenceKey(GUEST << GUEST_SHIFT | u64::from(number))
    }

    /// The key that a copy reported as `raw`, if it is a guest's.
    pub fn guest_from_raw(raw: u64) -> Option<FenceKey> {
        (raw >> GUEST_SHIFT == GUEST).then_some(FenceKey(raw))
    }

    /// As it is registered.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The epoch of the owner.
    pub fn epoch(self) -> u64 {
        (self.0 >> EPOCH_SHIFT) & EPOCH_MAX
    }

    /// The number of the fence within its epoch.
    pub fn number(self) -> u32 {
        self.0 as u32 & NUMBER_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_fences_were_made() {
        let made = [
            (1, 0),
            (1, 1),
            (1, NUMBER_MAX),
            (2, 0),
            (EPOCH_MAX, NUMBER_MAX),
        ];
        let keys = made.map(|(epoch, number)| FenceKey::new(epoch, number));
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        for (key, made) in keys.into_iter().zip(made) {
            assert_eq!((key.epoch(), key.number()), made);
            assert_eq!(FenceKey::from_raw(key.raw()), Some(key));
        }
    }

    #[test]
    fn keys_of_guests_are_older_than_those_of_fences() {
        for guest in [0, 1, u32::MAX].map(FenceKey::guest) {
            assert!(guest < FenceKey::new(1, 0), "{guest:?}");
            assert_eq!(FenceKey::guest_from_raw(guest.raw()), Some(guest));
            assert_eq!(FenceKey::from_raw(guest.raw()), None);
        }
        assert_eq!(FenceKey::guest_from_raw(FenceKey::new(1, 0).raw()), None);
        assert_eq!(FenceKey::guest_from_raw(0), None);
    }

    #[test]
    fn keys_of_others_are_not_ours() {
        for raw in [0, 1, u64::MAX, 0x1234_5678_9ABC_DEF0, TAG << TAG_SHIFT] {
            assert_eq!(FenceKey::from_raw(raw), None, "{raw:#x}");
        }
    }
}
