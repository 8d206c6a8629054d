//! A slab for short-lived entries: each gets a slot on entry, and slots are reused.

/// Slots, taken or free.
#[derive(Debug)]
pub(crate) struct Places<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Places<T> {
    /// Puts `value` into a slot; returns its index.
    pub(crate) fn enter(&mut self, value: T) -> usize {
        let Some(index) = self.free.pop() else {
            self.places.push(Some(value));
            return self.places.len() - 1;
        };
        assert!(self.places[index].is_none(), "a free place is taken");
        self.places[index] = Some(value);
        index
    }

    /// Frees a slot; returns its value.
    pub(crate) fn leave(&mut self, index: usize) -> Option<T> {
        let value = self.places[index].take();
        assert!(value.is_some(), "a place is left once");
        self.free.push(index);
        value
    }

    /// The value in slot `index`.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.places[index].as_ref()
    }

    /// Whether all slots are free, without scanning them.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.len() == self.free.len()
    }

    /// The number of taken slots.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The taken slots: their indices and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(index, place)| Some((index, place.as_ref()?)))
    }
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}
