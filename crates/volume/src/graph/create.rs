//! Creates a stripe or concat of a graph: opens its children from the configuration, and has its kind claim them and
//! write their superblocks.

use std::{ops::Range, sync::Arc};

use engine::LaneHandle;
use uuid::Uuid;

use super::{Graph, Tree};
use crate::{
    SetClaim,
    claim::Others,
    kinds::{Kind, NewLength, NewStripe, Node, NodeForm, Superblocks},
    part::{self, Looked, Part},
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
        let Some(outermost) = outermost(&node) else {
            let of = self.volumes.parts(name).into_iter();
            let made: Vec<_> = of
                .filter(|part| outermost(&self.volumes.0[*part]).is_some())
                .map(|part| format!("\"{part}\""))
                .collect();
            let message = match made.is_empty() {
                true => format!(
                    "volume \"{name}\" contains no stripe, concat or mirror: only these need `create`; other \
                     volumes are created when they are first served"
                ),
                false => format!(
                    "volume \"{name}\" itself needs no `create`: create what it is made of, {}, those inside others first",
                    made.join(", ")
                ),
            };
            return Err(ConfigError::new(node.span.clone(), message));
        };
        let opened = self.children_of(name, home, &outermost).await;
        let (children, claim) = opened.map_err(|error| match outermost.node.inner_set() {
            None => error,
            Some(inner) => {
                let why = format!(
                    "the {inner} inside it is not made with it: write it as a volume of its own, [volume.NAME], create that first, \
                     and refer to it by its name. {}",
                    error.message()
                );
                ConfigError::new(error.span(), why)
            }
        })?;
        let Superblocks(superblocks) = outermost.superblocks;
        let place = superblocks.children().span();
        let told = |error: crate::Error| ConfigError::new(place.clone(), error.to_string());
        let state_directory = self.context.state_directory.clone();
        let state_directory = state_directory.as_deref();
        let created = superblocks
            .create(&children, claim, options, state_directory)
            .await;
        // Nested stripes and concats among the children were closed with them.
        self.context.until_closed.clear();
        created.map_err(told)
    }

    /// Gives the stripe, concat or mirror called `name` the length that its children have room for now. Creates no files.
    ///
    /// # Errors
    /// When it is none of these, or what its kind refuses.
    pub async fn grow_stripe(
        &mut self,
        name: &str,
        home: &LaneHandle,
    ) -> Result<NewLength, ConfigError> {
        let node = self.volumes.find(name, &Node::named(name))?.clone();
        let Some(outermost) = outermost(&node) else {
            let message = format!(
                "volume \"{name}\" contains no stripe, concat or mirror: a `file` grows with its `size`, or, without one, \
                 with its file"
            );
            return Err(ConfigError::new(node.span.clone(), message));
        };
        self.context.may_make = false;
        let (children, claim) = self.children_of(name, home, &outermost).await?;
        let Superblocks(superblocks) = outermost.superblocks;
        let owner = self.context.owner.uuid();
        let state_directory = self.context.state_directory.clone();
        let grown = superblocks
            .grow(name, &children, claim, owner, state_directory.as_deref())
            .await;
        let place = superblocks.children().span();
        self.context.until_closed.clear();
        grown.map_err(|error| ConfigError::new(place, error.to_string()))
    }

    /// Which stripe or concat the volume called `name` contains, told by superblocks before anything is claimed, also
    /// those of stripes and concats within it. Creates no files. `None`: nothing tells before a claim, because another
    /// owner's reservation hides it from everybody. `others` is what a take-over would do: [`Others::Overrule`] accepts an
    /// older copy of a child.
    ///
    /// # Errors
    /// When it contains none, or its children do not form one.
    pub async fn identify(
        &mut self,
        name: &str,
        home: &LaneHandle,
        others: Others,
    ) -> Result<Option<Identified>, ConfigError> {
        let (name, node) = self.with_set(name)?;
        let outermost = outermost(&node).expect("it has a set");
        let root = outermost.node.span.clone();
        (self.context.may_make, self.context.others) = (false, others);
        self.context.look = Some(Looked::AtAll);
        let opened = self.children_of(&name, home, &outermost).await;
        if self.context.look.take() == Some(Looked::Hidden) {
            return Ok(None);
        }
        let (children, _) = opened?;
        let Superblocks(superblocks) = outermost.superblocks;
        let uuid = superblocks.identify(&children, others).await;
        let place = superblocks.children().span();
        let uuid = uuid.map_err(|error| ConfigError::new(place, error.to_string()))?;
        Ok(uuid.map(|uuid| Identified { root, uuid }))
    }

    /// Opens the volume called `name` for the new owner of its existing stripe or concat; creates no files.
    ///
    /// # Errors
    /// When it contains none, or cannot be opened.
    pub async fn take_over(
        &mut self,
        name: &str,
        home: &LaneHandle,
        others: Others,
    ) -> Result<Tree, ConfigError> {
        self.with_set(name)?;
        (self.context.may_make, self.context.others) = (false, others);
        self.open(name, home).await
    }

    /// The volume called `name`, or the one below its layers, that contains a stripe, concat or mirror.
    fn with_set(&self, name: &str) -> Result<(String, Node), ConfigError> {
        let asked = self.volumes.find(name, &Node::named(name))?;
        let refused = || refuse_take_over(name, asked);
        let (mut name, mut node) = (name.to_owned(), asked);
        while outermost(node).is_none() {
            let below = node.all().into_iter().find_map(|node| match &node.what {
                NodeForm::Named(below) => Some((below.clone(), node)),
                NodeForm::Inline(_) => None,
            });
            let (below, reference) = below.ok_or_else(refused)?;
            node = self.volumes.find(&below, reference)?;
            name = below;
        }
        Ok((name, node.clone()))
    }

    /// Refuses to create the volume called `name` if it, or what it is made of, could never be served.
    ///
    /// # Errors
    /// The first that [`Graph::check`] finds there.
    pub fn check_creatable(&self, name: &str) -> Result<(), ConfigError> {
        let found = self.volumes.only(name).look(&self.context.base, false);
        found.errors.into_iter().next().map_or(Ok(()), Err)
    }

    /// Opens the children of `outermost`, which is within the volume called `name`, and makes a claim for them. Those of a
    /// mirror that is only looked at may be missing, and any that is hidden from a look is passed over.
    async fn children_of(
        &mut self,
        name: &str,
        home: &LaneHandle,
        outermost: &Outermost<'_>,
    ) -> Result<(Vec<Arc<Part>>, SetClaim), ConfigError> {
        let of = outermost.superblocks.0.children();
        let mut children = Vec::new();
        let lanes = self.context.lanes_from(home);
        let are_copies = outermost.kind.settings().stands_without_children();
        let only_looks = self.context.look.is_some();
        let (may_miss, mut any_hidden) = (only_looks && are_copies, false);
        for (index, child) in of.get_ref().iter().enumerate() {
            let path = format!("{name}/{}/{index}", outermost.kind.name());
            let lanes = part::rotated(&lanes, index);
            self.context.may_come_later = may_miss;
            self.context.look = only_looks.then_some(Looked::AtAll);
            let opened = self.open_below(child, &path, &lanes, are_copies).await;
            let is_hidden = self.context.look == Some(Looked::Hidden);
            any_hidden |= is_hidden;
            children.push(match opened {
                Err(error) if may_miss || is_hidden => Part::missing(&error),
                opened => opened?,
            });
        }
        if any_hidden {
            self.context.look = Some(Looked::Hidden);
        }
        let claim = self.context.new_claim(children.len());
        let claim = claim.map_err(|error| ConfigError::new(of.span(), error.to_string()))?;
        Ok((children, claim))
    }
}

/// A stripe or concat that is not open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identified {
    /// Where the configuration defines it.
    pub root: Range<usize>,
    /// The identity in its superblocks.
    pub uuid: Uuid,
}

/// The outermost stripe or concat of a tree.
struct Outermost<'a> {
    node: &'a Node,
    kind: &'a Kind,
    superblocks: Superblocks<'a>,
}

fn outermost(node: &Node) -> Option<Outermost<'_>> {
    node.all().into_iter().find_map(|node| match &node.what {
        NodeForm::Inline(kind) => Some(Outermost {
            node,
            kind,
            superblocks: node.superblocks()?,
        }),
        NodeForm::Named(_) => None,
    })
}

fn refuse_take_over(name: &str, node: &Node) -> ConfigError {
    let message = format!(
        "volume \"{name}\" contains no stripe, concat or mirror: only these have an owner to take over \
         from"
    );
    ConfigError::new(node.span.clone(), message)
}
