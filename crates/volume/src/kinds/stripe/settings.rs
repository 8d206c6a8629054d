//! The configuration section `stripe = { unit = "64KiB", of = [ … ] }`: several volumes as one. `serve` opens a
//! stripe but never creates one: that is [`Graph::create_stripe`](crate::graph::Graph::create_stripe).

use std::{collections::BTreeSet, ops::Range, path::Path, rc::Rc, sync::Arc};

use engine::LaneFuture;
use serde::Deserialize;
use toml::Spanned;
use uuid::Uuid;

use super::{
    Child, Layout, OpenStripe, UNIT_BYTES_DEFAULT, WantedLayout,
    claim::are_left,
    claim_all,
    create::{CreateOptions, create, look},
    give_up,
    grow::grow,
    in_use::OpenSet,
};
use crate::{
    Error, ErrorKind, Result, SetClaim,
    announcer::Announcer,
    claim::Others,
    kinds::{
        HasSuperblocks, Look, NewLength, NewStripe, Node, NodeForm, Settings, Source, Superblocks,
        VolumeIdentity, Volumes, starts::Starts,
    },
    part::{Carried, Opening, Part},
    values::{ConfigError, Size},
};

/// Children move data in pages; a finer unit would split every page.
const UNIT_BYTES_MIN: u64 = 4096;
const UNIT_BYTES_MAX: u64 = 1 << 30;
/// More than any machine has paths for; keeps a typo from opening thousands of sessions.
const CHILDREN_MAX: usize = 64;

/// `stripe = { unit = "64KiB", of = [ … ] }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stripe {
    /// How much goes to one child before the next one's turn. If omitted, a new stripe gets 64 KiB, and an existing
    /// one uses its own.
    pub unit: Option<Spanned<Size>>,
    /// The children in order.
    pub of: Spanned<Vec<Node>>,
}

impl Stripe {
    /// Its children and layout, as shared with a concat.
    pub(crate) fn family(&self) -> Family<'_> {
        let unit_bytes = self.unit_bytes().unwrap_or(UNIT_BYTES_DEFAULT);
        Family {
            layout: Layout::Stripe { unit_bytes },
            wanted: WantedLayout::Stripe(self.unit_bytes()),
            of: &self.of,
        }
    }

    fn unit_bytes(&self) -> Option<u32> {
        let unit = self.unit.as_ref();
        unit.map(|unit| unit.get_ref().bytes() as u32)
    }
}

/// The unit of a stripe that is open, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct UnitBytes(pub u32);

/// Children that belong together permanently, as listed in a configuration: those of a stripe or a concat.
#[derive(Debug)]
pub(crate) struct Family<'a> {
    /// The data layout for a new one.
    pub(crate) layout: Layout,
    /// The layout that an existing one must have.
    pub(crate) wanted: WantedLayout,
    pub(crate) of: &'a Spanned<Vec<Node>>,
}

impl Family<'_> {
    /// The name of the kind.
    pub(crate) fn kind(&self) -> &'static str {
        self.layout.name()
    }

    /// The children on the current lane, with their names in messages.
    pub(crate) async fn named(&self, parts: &[Arc<Part>]) -> Result<Vec<Child>> {
        let mut named = Vec::new();
        for (index, (node, part)) in self.of.get_ref().iter().zip(parts).enumerate() {
            let volume = part.on_lane().await?;
            let name = self.name_of(index, node);
            named.push(Child { name, volume });
        }
        Ok(named)
    }

    /// The names of all children in messages.
    pub(crate) fn names(&self) -> Vec<String> {
        let nodes = self.of.get_ref().iter().enumerate();
        nodes
            .map(|(index, node)| self.name_of(index, node))
            .collect()
    }

    /// A child's name in messages.
    pub(super) fn name_of(&self, index: usize, node: &Node) -> String {
        format!("{} child {index} ({})", self.kind(), node.describe())
    }

    /// Opens the volume, with a claim on its children unless it is only looked at.
    pub(crate) async fn open(&self, mut opening: Opening<'_>) -> Result<Arc<Part>> {
        let children = self.named(opening.children()).await?;
        if opening.only_looks() {
            let looked = OpenStripe::look(&children, self.wanted, opening.accepts_older()).await?;
            let opened = looked.ok_or_else(|| opening.is_hidden())?;
            return opening
                .on_every_lane(move |inner| Ok(Rc::new(opened.on_lane(&inner)?)))
                .await;
        }
        let opened = self.claimed(&children, &opening).await?;
        let uuid = opened.uuid();
        let claim = opened.claim().cloned();
        if let Layout::Stripe { unit_bytes } = opened.layout() {
            opening.put(UnitBytes(*unit_bytes));
        }
        let announcer = opening.kept::<Announcer>().clone();
        let open = OpenSet::new(&opened, opening.children(), announcer);
        opening.put(open);
        let part = opening
            .on_every_lane(move |inner| Ok(Rc::new(opened.on_lane(&inner)?)))
            .await?;
        part.carry(Carried::Stripe(uuid));
        if let Some(claim) = claim {
            part.claim(claim.clone());
            opening.put(claim);
        }
        opening.keep_until_closed(&part);
        Ok(part)
    }

    /// Opens the volume with a claim on its `children`. In a copy of a mirror, that of a former owner of the mirror is no obstacle.
    async fn claimed(&self, children: &[Child], opening: &Opening<'_>) -> Result<OpenStripe> {
        let claim = opening.new_claim(children.len())?;
        let claimed = OpenStripe::claimed_as(children, self.wanted, &claim).await;
        let former = opening.former_owners();
        match (claimed, former) {
            (Err(error), Some(former)) if error.kind() == ErrorKind::Claimed => {
                if !are_left(children, opening.owner(), &former).await? {
                    return Err(error);
                }
                let claim = opening.fencing_claim(children.len())?;
                OpenStripe::claimed_as(children, self.wanted, &claim).await
            }
            (claimed, _) => claimed,
        }
    }

    /// Rejects a list that makes no sense.
    pub(crate) fn check(&self) -> std::result::Result<(), ConfigError> {
        let kind = self.kind();
        let children = self.of.get_ref();
        if children.is_empty() || children.len() > CHILDREN_MAX {
            return Err(ConfigError::at(
                self.of,
                format!(
                    "a {kind} of {} volumes is not possible; name 1 to {CHILDREN_MAX}",
                    children.len()
                ),
            ));
        }
        let mut seen = BTreeSet::new();
        for child in children {
            if let NodeForm::Named(name) = &child.what {
                if !seen.insert(name) {
                    return Err(ConfigError::new(
                        child.span.clone(),
                        format!(
                            "\"{name}\" appears twice in this {kind}, whose parts would overwrite \
                             each other; name each volume once"
                        ),
                    ));
                }
            }
        }
        Ok(())
    }
}

