//! What the connections of one lane have in common: the targets, their limits, and what all lanes
//! share of sessions.

use std::{cell::Cell, rc::Rc, sync::Arc};

use engine::cross::Sender;
use iscsi::Chap;
use unit::LaneUnits;

use crate::{
    config::{Limits, ServerConfig},
    request::Request,
    sessions::Sessions,
    target::Target,
};

/// What the connections of one lane have in common.
pub(crate) struct Service {
    pub(crate) targets: Vec<Rc<Target>>,
    pub(crate) limits: Limits,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) units: Rc<LaneUnits>,
    /// This lane's own address, and those of all.
    pub(crate) own: Sender<Request>,
    pub(crate) lanes: Vec<Sender<Request>>,
    /// What a discovery session has to prove.
    pub(crate) discovery: Option<Arc<Chap>>,
    pub(crate) digests: bool,
    pub(crate) stopping: Cell<bool>,
}

impl Service {
    /// Shows the targets on a lane; `own` is its place among the `lanes`.
    ///
    /// # Errors
    /// Why a unit cannot be shown.
    pub(crate) fn open(
        config: &ServerConfig,
        units: Rc<LaneUnits>,
        sessions: Arc<Sessions>,
        own: usize,
        lanes: Vec<Sender<Request>>,
    ) -> Result<Service, String> {
        let mut targets = Vec::new();
        for (index, spec) in config.targets.iter().enumerate() {
            for group in &spec.portal_groups {
                let target = Target::open(index, spec, group, &units)?;
                targets.push(Rc::new(target));
            }
        }
        Ok(Service {
            targets,
            limits: config.limits.clone(),
            sessions,
            units,
            own: lanes[own].clone(),
            lanes,
            discovery: config.discovery.clone(),
            digests: config.digests,
            stopping: Cell::new(false),
        })
    }
}
