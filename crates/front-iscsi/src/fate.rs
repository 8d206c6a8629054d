//! What becomes of sessions when another configuration is served: whether a session ends, for what reason, and whether its
//! initiator will be able to log in again with the secret that it has used. The change itself goes by the same reasons.

use std::{collections::BTreeMap, net::IpAddr};

use front::report::{Consequence, Fate};
use iscsi::Taken;

use crate::{
    config::{ServerConfig, TargetSpec},
    report::SessionReport,
};

/// Why a session ends when another configuration is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndsFor {
    /// Its target, or the portal group that it came through, is gone.
    NotServed,
    /// Its target is redirected.
    Redirected,
    /// Its initiator may not use the target any more.
    NotAllowed,
    /// A LUN of its target is another disk.
    OtherDisk,
}

impl EndsFor {
    /// Why a session of `initiator` from `peer` does not stay, if its target port is now as in `now`; `None`: there is none.
    pub(crate) fn of(now: Option<&TargetSpec>, initiator: &str, peer: IpAddr) -> Option<EndsFor> {
        let Some(now) = now else {
            return Some(EndsFor::NotServed);
        };
        if now.redirect.is_some() {
            return Some(EndsFor::Redirected);
        }
        now.refusal_of(initiator, peer).map(|_| EndsFor::NotAllowed)
    }

    /// The reason, for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            EndsFor::NotServed => "its target is no longer served",
            EndsFor::Redirected => "its target is now served elsewhere",
            EndsFor::NotAllowed => "it is no longer allowed to use its target",
            EndsFor::OtherDisk => "one of its LUNs is another disk now",
        }
    }
}

/// What `next` does to `sessions` with the targets that are as in `before`, for each initiator of each target. Sessions that
/// notice nothing are left out.
pub(crate) fn all(
    sessions: &[SessionReport],
    before: &[TargetSpec],
    next: &ServerConfig,
) -> Vec<Consequence> {
    let mut counts: BTreeMap<(String, Fate, String), usize> = BTreeMap::new();
    for session in sessions {
        if let (Some(target), Some(fate)) = (&session.target, fate(session, before, next)) {
            let key = (target.clone(), fate, session.initiator.clone());
            *counts.entry(key).or_default() += 1;
        }
    }
    let counts = counts.into_iter();
    counts
        .map(|((target, fate, initiator), sessions)| Consequence {
            target,
            initiator,
            sessions,
            fate,
        })
        .collect()
}

fn fate(session: &SessionReport, before: &[TargetSpec], next: &ServerConfig) -> Option<Fate> {
    let name = session.target.as_deref()?;
    let was = before.iter().find(|target| target.name == name);
    let is = next.targets.iter().find(|target| target.name == name);
    let has_group = |target: &&TargetSpec| {
        let mut groups = target.portal_groups.iter();
        groups.any(|group| group.tag == session.portal_group_tag)
    };
    let is = is.filter(has_group);
    let ends = EndsFor::of(is, &session.initiator, session.peer.ip());
    let is_other = |is: &TargetSpec| was.is_some_and(|was| shows_another_disk(was, is));
    let other = is.filter(|is| is_other(is)).map(|_| EndsFor::OtherDisk);
    if let Some(why) = ends.or(other) {
        return Some(Fate::Ends(why.text()));
    }
    let lost = was.zip(is).and_then(|(was, is)| lost_lun(was, is));
    if let Some(number) = lost {
        return Some(Fate::LosesLun(number));
    }
    match is?.chap.as_ref()?.takes(session.account.as_ref()) {
        Taken::Current => None,
        Taken::Old => Some(Fate::OldSecret),
        Taken::No => Some(Fate::GoneSecret),
    }
}

/// The first LUN that there is not any more.
fn lost_lun(was: &TargetSpec, is: &TargetSpec) -> Option<u32> {
    let mut numbers = was.luns.keys().copied();
    numbers.find(|number| !is.luns.contains_key(number))
}

