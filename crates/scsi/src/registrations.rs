//! The registrations of a logical unit by the name of their nexus (SPC-4 5.13.7), so that a command costs the same
//! however many there are. Copies share their entries until one of them is changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::nexus::NexusName;

/// Maximum number of registrations; beyond it, registering fails for lack of resources.
pub(crate) const REGISTRATIONS_MAX: usize = 1024;

/// What one nexus has registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) key: u64,
    /// Whether it was made with ALL_TG_PT.
    pub(crate) all_ports: bool,
    /// Its place in the order in which they were made.
    serial: u64,
}

/// All registrations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Registrations {
    by_name: Arc<BTreeMap<NexusName, Registration>>,
    /// How often a nexus has been registered or unregistered. Other keys of the same nexuses change nobody's rights.
    changes: u64,
}

impl Registrations {
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// See the field.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn get(&self, name: &NexusName) -> Option<&Registration> {
        self.by_name.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&NexusName, &Registration)> {
        self.by_name.iter()
    }

    /// In the order in which they were made.
    pub(crate) fn in_order(&self) -> Vec<(&NexusName, &Registration)> {
        let mut all: Vec<_> = self.by_name.iter().collect();
        all.sort_unstable_by_key(|(_, registration)| registration.serial);
        all
    }

    /// Registers `name` with `key`; another registration of it only gets the key.
    pub(crate) fn set(&mut self, name: &NexusName, key: u64, all_ports: bool) {
        let by_name = Arc::make_mut(&mut self.by_name);
        if let Some(known) = by_name.get_mut(name) {
            known.key = key;
            return;
        }
        self.changes += 1;
        let serial = self.changes;
        let registration = Registration {
            key,
            all_ports,
            serial,
        };
        by_name.insert(name.clone(), registration);
    }

    /// Drops those for which `keep` does not hold, and returns their names.
    pub(crate) fn retain(
        &mut self,
        keep: impl Fn(&NexusName, &Registration) -> bool,
    ) -> Vec<NexusName> {
        let dropped: Vec<NexusName> = (self.by_name.iter())
            .filter(|(name, registration)| !keep(name, registration))
            .map(|(name, _)| name.clone())
            .collect();
        dropped.iter().for_each(|name| self.remove(name));
        dropped
    }

    /// Unregisters `name`.
    pub(crate) fn remove(&mut self, name: &NexusName) {
        if self.by_name.contains_key(name) {
            Arc::make_mut(&mut self.by_name).remove(name);
            self.changes += 1;
        }
    }
}
