//! What is under way, by its number. Numbers are given out in order and most of what is old ends first, so that a queue in
//! their order is searched, filled and emptied with less work than a tree.

use std::collections::VecDeque;

/// Values by their numbers, in the order of these.
pub(super) struct Numbered<K, T>(VecDeque<(K, T)>);

impl<K, T> Default for Numbered<K, T> {
    fn default() -> Numbered<K, T> {
        Numbered(VecDeque::new())
    }
}

impl<K: Copy + Ord, T> Numbered<K, T> {
    /// `number` is `value` from now on.
    pub(super) fn insert(&mut self, number: K, value: T) {
        match self.place(number) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (number, value)),
        }
    }

    pub(super) fn get(&self, number: K) -> Option<&T> {
        let at = self.place(number).ok()?;
        Some(&self.0[at].1)
    }

    pub(super) fn get_mut(&mut self, number: K) -> Option<&mut T> {
        let at = self.place(number).ok()?;
        Some(&mut self.0[at].1)
    }

    pub(super) fn remove(&mut self, number: K) -> Option<T> {
        let at = self.place(number).ok()?;
        self.0.remove(at).map(|(_, value)| value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.0.iter().map(|(number, value)| (*number, value))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut T)> {
        self.0.iter_mut().map(|(number, value)| (*number, value))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Where `number` is, or would be.
    fn place(&self, number: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&number, |(one, _)| *one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_numbers_and_come_in_their_order() {
        let mut all = Numbered::default();
        for number in [3, 9, 1, 7] {
            all.insert(number, number * 10);
        }
        all.insert(9, 91);
        assert_eq!(all.remove(3), Some(30));
        assert_eq!(all.remove(3), None);
        assert_eq!((all.get(9), all.get(3)), (Some(&91), None));
        *all.get_mut(7).expect("it is there") += 1;
        let found: Vec<_> = all.iter().map(|(number, value)| (number, *value)).collect();
        assert_eq!(found, [(1, 10), (7, 71), (9, 91)]);
        all.iter_mut().for_each(|(_, value)| *value = 0);
        assert_eq!(all.get(1), Some(&0));
        all.clear();
        assert_eq!(all.iter().next(), None);
    }
}
