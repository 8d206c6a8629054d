//! Storage for the state that kinds keep in a graph, which does not know their types: one value per type.

use std::{
    any::{Any, TypeId, type_name},
    collections::HashMap,
    fmt,
};

/// A map with at most one value of each type, initially the type's default.
#[derive(Default)]
pub(crate) struct ByType(HashMap<TypeId, Box<dyn Any + Send>>);

impl ByType {
    /// The value of type `T`.
    pub(crate) fn of<T: Default + Send + 'static>(&mut self) -> &mut T {
        let value = self
            .0
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Box::<T>::default());
        match value.downcast_mut() {
            Some(value) => value,
            None => unreachable!("{} is kept under its own type", type_name::<T>()),
        }
    }

    /// The value of type `T`, if it has ever been accessed with [`ByType::of`].
    pub(crate) fn get<T: 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

impl fmt::Debug for ByType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByType({})", self.0.len())
    }
}
