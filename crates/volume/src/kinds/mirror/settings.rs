//! The configuration section `mirror = { of = [ …, … ] }`. `serve` opens a mirror but never makes one: that is
//! [`Graph::create_stripe`](crate::graph::Graph::create_stripe).

use std::{collections::BTreeSet, ops::Range, path::Path, rc::Rc, sync::Arc, time::Duration};

use ::mirror::copy::CopyState;
use engine::LaneFuture;
use serde::Deserialize;
use toml::Spanned;
use uuid::Uuid;

use super::{
    MirrorVolume,
    copy::Copy,
    create::{New, create},
    driver::Limits,
    exchange::{Exchange, ONLY_IN_SYNC, OpenMirror},
    grow::grow,
    open::{Options, look, open},
    register_place::{RegisterPlace, no_directory},
    replace::replace,
    status::MirrorHandle,
};
use crate::{
    Error, ErrorKind, Result, SetClaim, Volume,
    claim::{FormerOwners, Others},
    kinds::{
        HasSuperblocks, Kind, Look, NewLength, NewStripe, Node, NodeForm, Settings, Source,
        Superblocks, VolumeIdentity, Volumes,
        change::{Changing, OtherChild, Step},
        starts::Starts,
    },
    part::{Carried, Handles, Opening, Part},
    values::{ConfigError, Time},
};

/// How many copies a mirror has. The formats have room for more.
const COPIES: usize = 2;
/// A disk of platters that others use as well may take so long for one write.
const COPY_TIMEOUT_MIN: Duration = Duration::from_millis(500);
const NO_REGISTER: &str = "a register is on an iSCSI disk, which the target keeps for all nodes, and is written in its place or named, \
                           if several mirrors have theirs there: register = { iscsi = { url = \"…\" } }; or leave it out, and it is \
                           in the state directory";

/// `mirror = { of = [ …, … ] }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "MirrorText")]
pub struct Mirror {
    /// The copies; which is which is written on them. Then the disk with the register, if it has one.
    children: Spanned<Vec<Node>>,
    has_register: bool,
    copy_timeout: Spanned<Time>,
    request_timeout: Spanned<Time>,
}

/// What is written in a configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MirrorText {
    /// The copies.
    of: Spanned<Vec<Node>>,
    /// The disk with the register. `None`: it is in the state directory.
    register: Option<Node>,
    /// How long a copy may take to answer before the mirror goes on without it.
    #[serde(default = "seconds::<10>")]
    copy_timeout: Spanned<Time>,
    /// How long a request waits for a copy before it fails.
    #[serde(default = "seconds::<60>")]
    request_timeout: Spanned<Time>,
}

impl From<MirrorText> for Mirror {
    fn from(text: MirrorText) -> Mirror {
        let (span, mut children) = (text.of.span(), text.of.into_inner());
        let has_register = text.register.is_some();
        children.extend(text.register);
        Mirror {
            children: Spanned::new(span, children),
            has_register,
            copy_timeout: text.copy_timeout,
            request_timeout: text.request_timeout,
        }
    }
}

fn seconds<const N: u64>() -> Spanned<Time> {
    Spanned::new(0..0, Time::from_duration(Duration::from_secs(N)))
}

impl Mirror {
    /// Its copies, on the current lane.
    async fn copies(&self, parts: &[Arc<Part>]) -> Result<Vec<Copy>> {
        let mut copies = Vec::new();
        for (name, part) in self.names().into_iter().zip(parts) {
            copies.push(Copy::new(name, part.on_lane().await?));
        }
        Ok(copies)
    }

    fn limits(&self) -> Limits {
        Limits {
            copy: self.copy_timeout.get_ref().duration(),
            request: self.request_timeout.get_ref().duration(),
        }
    }

    /// Where its register is, on the current lane.
    async fn register_place(
        &self,
        parts: &[Arc<Part>],
        state_directory: Option<&Path>,
    ) -> Result<RegisterPlace> {
        match (self.register(), parts.last()) {
            (Some(node), Some(part)) => Ok(RegisterPlace::lun(
                name_register(node),
                part.on_lane().await?,
            )),
            _ => {
                let directory = state_directory.ok_or_else(no_directory)?;
                Ok(RegisterPlace::State(directory.to_owned()))
            }
        }
    }

