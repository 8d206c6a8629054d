//! An open node of the graph, shared by the whole process; gives each lane its volume.
//!
//! A kind is handed an [`Opening`] and returns an open [`Part`].

mod by_type;
mod handles;
mod home;
mod missing;
mod opening;
mod resident;

use std::{
    fmt,
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use engine::{LaneFuture, LaneHandle};
use uuid::Uuid;

use self::missing::{Missing, Vacancy};
use crate::{
    Result, SetClaim, Shape, SharedVolume,
    stats::{Sight, Stats, StatsHandle},
    values::ConfigError,
};

pub use self::handles::{Facts, Handles};
pub(crate) use self::{
    by_type::ByType,
    handles::is_within,
    home::HomeVolume,
    opening::{Context, Looked, Opening, rotated},
    resident::Resident,
};

/// A persistent name that a volume carries itself, whatever the configuration calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// The identity that a stripe or concat got when it was created.
    Stripe(Uuid),
    /// The worldwide unique name of a remote disk.
    Remote(String),
}

/// Creates a lane's volume.
type Instance = dyn Fn() -> LaneFuture<'static, Result<SharedVolume>> + Send + Sync;

/// An open node, shared by all lanes.
pub(crate) struct Part {
    shape: Shape,
    place: Place,
    /// For a volume with a home: direct access from other lanes.
    branches: OnceLock<Vec<Arc<HomeVolume>>>,
    /// Requests for a volume from lanes without direct access, to rotate among the branches.
    dealt: AtomicUsize,
    /// The name that it carries itself.
    carried: OnceLock<Carried>,
    /// The claim on its children, if it is a set that claims them.
    claim: OnceLock<SetClaim>,
    /// Set if others may write to its own blocks at any time.
    shared: OnceLock<()>,
    /// Set if it reports itself where the time of its requests goes.
    tells_layers: OnceLock<()>,
    /// What its only child was when it was opened, if it has one: the name that it carries, and the lane that it lives on.
    inherited: Inherited,
    /// Held so that a volume named twice is opened only once, for as long as anyone uses it.
    children: Mutex<Vec<Arc<Part>>>,
    /// Set if it stands in for one that did not open.
    vacancy: OnceLock<Arc<Vacancy>>,
    /// Its request counters, over all lanes.
    counters: StatsHandle,
    /// Its path in the graph, once it is open.
    path: OnceLock<Arc<str>>,
}

/// What a layer has from its only child.
#[derive(Default)]
struct Inherited {
    carried: Option<Carried>,
    only_lane: Option<LaneHandle>,
}

impl Inherited {
    fn from(children: &[Arc<Part>]) -> Inherited {
        let [child] = children else {
            return Inherited::default();
        };
        Inherited {
            carried: child.carried().cloned(),
            only_lane: child.only_lane().cloned(),
        }
    }
}

enum Place {
    /// Each lane has its own instance.
    EveryLane(Box<Instance>),
    /// One lane has it.
    Home(Arc<HomeVolume>),
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part")
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl Part {
    fn new(shape: Shape, place: Place, children: Vec<Arc<Part>>) -> Arc<Self> {
        Arc::new(Part {
            shape,
            place,
            branches: OnceLock::new(),
            dealt: AtomicUsize::new(0),
            carried: OnceLock::new(),
            claim: OnceLock::new(),
            shared: OnceLock::new(),
            tells_layers: OnceLock::new(),
            inherited: Inherited::from(&children),
            children: Mutex::new(children),
            vacancy: OnceLock::new(),
            counters: StatsHandle::new(),
            path: OnceLock::new(),
        })
    }

    /// A node without lane-bound state: `make` creates each lane's volume.
    fn leaf_on_every_lane(
        shape: Shape,
        make: impl Fn() -> SharedVolume + Send + Sync + 'static,
    ) -> Arc<Self> {
        let instance = move || -> LaneFuture<'static, Result<SharedVolume>> {
            let volume = make();
            LaneFuture::new(async { Ok(volume) })
        };
        Part::new(shape, Place::EveryLane(Box::new(instance)), Vec::new())
    }

    /// In place of one that did not open: it fails with this error until its [vacancy](Part::vacancy) is filled.
    pub(crate) fn missing(error: &ConfigError) -> Arc<Self> {
        let vacancy = Arc::new(Vacancy::new(error));
        let shown = vacancy.clone();
        let make = move || -> SharedVolume { Rc::new(Missing::new(shown.clone())) };
        let part = Part::leaf_on_every_lane(missing::shape(), make);
        let _ = part.vacancy.set(vacancy);
        part
    }

    /// What it stands in for has not opened yet, or had not at first.
    pub(crate) fn vacancy(&self) -> Option<&Vacancy> {
        self.vacancy.get().map(|vacancy| &**vacancy)
    }

    /// What it is made of.
    pub(crate) fn below(&self) -> Vec<Arc<Part>> {
        let come = self.vacancy().and_then(Vacancy::part);
        self.children().iter().chain(come).cloned().collect()
    }

    /// How many parts lie above each other in it, at most: more than in any that it is made of.
    pub(crate) fn depth(&self) -> usize {
        let below = self.below();
        1 + below.iter().map(|part| part.depth()).max().unwrap_or(0)
    }

