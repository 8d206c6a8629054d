//! Target discovery: a discovery session asks a portal for its targets (RFC 7143 §4.3 and Appendix C).

use std::{collections::HashMap, net::SocketAddr, rc::Rc, sync::Arc};

use engine::{Duration, blocking::look_up, net::ConnectOptions, zone};
use iscsi::{InitiatorConfig, TargetRecord, text::folded_name};

pub use iscsi::Chap;

use super::{
    config::{next_isid, own_name},
    login,
    ping_timeout::PingTimeout,
    session::{LoginOutcome, Session, Timeouts},
    url::{is_iscsi_name, lacks_zone},
};
pub use super::{path_settings::Portal, url::IscsiUrl};
use crate::{Error, ErrorKind, Result};

/// Runs discovery under one initiator identity and time limit.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The initiator name we log in with.
    pub initiator_name: String,
    /// CHAP, to authenticate us and optionally the target; `None`: no authentication.
    pub chap: Option<Arc<Chap>>,
    /// Limit for connecting and logging in, and for each answer.
    pub limit: Duration,
}

/// A target that a portal has listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTarget {
    /// Its iSCSI name.
    pub name: String,
    /// Its portals; never empty.
    pub portals: Vec<FoundPortal>,
}

/// A portal of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPortal {
    /// Where it listens.
    pub portal: Portal,
    /// Its portal group tag, if the target has reported it.
    pub group: Option<u16>,
}

/// The initiator name as configured, or this host's own.
///
/// # Errors
/// What to write instead of an invalid name.
pub fn initiator_name(written: Option<&str>) -> std::result::Result<String, String> {
    match written {
        None => Ok(own_name()),
        Some(name) if is_iscsi_name(name) => Ok(name.to_owned()),
        Some(name) => Err(format!(
            "\"{name}\" is not an iSCSI name; write one such as iqn.2026-11.io.sanstone:dbhost"
        )),
    }
}

impl Asker {
    /// All targets that `portal` lists, in its order.
    ///
    /// # Errors
    /// When the portal is unreachable, refuses us, or gives an invalid answer.
    pub async fn discover(&self, portal: &Portal) -> Result<Vec<FoundTarget>> {
        let session = self.open(portal).await?;
        let found = session.discover().await;
        session.logout().await;
        let what = format_args!("discovery at {portal}");
        let records = found.map_err(|error| error.context(what))?;
        Ok(targets_of(records, portal))
    }

    async fn open(&self, portal: &Portal) -> Result<Rc<Session>> {
        let address = self.address_of(portal).await?;
        let mut initiator = InitiatorConfig::new(self.initiator_name.clone(), None);
        initiator.isid = next_isid();
        initiator.authentication = self.chap.as_ref().map(login::authentication).transpose()?;
        let timeouts = Timeouts {
            connect: self.limit,
            request: self.limit,
            ping: PingTimeout::default(),
        };
        let way = ConnectOptions::default();
        match Session::open(address, &way, initiator, timeouts).await? {
            LoginOutcome::Session(session) => Ok(session),
            LoginOutcome::Redirected(elsewhere) => {
                let to: String = elsewhere.to.chars().take(64).collect();
                let message = format!("{portal} redirects to {to:?}; run the discovery there");
                Err(Error::new(ErrorKind::Unreachable, message))
            }
        }
    }

    /// The address of a portal, whose host may be a name.
    pub(super) async fn address_of(&self, portal: &Portal) -> Result<SocketAddr> {
        let address = look_up(&portal.host, portal.port, self.limit).await;
        address.map_err(|error| {
            let message = format!(
                "\"{}\" cannot be resolved: {error}; write its address instead",
                portal.host
            );
            Error::new(ErrorKind::Unreachable, message)
        })
    }
}

/// Groups an answer by target. A target may appear several times; without an address it is at the portal asked.
fn targets_of(records: Vec<TargetRecord>, asked: &Portal) -> Vec<FoundTarget> {
    let mut targets: Vec<FoundTarget> = Vec::new();
    let mut places = HashMap::new();
    for TargetRecord { name, addresses } in records {
        let place = *places.entry(folded_name(&name)).or_insert_with(|| {
            let portals = Vec::new();
            targets.push(FoundTarget { name, portals });
            targets.len() - 1
        });
        let target = &mut targets[place];
        for address in addresses {
            match parse(&address, asked) {
                Some(portal) if target.portals.contains(&portal) => {}
                Some(portal) => target.portals.push(portal),
                None => {
                    let (target_name, address) = (&target.name, address.escape_debug());
                    tracing::warn!(target_name, %address, "ignoring a portal that is invalid, or on a link of the target's own");
                }
            }
        }
    }
    for target in &mut targets {
        if target.portals.is_empty() {
            target.portals.push(FoundPortal {
                portal: asked.clone(),
                group: None,
            });
        }
    }
    targets
}