/// Whether a LUN that both have is another volume.
fn shows_another_disk(was: &TargetSpec, is: &TargetSpec) -> bool {
    let mut luns = was.luns.iter();
    luns.any(|(number, lun)| {
        let now = is.luns.get(number);
        now.is_some_and(|now| now.volume != lun.volume)
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use engine::Duration;
    use iscsi::{Chap, ChapAccount, ChapSecret};

    use super::*;
    use crate::config::{Allow, Limits, LunSpec, PortalGroup, Redirect};

    const TARGET: &str = "iqn.2026-11.io.sanstone:t0";
    const HOST: &str = "iqn.1993-08.org.debian:01:dbhost";

    fn account(secret: &str) -> ChapAccount {
        let secret = ChapSecret::new(secret.as_bytes()).expect("long enough");
        ChapAccount::new("dbhost", secret).expect("a name")
    }

    fn target(chap: Option<Chap>) -> TargetSpec {
        let lun = LunSpec {
            volume: "db".to_owned(),
            removable: false,
            read_only: false,
        };
        TargetSpec {
            name: TARGET.to_owned(),
            portal_groups: vec![PortalGroup::only(vec![
                "10.0.1.2:3260".parse().expect("one"),
            ])],
            luns: BTreeMap::from([(0, lun)]),
            allow: Allow::Names(BTreeSet::from([HOST.to_owned()])),
            allow_from: Vec::new(),
            chap: chap.map(Arc::new),
            redirect: None,
        }
    }

    fn session(account: Option<ChapAccount>) -> SessionReport {
        SessionReport {
            initiator: HOST.to_owned(),
            peer: "10.0.1.7:40210".parse().expect("an address"),
            portal: "10.0.1.2:3260".parse().expect("an address"),
            target: Some(TARGET.to_owned()),
            portal_group_tag: 1,
            lane: 0,
            header_digest: false,
            data_digest: false,
            age: Duration::ZERO,
            outstanding: 0,
            account,
            chap: None,
        }
    }

    fn fates(sessions: &[SessionReport], next: TargetSpec) -> Vec<Fate> {
        let next = ServerConfig {
            targets: vec![next],
            discovery: None,
            digests: true,
            limits: Limits::default(),
        };
        let all = all(sessions, &[target(None)], &next);
        all.into_iter()
            .map(|consequence| {
                assert_eq!(consequence.sessions, sessions.len());
                consequence.fate
            })
            .collect()
    }

    #[test]
    fn what_a_session_notices_of_a_change_is_known_before() {
        let of_none = &[session(None), session(None)][..];
        assert_eq!(fates(of_none, target(None)), []);
        let mut others = target(None);
        others.allow = Allow::Names(BTreeSet::from(["iqn.1993-08.org.debian:01:dbhots".into()]));
        let mut moved = target(None);
        moved.redirect = Some(Redirect {
            to: "10.0.2.2:3260".parse().expect("an address"),
            permanently: true,
        });
        let mut other_group = target(None);
        other_group.portal_groups[0].tag = 2;
        let mut other_disk = target(None);
        other_disk
            .luns
            .entry(0)
            .and_modify(|lun| lun.volume = "log".to_owned());
        let mut renumbered = target(None);
        let lun = renumbered.luns.remove(&0).expect("it has one");
        renumbered.luns.insert(1, lun);
        assert_eq!(fates(of_none, renumbered), [Fate::LosesLun(0)]);
        for (next, why) in [
            (others, "no longer allowed"),
            (moved, "now served elsewhere"),
            (other_group, "no longer served"),
            (other_disk, "another disk"),
        ] {
            match fates(of_none, next)[..] {
                [Fate::Ends(said)] => assert!(said.contains(why), "{said}"),
                ref other => panic!("{why}: {other:?}"),
            }
        }
    }

    #[test]
    fn who_has_used_an_old_secret_is_told_apart_from_who_cannot_come_back() {
        let (old, new) = (
            account("the old secret of it"),
            account("the new secret of it"),
        );
        let both = || Chap::new(new.clone(), None).and_then(|chap| chap.with_old(old.clone()));
        let only = Chap::new(new.clone(), None).expect("a secret");
        let with = |account: &ChapAccount| [session(Some(account.clone()))];
        let both = || Some(both().expect("two secrets"));
        assert_eq!(fates(&with(&new), target(both())), []);
        assert_eq!(fates(&with(&old), target(both())), [Fate::OldSecret]);
        assert_eq!(
            fates(&with(&old), target(Some(only.clone()))),
            [Fate::GoneSecret]
        );
        assert_eq!(
            fates(&[session(None)], target(Some(only))),
            [Fate::GoneSecret]
        );
    }
}
