//! Handles on open nodes for use from outside, such as counters to read or rules to change, and what else a node says
//! of itself. Neither the graph nor who asks it knows their types.

use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    fmt,
    sync::Arc,
};

/// What one node says of itself: at most one fact of each type.
#[derive(Clone, Default)]
pub struct Facts(BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl Facts {
    /// The fact of type `T`.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }

    fn set<T: Send + Sync + 'static>(&mut self, fact: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(fact));
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Facts({})", self.0.len())
    }
}

/// The facts of all nodes, by the path of kinds starting at the volume's name, such as
/// `db/cache/stripe/0/throttle/stats`. They outlive the volumes.
#[derive(Debug, Default)]
pub struct Handles(BTreeMap<String, Facts>);

impl Handles {
    /// The handle of type `H` of the volume at `path`.
    pub fn get<H: 'static>(&self, path: &str) -> Option<&H> {
        self.0.get(path)?.get()
    }

    /// All handles of type `H`, by the paths of their volumes.
    pub fn all<H: Clone + 'static>(&self) -> BTreeMap<String, H> {
        let of_type = |(path, facts): (&String, &Facts)| {
            let handle: &H = facts.get()?;
            Some((path.clone(), handle.clone()))
        };
        self.0.iter().filter_map(of_type).collect()
    }

    /// Everything that the volume at `path` says of itself.
    pub(crate) fn facts(&self, path: &str) -> Facts {
        self.0.get(path).cloned().unwrap_or_default()
    }

    /// The handle of the volume at `path`, created if there is none of this type.
    pub(crate) fn given<H: Clone + Default + Send + Sync + 'static>(&mut self, path: &str) -> H {
        let facts = self.0.entry(path.to_owned()).or_default();
        if facts.get::<H>().is_none() {
            facts.set(H::default());
        }
        facts.get().cloned().unwrap_or_default()
    }

    /// Takes out everything that the volumes at `path` and below it say of themselves.
    pub(crate) fn take_below(&mut self, path: &str) -> BTreeMap<String, Facts> {
        let all = std::mem::take(&mut self.0).into_iter();
        let (taken, rest) = all.partition(|(at, _)| is_within(at, path));
        self.0 = rest;
        taken
    }

    /// Puts back what was taken out.
    pub(crate) fn put_back(&mut self, taken: BTreeMap<String, Facts>) {
        self.0.extend(taken);
    }

    /// Sets the handle of the volume at `path`.
    pub(crate) fn put<H: Send + Sync + 'static>(&mut self, path: String, handle: H) {
        self.0.entry(path).or_default().set(handle);
    }
}

/// Whether `path` is that of the node at `top`, or of one below it.
pub(crate) fn is_within(path: &str, top: &str) -> bool {
    let rest = path.strip_prefix(top);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
