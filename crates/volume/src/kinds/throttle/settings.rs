//! The configuration section `throttle = { rate = "1Gbit/s", of = … }`: the link's rate and latency.

use std::{rc::Rc, sync::Arc};

use engine::LaneFuture;
use serde::Deserialize;

use crate::{
    Result,
    kinds::{Node, Settings, VolumeIdentity},
    part::{Opening, Part},
    values::{Rate, Time},
};

/// `throttle = { rate = "1Gbit/s", of = … }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// The payload rate in each direction.
    pub rate: Rate,
    /// Added to every request.
    #[serde(default)]
    pub latency: Time,
    /// What is at the end of the link.
    pub of: Node,
}

impl Settings for Throttle {
    fn open<'a>(&'a self, mut opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        let (rate, latency) = (self.rate, self.latency.duration());
        LaneFuture::new(async move {
            opening
                .layer_at_home(move |inner| Ok(Rc::new(super::Throttle::new(inner, rate, latency))))
                .await
        })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        VolumeIdentity::Child(&self.of)
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn over(&self, other: &Throttle) -> Throttle {
        Throttle {
            of: other.of.clone(),
            ..self.clone()
        }
    }

    fn children(&self) -> &[Node] {
        std::slice::from_ref(&self.of)
    }
}
