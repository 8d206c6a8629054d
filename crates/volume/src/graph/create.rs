//! Creates a stripe or concat of a graph: opens its children from the configuration, and has its kind claim them and
//! write their superblocks.

use engine::LaneHandle;

use super::{Graph, Tree};
use crate::{
    claim::Others,
    kinds::{Kind, NewStripe, Node, Superblocks, What},
    part,
    values::ConfigError,
};

impl Graph {
    /// Writes the superblocks of the stripe or concat called `name`, which makes its children one volume.
    ///
    /// # Errors
    /// When it is not a stripe or concat, or what [`create`] refuses.
    pub async fn create_stripe(
        &mut self,
        name: &str,
        home: &LaneHandle,
        options: &NewStripe,
    ) -> Result<(), ConfigError> {
        let node = self.volumes.find(name, &Node::named(name))?.clone();
        let Some((kind, superblocks)) = outermost(&node) else {
            let message = format!(
                "volume \"{name}\" contains no stripe or concat: only these need `create`; other \
                 volumes are created when they are first served"
            );
            return Err(ConfigError::new(node.span.clone(), message));
        };
        let Superblocks(superblocks) = superblocks;
        let of = superblocks.children();
        let mut children = Vec::new();
        let lanes = self.context.lanes_from(home);
        for (index, child) in of.get_ref().iter().enumerate() {
            let path = format!("{name}/{}/{index}", kind.name());
            let lanes = part::rotated(&lanes, index);
            children.push(self.open_node(child, &path, &lanes).await?);
        }
        let told = |error: crate::Error| ConfigError::new(of.span(), error.to_string());
        let claim = self.context.new_claim(children.len()).map_err(told)?;
        let created = superblocks.create(&children, claim, options).await;
        // Nested stripes and concats among the children were closed with them.
        self.context.until_closed.clear();
        created.map_err(told)
    }

    /// Opens the volume called `name` for the new owner of its existing stripe or concat; creates no files.
    ///
    /// # Errors
    /// When it is not a stripe or concat, or cannot be opened.
    pub async fn take_over(
        &mut self,
        name: &str,
        home: &LaneHandle,
        others: Others,
    ) -> Result<Tree, ConfigError> {
        let node = self.volumes.find(name, &Node::named(name))?;
        if outermost(node).is_none() {
            let message = format!(
                "volume \"{name}\" contains no stripe or concat: only these have an owner to take \
                 over from"
            );
            return Err(ConfigError::new(node.span.clone(), message));
        }
        (self.context.may_make, self.context.others) = (false, others);
        self.open(name, home).await
    }

    /// Refuses stripes and concats that could be created but never served.
    ///
    /// # Errors
    /// The first child that keeps its blocks in memory, with its place.
    pub fn check_stripes(&self) -> Result<(), ConfigError> {
        let nodes = self.volumes.0.values().flat_map(Node::all);
        nodes
            .filter_map(Node::superblocks)
            .try_for_each(|superblocks| superblocks.0.check_lasting(&self.volumes))
    }
}

/// The outermost stripe or concat of a tree.
fn outermost(node: &Node) -> Option<(&Kind, Superblocks<'_>)> {
    node.all().into_iter().find_map(|node| match &node.what {
        What::Inline(kind) => Some((&**kind, node.superblocks()?)),
        What::Named(_) => None,
    })
}
