//! New settings for volumes that stay open. Which settings may change while a volume is used, and how, is up to its kind;
//! here trees are compared node by node, and the steps of all nodes are done together: first all that may fail, in every
//! node, then what others can see.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use engine::task;

use super::{Graph, child_paths, volume_of};
use crate::{
    kinds::{
        Node, Volumes,
        change::{Change, Changing, OtherChild, Step},
    },
    part::{self, Facts, Part},
    values::{ConfigError, Size},
};

/// What a new configuration changes about volumes that stay open.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The changes that are made, for people, such as "volume db grows from 20 GiB to 30 GiB".
    pub made: Vec<String>,
    /// Changes that are impossible while the volumes are used, with what to do instead.
    pub refused: Vec<String>,
    /// The nodes that get new settings, by their paths.
    nodes: Vec<(String, Node)>,
    /// The nodes of which a child becomes another disk.
    exchanged: Vec<Exchanged>,
    /// The nodes with more children.
    longer: Vec<Longer>,
}

/// A node with children that follow those that it has.
#[derive(Clone, Debug)]
struct Longer {
    path: String,
    node: Node,
    /// How many it has.
    had: usize,
}

/// A node of which one child becomes another disk.
#[derive(Clone, Debug)]
struct Exchanged {
    path: String,
    node: Node,
    /// Which child, and its path.
    index: usize,
    child_path: String,
    /// What the old one is called, and what describes the new one.
    was: String,
    child: Node,
}

impl Changes {
    /// Adds those of `other`.
    pub fn extend(&mut self, other: Changes) {
        self.made.extend(other.made);
        self.refused.extend(other.refused);
        self.nodes.extend(other.nodes);
        self.exchanged.extend(other.exchanged);
        self.longer.extend(other.longer);
    }
}

/// The steps of open volumes to their new settings, prepared.
#[derive(Debug, Default)]
pub struct Live {
    /// Each with the name of its volume.
    steps: Vec<(String, Box<dyn Step>)>,
    /// The nodes of which a child becomes another one, which one, and that.
    exchanged: Vec<(Arc<Part>, usize, Arc<Part>)>,
    /// What nodes have said of themselves in whose place others are now, by their paths.
    before: Vec<(String, BTreeMap<String, Facts>)>,
}

impl Live {
    /// Puts the new settings into use, without delay.
    pub async fn take_effect(&self) {
        for (_, step) in &self.steps {
            step.take_effect().await;
        }
    }

    /// Waits, after [`Live::take_effect`], until nothing is left of the old settings. Returns warnings for the user.
    pub async fn finish(self) -> Vec<String> {
        let finished = self.steps.iter().map(|(volume, step)| async move {
            let warnings = step.finish().await.into_iter();
            let warnings = warnings.map(|warning| format!("volume {volume}: {warning}"));
            warnings.collect::<Vec<_>>()
        });
        let finished = task::join_all(finished.map(Box::pin)).await;
        finished.into_vec().concat()
    }
}

impl Volumes {
    /// What changes about the volume called `name`, which is open, in the configuration `next`; `open` are the names of
    /// all volumes that are open, and stay so.
    pub fn changes(&self, next: &Volumes, name: &str, open: &BTreeSet<String>) -> Changes {
        let mut comparison = Comparison {
            name,
            keeper: next.keeper(name, open),
            is_in_set: false,
            changes: Changes::default(),
        };
        if let (Some(was), Some(is)) = (self.0.get(name), next.0.get(name)) {
            comparison.node(was, is, name);
        }
        comparison.changes
    }

    /// The open volume that keeps its length whatever the volume called `name` has, of which it is made, and why.
    pub(super) fn keeper<'a>(&self, name: &str, open: &'a BTreeSet<String>) -> Option<Keeper<'a>> {
        open.iter().find_map(|user| {
            let keeps = self.0.get(user)?.all().into_iter().find_map(|node| {
                let kind = node.inline()?;
                let why = kind.settings().keeps_length()?;
                let below = node.all().into_iter().filter_map(Node::name);
                let is_part = |below: &str| self.parts(below).contains(name);
                below.into_iter().any(is_part).then_some(why)
            });
            Some((user.as_str(), keeps?))
        })
    }
}

