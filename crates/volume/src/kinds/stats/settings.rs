//! `stats = { of = … }`: what is measured.

use std::{rc::Rc, sync::Arc};

use engine::LaneFuture;
use serde::Deserialize;

use super::StatsHandle;
use crate::{
    Result,
    config::Node,
    graph::{Opening, Part},
    kinds::Settings,
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
        let handle: StatsHandle = opening.handle();
        LaneFuture::new(async move {
            opening
                .layer_on_every_lane(move |inner| Rc::new(super::Stats::new(inner, &handle)))
                .await
        })
    }

    fn children(&self) -> &[Node] {
        std::slice::from_ref(&self.of)
    }
}
