//! What a kind is given to open a volume, and what it may keep in the graph.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use engine::{LaneFuture, LaneHandle, time};
use uuid::Uuid;

use super::{ByType, Handles, Part};
use crate::{
    Error, ErrorKind, Result, SetClaim, Shape, SharedVolume,
    claim::{FormerOwners, Others, Owner},
};

/// Parameters for opening the volumes of a graph, and the state that they share.
#[derive(Debug)]
pub(crate) struct Context {
    /// The directory that relative paths start from.
    pub(crate) base: PathBuf,
    /// The lanes where volumes may live.
    pub(crate) lanes: Vec<LaneHandle>,
    /// Where the program keeps its state, if it does.
    pub(crate) state_directory: Option<PathBuf>,
    /// Where claims are shown to other processes that have the owner's identity.
    pub(crate) claims: Option<PathBuf>,
    /// The owner that claims the children of stripes.
    pub(crate) owner: Owner,
    /// What to do about other owners of a stripe's children.
    pub(crate) others: Others,
    /// Whether missing files are created.
    pub(crate) may_make: bool,
    /// Whether requests will be [watched](crate::layers).
    pub(crate) is_watched: bool,
    /// Whether what cannot be reached may be waited for, as its configuration says.
    pub(crate) may_wait: bool,
    /// Whether the next node to be opened may come later.
    pub(crate) may_come_later: bool,
    /// Whether what is opened is a copy of a mirror, or a part of one: the mirror notes on each disk how far that has come.
    pub(crate) is_in_copy: bool,
    /// The former owners of that mirror, once it has an owner.
    pub(crate) former_owners: Option<FormerOwners>,
    /// Set while stripes are opened to be looked at only: nothing is claimed.
    pub(crate) look: Option<Looked>,
    pub(crate) handles: Handles,
    /// State that kinds keep for all of their volumes.
    pub(crate) kept: ByType,
    /// Volumes, with their paths, that are closed with the graph even if nothing else uses them.
    pub(crate) until_closed: Vec<(String, Arc<Part>)>,
}

/// What has come of a look at stripes that are not claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Looked {
    /// So far, all of them can be read.
    AtAll,
    /// A reservation hides one of them from everybody.
    Hidden,
}

/// A volume that is being opened: its children, and where it will live.
///
/// It ends with one of the methods that create a [`Part`]. They differ in where the volume's state is: with
/// `on_every_lane` each lane has an instance, and instances share only what may be shared between threads; `at_home`
/// creates a single instance, which the other lanes reach by messages.
pub(crate) struct Opening<'a> {
    pub(crate) context: &'a mut Context,
    /// Its home lane first, then the others that may share its work.
    pub(crate) lanes: &'a [LaneHandle],
    /// The path of kinds, starting with the volume's name.
    pub(crate) path: String,
    /// Its children.
    pub(crate) children: Vec<Arc<Part>>,
    /// Whether its user goes on without it until it can be reached.
    pub(crate) may_come_later: bool,
}