/// The name of a volume that keeps its length, and why.
type Keeper<'a> = (&'a str, &'static str);

/// The comparison of one open volume with its new settings.
struct Comparison<'a> {
    name: &'a str,
    /// What keeps its length although this part changes.
    keeper: Option<Keeper<'a>>,
    /// Whether this is a disk of a set.
    is_in_set: bool,
    changes: Changes,
}

impl Comparison<'_> {
    fn node(&mut self, was: &Node, node: &Node, path: &str) {
        let is = node;
        let (Some(old), Some(new)) = (was.inline(), is.inline()) else {
            return self.found(Change::between(was, is), is, path);
        };
        let path = format!("{path}/{}", new.name());
        let (had, has) = (old.children().len(), new.children().len());
        if old.name() != new.name() {
            return self.found(Change::between(was, is), is, &path);
        }
        if had != has {
            match new.settings().other_number(old.children()) {
                Change::Live(told) => {
                    let at = Longer {
                        path: path.clone(),
                        node: node.clone(),
                        had,
                    };
                    if !self.is_longer(told, at) {
                        return;
                    }
                }
                change => return self.found(change, is, &path),
            }
        }
        self.found(old.change(new), is, &path);
        let (keeper, is_in_set) = (self.keeper, self.is_in_set);
        let keeps = new.settings().keeps_length();
        self.keeper = keeper.or(keeps.map(|why| (self.name, why)));
        self.is_in_set |= new.settings().claims_children();
        let children = old.children().iter().zip(child_paths(new, &path));
        let mut exchanged = Vec::new();
        for (index, (was, (is, child_path))) in children.enumerate() {
            let others = std::mem::take(&mut self.changes);
            self.node(was, is, &child_path);
            let of_child = std::mem::replace(&mut self.changes, others);
            let is_other = was.describe() != is.describe()
                && !of_child.refused.is_empty()
                && !have_a_disk_in_common(was, is);
            match new.settings().exchanges(index, [was, is]) {
                Some(told) if is_other => {
                    let at = Exchanged {
                        path: path.clone(),
                        node: node.clone(),
                        index,
                        child_path,
                        was: was.describe(),
                        child: is.clone(),
                    };
                    exchanged.push((told, at));
                }
                _ => self.changes.extend(of_child),
            }
        }
        self.exchange(exchanged, [old.children(), new.children()]);
        (self.keeper, self.is_in_set) = (keeper, is_in_set);
    }

    /// Children of a node have become other disks, `exchanged`, which it can bear of one of them.
    fn exchange(&mut self, mut exchanged: Vec<(String, Exchanged)>, children: [&[Node]; 2]) {
        let name = self.name;
        if exchanged.len() > 1 {
            let [was, is] = children.map(|nodes| {
                let described = nodes.iter().map(Node::describe);
                described.collect::<BTreeSet<_>>()
            });
            let why = match was == is {
                true => {
                    "its copies are listed in another order, which means nothing to it: keep the order while it is used"
                }
                false => {
                    "two of its copies cannot become other disks at once, as nothing would be left to fill them with: change \
                     one, wait until `sanstone volume status` says that it is in sync, and then the other"
                }
            };
            return self
                .changes
                .refused
                .push(format!("volume \"{name}\": {why}"));
        }
        if let Some((told, at)) = exchanged.pop() {
            self.changes.made.push(format!("volume {name}: {told}"));
            self.changes.exchanged.push(at);
        }
    }

    /// A node has more children. Returns whether it may.
    fn is_longer(&mut self, told: Vec<String>, at: Longer) -> bool {
        let name = self.name;
        if let Some((keeper, why)) = self.keeper {
            self.changes.refused.push(format!(
                "volume \"{name}\": its concat takes no other child, because it is part of volume \"{keeper}\", and {why}"
            ));
            return false;
        }
        let told = told.iter().map(|told| format!("volume {name}: {told}"));
        self.changes.made.extend(told);
        self.changes.longer.push(at);
        true
    }

    fn found(&mut self, change: Change, node: &Node, path: &str) {
        let name = self.name;
        let refused = match (change, self.keeper) {
            (Change::None, _) => return,
            (Change::Refused(why), Some((keeper, _))) if keeper != name => format!(
                "{why}; it is part of volume \"{keeper}\", where another disk takes its place under another name in `of`"
            ),
            (Change::Refused(why), _) => why,
            (Change::Growth { to, .. }, Some((keeper, why))) => format!(
                "{} cannot grow to {to}, because it is part of volume \"{keeper}\", and {why}",
                node.describe()
            ),
            (Change::Live(made), _) => {
                let made = made.iter().map(|made| format!("volume {name}: {made}"));
                self.changes.made.extend(made);
                self.changes.nodes.push((path.to_owned(), node.clone()));
                return;
            }
            (Change::Growth { from, to }, None) => {
                let (from, to) = (spaced(from), spaced(to));
                let what = match self.is_in_set {
                    true => format!("volume {name}: {}", node.describe()),
                    false => format!("volume {name}"),
                };
                let made = format!("{what} grows from {from} to {to}");
                self.changes.made.push(made);
                self.changes.nodes.push((path.to_owned(), node.clone()));
                return;
            }
        };
        self.changes
            .refused
            .push(format!("volume \"{name}\": {refused}"));
    }
}

