//! The configuration section `stats = { of = … }`: a place where requests are counted.

use std::sync::Arc;

use engine::LaneFuture;
use serde::Deserialize;

use crate::{
    Result,
    kinds::{Node, Settings, VolumeIdentity},
    part::{Opening, Part},
};

/// `stats = { of = … }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stats {
    /// What is measured.
    pub of: Node,
}

impl Settings for Stats {
    fn open<'a>(&'a self, mut opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        // Every node is counted, so this layer has nothing to do itself.
        LaneFuture::new(async move { opening.layer_on_every_lane(|inner| inner).await })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        VolumeIdentity::Child(&self.of)
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn over(&self, other: &Stats) -> Stats {
        Stats {
            of: other.of.clone(),
        }
    }

    fn children(&self) -> &[Node] {
        std::slice::from_ref(&self.of)
    }
}