    /// The nodes of its copies.
    fn of(&self) -> &[Node] {
        let children = self.children.get_ref();
        &children[..children.len() - usize::from(self.has_register)]
    }

    /// The node of the disk with its register.
    fn register(&self) -> Option<&Node> {
        let last = self.children.get_ref().last();
        last.filter(|_| self.has_register)
    }

    /// What messages call the copies.
    fn names(&self) -> Vec<String> {
        let nodes = self.of().iter().enumerate();
        nodes
            .map(|(index, node)| name_copy(index, &node.describe()))
            .collect()
    }
}

/// What messages call the copy at `index`.
fn name_copy(index: usize, node: &str) -> String {
    format!("mirror copy {index} ({node})")
}

fn is_remote(kind: &Kind) -> bool {
    kind.name() == "iscsi"
}

/// What messages call the disk with a register.
fn name_register(node: &Node) -> String {
    format!("the register on {}", node.describe())
}

impl HasSuperblocks for &Mirror {
    fn children(&self) -> &Spanned<Vec<Node>> {
        &self.children
    }

    fn check_lasting(&self, volumes: &Volumes) -> std::result::Result<(), ConfigError> {
        for node in self.children.get_ref() {
            let why = if has(node, volumes, Kind::is_volatile) {
                "a copy in memory is gone with the process, and with it what the mirror keeps there; name a file or an iSCSI \
                 disk"
            } else if has(node, volumes, |kind| matches!(kind, Kind::Cache(_))) {
                "a cache would answer for a copy whose disk has become an older one; put the cache above the mirror"
            } else {
                continue;
            };
            return Err(ConfigError::new(node.span.clone(), why));
        }
        Ok(())
    }

    /// What tells lies at the end of each copy, and is read when it is open.
    fn carried(&self, _: &Path, _: &Volumes, _: &Starts) -> Option<Uuid> {
        None
    }

    fn look_at_children(&self, _: &Path, _: &Volumes, _: &Starts, _: bool) -> Vec<ConfigError> {
        Vec::new()
    }

    fn identify<'b>(
        &'b self,
        children: &'b [Arc<Part>],
        _: Others,
    ) -> LaneFuture<'b, Result<Option<Uuid>>> {
        LaneFuture::new(async move {
            let copies = self.copies(children).await?;
            let looked = look(&copies).await;
            for copy in &copies {
                if let Err(error) = copy.volume.close().await {
                    tracing::warn!(copy = copy.name, %error, "a copy could not be closed");
                }
            }
            if let (Some(node), Some(part)) = (self.register(), children.last()) {
                let place = RegisterPlace::lun(name_register(node), part.on_lane().await?);
                place.close().await;
            }
            Ok(Some(looked?.0.mirror))
        })
    }

    fn create<'b>(
        &'b self,
        children: &'b [Arc<Part>],
        _: SetClaim,
        new: &'b NewStripe,
        state_directory: Option<&'b Path>,
    ) -> LaneFuture<'b, Result<()>> {
        LaneFuture::new(async move {
            let register = self.register_place(children, state_directory).await?;
            let copies = self.copies(children).await?;
            let from = match new.from {
                Some(Source::Copy(from)) => Some(from),
                _ => None,
            };
            let created = match new.from {
                Some(Source::AllBut(at)) => replace(&copies, at, new.force, &register).await,
                _ => {
                    let new = New {
                        mirror: new.uuid,
                        from,
                        force: new.force,
                        register: &register,
                    };
                    create(&copies, &new).await
                }
            };
            for copy in &copies {
                if let Err(error) = copy.volume.close().await {
                    tracing::warn!(copy = copy.name, %error, "a copy could not be closed");
                }
            }
            register.close().await;
            created
        })
    }

    fn grow<'b>(
        &'b self,
        name: &'b str,
        children: &'b [Arc<Part>],
        claim: SetClaim,
        owner: Uuid,
        state_directory: Option<&'b Path>,
    ) -> LaneFuture<'b, Result<NewLength>> {
        LaneFuture::new(async move {
            let options = Options {
                name: name.to_owned(),
                limits: self.limits(),
                register: self.register_place(children, state_directory).await?,
                node: owner,
                others: Others::Refuse,
                claim,
                handle: MirrorHandle::default(),
            };
            let driver = open(self.copies(children).await?, options).await?;
            let grown = grow(&driver).await;
            let closed = MirrorVolume::new(driver).close().await;
            let grown = grown?;
            closed.map(|()| grown)
        })
    }
}