/// Whether both are, or are made of, one disk: then neither can take the other's place.
fn have_a_disk_in_common(was: &Node, is: &Node) -> bool {
    let disks = |node: &Node| -> BTreeSet<String> {
        let is_disk = |node: &&Node| node.inline().is_none_or(|kind| kind.children().is_empty());
        let disks = node.all().into_iter().filter(is_disk);
        disks.map(Node::describe).collect()
    };
    !disks(was).is_disjoint(&disks(is))
}

/// For people: "20 GiB".
pub(super) fn spaced(size: Size) -> String {
    let text = size.to_string();
    let unit = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(unit.unwrap_or(text.len()));
    format!("{number} {unit}")
}

impl Graph {
    /// What keeps `changes` of open volumes from being made as those are now, for people.
    pub fn in_the_way_of(&self, changes: &Changes) -> Vec<String> {
        let bars = changes.exchanged.iter().filter_map(|exchanged| {
            let Exchanged {
                path, index, was, ..
            } = exchanged;
            let settings = exchanged.node.inline()?.settings();
            let why = settings.bars_exchange(&self.context.handles, path, (*index, was))?;
            let volume = volume_of(path);
            Some(format!("volume \"{volume}\": {why}"))
        });
        bars.collect()
    }

    /// Prepares `changes` of open volumes, none of which is refused: does everything that may fail, unseen by their users.
    /// The steps are added to `live`, which has to be [undone](Graph::undo) if this fails or is not waited for.
    ///
    /// # Errors
    /// What keeps a volume from changing, with the place in the configuration.
    pub async fn prepare(&mut self, changes: &Changes, live: &mut Live) -> Result<(), ConfigError> {
        let nodes = changes.nodes.iter();
        for (path, node) in nodes.filter(|(path, _)| !self.is_missing(path)) {
            let with = (None, Vec::new());
            self.prepare_node(path, node, with, live).await?;
        }
        for exchanged in &changes.exchanged {
            let Exchanged {
                path, node, index, ..
            } = exchanged;
            let child = (&exchanged.child, &exchanged.child_path[..]);
            let child = self.open_child((path, node), *index, child, live).await?;
            let open = self.named.get(volume_of(path)).and_then(Weak::upgrade);
            let part = open.and_then(|open| open.find(path));
            let exchanged_in = part.map(|part| (part, *index, child.clone()));
            live.exchanged.extend(exchanged_in);
            let other = OtherChild {
                index: *index,
                was: exchanged.was.clone(),
                part: child,
            };
            let with = (Some(other), Vec::new());
            self.prepare_node(path, node, with, live).await?;
        }
        for Longer { path, node, had } in &changes.longer {
            let mut more = Vec::new();
            let kind = node.inline().expect("it has children");
            let children = child_paths(kind, path).enumerate().skip(*had);
            for (index, (child, child_path)) in children {
                let child = (child, &child_path[..]);
                more.push(self.open_child((path, node), index, child, live).await?);
            }
            self.prepare_node(path, node, (None, more), live).await?;
        }
        Ok(())
    }

