//! The target of a case.

use std::{collections::BTreeMap, rc::Rc, sync::Arc};

use engine::{LaneFuture, sim::Host};
use front_iscsi::{Allow, IscsiServer, Limits, LunSpec, PortalGroup, ServerConfig, TargetSpec};
use unit::{DiskSpec, Units, UnitsConfig};
use volume::SharedVolume;

use super::{history::Shared, leaf::Medium, script::CASE_TIME, script::Script};
use crate::target_machine::PORT;

/// Its name.
pub(super) const IQN: &str = "iqn.2026-11.io.sanstone:sam";

/// Serves the disks of `script` on `host` for as long as it runs.
pub(super) fn serve(host: &Host, script: &Script, history: Shared) {
    let setup = script.setup.clone();
    let medium = Medium::new(script, history);
    let machine = host.clone();
    host.spawn(async move {
        let name = |number: u32| format!("disk{number}");
        let disk = |number: u32| {
            let medium = medium.clone();
            DiskSpec {
                name: name(number),
                uuid: [number as u8 + 1; 16],
                open: Arc::new(move || {
                    let disk = medium.disk(number);
                    LaneFuture::new(async move { Ok(Rc::new(disk) as SharedVolume) })
                }),
                // D_SENSE, SWP, QERR, TAS, as if they had been saved before.
                kept: Some(
                    format!("control 0 0 {} {}\n", setup.qerr, u8::from(setup.tas))
                        .parse()
                        .expect("as saved"),
                ),
                told: Vec::new(),
            }
        };
        let lun = |number: u32| {
            let spec = LunSpec {
                volume: name(number),
                removable: false,
                read_only: false,
            };
            (number, spec)
        };
        let target = TargetSpec {
            name: IQN.to_owned(),
            portal_groups: vec![PortalGroup::only(vec![machine.addr(PORT)])],
            luns: BTreeMap::from_iter((0..setup.luns).map(lun)),
            allow: Allow::Everyone,
            allow_from: Vec::new(),
            chap: None,
            redirect: None,
        };
        let config = ServerConfig {
            targets: vec![target],
            discovery: None,
            digests: false,
            limits: Limits {
                command_window: setup.window,
                data_segment_max_bytes: setup.segment_max,
                // Pings are off: they would make the target re-examine its queues.
                ping_interval: 2 * CASE_TIME,
                ..Limits::default()
            },
        };
        let lanes: Vec<_> = (0..setup.lanes).map(|n| machine.lane(n)).collect();
        let units = UnitsConfig {
            disks: (0..setup.luns).map(disk).collect(),
            keep: None,
            note: None,
            limits: unit::MemoryLimits {
                memory_bytes: 8 << 20,
                ..unit::MemoryLimits::default()
            },
        };
        let units = Units::open(units, &lanes).await;
        let units = units.unwrap_or_else(|error| panic!("{error}"));
        let server = IscsiServer::start(config, &units).await;
        let _server = server.unwrap_or_else(|error| panic!("{error}"));
        std::future::pending::<()>().await;
    });
}
