//! Handles on open layers for use from outside, such as counters to read or rules to change.

use std::collections::BTreeMap;

use super::by_type::ByType;

/// Handles of any type, by the path of kinds starting at the volume's name, such as
/// `db/cache/stripe/0/throttle/stats`. They outlive the volumes.
#[derive(Debug, Default)]
pub struct Handles(ByType);

impl Handles {
    /// The handle of type `H` of the volume at `path`.
    pub fn get<H: 'static>(&self, path: &str) -> Option<&H> {
        self.0.get::<BTreeMap<String, H>>()?.get(path)
    }

    /// All handles of type `H`, by the paths of their volumes.
    pub fn all<H: Clone + 'static>(&self) -> BTreeMap<String, H> {
        self.0.get().cloned().unwrap_or_default()
    }

    /// The handle of the volume at `path`, created if there is none of this type.
    pub(crate) fn given<H: Clone + Default + Send + 'static>(&mut self, path: &str) -> H {
        let handles: &mut BTreeMap<String, H> = self.0.of();
        handles.entry(path.to_owned()).or_default().clone()
    }

    /// Sets the handle of the volume at `path`.
    pub(crate) fn put<H: Send + 'static>(&mut self, path: String, handle: H) {
        let handles: &mut BTreeMap<String, H> = self.0.of();
        handles.insert(path, handle);
    }
}
