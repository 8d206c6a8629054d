//! New settings for volumes that stay open. Which settings may change while a volume is used, and how, is up to its kind;
//! here trees are compared node by node, and the steps of all nodes are done together: first all that may fail, in every
//! node, then what others can see.

use std::collections::BTreeSet;

use engine::task;

use super::{Graph, child_paths};
use crate::{
    kinds::{
        Kind, Node, Volumes,
        change::{Change, Changing, Step},
    },
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
}

impl Changes {
    /// Adds those of `other`.
    pub fn extend(&mut self, other: Changes) {
        self.made.extend(other.made);
        self.refused.extend(other.refused);
        self.nodes.extend(other.nodes);
    }
}

/// The steps of open volumes to their new settings, prepared, each with the name of its volume.
#[derive(Debug, Default)]
pub struct Live(Vec<(String, Box<dyn Step>)>);

impl Live {
    /// Puts the new settings into use, without delay.
    pub async fn take_effect(&self) {
        for (_, step) in &self.0 {
            step.take_effect().await;
        }
    }

    /// Waits, after [`Live::take_effect`], until nothing is left of the old settings. Returns warnings for the user.
    pub async fn finish(self) -> Vec<String> {
        let finished = self.0.iter().map(|(volume, step)| async move {
            let warnings = step.finish().await.into_iter();
            let warnings = warnings.map(|warning| format!("volume {volume}: {warning}"));
            warnings.collect::<Vec<_>>()
        });
        let finished = task::join_all(finished.map(Box::pin)).await;
        finished.into_vec().concat()
    }

    /// Takes back what was prepared.
    pub async fn undo(self) {
        for (_, step) in self.0.iter().rev() {
            step.undo().await;
        }
    }
}

impl Volumes {
    /// What changes about the volume called `name`, which is open, in the configuration `next`; `open` are the names of
    /// all volumes that are open, and stay so.
    pub fn changes(&self, next: &Volumes, name: &str, open: &BTreeSet<String>) -> Changes {
        let mut comparison = Comparison {
            name,
            keeper: next.keeper(name, open),
            changes: Changes::default(),
        };
        if let (Some(was), Some(is)) = (self.0.get(name), next.0.get(name)) {
            comparison.node(was, is, name);
        }
        comparison.changes
    }

    /// The open volume that keeps its length whatever the volume called `name` has, of which it is made, and why.
    fn keeper<'a>(&self, name: &str, open: &'a BTreeSet<String>) -> Option<Keeper<'a>> {
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
    changes: Changes,
}

impl Comparison<'_> {
    fn node(&mut self, was: &Node, is: &Node, path: &str) {
        let (Some(old), Some(new)) = (was.inline(), is.inline()) else {
            return self.found(Change::between(was, is), is, path);
        };
        let path = format!("{path}/{}", new.name());
        if old.children().len() != new.children().len() {
            return self.found(Change::between(was, is), is, &path);
        }
        self.found(old.change(new), is, &path);
        let keeper = self.keeper;
        let keeps = new.settings().keeps_length();
        self.keeper = keeper.or(keeps.map(|why| (self.name, why)));
        let children = child_paths(new, &path);
        for (was, (is, path)) in old.children().iter().zip(children) {
            self.node(was, is, &path);
        }
        self.keeper = keeper;
    }

    fn found(&mut self, change: Change, node: &Node, path: &str) {
        let name = self.name;
        let refused = match (change, self.keeper) {
            (Change::None, _) => return,
            (Change::Refused(why), _) => why,
            (Change::Growth { to, .. }, Some((keeper, why))) => format!(
                "{} cannot grow to {to}, because it is part of volume \"{keeper}\", and {why}: \
                 create a new one to use more space",
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
                let made = format!("volume {name} grows from {from} to {to}");
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

/// For people: "20 GiB".
fn spaced(size: Size) -> String {
    let text = size.to_string();
    let unit = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(unit.unwrap_or(text.len()));
    format!("{number} {unit}")
}

impl Graph {
    /// Prepares `changes` of open volumes, none of which is refused: does everything that may fail, unseen by their users.
    /// The steps are added to `live`, which has to be [undone](Live::undo) if this fails or is not waited for.
    ///
    /// # Errors
    /// What keeps a volume from changing, with the place in the configuration.
    pub async fn prepare(&self, changes: &Changes, live: &mut Live) -> Result<(), ConfigError> {
        for (path, node) in &changes.nodes {
            let Some(kind) = node.inline() else {
                continue;
            };
            if let Err(error) = self.prepare_node(path, kind, live).await {
                let span = kind.settings().span();
                let span = span.unwrap_or_else(|| node.span.clone());
                return Err(ConfigError::new(span, error.to_string()));
            }
        }
        Ok(())
    }

    async fn prepare_node(&self, path: &str, kind: &Kind, live: &mut Live) -> crate::Result<()> {
        let changing = Changing {
            handles: &self.context.handles,
            path,
        };
        let volume = path.split('/').next().unwrap_or_default().to_owned();
        live.0.push((volume, kind.settings().step(changing).await?));
        match live.0.last() {
            Some((_, step)) => step.prepare().await,
            None => Ok(()),
        }
    }
}
