//! A concat takes more children while it is used, as a step of a new configuration. The order on the disks is that of a concat
//! that nobody uses ([`join`](super::join)):
//!
//! 1. What may fail, and can be taken back: the new children are claimed, beside those that the concat has, and their superblocks
//!    are written. The concat does not know of them.
//! 2. When the rest of the configuration is ready: the old children say that there are more. From then on the concat cannot be
//!    opened without the new ones.
//! 3. The lanes learn of the new children ([`members`](super::members)), and then of the length. So nobody writes to a new
//!    child before all of them are part of the volume.
//!
//! What is in progress goes on, and what users were told of the volume stays, except for its length: a child that would change
//! it is refused.

use std::{cell::RefCell, fmt, rc::Rc, sync::Arc};

use engine::{LaneFuture, Payload, spawn, sync::Budget, task::JoinHandle};

use super::{
    Child, OpenStripe, WantedLayout, atomic_writes,
    claim::claim_added,
    give_up,
    in_use::OpenSet,
    join::Joining,
    joined::finish,
    open::{StripeState, shape},
    superblock::SUPERBLOCK_BYTES,
};
use crate::{
    Durability, Error, ErrorKind, Result, SharedVolume, announcer::Announcer, kinds::change::Step,
    part::Part,
};

/// More children for an open concat.
pub(crate) struct Joins {
    work: Rc<JoinWork>,
    /// The second half, once it has begun.
    taking: RefCell<Option<JoinHandle<Result<()>>>>,
}

struct JoinWork {
    state: Arc<StripeState>,
    /// The children that it has.
    old: Vec<Arc<Part>>,
    new: Vec<Arc<Part>>,
    /// Those of the old ones, and then of the new ones.
    names: Vec<String>,
    announcer: Announcer,
    /// Held by what works: an attempt goes on when nobody waits for it any more.
    turn: Rc<Budget>,
    prepared: RefCell<Option<ReadyToJoin>>,
}

/// New children that are claimed, and may have superblocks.
struct ReadyToJoin {
    joining: Rc<Joining>,
    /// The number of the first one in the claim.
    first: usize,
}

impl Joins {
    /// Adds the children `new` to the concat `open`; `names` are those of all, as messages call them.
    ///
    /// # Errors
    /// When it is not open, or has other children than those before `new`.
    pub(crate) fn new(open: &OpenSet, names: Vec<String>, new: Vec<Arc<Part>>) -> Result<Joins> {
        let (state, old) = open.upgrade()?;
        if old.len() + new.len() != names.len() {
            let message = format!(
                "it has {} children, and not those that an earlier configuration added: restart to apply this",
                old.len()
            );
            return Err(Error::new(ErrorKind::Configuration, message));
        }
        Ok(Joins {
            work: Rc::new(JoinWork {
                state,
                old,
                new,
                names,
                announcer: open.announcer().clone(),
                turn: Budget::new(1),
                prepared: RefCell::new(None),
            }),
            taking: RefCell::new(None),
        })
    }
}

impl JoinWork {
    /// The volumes of all children on this lane: those that it has, then the new ones.
    async fn children(&self) -> Result<Vec<Child>> {
        let mut children = Vec::new();
        let parts = self.old.iter().chain(&self.new);
        for (part, name) in parts.zip(&self.names) {
            children.push(Child {
                name: name.clone(),
                volume: part.on_lane().await?,
            });
        }
        Ok(children)
    }

    async fn prepare(&self) -> Result<()> {
        let claim = self.state.claim()?;
        claim.check()?;
        let all = self.children().await?;
        let (old, new) = all.split_at(self.old.len());
        for (child, part) in new.iter().zip(&self.new) {
            check_alone(child, part)?;
            self.check_same(old, child)?;
        }
        let Some(joining) = Joining::of(&all, WantedLayout::Concat).await? else {
            OpenStripe::read(&all, WantedLayout::Concat, None).await?;
            let why = "the new children cannot be told from those that it has";
            return Err(Error::new(ErrorKind::Configuration, why));
        };
        let first = claim.add(new.len())?;
        claim_added(new, claim, first).await?;
        let joining = Rc::new(joining);
        self.prepared.replace(Some(ReadyToJoin {
            joining: joining.clone(),
            first,
        }));
        joining.write_new().await.map(drop)
    }

