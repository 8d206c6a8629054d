//! The trees of a graph as shown to an administrator: the type, size and request counters of each node, and the facts
//! that its kind tells. A [`NodeView`] holds only what any thread may read, so that monitoring never involves a lane.

use std::path::PathBuf;

use super::Graph;
use crate::{
    Shape,
    kinds::{Kind, Node, NodeForm},
    part::Facts,
    stats::StatsHandle,
};

/// A node of an open tree.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// Its path in the graph, such as `db/cache/stripe/0/file`.
    pub path: String,
    /// The name of the volume, if the configuration refers to one by name here.
    pub name: Option<String>,
    /// The name of its kind in a configuration.
    pub kind: &'static str,
    /// Its location: a path or a URL.
    pub place: Option<String>,
    /// The file or block device of this machine that it is, as configured.
    pub file: Option<PathBuf>,
    /// The memory that it may use, in bytes.
    pub memory_bytes: Option<u64>,
    /// Its shape; `None` when it is not open.
    pub shape: Option<Shape>,
    /// Its request counters.
    pub counters: StatsHandle,
    /// What its kind tells of it while it is open, such as the counters of a cache or the sessions of a remote disk.
    pub facts: Facts,
    /// Its children, in order.
    pub children: Vec<NodeView>,
}

impl NodeView {
    /// Marks it and everything that is only part of it as closed.
    fn forget_open(&mut self) {
        (self.shape, self.facts) = (None, Facts::default());
        for child in self
            .children
            .iter_mut()
            .filter(|child| child.name.is_none())
        {
            child.forget_open();
        }
    }
}

impl Graph {
    /// The tree of the volume called `name`, if there is one.
    pub fn view(&self, name: &str) -> Option<NodeView> {
        self.view_named(name)
    }

    fn view_named(&self, name: &str) -> Option<NodeView> {
        // A name may refer to another one; cycles are rejected earlier.
        let node = self.volumes.0.get(name)?;
        let mut view = self.view_node(node, name)?;
        // The counters outlive the open volume.
        let part = self.named.get(name);
        if part.is_none_or(|part| part.strong_count() == 0) {
            view.forget_open();
        }
        view.name = Some(name.to_owned());
        Some(view)
    }

    fn view_node(&self, node: &Node, path: &str) -> Option<NodeView> {
        match &node.what {
            NodeForm::Named(name) => self.view_named(name),
            NodeForm::Inline(kind) => Some(self.view_kind(kind, path)),
        }
    }

    fn view_kind(&self, kind: &Kind, path: &str) -> NodeView {
        let path = format!("{path}/{}", kind.name());
        let handles = &self.context.handles;
        let children = super::child_paths(kind, &path);
        let children = children.filter_map(|(child, path)| self.view_node(child, &path));
        NodeView {
            name: None,
            kind: kind.name(),
            place: kind.settings().describe(),
            file: kind
                .identity()
                .file()
                .map(|file| file.path.get_ref().clone()),
            memory_bytes: kind.memory().map(|size| size.get_ref().bytes()),
            shape: handles.get::<Shape>(&path).cloned(),
            counters: handles.get(&path).cloned().unwrap_or_default(),
            facts: handles.facts(&path),
            children: children.collect(),
            path,
        }
    }
}
