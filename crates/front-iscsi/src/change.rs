//! Changing the configuration of a running server in two phases: every lane prepares it, and the lanes switch to it
//! only once all of them have succeeded. Sessions whose target port is unchanged are not disturbed. A session with a LUN
//! that becomes another disk ends, and never reaches that disk: an initiator that does not look would write to it.

use std::{collections::BTreeSet, rc::Rc};

use engine::{Duration, spawn, task::JoinHandle};
use iscsi::LoginStatus;
use unit::Unit;

use crate::{
    config::ServerConfig,
    connection::Connection,
    login::initiator_port,
    service::{Ready, Service, open_targets},
    target::Target,
    watchdog,
};

/// How long a session whose target is gone may take to send the data of its last commands.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prepares `config` on this lane, replacing any configuration prepared earlier.
///
/// # Errors
/// Why a unit cannot be opened.
pub(crate) fn prepare(service: &Service, config: &ServerConfig) -> Result<(), String> {
    let ready = Ready {
        targets: open_targets(config, &service.units, &service.targets.borrow())?,
        discovery: config.discovery.clone(),
        limits: config.limits.clone(),
        digests: config.digests,
    };
    service.ready.replace(Some(ready));
    Ok(())
}

/// Discards the prepared configuration, if any.
pub(crate) fn forget(service: &Service) {
    if let Some(ready) = service.ready.take() {
        forget_ports(&ready.targets, &service.targets.borrow());
    }
}

/// Switches to the prepared configuration, for existing `connections` as well. The returned future completes once
/// everything no longer served has ended.
pub(crate) fn commit(
    service: &Service,
    connections: &[Rc<Connection>],
) -> impl Future<Output = ()> + use<> {
    if let Some(ready) = service.ready.take() {
        let before = service.targets.replace(ready.targets);
        service.discovery.replace(ready.discovery);
        service.limits.replace(Rc::new(ready.limits));
        service.digests.set(ready.digests);
        forget_ports(&before, &service.targets.borrow());
    }
    let connections = connections.iter();
    let changes: Vec<_> = connections
        .filter_map(|connection| Some((connection.clone(), connection.target()?)))
        .filter_map(|(connection, target)| change(service, &connection, &target))
        .collect();
    async move {
        for change in changes {
            change.await;
        }
    }
}

/// Tells the disks which target ports of `before` are gone in `now`.
fn forget_ports(before: &[Rc<Target>], now: &[Rc<Target>]) {
    let way = |unit: &Unit| {
        let port = unit.logical.borrow().identity().port.relative_port;
        (unit.disk().name().to_owned(), port)
    };
    let units = |targets: &[Rc<Target>]| -> Vec<Rc<Unit>> {
        let luns = targets.iter().flat_map(|target| target.luns.values());
        luns.cloned().collect()
    };
    let stays: BTreeSet<_> = units(now).iter().map(|unit| way(unit)).collect();
    for unit in units(before) {
        if !stays.contains(&way(&unit)) {
            unit.logical.borrow().leave_port();
        }
    }
}

/// What happens to a connection of the target `before`; `None` if it is unaffected.
fn change(
    service: &Service,
    connection: &Rc<Connection>,
    before: &Rc<Target>,
) -> Option<JoinHandle<()>> {
    let targets = service.targets.borrow();
    let now = targets.iter().find(|target| target.is_same_port(before));
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
    let Some(now) = now else {
        return Some(end("its target is no longer served"));
    };
    if now.spec.redirect.is_some() {
        return Some(end("its target is now served elsewhere"));
    }
    if !now.admits(&key.initiator_name, connection.peer.ip()) {
        let why = "it is no longer allowed to use its target";
        watchdog::revoke(connection.clone(), why);
        return Some(gone(connection));
    }
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
    let gone = end("one of its LUNs is another disk now");
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
