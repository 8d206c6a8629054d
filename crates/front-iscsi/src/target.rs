//! A target as one lane serves it through one of its portal groups: a SCSI target port with its units. It is
//! immutable: when its configuration changes, a new one replaces it and takes over the unchanged units.

use std::rc::Rc;

use scsi::{Identity, TargetPort};
use unit::{LaneUnits, Luns};

use crate::config::{PortalGroup, TargetSpec};

/// A target, through one of its portal groups.
pub(crate) struct Target {
    pub(crate) spec: TargetSpec,
    pub(crate) portals: PortalGroup,
    pub(crate) luns: Rc<Luns>,
    /// Identifies this target in responses for LUNs that do not exist.
    pub(crate) bare: Identity,
}

impl Target {
    /// Opens a target's units for one of its portal groups. Reuses whatever is unchanged from `before`, an older
    /// version of the same target port: all of it, or single units.
    ///
    /// # Errors
    /// Why a unit cannot be opened.
    pub(crate) fn open(
        spec: &TargetSpec,
        portals: &PortalGroup,
        units: &LaneUnits,
        before: Option<&Rc<Target>>,
    ) -> Result<Rc<Target>, String> {
        let before = before.filter(|before| before.portals.relative_port == portals.relative_port);
        if let Some(before) = before {
            if before.spec == *spec && before.portals == *portals {
                return Ok(before.clone());
            }
        }
        let stays = before.filter(|before| before.spec.luns == spec.luns);
        let port = TargetPort {
            target_name: spec.name.clone(),
            portal_group_tag: portals.tag,
            relative_port: portals.relative_port,
            port_group: 1,
        };
        let mut luns = Luns::new();
        for (&number, lun) in spec.luns.iter().filter(|_| stays.is_none()) {
            let known = before.filter(|before| before.spec.luns.get(&number) == Some(lun));
            let known = known.and_then(|before| before.luns.get(&number).cloned());
            let unit = match known {
                Some(unit) => unit,
                None => units.unit(&lun.volume, port.clone(), lun.read_only, lun.removable)?,
            };
            luns.insert(number, unit);
        }
        Ok(Rc::new(Target {
            spec: spec.clone(),
            portals: portals.clone(),
            luns: stays.map_or_else(|| Rc::new(luns), |before| before.luns.clone()),
            bare: unit::identity([0; 16], port),
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }
}
