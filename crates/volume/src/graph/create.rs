//! Creates a stripe or concat of a graph: opens its children from the configuration, claims them, and writes their
//! superblocks.

use engine::LaneHandle;
use uuid::Uuid;

use super::{Graph, Tree};
use crate::{
    claim::Others,
    kinds::{
        Kind, Node, What,
        stripe::{CreateOptions, claim_all, create, give_up, look, settings::Family},
    },
    part,
    values::ConfigError,
};

/// The parameters of a new stripe or concat.
#[derive(Clone, Debug)]
pub struct NewStripe {
    /// Its permanent identity.
    pub uuid: Uuid,
    /// The current time, in seconds since 1970.
    pub created_unix_s: u64,
    /// Overwrite whatever the children hold.
    pub force: bool,
}

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
        let Some(family) = find_family(&node) else {
            let message = format!(
                "volume \"{name}\" contains no stripe or concat: only these need `create`; other \
                 volumes are created when they are first served"
            );
            return Err(ConfigError::new(node.span.clone(), message));
        };
        let mut children = Vec::new();
        let lanes = self.context.lanes_from(home);
        for (index, child) in family.of.get_ref().iter().enumerate() {
            let path = format!("{name}/{}/{index}", family.kind());
            let lanes = part::rotated(&lanes, index);
            children.push(self.open_node(child, &path, &lanes).await?);
        }
        let told = |error: crate::Error| ConfigError::new(family.of.span(), error.to_string());
        let children = family.named(&children).await.map_err(told)?;
        let options = CreateOptions {
            layout: family.layout,
            uuid: options.uuid,
            created_unix_s: options.created_unix_s,
            force: options.force,
        };
        // A child owned by someone else is reported with the owner's name, even with `force`; nothing is written
        // before.
        if !options.force {
            look(&children).await.map_err(told)?;
        }
        let claim = self.context.new_claim(children.len()).map_err(told)?;
        let claim = claim.overwriting(options.force);
        claim_all(&children, &claim).await.map_err(told)?;
        let created = create(&children, &options).await;
        give_up(&children).await;
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
        if find_family(node).is_none() {
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
            .filter_map(as_family)
            .try_for_each(|family| family.check_lasting(&self.volumes))
    }
}

fn as_family(node: &Node) -> Option<Family<'_>> {
    match &node.what {
        What::Inline(kind) => match &**kind {
            Kind::Stripe(stripe) => Some(stripe.family()),
            Kind::Concat(concat) => Some(concat.family()),
            _ => None,
        },
        What::Named(_) => None,
    }
}

/// The outermost stripe or concat of a tree.
fn find_family(node: &Node) -> Option<Family<'_>> {
    node.all().into_iter().find_map(as_family)
}