/// Parses a TargetAddress (RFC 7143 §13.8). A wildcard address stands for the one where we reached the target. A
/// link-local address is on the link over which we reached it, whatever zone the target writes.
fn parse(address: &str, asked: &Portal) -> Option<FoundPortal> {
    let (portal, group) = match address.split_once(',') {
        Some((portal, tag)) => (portal, Some(tag.parse().ok()?)),
        None => (address, None),
    };
    let mut portal: Portal = portal.parse().ok()?;
    let ip = portal.host.parse::<std::net::IpAddr>();
    if ip.is_ok_and(|ip| ip.is_unspecified()) {
        portal.host.clone_from(&asked.host);
        return Some(FoundPortal { portal, group });
    }
    portal.host = zone::split(&portal.host).0.into_owned();
    if lacks_zone(&portal.host) {
        let zone = zone::split(&asked.host).1?;
        portal.host = format!("{}%{zone}", portal.host);
    }
    Some(FoundPortal { portal, group })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, addresses: &[&str]) -> TargetRecord {
        TargetRecord {
            name: name.to_owned(),
            addresses: addresses.iter().map(|&address| address.into()).collect(),
        }
    }

    fn shown(records: Vec<TargetRecord>) -> Vec<String> {
        shown_at("storage.example", records)
    }

    fn shown_at(asked: &str, records: Vec<TargetRecord>) -> Vec<String> {
        let asked = asked.parse().expect("a portal");
        let show = |target: FoundTarget| {
            let portals = target.portals.iter().map(|found| match found.group {
                Some(group) => format!(" {},{group}", found.portal),
                None => format!(" {}", found.portal),
            });
            target.name + &portals.collect::<String>()
        };
        targets_of(records, &asked).into_iter().map(show).collect()
    }

    #[test]
    fn targets_are_listed_once_with_all_of_their_portals() {
        let records = vec![
            record("iqn.a", &["10.0.1.2:3260,1", "[fd00::2]:860,2"]),
            record("iqn.b", &["10.0.1.2"]),
            record("iqn.A", &["10.0.2.2:3260,1", "10.0.1.2:3260,1"]),
        ];
        let expected = [
            "iqn.a 10.0.1.2:3260,1 [fd00::2]:860,2 10.0.2.2:3260,1",
            "iqn.b 10.0.1.2:3260",
        ];
        assert_eq!(shown(records), expected);
    }

    #[test]
    fn a_link_local_portal_is_on_the_link_over_which_it_was_asked() {
        let records = || {
            vec![
                record("iqn.a", &["[fe80::2]:4000,1", "[fd00::2]:3260,1"]),
                record("iqn.b", &["[fe80::3%7]:3260,1"]),
                record("iqn.c", &["[::]:4000,1"]),
            ]
        };
        let expected = [
            "iqn.a [fe80::2%eth0]:4000,1 [fd00::2]:3260,1",
            "iqn.b [fe80::3%eth0]:3260,1",
            "iqn.c [fe80::1%eth0]:4000,1",
        ];
        assert_eq!(shown_at("[fe80::1%eth0]", records()), expected);
        // From another network nobody knows the link.
        let expected = [
            "iqn.a [fd00::2]:3260,1",
            "iqn.b [fd00::1]:3260",
            "iqn.c [fd00::1]:4000,1",
        ];
        assert_eq!(shown_at("[fd00::1]", records()), expected);
    }

    #[test]
    fn a_target_that_names_no_place_is_where_it_was_asked() {
        let records = vec![
            record("iqn.a", &[]),
            record("iqn.b", &["0.0.0.0:4000,1", "[::]:3260,2"]),
            record("iqn.c", &["no:port", "10.0.1.2,group", "a:0", ",1", "a/b"]),
        ];
        let expected = [
            "iqn.a storage.example:3260",
            "iqn.b storage.example:4000,1 storage.example:3260,2",
            "iqn.c storage.example:3260",
        ];
        assert_eq!(shown(records), expected);
    }
}
