//! Task IDs, and the slab that holds tasks. A [`TaskId`] consists of a slot and a generation, so that an answer for a
//! task that has ended is recognised and refused.

use crate::error::Error;

/// Identifies one task of a connection from its command to its end. Effectively never reused, because each use of a
/// slot has a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    slot: u16,
    generation: u32,
}

impl TaskId {
    /// The ID of a slot's task in a generation. Machines assign their own IDs; this is for tests of code that keeps
    /// tables of them.
    pub const fn new(slot: u16, generation: u32) -> TaskId {
        TaskId { slot, generation }
    }

    /// The slot, below the number of tasks the configuration allows: an index for a driver's table. A slot is reused
    /// as soon as [`Transmit::ends`](crate::Transmit::ends) (target) or `Done` (initiator) was handed out.
    pub fn slot(self) -> usize {
        usize::from(self.slot)
    }

    /// How many times the slot was used before.
    pub fn generation(self) -> u32 {
        self.generation
    }

    /// The Initiator Task Tag that our initiator assigns to this task. Slots stay below 0xffff, so it is never the
    /// reserved tag 0xffffffff.
    pub(crate) fn tag(self) -> u32 {
        self.generation << 16 | u32::from(self.slot)
    }
}

/// The direction of a command's data, as seen from the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// From the target to the initiator.
    Read,
    /// From the initiator to the target.
    Write,
    /// In both directions (SCSI bidirectional command).
    Bidirectional,
}

/// The data segment of a received PDU.
#[derive(Clone, Copy, Debug)]
pub enum RxData<'a> {
    /// The segment itself, without padding. Required where [`Frame::payload`](crate::frame::Frame::payload) is false.
    Inline(&'a [u8]),
    /// Only its length in bytes. The driver keeps the payload (which may still be in transit), places it where the
    /// events say, and drops what no event asks for.
    Length(u32),
}

impl<'a> RxData<'a> {
    /// The bytes, for PDUs whose data the machine itself parses.
    pub(crate) fn inline(self) -> Result<&'a [u8], Error> {
        match self {
            RxData::Inline(bytes) => Ok(bytes),
            RxData::Length(0) => Ok(&[]),
            RxData::Length(announced) => Err(Error::DataMismatch {
                given: 0,
                announced,
            }),
        }
    }

    pub(crate) fn len(&self) -> u32 {
        match self {
            RxData::Inline(bytes) => bytes.len() as u32,
            RxData::Length(len) => *len,
        }
    }
}

#[derive(Debug)]
struct TaskSlot<T> {
    generation: u32,
    value: Option<T>,
}

/// A bounded slab: slots are created on demand and reused, last freed first.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<TaskSlot<T>>,
    free: Vec<u16>,
    capacity: usize,
}

impl<T> Slab<T> {
    /// Holds up to `capacity` values, at most 65,535.
    pub(crate) fn new(capacity: usize) -> Slab<T> {
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
            capacity: capacity.min(0xffff),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether it is full.
    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.capacity
    }

    pub(crate) fn insert(&mut self, value: T) -> Option<TaskId> {
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.slots[usize::from(slot)];
            assert!(entry.value.is_none(), "two tasks in one slot");
            entry.value = Some(value);
            return Some(TaskId {
                slot,
                generation: entry.generation,
            });
        }
        if self.slots.len() == self.capacity {
            return None;
        }
        let slot = self.slots.len() as u16;
        // Tag 0xffffffff is reserved (RFC 7143 §11.2.1.8), so this slot must not exist.
        assert!(slot < 0xffff, "a slot beyond the largest");
        self.slots.push(TaskSlot {
            generation: 0,
            value: Some(value),
        });
        Some(TaskId {
            slot,
            generation: 0,
        })
    }

    /// Iterates over all values with their IDs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TaskId, &T)> {
        let slots = (0..).zip(&self.slots);
        slots.filter_map(|(slot, entry)| {
            let generation = entry.generation;
            Some((TaskId { slot, generation }, entry.value.as_ref()?))
        })
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&T> {
        let slot = self.slots.get(id.slot())?;
        slot.value
            .as_ref()
            .filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.slot())?;
        slot.value
            .as_mut()
            .filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn remove(&mut self, id: TaskId) -> Option<T> {
        let slot = self.slots.get_mut(id.slot())?;
        if slot.generation != id.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        assert!(
            self.free.len() <= self.slots.len(),
            "a slot was freed twice"
        );
        Some(value)
    }

    /// The live task whose [`TaskId::tag`] is `tag`.
    pub(crate) fn find_tag(&self, tag: u32) -> Option<TaskId> {
        let slot = (tag & 0xffff) as u16;
        let entry = self.slots.get(usize::from(slot))?;
        let id = TaskId {
            slot,
            generation: entry.generation,
        };
        (entry.value.is_some() && id.tag() == tag).then_some(id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, s)| s.value.is_some())
            .map(|(slot, s)| TaskId {
                slot: slot as u16,
                generation: s.generation,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_task_is_not_mistaken_for_its_successor() {
        let mut slab = Slab::new(1);
        let first = slab.insert('a').unwrap();
        assert!(slab.is_full() && slab.insert('b').is_none() && slab.len() == 1);
        assert_eq!(slab.remove(first), Some('a'));
        assert!(!slab.is_full());
        let second = slab.insert('b').unwrap();
        assert_eq!(first.slot(), second.slot());
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&'b')));
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.find_tag(second.tag()), Some(second));
        assert_eq!(slab.find_tag(first.tag()), None);
    }

    #[test]
    #[should_panic(expected = "two tasks in one slot")]
    fn a_slot_is_never_given_to_a_second_task() {
        let mut slab = Slab::new(2);
        let first = slab.insert('a').unwrap();
        slab.free.push(first.slot);
        slab.insert('b');
    }
}
