//! The configuration section `concat = { of = [ … ] }`: several volumes, one after the other. Like a stripe, it is
//! created only by [`Graph::create_stripe`](crate::graph::Graph::create_stripe).

use std::{ops::Range, sync::Arc};

use engine::LaneFuture;
use serde::Deserialize;
use toml::Spanned;

use crate::{
    Result,
    kinds::{
        HasSuperblocks, Look, Node, Settings, Superblocks, VolumeIdentity,
        stripe::{Layout, WantedLayout, settings::Family},
    },
    part::{Opening, Part},
    values::ConfigError,
};

/// `concat = { of = [ … ] }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concat {
    /// The children; a new concat has them in this order.
    pub of: Spanned<Vec<Node>>,
}

impl Concat {
    /// Its children and layout.
    pub(crate) fn family(&self) -> Family<'_> {
        Family {
            layout: Layout::Concat,
            wanted: WantedLayout::Concat,
            of: &self.of,
        }
    }
}

impl Settings for Concat {
    fn open<'a>(&'a self, opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        LaneFuture::new(async move { self.family().open(opening).await })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        VolumeIdentity::Superblocks(Superblocks(Box::new(self.family())))
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn over(&self, other: &Concat) -> Concat {
        Concat {
            of: other.of.clone(),
        }
    }

    fn keeps_length(&self) -> Option<&'static str> {
        Some(
            "a concat keeps the length that it was created with, until `sanstone volume grow` gives it another",
        )
    }

    fn children(&self) -> &[Node] {
        self.of.get_ref()
    }

    fn check(&self) -> std::result::Result<(), ConfigError> {
        self.family().check()
    }

    fn look(&self, look: &mut Look<'_>) {
        let checked = self.family().check_lasting(look.volumes());
        look.errors(checked.err());
    }

    fn span(&self) -> Option<Range<usize>> {
        Some(self.of.span())
    }

    fn claims_children(&self) -> bool {
        true
    }
}