impl HasSuperblocks for Family<'_> {
    fn grow<'b>(
        &'b self,
        _: &'b str,
        children: &'b [Arc<Part>],
        claim: SetClaim,
        _: Uuid,
        _: Option<&'b Path>,
    ) -> LaneFuture<'b, Result<NewLength>> {
        LaneFuture::new(async move {
            let children = self.named(children).await?;
            grow(&children, self.wanted, claim).await
        })
    }

    fn children(&self) -> &Spanned<Vec<Node>> {
        self.of
    }

    /// A child in memory is a different, blank disk in every process.
    fn check_lasting(&self, volumes: &Volumes) -> std::result::Result<(), ConfigError> {
        let mut children = self.of.get_ref().iter();
        match children.find(|child| is_in_memory(child, volumes)) {
            None => Ok(()),
            Some(child) => Err(ConfigError::new(
                child.span.clone(),
                format!(
                    "a {}'s child cannot be in memory: what `sanstone volume create` writes to it \
                     is lost before `serve` reads it; name a file or an iSCSI disk",
                    self.kind()
                ),
            )),
        }
    }

    fn carried(&self, base: &Path, volumes: &Volumes, starts: &Starts) -> Option<Uuid> {
        self.identity_in_files(base, volumes, starts)
    }

    fn look_at_children(
        &self,
        base: &Path,
        volumes: &Volumes,
        starts: &Starts,
        may_grow: bool,
    ) -> Vec<ConfigError> {
        let may_be_blank = may_grow && matches!(self.wanted, WantedLayout::Concat);
        self.errors_in_files(base, volumes, starts, may_be_blank)
    }

    fn identify<'b>(
        &'b self,
        children: &'b [Arc<Part>],
        others: Others,
    ) -> LaneFuture<'b, Result<Option<Uuid>>> {
        LaneFuture::new(async move {
            let children = self.named(children).await?;
            let looked = OpenStripe::look(&children, self.wanted, others == Others::Overrule).await;
            give_up(&children).await;
            Ok(looked?.map(|opened| opened.uuid()))
        })
    }

    fn create<'b>(
        &'b self,
        children: &'b [Arc<Part>],
        claim: SetClaim,
        new: &'b NewStripe,
        _: Option<&'b Path>,
    ) -> LaneFuture<'b, Result<()>> {
        LaneFuture::new(async move {
            let why = match new.from {
                None => None,
                Some(Source::Copy(_)) => {
                    Some("only a mirror keeps data that is there: leave out --from")
                }
                Some(Source::AllBut(_)) => Some("only a mirror has copies that can be replaced"),
            };
            if let Some(why) = why {
                return Err(Error::new(ErrorKind::Configuration, why));
            }
            let children = self.named(children).await?;
            // A child owned by someone else is reported with the owner's name, even with `force`; nothing is written
            // before.
            if !new.force {
                look(&children).await?;
            }
            claim_all(&children, &claim.for_new_set(new.force)).await?;
            let options = CreateOptions {
                layout: self.layout,
                uuid: new.uuid,
                created_unix_s: new.created_unix_s,
                force: new.force,
            };
            let created = create(&children, &options).await;
            give_up(&children).await;
            created
        })
    }
}

/// Whether `node` keeps blocks in memory.
fn is_in_memory(node: &Node, volumes: &Volumes) -> bool {
    node.all().into_iter().any(|node| match &node.what {
        NodeForm::Named(name) => {
            let named = volumes.0.get(name);
            named.is_some_and(|node| is_in_memory(node, volumes))
        }
        NodeForm::Inline(kind) => kind.is_volatile(),
    })
}

impl Settings for Stripe {
    fn open<'a>(&'a self, opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        LaneFuture::new(async move { self.family().open(opening).await })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        VolumeIdentity::Superblocks(Superblocks(Box::new(self.family())))
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn over(&self, other: &Stripe) -> Stripe {
        Stripe {
            of: other.of.clone(),
            ..self.clone()
        }
    }

    fn children(&self) -> &[Node] {
        self.of.get_ref()
    }

    fn check(&self) -> std::result::Result<(), ConfigError> {
        if let Some(unit) = &self.unit {
            let bytes = unit.get_ref().bytes();
            if !bytes.is_power_of_two() || !(UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&bytes) {
                return Err(ConfigError::at(
                    unit,
                    format!(
                        "a stripe unit of {} is not supported; write a power of two from 4KiB to \
                         1GiB",
                        unit.get_ref()
                    ),
                ));
            }
        }
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
