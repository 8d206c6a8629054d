//! Leaves that the program brings itself: volumes that it makes for each lane, such as a disk that it serves already.
//! A configuration cannot describe one, but names it like any other volume. The product brings none yet.

use std::{fmt, sync::Arc};

use engine::LaneFuture;

use super::{Kind, Node, NodeForm, Settings, VolumeIdentity, Volumes};
use crate::{
    Result, SharedVolume,
    part::{Opening, Part},
    values::ConfigError,
};

/// Makes the leaf's volume for the current lane.
type Make = dyn Fn() -> Result<SharedVolume> + Send + Sync;

/// A leaf that the program brings. Clones are the same leaf.
#[derive(Clone)]
pub struct Leaf {
    called: Arc<str>,
    make: Arc<Make>,
}

impl Leaf {
    /// A leaf that messages call `called`; `make` runs on each lane that uses it, and gives volumes of one shape and
    /// one content.
    pub fn new(
        called: &str,
        make: impl Fn() -> Result<SharedVolume> + Send + Sync + 'static,
    ) -> Leaf {
        Leaf {
            called: called.into(),
            make: Arc::new(make),
        }
    }
}

impl Volumes {
    /// Adds `leaf`, which other volumes name `name`.
    ///
    /// # Errors
    /// When the configuration has a volume of this name, with its place.
    pub fn give(&mut self, name: &str, leaf: Leaf) -> std::result::Result<(), ConfigError> {
        if let Some(taken) = self.0.get(name) {
            let message = format!(
                "\"{name}\" is the name of {}, which is there already; give this volume another name",
                leaf.called
            );
            return Err(ConfigError::new(taken.span.clone(), message));
        }
        let node = Node {
            span: 0..0,
            what: NodeForm::Inline(Box::new(Kind::Given(leaf))),
        };
        self.0.insert(name.to_owned(), node);
        Ok(())
    }
}

impl Settings for Leaf {
    fn open<'a>(&'a self, mut opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        LaneFuture::new(async move {
            let make = self.make.clone();
            opening.on_every_lane(move |_| make()).await
        })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        VolumeIdentity::Name
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn describe(&self) -> Option<String> {
        Some(self.called.to_string())
    }
}

impl PartialEq for Leaf {
    fn eq(&self, other: &Leaf) -> bool {
        Arc::ptr_eq(&self.make, &other.make)
    }
}

impl Eq for Leaf {}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leaf({})", self.called)
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, rc::Rc};

    use engine::{Lane, LaneConfig, Payload};

    use super::*;
    use crate::{Durability, graph::Graph, kinds::ram::Region};

    fn volumes(text: &str) -> Volumes {
        toml::from_str(text).expect("it parses")
    }

    #[test]
    fn a_given_leaf_is_a_child_like_any_other() {
        let region = Region::new(1 << 20, 512).expect("memory");
        let below = region.clone();
        let leaf = Leaf::new("the disk", move || Ok(Rc::new(below.on_lane())));
        let mut volumes = volumes("db.cache = { size = \"8MiB\", of = \"disk\" }");
        volumes.give("disk", leaf).expect("the name is free");
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        let home = lane.handle();
        lane.block_on(async {
            let mut graph = Graph::new(volumes, Path::new("")).expect("it names a volume");
            let tree = graph.open("db", &home).await.expect("it opens");
            let volume = tree.on_lane().await.expect("its lane runs");
            let ones = Payload::from(engine::Buf::copy_of(&[1; 512]));
            let written = volume.write(512, ones, Durability::Cached).await;
            written.expect("it takes writes");
            let below = crate::Volume::read(&region.on_lane(), 0, 1024).await;
            let below = below.expect("memory").to_vec();
            assert_eq!((below[511], below[512], below[1023]), (0, 1, 1));
            let view = graph.view("db").expect("it is there");
            assert_eq!(view.children[0].place.as_deref(), Some("the disk"));
            assert_eq!(view.children[0].path, "disk/given");
        });
    }

    #[test]
    fn a_leaf_is_not_given_in_place_of_a_configured_volume() {
        let mut volumes = volumes("disk.ram = { size = \"1MiB\" }");
        let nothing = || Err(crate::Error::new(crate::ErrorKind::Medium, "a test"));
        let refused = volumes.give("disk", Leaf::new("the disk", nothing));
        let said = refused.expect_err("the name is taken").to_string();
        assert!(said.contains("\"disk\" is the name of"), "{said}");
    }

    #[test]
    fn a_configuration_cannot_describe_a_given_leaf() {
        let told = toml::from_str::<Volumes>("db.given = {}");
        let said = told.expect_err("it has no settings").to_string();
        assert!(said.contains("not a kind of volume"), "{said}");
    }
}
