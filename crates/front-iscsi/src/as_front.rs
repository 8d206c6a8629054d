//! The server as a daemon has it, in its list of fronts.

use std::{any::Any, collections::BTreeMap, future::pending};

use engine::LaneFuture;
use front::{
    Ended, Front, FrontConfig, LocalFile, Reporter, StartError,
    report::{Consequence, FrontReport, PortalGroup, ReportedLun, ReportedSession, ReportedTarget},
};
use iscsi::Taken;
use unit::Units;

use crate::{
    config::{Allow, ServerConfig, TargetSpec},
    fate,
    report::SessionReport,
    server::{self, IscsiServer},
};

impl FrontConfig for ServerConfig {
    fn start<'a>(
        self: Box<Self>,
        units: &'a Units,
    ) -> LaneFuture<'a, Result<Box<dyn Front>, StartError>> {
        LaneFuture::new(async move {
            let server = IscsiServer::start(*self, units).await?;
            Ok(Box::new(server) as Box<dyn Front>)
        })
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn own(config: Box<dyn FrontConfig>) -> ServerConfig {
    let own = config.into_any().downcast();
    *own.expect("a front gets configurations of its own kind")
}

impl Front for IscsiServer {
    fn name(&self) -> &'static str {
        "iscsi"
    }

    fn places(&self) -> Vec<String> {
        self.portals().iter().map(ToString::to_string).collect()
    }

    fn check(&self, config: Box<dyn FrontConfig>) -> LaneFuture<'_, Result<(), StartError>> {
        let config = own(config);
        LaneFuture::new(async move { self.try_portals(&config).await })
    }

    fn consequences(&self, config: Box<dyn FrontConfig>) -> LaneFuture<'_, Vec<Consequence>> {
        let next = own(config);
        let sessions = IscsiServer::reporter(self);
        LaneFuture::new(async move { fate::all(&sessions.sessions().await, self.targets(), &next) })
    }

    fn prepare(&mut self, config: Box<dyn FrontConfig>) -> LaneFuture<'_, Result<(), StartError>> {
        LaneFuture::new(IscsiServer::prepare(self, own(config)))
    }

    fn discard(&mut self) -> LaneFuture<'_, ()> {
        LaneFuture::new(IscsiServer::discard(self))
    }

    fn commit(&mut self) -> LaneFuture<'static, ()> {
        IscsiServer::commit(self)
    }

    fn reporter(&self) -> Box<dyn Reporter> {
        let targets = self.targets().iter();
        Box::new(ServedTargets {
            targets: targets
                .map(|spec| (spec.name.clone(), target(spec)))
                .collect(),
            sessions: IscsiServer::reporter(self),
        })
    }

    fn clients(&self) -> Vec<String> {
        self.peers()
    }

    fn ended(&self) -> LaneFuture<'_, Ended> {
        LaneFuture::new(pending())
    }

    fn file(&self) -> Option<&dyn LocalFile> {
        None
    }

    fn stop(self: Box<Self>) -> LaneFuture<'static, ()> {
        LaneFuture::new(IscsiServer::stop(*self))
    }
}

/// The targets as they are served now, and who reports their sessions.
struct ServedTargets {
    targets: BTreeMap<String, ReportedTarget>,
    sessions: server::Reporter,
}

impl Reporter for ServedTargets {
    fn report(&self) -> LaneFuture<'_, FrontReport> {
        LaneFuture::new(async {
            FrontReport {
                targets: self.targets.clone(),
                sessions: self.sessions.sessions().await.iter().map(session).collect(),
            }
        })
    }
}

fn target(spec: &TargetSpec) -> ReportedTarget {
    let groups = spec.portal_groups.iter().map(|group| PortalGroup {
        tag: group.tag,
        target_port: group.relative_port,
        portals: group.portals.iter().map(ToString::to_string).collect(),
    });
    let luns = spec.luns.iter().map(|(&number, lun)| {
        let lun = ReportedLun {
            volume: lun.volume.clone(),
            read_only: lun.read_only,
            removable: lun.removable,
        };
        (number, lun)
    });
    ReportedTarget {
        portal_groups: groups.collect(),
        luns: luns.collect(),
        allow: match &spec.allow {
            Allow::Everyone => None,
            Allow::Names(names) => Some(names.iter().cloned().collect()),
        },
        allow_from: spec.allow_from.iter().map(ToString::to_string).collect(),
        chap: spec.chap.is_some(),
        redirect: spec.redirect.map(|redirect| redirect.to.to_string()),
    }
}

fn session(report: &SessionReport) -> ReportedSession {
    ReportedSession {
        initiator: report.initiator.clone(),
        peer: report.peer.to_string(),
        portal: report.portal.to_string(),
        target: report.target.clone(),
        portal_group_tag: report.portal_group_tag,
        lane: report.lane,
        header_digest: report.header_digest,
        data_digest: report.data_digest,
        age_s: report.age.as_secs_f64(),
        outstanding: report.outstanding,
        secret: match report.secret() {
            Taken::Current => None,
            Taken::Old => Some("old".to_owned()),
            Taken::No => Some("gone".to_owned()),
        },
    }
}
