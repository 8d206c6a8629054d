//! The configuration section `concat = { of = [ … ] }`: several volumes, one after the other. Like a stripe, it is
//! created only by [`Graph::create_stripe`](crate::graph::Graph::create_stripe).

use std::{ops::Range, sync::Arc};

use engine::LaneFuture;
use serde::Deserialize;
use toml::Spanned;

use crate::{
    Error, ErrorKind, Result,
    kinds::{
        HasSuperblocks, Look, Node, Settings, Superblocks, VolumeIdentity,
        change::{Change, Changing, Step},
        stripe::{Joins, Layout, OpenSet, WantedLayout, settings::Family},
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

    fn other_number(&self, were: &[Node]) -> Change {
        let (of, had) = (self.of.get_ref(), were.len());
        let Some(new) = of.get(had..) else {
            return Change::Refused(format!(
                "a concat keeps its {had} children, each of which has a part of its data: list all of them"
            ));
        };
        let is_kept = |(was, is): (&Node, &Node)| was.describe() == is.describe();
        if !were.iter().zip(of).all(is_kept) {
            let why = "a concat that is used takes another child only behind those that it has: leave the list as it is, and \
                       write the new one at its end";
            return Change::Refused(why.to_owned());
        }
        let new: Vec<String> = new.iter().map(Node::describe).collect();
        Change::Live(vec![format!(
            "its concat has {had} → {} children, and is longer: behind the others comes {}, which must be blank",
            of.len(),
            new.join(", then ")
        )])
    }

    fn numbers_children(&self) -> bool {
        true
    }

    fn step<'a>(&'a self, changing: Changing<'a>) -> LaneFuture<'a, Result<Box<dyn Step>>> {
        let open = changing.handle::<OpenSet>().cloned();
        LaneFuture::new(async move {
            let open = open.ok_or_else(|| Error::new(ErrorKind::Unreachable, "it is not open"))?;
            let joins = Joins::new(&open, self.family().names(), changing.more_children)?;
            Ok(Box::new(joins) as _)
        })
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
