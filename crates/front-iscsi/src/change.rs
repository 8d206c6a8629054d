//! Another configuration while the server serves: every lane makes it ready, and only when all could does
//! each serve it. Sessions whose target port has not changed see nothing of it.

use std::{collections::BTreeSet, rc::Rc};

use engine::{spawn, task::JoinHandle};
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

/// Makes `config` ready on this lane, in place of what was made ready before.
///
/// # Errors
/// Why a unit cannot be shown.
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

/// Gives up what was made ready, if anything was.
pub(crate) fn forget(service: &Service) {
    if let Some(ready) = service.ready.take() {
        forget_ports(&ready.targets, &service.targets.borrow());
    }
}

/// Serves from now on what was made ready, to `connections` as well. It is over for what is served no more
/// when the future is.
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

/// Has disks know that they are reached no more through ports of `before` that are not in `now`.
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

/// What becomes of a connection to `before`; `None`: nothing.
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
        // What it has proved was for the target that it was.
        watchdog::dismiss(connection, LoginStatus::SERVICE_UNAVAILABLE);
        return Some(gone(connection));
    };
    let end = |why| {
        watchdog::finish(connection.clone(), why);
        Some(gone(connection))
    };
    let Some(now) = now else {
        return end("its target is served no more");
    };
    if now.spec.redirect.is_some() {
        return end("its target is served elsewhere");
    }
    if !now.admits(&key.initiator_name, connection.peer.ip()) {
        return end("it may not use its target any more");
    }
    connection.set_target(now.clone());
    if Rc::ptr_eq(&now.luns, &before.luns) {
        return None;
    }
    let port = initiator_port(&key.initiator_name, key.isid);
    let is_new = &mut |lun| connection.power_on.begin(lun);
    Some(spawn(service.units.show(nexus, &now.luns, &port, is_new)))
}

/// Is over when the connection and all its I/O are.
fn gone(connection: &Rc<Connection>) -> JoinHandle<()> {
    let connection = connection.clone();
    spawn(async move { connection.gone().await })
}