/// The owners of `mirror` before the one that has this handle on it.
fn former_owners(mirror: Uuid, handle: MirrorHandle) -> FormerOwners {
    FormerOwners::new(move |note| {
        let (_, kept) = CopyState::decode(note).ok()?;
        let is_former = kept.record.mirror == mirror && kept.record.epoch < handle.status().epoch;
        is_former.then_some(kept.record.owner)
    })
}

/// Whether `node` is or contains a kind that `is` so.
fn has(node: &Node, volumes: &Volumes, is: fn(&Kind) -> bool) -> bool {
    node.all().into_iter().any(|node| match &node.what {
        NodeForm::Named(name) => {
            let named = volumes.0.get(name);
            named.is_some_and(|node| has(node, volumes, is))
        }
        NodeForm::Inline(kind) => is(kind),
    })
}

impl Settings for Mirror {
    fn open<'a>(&'a self, mut opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        LaneFuture::new(async move {
            if opening.only_looks() {
                // Whoever claims a set of mirrors has them one after the other.
                let others = opening.others();
                self.identify(opening.children(), others).await?;
                return Err(opening.is_hidden());
            }
            let state_directory = opening.state_directory().map(Path::to_owned);
            if !self.has_register && state_directory.is_none() {
                return Err(no_directory());
            }
            let claim = opening.new_claim(1)?;
            let handle: MirrorHandle = opening.handle();
            let limits = self.limits();
            let (name, node) = (opening.volume().to_owned(), opening.owner());
            let (others, above) = (opening.others(), claim.clone());
            let register = self.register();
            let register = register.map(|it| (name_register(it), it.inline().is_some()));
            let names = self.names();
            let opened = Arc::new(std::sync::OnceLock::new());
            let told = opened.clone();
            let home = opening.lanes[0].clone();
            let part = opening
                .at_home(move |volumes| {
                    LaneFuture::new(async move {
                        let mut volumes = volumes;
                        let register = match register {
                            Some((name, is_own)) => {
                                let volume = volumes.pop().expect("it comes last");
                                RegisterPlace::Lun {
                                    name,
                                    volume,
                                    is_own,
                                }
                            }
                            None => {
                                RegisterPlace::State(state_directory.expect("it was there before"))
                            }
                        };
                        let options = Options {
                            name,
                            limits,
                            register,
                            node,
                            others,
                            claim: above,
                            handle,
                        };
                        let copies = names.into_iter().zip(volumes);
                        let copies = copies.map(|(name, volume)| Copy::new(name, volume));
                        let driver = open(copies.collect(), options).await?;
                        let _ = told.set((driver.header.mirror, OpenMirror::keep(home, &driver)));
                        Ok(Rc::new(MirrorVolume::new(driver)) as _)
                    })
                })
                .await?;
            if let Some((mirror, open)) = opened.get() {
                part.carry(Carried::Stripe(*mirror));
                opening.put(open.clone());
                let former = former_owners(*mirror, opening.handle());
                opening.put(former);
            }
            part.claim(claim);
            opening.keep_until_closed(&part);
            Ok(part)
        })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        VolumeIdentity::Superblocks(Superblocks(Box::new(self)))
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn over(&self, other: &Mirror) -> Mirror {
        Mirror {
            children: other.children.clone(),
            has_register: other.has_register,
            ..self.clone()
        }
    }

    fn exchanges(&self, index: usize, [was, is]: [&Node; 2]) -> Option<String> {
        self.of().get(index)?;
        let (was, is) = (was.describe(), is.describe());
        Some(format!(
            "copy {index} ({was}) is replaced by {is}, which must be blank, and is filled whole"
        ))
    }

