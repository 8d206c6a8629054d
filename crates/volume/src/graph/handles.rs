//! What reaches into open layers from outside: a counter that is read, rules that are changed.

use std::{any::Any, collections::BTreeMap, fmt};

/// Handles of any type by the path of kinds from the name on, as
/// `db/cache/stripe/0/throttle/stats`. They outlive the volumes: one that is opened again has the
/// same.
#[derive(Default)]
pub struct Handles(BTreeMap<String, Box<dyn Any + Send>>);

impl Handles {
    /// The handle of type `H` of the volume at `path`.
    pub fn get<H: 'static>(&self, path: &str) -> Option<&H> {
        self.0.get(path)?.downcast_ref()
    }

    /// All handles of type `H` by the paths of their volumes.
    pub fn all<H: Clone + 'static>(&self) -> BTreeMap<String, H> {
        let paths = self.0.keys();
        paths
            .filter_map(|path| Some((path.clone(), self.get::<H>(path)?.clone())))
            .collect()
    }

    /// The handle of the volume at `path`, made if there is none of this type.
    pub(super) fn given<H: Clone + Default + Send + 'static>(&mut self, path: &str) -> H {
        if let Some(handle) = self.get::<H>(path) {
            return handle.clone();
        }
        let handle = H::default();
        self.0.insert(path.to_owned(), Box::new(handle.clone()));
        handle
    }
}

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
