//! A target as one lane sees it through one of its portal groups: a SCSI target port, with its units.

use std::{net::IpAddr, rc::Rc, sync::Arc};

use iscsi::Chap;
use scsi::{Identity, TargetPort};
use unit::{LaneUnits, Luns};

use crate::{
    config::{Allow, PortalGroup, Redirect, TargetSpec},
    prefix::Prefix,
};

/// A target through one of its portal groups.
pub(crate) struct Target {
    /// The same for all groups of a target.
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) portals: PortalGroup,
    pub(crate) redirect: Option<Redirect>,
    pub(crate) allow: Allow,
    pub(crate) allow_from: Vec<Prefix>,
    pub(crate) chap: Option<Arc<Chap>>,
    pub(crate) luns: Rc<Luns>,
    /// Names this target in answers for LUNs that do not exist.
    pub(crate) bare: Identity,
}

impl Target {
    /// Shows the units of a target through a group of its portals.
    ///
    /// # Errors
    /// Why a unit cannot be shown.
    pub(crate) fn open(
        index: usize,
        spec: &TargetSpec,
        portals: &PortalGroup,
        units: &LaneUnits,
    ) -> Result<Target, String> {
        let port = TargetPort {
            target_name: spec.name.clone(),
            portal_group_tag: portals.tag,
            relative_port: portals.relative_port,
            port_group: 1,
        };
        let mut luns = Luns::new();
        for (&number, lun) in &spec.luns {
            let unit = units.unit(&lun.volume, port.clone(), lun.read_only, lun.removable)?;
            luns.insert(number, unit);
        }
        Ok(Target {
            index,
            name: spec.name.clone(),
            portals: portals.clone(),
            redirect: spec.redirect,
            allow: spec.allow.clone(),
            allow_from: spec.allow_from.clone(),
            chap: spec.chap.clone(),
            luns: Rc::new(luns),
            bare: unit::identity([0; 16], port),
        })
    }

    /// Whether this initiator may log in from there.
    pub(crate) fn admits(&self, initiator_name: &str, peer: IpAddr) -> bool {
        self.refusal_of(initiator_name, peer).is_none()
    }

    /// Why this initiator may not log in from there: what its name or its address is not in.
    pub(crate) fn refusal_of(&self, initiator_name: &str, peer: IpAddr) -> Option<&'static str> {
        let from = &self.allow_from;
        let may_come = from.is_empty() || from.iter().any(|prefix| prefix.contains(peer));
        match (self.allow.allows(initiator_name), may_come) {
            (true, true) => None,
            (false, true) => Some("its name is not in `allow`"),
            (true, false) => Some("its address is not in `allow_from`"),
            (false, false) => Some("its name is not in `allow`, nor its address in `allow_from`"),
        }
    }
}
