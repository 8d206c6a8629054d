//! The configuration section `ram = { size = "1GiB" }`: memory of this process.

use std::{rc::Rc, sync::Arc};

use engine::LaneFuture;
use serde::Deserialize;
use toml::Spanned;

use super::Region;
use crate::{
    Result,
    kinds::{Look, Settings, VolumeIdentity, change::Change},
    part::{Opening, Part},
    values::{BlockSize, ConfigError, Size},
};

/// `ram = { size = "1GiB" }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ram {
    /// Its length.
    pub size: Spanned<Size>,
    /// The unit of its addresses.
    #[serde(default)]
    pub block_size: BlockSize,
}

impl Settings for Ram {
    fn open<'a>(&'a self, opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        LaneFuture::new(async move {
            let region = Region::new(self.size.get_ref().bytes(), self.block_size.bytes())?;
            let shape = region.shape().clone();
            Ok(opening.leaf_on_every_lane(shape, move || Rc::new(region.on_lane())))
        })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        VolumeIdentity::Name
    }

    fn is_volatile(&self) -> bool {
        true
    }

    fn change(&self, new: &Ram) -> Change {
        let (from, to) = (self.size.get_ref(), new.size.get_ref());
        if from == to || self.block_size != new.block_size {
            return Change::between(self, new);
        }
        Change::Refused(format!(
            "the memory of a ram volume is reserved when it is opened, so its size cannot become {to} \
             while it is served with {from}: restart to apply it, which discards its data"
        ))
    }

    fn check(&self) -> std::result::Result<(), ConfigError> {
        self.block_size.check(&self.size)
    }

    fn look(&self, look: &mut Look<'_>) {
        look.warn(format!(
            "\"{}\" is in memory: its contents are lost when the process ends",
            look.volume()
        ));
    }

    fn memory(&self) -> Option<&Spanned<Size>> {
        Some(&self.size)
    }
}