impl Opening<'_> {
    /// The directory that relative paths start from.
    pub(crate) fn base(&self) -> &Path {
        &self.context.base
    }

    /// Where the program keeps its state, if it does.
    pub(crate) fn state_directory(&self) -> Option<&Path> {
        self.context.state_directory.as_deref()
    }

    /// Where claims are shown to other processes that have the owner's identity, if there may be any.
    pub(crate) fn claims(&self) -> Option<&Path> {
        self.context.claims.as_deref()
    }

    /// Whether missing files are created.
    pub(crate) fn may_make(&self) -> bool {
        self.context.may_make
    }

    /// Whether its requests will be [watched](crate::layers).
    pub(crate) fn is_watched(&self) -> bool {
        self.context.is_watched
    }

    /// Whether what cannot be reached may be waited for, as its configuration says.
    pub(crate) fn may_wait(&self) -> bool {
        self.context.may_wait
    }

    /// Whether stripes are opened to be looked at only.
    pub(crate) fn only_looks(&self) -> bool {
        self.context.look.is_some()
    }

    /// Whether its user goes on without it until it can be reached.
    pub(crate) fn may_come_later(&self) -> bool {
        self.may_come_later
    }

    /// Whether the children of a set may be of different age.
    pub(crate) fn accepts_older(&self) -> bool {
        self.context.accepts_older()
    }

    /// What to do about other owners.
    pub(crate) fn others(&self) -> Others {
        self.context.others
    }

    /// A reservation hides from everybody which stripe this is. Returns the error.
    pub(crate) fn is_hidden(&mut self) -> Error {
        self.context.look = Some(Looked::Hidden);
        let why = "a reservation hides from everybody which stripe or concat it is";
        Error::new(ErrorKind::ReservationConflict, why)
    }

    /// The index of `lane` among the graph's lanes.
    pub(crate) fn number_of(&self, lane: &LaneHandle) -> usize {
        let found = self.context.lanes.iter().position(|it| it == lane);
        found.unwrap_or(0)
    }

    /// The name of the volume that it is, or is a part of.
    pub(crate) fn volume(&self) -> &str {
        self.path.split('/').next().unwrap_or_default()
    }

    /// Its children, in order.
    pub(crate) fn children(&self) -> &[Arc<Part>] {
        &self.children
    }

    /// The outside handle on this volume, created if missing: see [`Handles`].
    pub(crate) fn handle<H: Clone + Default + Send + Sync + 'static>(&mut self) -> H {
        self.context.handles.given(&self.path)
    }

    /// Sets the outside handle on this volume.
    pub(crate) fn put<H: Send + Sync + 'static>(&mut self, handle: H) {
        self.context.handles.put(self.path.clone(), handle);
    }

    /// The handle that was set for this volume before it is opened.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn existing_handle<H: Clone + 'static>(&self) -> Option<H> {
        self.context.handles.get(&self.path).cloned()
    }

    /// The state that this kind keeps in the graph for all of its volumes.
    pub(crate) fn kept<T: Default + Send + 'static>(&mut self) -> &mut T {
        self.context.kept.of()
    }

    /// The identity of the graph's owner.
    pub(crate) fn owner(&self) -> Uuid {
        self.context.owner.uuid()
    }

    /// A claim on `children` volumes for the graph's owner.
    pub(crate) fn new_claim(&self, children: usize) -> Result<SetClaim> {
        self.context.new_claim(children)
    }

    /// A claim that fences other owners off: former ones of the mirror of which this is a copy.
    pub(crate) fn fencing_claim(&self, children: usize) -> Result<SetClaim> {
        self.context.claim_against(Others::Fence, children)
    }

    /// The former owners of the mirror of which this is a copy, if that has an owner already.
    pub(crate) fn former_owners(&self) -> Option<FormerOwners> {
        self.context.former_owners.clone()
    }

    /// Has `part` closed when the graph is closed, even if nothing else uses it by then.
    pub(crate) fn keep_until_closed(&mut self, part: &Arc<Part>) {
        let kept = (self.path.clone(), part.clone());
        self.context.until_closed.push(kept);
    }

    /// A leaf of this shape with an instance on each lane.
    pub(crate) fn leaf_on_every_lane(
        self,
        shape: Shape,
        make: impl Fn() -> SharedVolume + Send + Sync + 'static,
    ) -> Arc<Part> {
        Part::leaf_on_every_lane(shape, make)
    }

    /// A volume with an instance on each lane, over the children's volumes on that lane.
    pub(crate) async fn on_every_lane(
        &mut self,
        make: impl Fn(Vec<SharedVolume>) -> Result<SharedVolume> + Send + Sync + 'static,
    ) -> Result<Arc<Part>> {
        Part::layer_on_every_lane(self.children.clone(), make).await
    }

    /// As [`Opening::on_every_lane`], over the only child.
    pub(crate) async fn layer_on_every_lane(
        &mut self,
        make: impl Fn(SharedVolume) -> SharedVolume + Send + Sync + 'static,
    ) -> Result<Arc<Part>> {
        self.on_every_lane(move |inner| Ok(make(only(inner)?)))
            .await
    }

    /// A volume with a single instance, on its home lane, where `make` runs.
    pub(crate) async fn at_home(
        &mut self,
        make: impl FnOnce(Vec<SharedVolume>) -> LaneFuture<'static, Result<SharedVolume>>
        + Send
        + 'static,
    ) -> Result<Arc<Part>> {
        Part::at_home(&self.lanes[0], self.children.clone(), make).await
    }

    /// As [`Opening::at_home`], over the only child.
    pub(crate) async fn layer_at_home(
        &mut self,
        make: impl FnOnce(SharedVolume) -> Result<SharedVolume> + Send + 'static,
    ) -> Result<Arc<Part>> {
        self.at_home(move |inner| LaneFuture::new(async move { make(only(inner)?) }))
            .await
    }
}

impl Context {
    /// The context for volumes whose paths are relative to `base`, with a temporary owner.
    pub(crate) fn new(base: &Path) -> Context {
        Context {
            base: base.to_owned(),
            lanes: Vec::new(),
            state_directory: None,
            claims: None,
            owner: Owner::passing("a program that will not come back"),
            others: Others::Refuse,
            may_make: true,
            is_watched: false,
            may_wait: true,
            may_come_later: false,
            is_in_copy: false,
            former_owners: None,
            look: None,
            handles: Handles::default(),
            kept: ByType::default(),
            until_closed: Vec::new(),
        }
    }

    /// The lanes starting with `home`; only `home` if it is not among them.
    pub(crate) fn lanes_from(&self, home: &LaneHandle) -> Vec<LaneHandle> {
        match self.lanes.iter().position(|lane| lane == home) {
            Some(at) => rotated(&self.lanes, at),
            None => vec![home.clone()],
        }
    }

    /// Whether the children of a set may be of different age: the user insists, or a mirror sees it, and fills that copy.
    pub(crate) fn accepts_older(&self) -> bool {
        self.others == Others::Overrule || self.is_in_copy
    }

    /// A claim on `children` volumes for the owner.
    pub(crate) fn new_claim(&self, children: usize) -> Result<SetClaim> {
        self.claim_against(self.others, children)
    }

    /// The same, which does this about other owners.
    fn claim_against(&self, others: Others, children: usize) -> Result<SetClaim> {
        let since_unix_s = time::since_unix_epoch().as_secs();
        let claim = SetClaim::new(&self.owner, children, others, since_unix_s)?;
        let claim = match self.is_in_copy {
            true => claim.of_any_age(),
            false => claim,
        };
        match &self.claims {
            Some(directory) => claim.shown_in(directory),
            None => Ok(claim),
        }
    }
}

/// The lanes rotated so that the one with index `first` comes first.
pub(crate) fn rotated(lanes: &[LaneHandle], first: usize) -> Vec<LaneHandle> {
    let mut rotated = lanes.to_vec();
    rotated.rotate_left(first % lanes.len());
    rotated
}

fn only(mut volumes: Vec<SharedVolume>) -> Result<SharedVolume> {
    match (volumes.pop(), volumes.is_empty()) {
        (Some(volume), true) => Ok(volume),
        _ => Err(Error::new(
            ErrorKind::Configuration,
            "this kind of volume is made of exactly one other",
        )),
    }
}
