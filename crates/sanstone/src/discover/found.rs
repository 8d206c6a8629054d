//! The results of a discovery, for people and as JSON.

use std::fmt::{self, Display};

use serde::Serialize;
use volume::{
    Result,
    discovery::{FoundTarget, Portal},
    luns::{DeviceType, FoundUnit},
};

use super::configuration::Volumes;
use crate::quantity::bytes;

/// The answers of one discovery.
#[derive(Serialize)]
pub(super) struct DiscoveryAnswers {
    portal: String,
    initiator: String,
    targets: Vec<DiscoveredTarget>,
    /// We have CHAP credentials, and this portal takes none for discoveries.
    #[serde(skip)]
    is_listed_without_chap: bool,
    #[serde(skip)]
    volumes: Volumes,
}

#[derive(Serialize)]
struct DiscoveredTarget {
    name: String,
    portals: Vec<TargetPortal>,
    /// `None` if the LUNs were not requested.
    luns: Option<Vec<DiscoveredLun>>,
    /// Why the target did not report its LUNs.
    error: Option<String>,
    /// The corresponding volumes of a configuration.
    configuration: String,
}

#[derive(Serialize)]
struct TargetPortal {
    portal: String,
    group: Option<u16>,
}

#[derive(Default, Serialize)]
struct DiscoveredLun {
    lun: u16,
    device_type: Option<u8>,
    product: Option<String>,
    size_bytes: Option<u64>,
    block_size_bytes: Option<u32>,
    name: Option<String>,
    error: Option<String>,
}

impl DiscoveryAnswers {
    pub(super) fn new(portal: &Portal, initiator: &str) -> DiscoveryAnswers {
        DiscoveryAnswers {
            portal: portal.to_string(),
            initiator: initiator.to_owned(),
            targets: Vec::new(),
            is_listed_without_chap: false,
            volumes: Volumes::default(),
        }
    }

    /// We have CHAP credentials, and this portal takes none for discoveries.
    pub(super) fn was_listed_without_chap(&mut self) {
        self.is_listed_without_chap = true;
    }

    /// Adds a target, with its LUNs if they were requested. `login` has the login settings for its volumes.
    pub(super) fn add(
        &mut self,
        target: &FoundTarget,
        luns: Option<Result<Vec<FoundUnit>>>,
        login: &str,
    ) {
        let (luns, error) = match luns {
            None => (None, None),
            Some(Ok(units)) => (
                Some(units.into_iter().map(DiscoveredLun::of).collect::<Vec<_>>()),
                None,
            ),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        let disks = match &luns {
            // LUN 0 is the most likely one to hold a disk.
            None => vec![0],
            Some(luns) => {
                let disks = luns.iter().filter(|lun| lun.size_bytes.is_some());
                disks.map(|lun| lun.lun).collect()
            }
        };
        let volumes = disks
            .iter()
            .map(|lun| self.volumes.volume(target, *lun, login));
        let configuration = volumes.collect();
        let portals = target.portals.iter().map(|found| TargetPortal {
            portal: found.portal.to_string(),
            group: found.group,
        });
        self.targets.push(DiscoveredTarget {
            name: target.name.clone(),
            portals: portals.collect(),
            luns,
            error,
            configuration,
        });
    }
}

impl DiscoveredLun {
    fn of(unit: FoundUnit) -> DiscoveredLun {
        let lun = unit.lun;
        let facts = match unit.facts {
            Ok(facts) => facts,
            Err(error) => {
                return DiscoveredLun {
                    lun,
                    error: Some(error.to_string()),
                    ..DiscoveredLun::default()
                };
            }
        };
        let product = Some(facts.product);
        match facts.kind {
            DeviceType::Other(device_type) => DiscoveredLun {
                lun,
                device_type: Some(device_type),
                product,
                ..DiscoveredLun::default()
            },
            DeviceType::Disk {
                len_bytes,
                block_size_bytes,
                name,
            } => DiscoveredLun {
                lun,
                device_type: Some(0),
                product,
                size_bytes: Some(len_bytes),
                block_size_bytes: Some(block_size_bytes),
                name,
                error: None,
            },
        }
    }
}

impl Display for DiscoveryAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DiscoveryAnswers {
            portal,
            initiator,
            targets,
            is_listed_without_chap,
            ..
        } = self;
        let (count, s) = (targets.len(), if targets.len() == 1 { "" } else { "s" });
        writeln!(f, "# {portal} shows {count} target{s} to {initiator}")?;
        if *is_listed_without_chap {
            let why = "CHAP is for the targets alone: this portal has none for discoveries";
            writeln!(f, "# (listed without CHAP; {why})")?;
        }
        targets
            .iter()
            .try_for_each(|target| write!(f, "\n{target}"))
    }
}

