//! What others notice of another configuration, before it is served: the sessions that end, and those whose initiators could
//! not come back; reservations that end with their disks or sessions; claims that are given up.

use std::collections::BTreeSet;

use front::report::{Consequence, Fate};
use unit::UnitReport;
use volume::{MirrorHandle, SetClaim, graph::NodeView};

use super::Daemon;
use crate::{changed::Warning, difference::Served, fronts};

impl Daemon {
    /// What others notice when `next` is served.
    pub(super) async fn noticed(&self, next: &Served) -> Vec<Warning> {
        let sessions = self.fronts.consequences(fronts::to_check(next)).await;
        let mut noticed = self.reservations_that_end(next, &sessions);
        noticed.extend(self.claims_that_end(next));
        let sessions = sessions.into_iter().map(Warning::Sessions);
        sessions.chain(noticed).collect()
    }

    fn reservations_that_end(&self, next: &Served, sessions: &[Consequence]) -> Vec<Warning> {
        let stay = next.volumes();
        let reports = self.units.reports();
        let ending = reports.iter().filter_map(|(name, report)| {
            let what = match stay.contains(name) {
                false => ends_with_its_disk(report)?,
                true => self.ends_with_a_session(name, report, sessions)?,
            };
            Some(Warning::Reservations {
                volume: name.clone(),
                what,
            })
        });
        ending.collect()
    }

    /// RESERVE (6) ends with the session of its holder (SPC-2 5.5.1).
    fn ends_with_a_session(
        &self,
        volume: &str,
        report: &UnitReport,
        sessions: &[Consequence],
    ) -> Option<String> {
        let holder = report.reserved_by.as_ref()?;
        let ends = |session: &&Consequence| {
            let targets = &self.served.targets;
            let target = targets.iter().find(|table| table.name == session.target);
            let has_it = target.is_some_and(|table| {
                let mut luns = table.luns.values();
                luns.any(|lun| lun.volume == volume)
            });
            let is_its = holder.starts_with(&format!("{},i,", session.initiator));
            has_it && is_its && matches!(session.fate, Fate::Ends(_))
        };
        sessions.iter().find(ends)?;
        Some(format!(
            "its reservation (RESERVE 6) by {holder} ends with the session"
        ))
    }

    fn claims_that_end(&self, next: &Served) -> Vec<Warning> {
        let (was_open, is_open) = (self.served.open(), next.open());
        let mut claims = BTreeSet::new();
        for name in was_open.difference(&is_open) {
            if let Some(view) = self.graph.view(name) {
                held(&view, true, &mut claims);
            }
        }
        claims.into_iter().map(Warning::Claim).collect()
    }
}

/// The reservations of a disk that is not served any more.
fn ends_with_its_disk(report: &UnitReport) -> Option<String> {
    let persistent = report.reservation.as_ref().map(|held| {
        let all = "all registrants".to_owned();
        let holder = held.holder.clone().unwrap_or(all);
        format!("its reservation ({}) by {holder}", held.kind)
    });
    let six = report.reserved_by.as_ref();
    let six = six.map(|holder| format!("its reservation (RESERVE 6) by {holder}"));
    let registered = report.registrations.len();
    let registered = (registered > 0).then(|| format!("{registered} registrations"));
    let all: Vec<String> = [persistent, six, registered]
        .into_iter()
        .flatten()
        .collect();
    match all.is_empty() {
        true => None,
        false => Some(format!(
            "{} end with it; those that were made to outlive a power loss (APTPL) are back when it is",
            all.join(", ")
        )),
    }
}

/// The paths of the nodes of a tree that have a claim which stands. What has a name of its own is not part of the tree.
fn held(view: &NodeView, is_root: bool, claims: &mut BTreeSet<String>) {
    if !is_root && view.name.is_some() {
        return;
    }
    let set = view
        .facts
        .get()
        .is_some_and(|claim: &SetClaim| claim.check().is_ok());
    let mirror = view
        .facts
        .get()
        .is_some_and(|mirror: &MirrorHandle| mirror.status().stopped.is_none());
    if view.shape.is_some() && (set || mirror) {
        claims.insert(view.path.clone());
    }
    view.children
        .iter()
        .for_each(|child| held(child, false, claims));
}
