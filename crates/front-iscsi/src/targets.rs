//! The targets of one lane, found by name: however many there are, a login looks at one. What a discovery lists at a
//! portal is put together once.

use std::{cell::RefCell, collections::BTreeMap, net::SocketAddr, rc::Rc};

use engine::spend;
use iscsi::{TargetRecord, text::encode_targets};

use crate::target::Target;

/// The cost of listing one target, in bytes of memory that are moved in that time.
const LIST_BYTES: usize = 4 << 10;
/// At how many addresses lists are kept. Behind a wildcard portal, initiators choose one of the machine's own.
const LISTS_MAX: usize = 64;

/// Targets, each through all its portal groups.
#[derive(Default)]
pub(crate) struct Targets {
    by_name: BTreeMap<String, Vec<Rc<Target>>>,
    lists: RefCell<BTreeMap<SocketAddr, Rc<List>>>,
}

/// What a discovery lists at one portal.
#[derive(Default)]
pub(crate) struct List {
    /// The targets, by name, each with its part of the text.
    pub(crate) entries: Vec<(Rc<Target>, std::ops::Range<usize>)>,
    /// What [`encode_targets`] returns for all of them.
    pub(crate) text: Vec<u8>,
}

impl Targets {
    /// Adds a target through one of its groups.
    pub(crate) fn add(&mut self, target: Rc<Target>) {
        let name = target.name().to_owned();
        self.by_name.entry(name).or_default().push(target);
        self.lists.take();
    }

    /// Each target through each of its groups, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rc<Target>> {
        self.by_name.values().flatten()
    }

    /// The target called `name` through its group with this tag.
    pub(crate) fn at_group(&self, name: &str, tag: u16) -> Option<&Rc<Target>> {
        let mut groups = self.by_name.get(name)?.iter();
        groups.find(|target| target.portals.tag == tag)
    }

    /// The target called `name`, if it is reachable at `local`, through the group that it is reached by.
    pub(crate) fn at(&self, name: &str, local: SocketAddr) -> Option<&Rc<Target>> {
        let mut groups = self.by_name.get(name)?.iter();
        groups.find(|target| target.portals.contains(local))
    }

    /// What a discovery lists at `local`: all targets that can be reached there, with all their portals.
    pub(crate) async fn list(&self, local: SocketAddr) -> Rc<List> {
        if let Some(known) = self.lists.borrow().get(&local) {
            return known.clone();
        }
        let mut list = List::default();
        for groups in self.by_name.values() {
            spend(LIST_BYTES).await;
            let Some(here) = groups.iter().find(|group| group.portals.contains(local)) else {
                continue;
            };
            let addresses = groups.iter();
            let addresses = addresses.flat_map(|group| group.portals.addresses(local));
            let record = TargetRecord {
                name: here.name().to_owned(),
                addresses: addresses.collect(),
            };
            let start = list.text.len();
            list.text.extend(encode_targets(&[record]));
            list.entries.push((here.clone(), start..list.text.len()));
        }
        let list = Rc::new(list);
        let mut lists = self.lists.borrow_mut();
        if lists.len() >= LISTS_MAX {
            lists.clear();
        }
        lists.insert(local, list.clone());
        list
    }
}