impl Display for DiscoveredTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It all comes from the target: a line end in it must not end the comment.
        writeln!(f, "# target {}", self.name.escape_debug())?;
        for TargetPortal { portal, group } in &self.portals {
            write!(f, "#   portal {}", portal.escape_debug())?;
            match group {
                Some(group) => writeln!(f, ", portal group {group}")?,
                None => writeln!(f)?,
            }
        }
        match (&self.luns, &self.error) {
            (Some(luns), _) if luns.is_empty() => writeln!(f, "#   it has no LUN for us")?,
            (Some(luns), _) => luns.iter().try_for_each(|lun| write!(f, "#   {lun}"))?,
            (None, Some(error)) => writeln!(f, "#   its LUNs: {}", error.escape_debug())?,
            (None, None) => writeln!(f, "#   LUN 0 is a guess: --luns asks for the actual LUNs")?,
        }
        f.write_str(&self.configuration)
    }
}

impl Display for DiscoveredLun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LUN {}: ", self.lun)?;
        if let Some(error) = &self.error {
            return writeln!(f, "{}", error.escape_debug());
        }
        match (self.size_bytes, self.block_size_bytes, self.device_type) {
            (Some(size), Some(block), _) => {
                write!(f, "{} ({size} bytes), blocks of {block} bytes", bytes(size))?;
            }
            (_, _, kind) => write!(f, "not a disk (device type {:02x}h)", kind.unwrap_or(0x1f))?,
        }
        for more in [&self.name, &self.product].into_iter().flatten() {
            write!(f, ", {}", more.escape_debug())?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use volume::{Error, ErrorKind, luns::LunFacts};

    use super::*;

    #[test]
    fn a_line_end_in_a_name_does_not_end_the_comment() {
        let target = FoundTarget {
            name: "iqn.a\n[volume.evil]\u{1b}".to_owned(),
            portals: vec![volume::discovery::FoundPortal {
                portal: "10.0.1.2".parse().expect("a portal"),
                group: None,
            }],
        };
        let portal: Portal = "10.0.1.2".parse().expect("a portal");
        let mut found = DiscoveryAnswers::new(&portal, "iqn.2026-11.example:me");
        let unit = LunFacts {
            product: "A\n[volume.b]".to_owned(),
            kind: DeviceType::Other(5),
        };
        let units = vec![FoundUnit {
            lun: 0,
            facts: Ok(unit),
        }];
        found.add(&target, Some(Ok(units)), "");
        let text = found.to_string();
        let is_comment = |line: &str| line.is_empty() || line.starts_with('#');
        assert!(
            text.lines().all(is_comment) && !text.contains('\u{1b}'),
            "{text}"
        );
    }

    fn found(luns: Option<Result<Vec<FoundUnit>>>) -> DiscoveryAnswers {
        let portal: Portal = "10.0.1.2".parse().expect("a portal");
        let target = FoundTarget {
            name: "iqn.2026-11.example:a".to_owned(),
            portals: vec![volume::discovery::FoundPortal {
                portal: portal.clone(),
                group: Some(1),
            }],
        };
        let mut found = DiscoveryAnswers::new(&portal, "iqn.2026-11.example:me");
        found.add(&target, luns, "");
        found
    }

    #[test]
    fn all_but_the_volumes_is_a_comment() {
        let hostile = || Error::new(ErrorKind::Protocol, "it says\n[volume.evil]");
        let disk = LunFacts {
            product: "MAKER disk".to_owned(),
            kind: DeviceType::Disk {
                len_bytes: 16 << 20,
                block_size_bytes: 512,
                name: Some("naa.6001".to_owned()),
            },
        };
        let controller = LunFacts {
            product: "MAKER controller".to_owned(),
            kind: DeviceType::Other(0x0c),
        };
        let unit = |lun, facts| FoundUnit { lun, facts };
        let units = vec![
            unit(0, Ok(controller)),
            unit(1, Ok(disk)),
            unit(2, Err(hostile())),
        ];
        let heads = |found: DiscoveryAnswers| {
            let text = found.to_string();
            let lines = text
                .lines()
                .filter(|line| !line.starts_with('#') && !line.is_empty());
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let volume = |name: &str, lun| {
            [
                format!("[volume.{name}]"),
                format!(
                    "iscsi = {{ url = \"iscsi://10.0.1.2:3260/iqn.2026-11.example:a/{lun}\" }}"
                ),
            ]
        };
        let shown = found(Some(Ok(units.clone()))).to_string();
        for part in [
            "# 10.0.1.2:3260 shows 1 target to iqn.2026-11.example:me\n",
            "#   portal 10.0.1.2:3260, portal group 1\n",
            "#   LUN 0: not a disk (device type 0ch), MAKER controller\n",
            "#   LUN 1: 16 MiB (16777216 bytes), blocks of 512 bytes, naa.6001, MAKER disk\n",
            "#   LUN 2: it says\\n[volume.evil]\n",
        ] {
            assert!(shown.contains(part), "{part}{shown}");
        }
        assert_eq!(heads(found(Some(Ok(units)))), volume("a-lun1", 1));
        assert_eq!(heads(found(None)), volume("a", 0));
        assert_eq!(heads(found(Some(Err(hostile())))), volume("a", 0));
        assert_eq!(heads(found(Some(Ok(Vec::new())))), Vec::<String>::new());
    }
}
