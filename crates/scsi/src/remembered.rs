//! What is remembered of nexuses by their names: a bounded number of them, of which the oldest is forgotten first.

use std::collections::BTreeMap;

use crate::nexus::NexusName;

/// Names with what is known of each.
#[derive(Debug)]
pub(crate) struct Remembered<V> {
    by_name: BTreeMap<NexusName, (u64, V)>,
    by_age: BTreeMap<u64, NexusName>,
    last: u64,
}

impl<V> Default for Remembered<V> {
    fn default() -> Self {
        Remembered {
            by_name: BTreeMap::new(),
            by_age: BTreeMap::new(),
            last: 0,
        }
    }
}

impl<V> Remembered<V> {
    /// Maximum number of names.
    const MAX: usize = 1024;

    pub(crate) fn has(&self, name: &NexusName) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn get(&self, name: &NexusName) -> Option<&V> {
        self.by_name.get(name).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, name: &NexusName) -> Option<&mut V> {
        self.by_name.get_mut(name).map(|(_, value)| value)
    }

    /// Remembers `name` as the most recent one, and forgets the oldest if there is no room.
    pub(crate) fn insert(&mut self, name: NexusName, value: V) {
        self.remove(&name);
        if self.by_name.len() >= Self::MAX {
            if let Some((_, oldest)) = self.by_age.pop_first() {
                self.by_name.remove(&oldest);
            }
        }
        self.last += 1;
        self.by_age.insert(self.last, name.clone());
        self.by_name.insert(name, (self.last, value));
        assert_eq!(self.by_age.len(), self.by_name.len(), "a name has one age");
    }

    pub(crate) fn remove(&mut self, name: &NexusName) {
        if let Some((age, _)) = self.by_name.remove(name) {
            self.by_age.remove(&age);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.by_name.clear();
        self.by_age.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_for_a_new_one() {
        let name = |n: usize| NexusName {
            initiator_port: format!("iqn.2026-11.test:{n},i,0x1").into(),
            target_port: 1,
        };
        let mut remembered = Remembered::default();
        (0..Remembered::<usize>::MAX).for_each(|n| remembered.insert(name(n), n));
        remembered.insert(name(0), 7); // the most recent now
        remembered.insert(name(5000), 8);
        assert!(!remembered.has(&name(1)));
        assert_eq!(remembered.get(&name(0)), Some(&7));
        assert!(remembered.has(&name(2)) && remembered.has(&name(5000)));
    }
}
