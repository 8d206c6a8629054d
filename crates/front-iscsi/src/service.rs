//! State shared by the connections of one lane: its targets and limits, and the server-wide session registry.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use engine::{cross::Sender, spend, sync::Budget};
use front::{FrontLanes, OwnLane};
use iscsi::Chap;
use unit::LaneUnits;

use crate::{
    config::{Limits, ServerConfig},
    request::LaneRequest,
    sessions::Sessions,
    target::Target,
    targets::Targets,
};

/// Anybody may ask for a list of targets, which is as long as there are targets. While so many of them have not been taken
/// by those who asked, others wait.
const LISTS_MAX: usize = 16;

/// A configuration that a lane has prepared but does not serve yet.
pub(crate) struct Ready {
    pub(crate) targets: Rc<Targets>,
    pub(crate) discovery: Option<Arc<Chap>>,
    pub(crate) limits: Limits,
    pub(crate) digests: bool,
}

/// State shared by the connections of one lane.
pub(crate) struct IscsiService {
    pub(crate) targets: RefCell<Rc<Targets>>,
    /// The prepared configuration, until it is committed or discarded.
    pub(crate) ready: RefCell<Option<Ready>>,
    /// For new connections.
    pub(crate) limits: RefCell<Rc<Limits>>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) units: Rc<LaneUnits>,
    /// This lane's index, its request sender, and those of all lanes.
    pub(crate) lane: usize,
    pub(crate) own: Sender<LaneRequest>,
    pub(crate) lanes: FrontLanes<LaneRequest>,
    /// What the initiator of a discovery session must prove.
    pub(crate) discovery: RefCell<Option<Arc<Chap>>>,
    pub(crate) digests: Cell<bool>,
    /// Lists of targets that discovery sessions may have at a time.
    pub(crate) lists: Rc<Budget>,
    pub(crate) stopping: Cell<bool>,
}

impl IscsiService {
    /// Opens the targets on a lane.
    ///
    /// # Errors
    /// Why a unit cannot be opened.
    pub(crate) async fn open(
        config: &ServerConfig,
        units: Rc<LaneUnits>,
        sessions: Arc<Sessions>,
        lane: OwnLane<LaneRequest>,
    ) -> Result<IscsiService, String> {
        let targets = open_targets(config, &units, &Targets::default()).await?;
        Ok(IscsiService {
            targets: RefCell::new(Rc::new(targets)),
            ready: RefCell::default(),
            limits: RefCell::new(Rc::new(config.limits.clone())),
            sessions,
            units,
            lane: lane.index,
            own: lane.lanes.lane(lane.index).clone(),
            lanes: lane.lanes,
            discovery: RefCell::new(config.discovery.clone()),
            digests: Cell::new(config.digests),
            lists: Budget::new(LISTS_MAX),
            stopping: Cell::new(false),
        })
    }
}

/// The cost of opening one target or one of its units, in bytes of memory that are moved in that time.
const OPEN_BYTES: usize = 16 << 10;

/// Opens the targets of `config`, reusing whatever has not changed from `before`.
///
/// # Errors
/// Why a unit cannot be opened.
pub(crate) async fn open_targets(
    config: &ServerConfig,
    units: &LaneUnits,
    before: &Targets,
) -> Result<Targets, String> {
    let mut targets = Targets::default();
    for spec in &config.targets {
        for group in &spec.portal_groups {
            let known = before.at_group(&spec.name, group.tag);
            let target = Target::open(spec, group, units, known)?;
            let opened = if known.is_some() {
                1
            } else {
                1 + target.luns.len()
            };
            targets.add(target);
            spend(OPEN_BYTES * opened).await;
        }
    }
    Ok(targets)
}
