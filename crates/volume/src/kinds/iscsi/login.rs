//! Establishes a session, following a limited number of redirections (RFC 7143 §11.13.5). After a permanent
//! redirection the new address is remembered and tried before the configured one.

use std::{
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
};

use engine::{Duration, Instant, blocking::look_up, time, zone};
use iscsi::{Authentication, Chap, InitiatorConfig};

use super::{
    IscsiConfig, PathConfig, addressing,
    ended::Redirection,
    session::{LoginOutcome, Session, Timeouts, Unused},
};
use crate::{Error, ErrorKind, Result};

/// The most redirections in one login; more count as a loop.
const REDIRECTIONS_MAX: usize = 4;
/// The default port of a TargetAddress (RFC 7143 §13.8).
const PORT: u16 = 3260;

/// Where the target is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portal {
    pub(super) configured: SocketAddr,
    /// Where it has moved for good, as far as is known.
    pub(super) moved: Option<SocketAddr>,
}

/// A session, and where the target has moved for good: `None` if it was found without such a redirection.
pub(super) type LoggedIn = (Rc<Session>, Option<SocketAddr>);

impl Portal {
    /// Logs in, here or wherever we are redirected. All of it ends by `deadline`; each connection also has its own
    /// limit.
    pub(super) async fn log_in(
        &self,
        config: &IscsiConfig,
        path: &PathConfig,
        deadline: Instant,
    ) -> Result<LoggedIn> {
        let who = (config, path);
        let Some(moved) = self.moved else {
            return self.follow(None, who, deadline).await;
        };
        match self.follow(Some(moved), who, deadline).await {
            Ok(logged_in) => Ok(logged_in),
            // The target may have moved back. If not, report the error of the new address.
            Err(error) => {
                let back = self.follow(None, who, deadline).await;
                back.map_err(|_| error)
            }
        }
    }

    /// Logs in where the target has `moved`, or at the configured address, following redirections.
    async fn follow(
        &self,
        mut moved: Option<SocketAddr>,
        (config, path): (&IscsiConfig, &PathConfig),
        deadline: Instant,
    ) -> Result<LoggedIn> {
        let mut address = moved.unwrap_or(self.configured);
        for _ in 0..=REDIRECTIONS_MAX {
            let left = deadline - time::now();
            let timeouts = Timeouts {
                connect: left.min(config.connect_timeout),
                request: config.request_timeout,
                ping: config.multipath.ping_timeout.clone(),
            };
            let (way, initiator) = (config.connect_options(path), initiator(config, path).await?);
            let opened = Session::open(address, &way, initiator, timeouts).await;
            let Redirection { to, permanently } = match opened? {
                LoginOutcome::Session(session) => {
                    let unused = Unused(Some(session.clone()));
                    session.addresses(addressing::field_of(&session, config.lun).await?);
                    let moved = moved.filter(|_| address != self.configured);
                    return Ok((unused.take(), moved));
                }
                LoginOutcome::Redirected(redirection) => redirection,
            };
            let from = address;
            let resolved = resolve(&to, config.connect_timeout).await;
            // A link-local address is on the link that has led here.
            let resolved = resolved.map(|to| zone::with(to, zone::of(from)));
            address = resolved.map_err(|why| {
                // Untrusted text: limit its length.
                let to: String = to.chars().take(64).collect();
                let message = format!(
                    "{from} redirects to {to:?}, {why}; correct the redirection on the target, or \
                     write the right address into `url`"
                );
                Error::new(ErrorKind::Configuration, message)
            })?;
            let (to, target_name) = (address, &config.target_name);
            if permanently {
                tracing::warn!(%from, %to, target_name,
                    "the target has moved permanently: write its new address into `url`");
                moved = Some(address);
            } else {
                tracing::info!(%from, %to, target_name, "the target has moved temporarily");
            }
        }
        let message = format!(
            "the target has redirected us more than {REDIRECTIONS_MAX} times, most recently to \
             {address}: its portals may redirect in a circle"
        );
        Err(Error::new(ErrorKind::Unreachable, message))
    }
}

/// The login parameters.
async fn initiator(config: &IscsiConfig, path: &PathConfig) -> Result<InitiatorConfig> {
    let mut initiator = InitiatorConfig::new(
        config.initiator_name.clone(),
        Some(config.target_name.clone()),
    );
    initiator.isid = path.isid;
    initiator.operational.header_digest = config.header_digest;
    initiator.operational.data_digest = config.data_digest;
    initiator.operational.stage_times = config.stage_times;
    if let Some(secrets) = &config.chap {
        let chap = secrets.now(config.connect_timeout).await;
        initiator.authentication = Some(authentication(&chap)?);
    }
    Ok(initiator)
}

/// The authentication for one login, with a fresh random challenge.
pub(super) fn authentication(chap: &Arc<Chap>) -> Result<Authentication> {
    let mut challenge = [0; Authentication::RANDOM_LEN];
    engine::random::fill(&mut challenge).map_err(|error| {
        let message = format!("cannot generate random bytes for a challenge: {error}");
        Error::new(ErrorKind::Unreachable, message)
    })?;
    Ok(Authentication::new(chap.clone(), challenge))
}

