//! The configuration section `mirror = { of = [ …, … ] }`. `serve` opens a mirror but never makes one: that is
//! [`Graph::create_stripe`](crate::graph::Graph::create_stripe).

use std::{collections::BTreeSet, ops::Range, path::Path, rc::Rc, sync::Arc, time::Duration};

use engine::LaneFuture;
use serde::Deserialize;
use toml::Spanned;
use uuid::Uuid;

use super::{
    MirrorVolume,
    copy::Copy,
    create::{New, create},
    driver::Limits,
    open::{Options, look, open},
    register::no_directory,
    replace::replace,
    status::MirrorHandle,
};
use crate::{
    Result, SetClaim,
    claim::Others,
    kinds::{
        HasSuperblocks, Look, NewStripe, Node, NodeForm, Settings, Source, Superblocks,
        VolumeIdentity, Volumes, starts::Starts,
    },
    part::{Carried, Opening, Part},
    values::{ConfigError, Time},
};

/// How many copies a mirror has. The formats have room for more.
const COPIES: usize = 2;

/// `mirror = { of = [ …, … ] }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mirror {
    /// The copies; which is which is written on them.
    pub of: Spanned<Vec<Node>>,
    /// How long a copy may take to answer before the mirror goes on without it.
    #[serde(default = "seconds::<10>")]
    pub copy_timeout: Spanned<Time>,
    /// How long a request waits for a copy before it fails.
    #[serde(default = "seconds::<60>")]
    pub request_timeout: Spanned<Time>,
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

    /// What messages call the copies.
    fn names(&self) -> Vec<String> {
        let nodes = self.of.get_ref().iter().enumerate();
        nodes
            .map(|(index, node)| format!("mirror copy {index} ({})", node.describe()))
            .collect()
    }
}

impl HasSuperblocks for &Mirror {
    fn children(&self) -> &Spanned<Vec<Node>> {
        &self.of
    }

    fn check_lasting(&self, volumes: &Volumes) -> std::result::Result<(), ConfigError> {
        let children = self.of.get_ref().iter();
        let mut volatile = children.filter(|node| is_in_memory(node, volumes));
        match volatile.next() {
            None => Ok(()),
            Some(node) => Err(ConfigError::new(
                node.span.clone(),
                "a copy in memory is gone with the process, and with it what the mirror keeps there; name a file or an iSCSI \
                 disk",
            )),
        }
    }

    /// What tells lies at the end of each copy, and is read when it is open.
    fn carried(&self, _: &Path, _: &Volumes, _: &Starts) -> Option<Uuid> {
        None
    }

    fn look_at_children(&self, _: &Path, _: &Volumes, _: &Starts) -> Vec<ConfigError> {
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
            let state_directory = state_directory.ok_or_else(no_directory)?;
            let copies = self.copies(children).await?;
            let from = match new.from {
                Some(Source::Copy(from)) => Some(from),
                _ => None,
            };
            let created = match new.from {
                Some(Source::AllBut(at)) => replace(&copies, at, new.force, state_directory).await,
                _ => {
                    let new = New {
                        mirror: new.uuid,
                        from,
                        force: new.force,
                        state_directory,
                    };
                    create(&copies, &new).await
                }
            };
            for copy in &copies {
                if let Err(error) = copy.volume.close().await {
                    tracing::warn!(copy = copy.name, %error, "a copy could not be closed");
                }
            }
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

impl Settings for Mirror {
    fn open<'a>(&'a self, mut opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        LaneFuture::new(async move {
            if opening.only_looks() {
                return Err(opening.is_hidden());
            }
            let state_directory = opening.state_directory().ok_or_else(no_directory)?;
            let state_directory = state_directory.to_owned();
            let claim = opening.new_claim(1)?;
            let handle: MirrorHandle = opening.handle();
            let options = Options {
                name: opening.volume().to_owned(),
                limits: Limits {
                    copy: self.copy_timeout.get_ref().duration(),
                    request: self.request_timeout.get_ref().duration(),
                },
                state_directory,
                node: opening.owner(),
                others: opening.others(),
                claim: claim.clone(),
                handle,
            };
            let names = self.names();
            let mirror = Arc::new(std::sync::OnceLock::new());
            let told = mirror.clone();
            let part = opening
                .at_home(move |volumes| {
                    LaneFuture::new(async move {
                        let copies = names.into_iter().zip(volumes);
                        let copies = copies.map(|(name, volume)| Copy::new(name, volume));
                        let driver = open(copies.collect(), options).await?;
                        let _ = told.set(driver.header.mirror);
                        Ok(Rc::new(MirrorVolume::new(driver)) as _)
                    })
                })
                .await?;
            if let Some(mirror) = mirror.get() {
                part.carry(Carried::Stripe(*mirror));
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
            of: other.of.clone(),
            ..self.clone()
        }
    }

    fn keeps_length(&self) -> Option<&'static str> {
        Some("a mirror keeps the length that it was created with")
    }

    fn children(&self) -> &[Node] {
        self.of.get_ref()
    }

    fn check(&self) -> std::result::Result<(), ConfigError> {
        let copies = self.of.get_ref();
        if copies.len() != COPIES {
            let message = format!(
                "a mirror of {} copies is not possible; name {COPIES}",
                copies.len()
            );
            return Err(ConfigError::at(&self.of, message));
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
        for limit in [&self.copy_timeout, &self.request_timeout] {
            if limit.get_ref().duration().is_zero() {
                let message = "a time limit of 0 leaves no time for anything; write 10s";
                return Err(ConfigError::at(limit, message));
            }
        }
        let (copy, request) = (self.copy_timeout.get_ref(), self.request_timeout.get_ref());
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
        Some(self.of.span())
    }

    fn stands_without_children(&self) -> bool {
        true
    }

    fn claims_children(&self) -> bool {
        true
    }
}
