//! Changing the configuration of a running server in two phases: every lane prepares it, and the lanes switch to it
//! only once all of them have succeeded. Sessions whose target port is unchanged are not disturbed. A session with a LUN
//! that becomes another disk ends, and never reaches that disk: an initiator that does not look would write to it.

use std::{collections::BTreeSet, rc::Rc};

use engine::{Duration, spawn, spend, task::JoinHandle};
use iscsi::LoginStatus;
use unit::Unit;

use crate::{
    config::ServerConfig,
    connection::Connection,
    fate::EndsFor,
    login::initiator_port,
    service::{IscsiService, Ready, open_targets},
    target::Target,
    targets::Targets,
    watchdog,
};

/// How long a session whose target is gone may take to send the data of its last commands.
const PATIENCE: Duration = Duration::from_secs(10);
/// The cost of looking at a session or a unit, in bytes of memory that are moved in that time.
const LOOK_BYTES: usize = 2 << 10;

/// Prepares `config` on this lane, replacing any configuration prepared earlier.
///
/// # Errors
/// Why a unit cannot be opened.
pub(crate) async fn prepare(service: &IscsiService, config: &ServerConfig) -> Result<(), String> {
    let before = service.targets.borrow().clone();
    let ready = Ready {
        targets: Rc::new(open_targets(config, &service.units, &before).await?),
        discovery: config.discovery.clone(),
        limits: config.limits.clone(),
        digests: config.digests,
    };
    service.ready.replace(Some(ready));
    Ok(())
}

/// Discards the prepared configuration, if any.
pub(crate) async fn forget(service: &IscsiService) {
    if let Some(ready) = service.ready.take() {
        let now = service.targets.borrow().clone();
        forget_ports(&ready.targets, &now).await;
    }
}

/// Switches to the prepared configuration, for existing `connections` as well. The returned future completes once
/// everything no longer served has ended.
pub(crate) async fn commit(
    service: &IscsiService,
    connections: &[Rc<Connection>],
) -> impl Future<Output = ()> + use<> {
    if let Some(ready) = service.ready.take() {
        let before = service.targets.replace(ready.targets);
        service.discovery.replace(ready.discovery);
        service.limits.replace(Rc::new(ready.limits));
        service.digests.set(ready.digests);
        let now = service.targets.borrow().clone();
        forget_ports(&before, &now).await;
    }
    let mut changes = Vec::new();
    for connection in connections {
        let Some(target) = connection.target() else {
            continue;
        };
        spend(LOOK_BYTES * (1 + target.luns.len())).await;
        changes.extend(change(service, connection, &target));
    }
    async move {
        for change in changes {
            change.await;
        }
    }
}

/// Tells the disks which target ports of `before` are gone in `now`.
async fn forget_ports(before: &Targets, now: &Targets) {
    let way = |unit: &Unit| {
        let port = unit.logical.borrow().identity().port.relative_port;
        (unit.disk().name().to_owned(), port)
    };
    let mut stays = BTreeSet::new();
    for unit in now.iter().flat_map(|target| target.luns.values()) {
        spend(LOOK_BYTES).await;
        stays.insert(way(unit));
    }
    for unit in before.iter().flat_map(|target| target.luns.values()) {
        spend(LOOK_BYTES).await;
        if !stays.contains(&way(unit)) {
            unit.logical.borrow().leave_port();
        }
    }
}

/// What happens to a connection of the target `before`; `None` if it is unaffected.
fn change(
    service: &IscsiService,
    connection: &Rc<Connection>,
    before: &Rc<Target>,
) -> Option<JoinHandle<()>> {
    let targets = service.targets.borrow().clone();
    let now = targets.at_group(before.name(), before.portals.tag);
    if now.is_some_and(|now| Rc::ptr_eq(now, before)) {
        return None;
    }
    let Some((nexus, key)) = connection.nexus().zip(connection.key()) else {
        // What it has proved so far was for the target's old configuration.
        watchdog::dismiss(connection, LoginStatus::SERVICE_UNAVAILABLE);
        return Some(gone(connection));
    };
    let end = |why| {
        let patience = connection.limits.peer_timeout.min(PATIENCE);
        watchdog::finish(connection.clone(), patience, why);
        gone(connection)
    };
    let peer = connection.peer.ip();
    match EndsFor::of(now.map(|now| &now.spec), &key.initiator_name, peer) {
        Some(why @ EndsFor::NotAllowed) => {
            watchdog::revoke(connection.clone(), why.text());
            return Some(gone(connection));
        }
        Some(why) => return Some(end(why.text())),
        None => {}
    }
    let now = now?;
    connection.set_target(now.clone());
    if Rc::ptr_eq(&now.luns, &before.luns) {
        return None;
    }
    let port = initiator_port(&key.initiator_name, key.isid);
    let unacknowledged = &mut |lun, attention| connection.unacknowledged.add(lun, attention);
    let reached = nexus.without_replaced(&now.luns);
    let over = spawn(service.units.show(nexus, &reached, &port, unacknowledged));
    if Rc::ptr_eq(&reached, &now.luns) {
        return Some(over);
    }
    // Before it ends: the initiator may log in again at once.
    let replaced = now
        .luns
        .iter()
        .filter(|(lun, _)| !reached.contains_key(lun));
    for (_, unit) in replaced {
        unit.logical.borrow().has_replaced(&port);
    }
    let gone = end(EndsFor::OtherDisk.text());
    Some(spawn(async move {
        over.await;
        gone.await;
    }))
}

/// Completes when the connection and all its I/O have ended.
fn gone(connection: &Rc<Connection>) -> JoinHandle<()> {
    let connection = connection.clone();
    spawn(async move { connection.gone().await })
}