/// Resolves a TargetAddress (RFC 7143 §13.8), which may contain a host name.
async fn resolve(target_address: &str, limit: Duration) -> std::result::Result<SocketAddr, String> {
    if let Some(address) = parse(target_address) {
        return Ok(address);
    }
    let Some((host, port)) = parse_name(target_address) else {
        return Err("which is not an address".into());
    };
    let found = look_up(host, port, limit).await;
    let found = found.map_err(|error| format!("which cannot be resolved: {error}"))?;
    match found.ip().is_unspecified() {
        false => Ok(found),
        true => Err(format!("which is {}", found.ip())),
    }
}

/// Parses `storage.example` or `storage.example:3260`, optionally with a portal group tag.
fn parse_name(target_address: &str) -> Option<(&str, u16)> {
    let name = match target_address.split_once(',') {
        Some((name, tag)) if tag.parse::<u16>().is_ok() => name,
        Some(_) => return None,
        None => target_address,
    };
    let (host, port) = match name.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok().filter(|port| *port != 0)?),
        None => (name, PORT),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    // All digits and dots would be a variant spelling of an address that `parse` has rejected.
    let is_name = host.len() <= 253
        && host.chars().all(is_plain)
        && host.chars().any(|c| c.is_ascii_alphabetic())
        && host.starts_with(|c: char| c.is_ascii_alphanumeric());
    is_name.then_some((host, port))
}

/// Parses `10.0.1.2`, `10.0.1.2:3260`, `[fd00::2]` or `[fd00::2]:3260`, optionally with a portal group tag.
fn parse(target_address: &str) -> Option<SocketAddr> {
    let address = match target_address.split_once(',') {
        Some((address, tag)) if tag.parse::<u16>().is_ok() => address,
        Some(_) => return None,
        None => target_address,
    };
    // A zone is the target's own, and names none of our interfaces.
    let (address, _) = zone::split(address);
    let address = address.parse().ok().or_else(|| {
        let inner = address.strip_prefix('[').and_then(|a| a.strip_suffix(']'));
        let ip: IpAddr = match inner {
            Some(inner) => IpAddr::V6(inner.parse().ok()?),
            None => IpAddr::V4(address.parse().ok()?),
        };
        Some(SocketAddr::new(ip, PORT))
    })?;
    (address.port() != 0 && !address.ip().is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_address_may_be_a_name() {
        for (text, name) in [
            ("storage", Some(("storage", 3260))),
            ("storage.example:4000,1", Some(("storage.example", 4000))),
            ("storage.example,1", Some(("storage.example", 3260))),
            ("storage:0", None),
            ("storage:70000", None),
            ("storage:4000,", None),
            ("127.1", None),
            ("-storage", None),
            ("sto rage", None),
            ("[storage]", None),
            ("fd00::2", None),
            ("", None),
        ] {
            assert_eq!(parse_name(text), name, "{text:?}");
        }
        assert_eq!(parse_name(&"a".repeat(254)), None);
    }

    #[test]
    fn a_name_that_a_target_sends_is_looked_up_and_others_go_on_meanwhile() {
        engine::sim::seeds(10, |seed| {
            let world = engine::sim::World::new(seed);
            let (here, there) = (world.host("here"), world.host("there"));
            let expected = there.addr(4000);
            world.block_on(&here, async move {
                let other = engine::spawn(async { engine::time::now() });
                let began = engine::time::now();
                let limit = Duration::from_secs(1);
                assert_eq!(resolve("there:4000,1", limit).await, Ok(expected));
                let ended = engine::time::now();
                assert!((began..ended).contains(&other.await));
                for (to, why) in [
                    (
                        "nowhere",
                        "which cannot be resolved: the name has no address",
                    ),
                    ("no where", "which is not an address"),
                    ("0.0.0.0", "which is not an address"),
                ] {
                    assert_eq!(resolve(to, limit).await, Err(why.to_owned()));
                }
            });
        });
    }

    #[test]
    fn a_target_address_is_an_address_with_or_without_port_and_tag() {
        for (text, address) in [
            ("10.0.1.2", Some("10.0.1.2:3260")),
            ("10.0.1.2:4000", Some("10.0.1.2:4000")),
            ("10.0.1.2:4000,1", Some("10.0.1.2:4000")),
            ("[fd00::2]", Some("[fd00::2]:3260")),
            ("[fd00::2]:4000,65535", Some("[fd00::2]:4000")),
            ("[fe80::2%7]:4000", Some("[fe80::2]:4000")),
            ("[fe80::2%eth0],1", Some("[fe80::2]:3260")),
            ("fd00::2", None),
            ("[10.0.1.2]", None),
            ("10.0.1.2:0", None),
            ("0.0.0.0:3260", None),
            ("10.0.1.2:4000,", None),
            ("10.0.1.2,65536", None),
            ("storage.example:3260", None),
            ("", None),
        ] {
            let expected = address.map(|address| address.parse().unwrap());
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}
