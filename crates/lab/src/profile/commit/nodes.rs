//! The nodes of the measured volume, in tree order.

use volume::graph::NodeView;

use super::layer::Layer;

/// All nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes(Vec<TreeNode>);

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeNode {
    /// Its name in `show` and `top`.
    pub(super) path: String,
    /// Its kind of volume.
    pub(super) kind: &'static str,
    /// Its location, if it is a leaf.
    pub(super) place: Option<String>,
    /// The index of its parent node.
    pub(super) parent: Option<usize>,
}

impl Nodes {
    /// A single medium without a configuration.
    pub(super) fn file(path: &str, place: &str) -> Nodes {
        Nodes(vec![TreeNode {
            path: path.to_owned(),
            kind: "file",
            place: Some(place.to_owned()),
            parent: None,
        }])
    }

    /// The nodes of a tree.
    pub(super) fn of(view: &NodeView) -> Nodes {
        let mut nodes = Nodes::default();
        nodes.add(view, None);
        nodes
    }

    fn add(&mut self, view: &NodeView, parent: Option<usize>) {
        let index = self.0.len();
        self.0.push(TreeNode {
            path: view.path.clone(),
            kind: view.kind,
            place: view.place.clone(),
            parent,
        });
        for child in &view.children {
            self.add(child, Some(index));
        }
    }

    #[cfg(test)]
    pub(super) fn made(nodes: Vec<TreeNode>) -> Nodes {
        Nodes(nodes)
    }

    pub(super) fn all(&self) -> &[TreeNode] {
        &self.0
    }

    pub(super) fn index_of(&self, path: &str) -> Option<usize> {
        self.0.iter().position(|node| node.path == path)
    }

    /// Whether `node` is `above` or a descendant of it.
    pub(super) fn is_within(&self, node: usize, above: usize) -> bool {
        let mut at = Some(node);
        while let Some(index) = at {
            if index == above {
                return true;
            }
            at = self.0[index].parent;
        }
        false
    }

    /// The children of a node.
    pub(super) fn children(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        let nodes = self.0.iter().enumerate();
        nodes.filter_map(move |(index, node)| (node.parent == Some(of)).then_some(index))
    }

    /// The layer of what a node does itself.
    pub(super) fn layer_of(&self, node: Option<usize>) -> Layer {
        match node.map(|node| self.0[node].kind) {
            Some("iscsi") => Layer::Initiator,
            _ => Layer::Volume,
        }
    }

    /// Where a leaf is.
    pub(super) fn place(&self, node: usize) -> &str {
        let TreeNode { path, place, .. } = &self.0[node];
        place.as_deref().unwrap_or(path)
    }

    /// The node as a person would look for it: its path and its location.
    pub(super) fn told(&self, node: usize) -> String {
        let TreeNode { path, place, .. } = &self.0[node];
        match place {
            Some(place) => format!("{path} ({place})"),
            None => path.clone(),
        }
    }
}