    /// Opens another child of the node that is open at a path: the one at `index`, with its own path.
    async fn open_child(
        &mut self,
        (path, node): (&str, &Node),
        index: usize,
        (child, child_path): (&Node, &str),
        live: &mut Live,
    ) -> Result<Arc<Part>, ConfigError> {
        let before = self.context.handles.take_below(child_path);
        live.before.push((child_path.to_owned(), before));
        let volume = volume_of(path);
        let open = self.named.get(volume).and_then(Weak::upgrade);
        let home = open.and_then(|part| part.only_lane().cloned());
        let home = home.or_else(|| self.context.lanes.first().cloned());
        let home = home.ok_or_else(|| {
            let message = format!("volume \"{volume}\" is not open");
            ConfigError::new(node.span.clone(), message)
        })?;
        let lanes = self.context.lanes_from(&home);
        let lanes = part::rotated(&lanes, index);
        let kind = node.inline().expect("it has children");
        let is_in_copy = kind.settings().stands_without_children();
        self.open_below(child, child_path, &lanes, is_in_copy).await
    }

    async fn prepare_node(
        &self,
        path: &str,
        node: &Node,
        (other_child, more_children): (Option<OtherChild>, Vec<Arc<Part>>),
        live: &mut Live,
    ) -> Result<(), ConfigError> {
        let Some(kind) = node.inline() else {
            return Ok(());
        };
        let changing = Changing {
            handles: &self.context.handles,
            path,
            other_child,
            more_children,
        };
        let volume = volume_of(path).to_owned();
        let prepared = match kind.settings().step(changing).await {
            Ok(step) => {
                live.steps.push((volume, step));
                let step = &live.steps.last().expect("it was just added").1;
                step.prepare().await
            }
            Err(error) => Err(error),
        };
        prepared.map_err(|error| {
            let span = kind.settings().span();
            ConfigError::new(span.unwrap_or_else(|| node.span.clone()), error.to_string())
        })
    }

    /// Puts other children into their places, after [`Live::take_effect`], and lets go of those that had them, which have been
    /// closed.
    pub fn forget_replaced(&mut self, live: &Live) {
        let exchanged = live.exchanged.iter();
        let replaced = exchanged.map(|(part, index, child)| part.exchange(*index, child.clone()));
        let mut replaced: Vec<_> = replaced.collect();
        while let Some(part) = replaced.pop() {
            let is_other = |(_, kept): &(String, Arc<Part>)| !Arc::ptr_eq(kept, &part);
            self.context.until_closed.retain(is_other);
            replaced.extend(part.below());
        }
    }

    /// Takes back what was prepared, instead of [`Live::take_effect`].
    pub async fn undo(&mut self, live: Live) {
        for (path, before) in live.before.into_iter().rev() {
            self.context.handles.take_below(&path);
            self.context.handles.put_back(before);
        }
        for (_, step) in live.steps.iter().rev() {
            step.undo().await;
        }
    }
}