    fn bars_exchange(
        &self,
        handles: &Handles,
        path: &str,
        (index, was): (usize, &str),
    ) -> Option<String> {
        let status = handles.get::<MirrorHandle>(path)?.status();
        let name = name_copy(index, was);
        let is_only = status.is_only_in_sync(&name);
        is_only.then(|| format!("{name}: {ONLY_IN_SYNC}"))
    }

    fn step<'a>(&'a self, changing: Changing<'a>) -> LaneFuture<'a, Result<Box<dyn Step>>> {
        let open = changing.handle::<OpenMirror>().cloned();
        LaneFuture::new(async move {
            let open = open.ok_or_else(|| Error::new(ErrorKind::Unreachable, "it is not open"))?;
            let OtherChild { index, was, part } = changing
                .other_child
                .expect("nothing else of a mirror changes");
            let names = [name_copy(index, &was), self.names().swap_remove(index)];
            Ok(Box::new(Exchange::new(open, names, part)) as _)
        })
    }

    fn keeps_length(&self) -> Option<&'static str> {
        Some(
            "a mirror keeps the length that it was created with, until `sanstone volume grow` gives it another",
        )
    }

    fn children(&self) -> &[Node] {
        self.children.get_ref()
    }

    fn check(&self) -> std::result::Result<(), ConfigError> {
        let copies = self.of();
        if copies.len() != COPIES {
            let message = format!(
                "a mirror of {} copies is not possible; name {COPIES}",
                copies.len()
            );
            return Err(ConfigError::at(&self.children, message));
        }
        let mut seen = BTreeSet::new();
        for node in copies {
            if let NodeForm::Named(name) = &node.what {
                if !seen.insert(name) {
                    let message = format!(
                        "\"{name}\" appears twice in this mirror, which would then have one copy; name two volumes"
                    );
                    return Err(ConfigError::new(node.span.clone(), message));
                }
            }
        }
        if let Some(node) = self.register() {
            if node.inline().is_some_and(|kind| !is_remote(kind)) {
                return Err(ConfigError::new(node.span.clone(), NO_REGISTER));
            }
        }
        let copy = self.copy_timeout.get_ref();
        if copy.duration() < COPY_TIMEOUT_MIN {
            let message = format!(
                "copy_timeout = \"{copy}\": a copy that is well may take longer to answer, and would be given up again and again; \
                 write 10s, and no less than {COPY_TIMEOUT_MIN:?}"
            );
            return Err(ConfigError::at(&self.copy_timeout, message));
        }
        let request = self.request_timeout.get_ref();
        if request.duration() < copy.duration() * 2 {
            let message = format!(
                "request_timeout = \"{request}\" leaves no time to go on without a copy that fails: write at least twice \
                 copy_timeout (\"{copy}\")"
            );
            return Err(ConfigError::at(&self.request_timeout, message));
        }
        Ok(())
    }

    fn look(&self, look: &mut Look<'_>) {
        let checked = (&self).check_lasting(look.volumes());
        look.errors(checked.err());
    }

    fn span(&self) -> Option<Range<usize>> {
        Some(self.children.span())
    }

    /// A register has a slot for each mirror.
    fn shared_child(&self) -> Option<&Node> {
        self.register()
    }

    fn check_named(&self, volumes: &Volumes) -> std::result::Result<(), ConfigError> {
        let Some(node) = self.register() else {
            return Ok(());
        };
        let NodeForm::Named(name) = &node.what else {
            return Ok(());
        };
        if !volumes.find(name, node)?.inline().is_some_and(is_remote) {
            return Err(ConfigError::new(node.span.clone(), NO_REGISTER));
        }
        volumes.named_as_a_part(name).map_or(Ok(()), |reference| {
            let why = format!(
                "\"{name}\" has the register of a mirror, and nothing else: name another disk here"
            );
            Err(ConfigError::new(reference.span.clone(), why))
        })
    }

    fn stands_without_children(&self) -> bool {
        true
    }

    fn claims_children(&self) -> bool {
        true
    }
}