    fn children(&self) -> MutexGuard<'_, Vec<Arc<Part>>> {
        let children = self.children.lock();
        children.unwrap_or_else(PoisonError::into_inner)
    }

    /// Another child is in the place of the one at `index`, which is returned.
    pub(crate) fn exchange(&self, index: usize, child: Arc<Part>) -> Arc<Part> {
        std::mem::replace(&mut self.children()[index], child)
    }

    /// The part at `path`, if that is this one or below it.
    pub(crate) fn find(self: &Arc<Part>, path: &str) -> Option<Arc<Part>> {
        if self.path.get().is_some_and(|own| **own == *path) {
            return Some(self.clone());
        }
        self.below().iter().find_map(|part| part.find(path))
    }

    /// As [`Part::leaf_on_every_lane`] for a layer, over its children's volumes on the same lane.
    async fn layer_on_every_lane(
        children: Vec<Arc<Part>>,
        make: impl Fn(Vec<SharedVolume>) -> Result<SharedVolume> + Send + Sync + 'static,
    ) -> Result<Arc<Self>> {
        let make = Arc::new(make);
        let below = children.clone();
        let instance = move || {
            let (below, make) = (below.clone(), make.clone());
            LaneFuture::new(async move { make(on_lane_all(&below).await?) })
        };
        let first: SharedVolume = instance().await?;
        let shape = first.shape().clone();
        Ok(Part::new(
            shape,
            Place::EveryLane(Box::new(instance)),
            children,
        ))
    }

    /// A node whose state lives on `home`: `make` runs there once, over its children's volumes on that lane; other
    /// lanes reach it by messages.
    async fn at_home(
        home: &LaneHandle,
        children: Vec<Arc<Part>>,
        make: impl FnOnce(Vec<SharedVolume>) -> LaneFuture<'static, Result<SharedVolume>>
        + Send
        + 'static,
    ) -> Result<Arc<Self>> {
        let below = children.clone();
        let home = HomeVolume::settle(home, move || {
            LaneFuture::new(async move { make(on_lane_all(&below).await?).await })
        })
        .await?;
        let shape = home.shape().clone();
        Ok(Part::new(shape, Place::Home(home), children))
    }

    /// Gives other lanes direct access to the volume.
    pub(crate) fn branch(&self, branches: Vec<Arc<HomeVolume>>) {
        let _ = self.branches.set(branches);
    }

    /// The current lane's access to the volume at `home`; lanes without direct access are spread over all there are.
    fn way<'a>(&'a self, home: &'a Arc<HomeVolume>) -> &'a Arc<HomeVolume> {
        let branches = self.branches.get().map_or(&[][..], Vec::as_slice);
        let ways = || std::iter::once(home).chain(branches);
        ways().find(|way| way.is_here()).unwrap_or_else(|| {
            let turn = self.dealt.fetch_add(1, Relaxed) % ways().count();
            ways().nth(turn).unwrap_or(home)
        })
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Sets its path in the graph.
    pub(crate) fn settle_at(&self, path: &str) {
        let _ = self.path.set(path.into());
    }

    /// Sets the name that it carries itself.
    pub(crate) fn carry(&self, name: Carried) {
        let _ = self.carried.set(name);
    }

    /// The name that it carries: its own, or that of its only child.
    pub(crate) fn carried(&self) -> Option<&Carried> {
        self.carried.get().or(self.inherited.carried.as_ref())
    }

    /// Declares that its children are claimed.
    pub(crate) fn claim(&self, claim: SetClaim) {
        let _ = self.claim.set(claim);
    }

    /// The claims on which its content depends: its own, and those below it.
    pub(crate) fn claims(&self) -> Vec<SetClaim> {
        let own = self.claim.get().cloned().into_iter();
        own.chain(self.below().iter().flat_map(|part| part.claims()))
            .collect()
    }

    /// Declares that others may write to its blocks at any time.
    pub(crate) fn share(&self) {
        let _ = self.shared.set(());
    }

    /// Whether others may write to it, or to its children, without a claim that would tell.
    pub(crate) fn is_shared(&self) -> bool {
        let is_own = self.claim.get().is_some();
        !is_own && (self.shared.get().is_some() || self.below().iter().any(|part| part.is_shared()))
    }

    /// The one lane that needs no messages to use it, if there is just one.
    pub(crate) fn only_lane(&self) -> Option<&LaneHandle> {
        let has_branches = || self.branches.get().is_some_and(|ways| !ways.is_empty());
        match &self.place {
            Place::Home(home) => (!has_branches()).then(|| home.lane()),
            Place::EveryLane(_) => self.inherited.only_lane.as_ref(),
        }
    }

    pub(crate) fn counters(&self) -> &StatsHandle {
        &self.counters
    }

    /// Declares that it is an initiator, which reports to a [watch](crate::layers) itself where the time of its commands
    /// goes.
    pub(crate) fn tell_layers(&self) {
        let _ = self.tells_layers.set(());
    }

    fn sight(&self) -> Sight {
        let is_leaf = || self.children().is_empty() && self.vacancy.get().is_none();
        match self.tells_layers.get() {
            Some(()) => Sight::Initiator,
            None if is_leaf() => Sight::Medium,
            None => Sight::Through,
        }
    }

    /// The volume for the current lane, with request counters on top, so that they include the way to its home.
    pub(crate) async fn on_lane(&self) -> Result<SharedVolume> {
        let volume = match &self.place {
            Place::EveryLane(instance) => instance().await?,
            Place::Home(home) => self.way(home).on_lane()?,
        };
        let counted = Stats::new(volume, &self.counters);
        let counted = counted.found_at(self.path.get().cloned());
        Ok(Rc::new(counted.seen_as(self.sight())))
    }
}

async fn on_lane_all(parts: &[Arc<Part>]) -> Result<Vec<SharedVolume>> {
    let mut volumes = Vec::with_capacity(parts.len());
    for part in parts {
        volumes.push(part.on_lane().await?);
    }
    Ok(volumes)
}