    /// Refuses a new child that would change what users were told of the concat.
    fn check_same(&self, old: &[Child], child: &Child) -> Result<()> {
        let (layout, is) = (&self.state.layout, &self.state.shape);
        let all = [old, std::slice::from_ref(child)].concat();
        let next = shape(&all, layout, is.len_bytes());
        let atomic = |of: &[Child]| {
            let volumes: Vec<SharedVolume> = of.iter().map(|it| it.volume.clone()).collect();
            atomic_writes(layout, &volumes)
        };
        let told = [
            (
                "physical blocks",
                next.physical_block_bytes == is.physical_block_bytes,
            ),
            ("write cache", next.volatile_cache == is.volatile_cache),
            ("way of freeing space", next.discard == is.discard),
            ("atomic writes", atomic(old) == atomic(&all)),
        ];
        match told.iter().find(|(_, is_same)| !is_same) {
            None => Ok(()),
            Some((what, _)) => Err(child.refuse(format!(
                "with it the concat would have another {what}, which its users cannot be told: add it while nobody uses the \
                 concat, by `sanstone volume grow`"
            ))),
        }
    }

    async fn take_in(&self) -> Result<()> {
        let prepared = self.prepared.take();
        let ReadyToJoin { joining, first } = prepared.expect("it was prepared");
        let from = self.state.shape.len_bytes();
        match self.join(&joining, first).await {
            Ok(read) => self.state.extend(&read, self.new.clone()),
            Err(error) => {
                give_up(&joining.all()[self.old.len()..]).await;
                return Err(error);
            }
        }
        let (concat, to) = (self.state.uuid, self.state.shape.len_bytes());
        tracing::info!(%concat, from, to, "a concat in use has more children");
        self.announcer.tell();
        Ok(())
    }

    /// Makes the new children part of the volume. Returns what the superblocks say then.
    async fn join(&self, joining: &Joining, first: usize) -> Result<OpenStripe> {
        let claim = self.state.claim()?;
        claim.check()?;
        finish(joining.all()).await?;
        let read = OpenStripe::read(joining.all(), WantedLayout::Concat, None).await?;
        claim.join(first)?;
        Ok(read)
    }

    async fn undo(&self) -> Result<()> {
        let all = self.children().await?;
        let new = &all[self.old.len()..];
        if self.prepared.take().is_some() {
            for child in new {
                let zeroes = Payload::zeroes(SUPERBLOCK_BYTES);
                let blanked = child.volume.write(0, zeroes, Durability::Fua).await;
                if let Err(error) = blanked {
                    tracing::warn!(child = child.name, %error, "it joins no concat, and still says that it does");
                }
            }
        }
        give_up(new).await;
        Ok(())
    }
}

/// Refuses a child that claims others: the layers above the concat would not be told that it has lost them.
fn check_alone(child: &Child, part: &Part) -> Result<()> {
    match part.claims().is_empty() {
        true => Ok(()),
        false => Err(child.refuse(
            "a stripe, concat or mirror is added while nobody uses the concat, by `sanstone volume grow`",
        )),
    }
}

impl Step for Joins {
    fn prepare(&self) -> LaneFuture<'_, Result<()>> {
        let work = self.work.clone();
        LaneFuture::new(spawn(async move {
            let _turn = work.turn.take(1).await;
            work.prepare().await
        }))
    }

    fn take_effect(&self) -> LaneFuture<'_, ()> {
        let work = self.work.clone();
        self.taking.replace(Some(spawn(async move {
            let _turn = work.turn.take(1).await;
            work.take_in().await
        })));
        LaneFuture::new(async {})
    }

    fn finish(&self) -> LaneFuture<'_, Vec<String>> {
        let taking = self.taking.take();
        LaneFuture::new(async move {
            let taken = taking.expect("it takes effect").await;
            let warning = taken.err().map(|error| {
                format!(
                    "its concat has not taken the new children: restart to apply this ({error})"
                )
            });
            warning.into_iter().collect()
        })
    }

    fn undo(&self) -> LaneFuture<'_, ()> {
        let work = self.work.clone();
        LaneFuture::new(spawn(async move {
            let _turn = work.turn.take(1).await;
            if let Err(error) = work.undo().await {
                tracing::warn!(%error, "what was to join a concat could not be given up");
            }
        }))
    }
}

impl fmt::Debug for Joins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Joins({:?})", &self.work.names[self.work.old.len()..])
    }
}
