//! What the superblocks of children of stripes and concats say, read before anything is opened.

use std::path::Path;

use uuid::Uuid;

use super::{Kind, Node, Volumes, What, starts::Starts, stripe::Wanted};
use crate::values::ConfigError;

impl Volumes {
    /// The identity that the stripe or concat `node` carries, if one of its children is a file and reveals it. Paths
    /// are relative to `base`. Nothing is opened as a volume, locked or claimed.
    pub fn carried(&self, node: &Node, base: &Path, starts: &Starts) -> Option<Uuid> {
        let What::Inline(kind) = &node.what else {
            return None;
        };
        match &**kind {
            Kind::Stripe(stripe) => {
                let family = stripe.family();
                family.carried(Wanted::Stripe(None), base, self, starts)
            }
            Kind::Concat(concat) => {
                let family = concat.family();
                family.carried(Wanted::Concat, base, self, starts)
            }
            _ => None,
        }
    }

    /// What would keep the stripes and concats within the volume called `name` from opening, as far as their children
    /// that are files tell. Paths are relative to `base`. Nothing is opened as a volume, locked or claimed.
    pub fn look_at_children(&self, name: &str, base: &Path, starts: &Starts) -> Vec<ConfigError> {
        let parts = self.parts(name).into_iter();
        let nodes = parts.flat_map(|part| self.0[part].all());
        let looked = nodes.filter_map(|node| match &node.what {
            What::Inline(kind) => match &**kind {
                Kind::Stripe(stripe) => Some(stripe.look_at_children(base, self, starts)),
                Kind::Concat(concat) => {
                    let family = concat.family();
                    Some(family.look_at_children(Wanted::Concat, base, self, starts))
                }
                _ => None,
            },
            What::Named(_) => None,
        });
        looked.flatten().collect()
    }
}
