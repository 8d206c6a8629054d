//! From where a disk is said to be to a session with it: logs in, and follows a target that sends
//! us elsewhere (RFC 7143 §11.13.5) a few times. Where a target has gone for good is remembered,
//! and tried before where it was.

use std::{
    cell::Cell,
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

use iscsi::{Authentication, InitiatorConfig};

use super::{
    IscsiConfig,
    session::{Opened, Session, Timeouts},
};
use crate::{Error, ErrorKind, Result};

/// How often a login is sent elsewhere before that counts as going round in a circle.
const REDIRECTIONS_MAX: usize = 4;
/// The port of a TargetAddress that names none (RFC 7143 §13.8).
const PORT: u16 = 3260;

/// Where the target is.
#[derive(Debug)]
pub(super) struct Portal {
    configured: SocketAddr,
    /// Where it has gone for good.
    moved: Cell<Option<SocketAddr>>,
}

/// Where a target says that it has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirection {
    /// TargetAddress, as it came.
    pub(super) to: String,
    pub(super) permanently: bool,
}

impl Portal {
    pub(super) fn new(configured: SocketAddr) -> Portal {
        Portal {
            configured,
            moved: Cell::new(None),
        }
    }

    /// Connects and logs in, here or where we are sent.
    pub(super) async fn log_in(&self, config: &IscsiConfig) -> Result<Rc<Session>> {
        let Some(moved) = self.moved.get() else {
            return self.follow(self.configured, config).await;
        };
        match self.follow(moved, config).await {
            Ok(session) => Ok(session),
            // It may have come back. If not, the new place is the one to complain of.
            Err(error) => self
                .follow(self.configured, config)
                .await
                .map_err(|_| error),
        }
    }

    /// Logs in at `address` or where we are sent from there.
    async fn follow(&self, mut address: SocketAddr, config: &IscsiConfig) -> Result<Rc<Session>> {
        for _ in 0..=REDIRECTIONS_MAX {
            let timeouts = Timeouts {
                connect: config.connect_timeout,
                request: config.request_timeout,
            };
            let opened = Session::open(address, initiator(config)?, timeouts).await;
            let Redirection { to, permanently } = match opened? {
                Opened::Session(session) => {
                    if address == self.configured {
                        self.moved.set(None);
                    }
                    return Ok(session);
                }
                Opened::Redirected(redirection) => redirection,
            };
            let from = address;
            address = parse(&to).ok_or_else(|| {
                // It is whatever a stranger likes to send.
                let to: String = to.chars().take(64).collect();
                let message = format!(
                    "{from} sends us to {to:?}, which is no address; have it name one, or write \
                     the right one into `url`"
                );
                Error::new(ErrorKind::Configuration, message)
            })?;
            let (to, target_name) = (address, &config.target_name);
            if permanently {
                tracing::warn!(%from, %to, target_name,
                    "the target has moved for good: write its new address into `url`");
                self.moved.set(Some(address));
            } else {
                tracing::info!(%from, %to, target_name, "the target has moved for now");
            }
        }
        self.moved.set(None);
        let message = format!(
            "the target has sent us elsewhere more than {REDIRECTIONS_MAX} times, at last to \
             {address}: its portals may send us round in a circle"
        );
        Err(Error::new(ErrorKind::Unreachable, message))
    }
}

/// The protocol's settings, with a fresh challenge.
fn initiator(config: &IscsiConfig) -> Result<InitiatorConfig> {
    let mut initiator = InitiatorConfig::new(
        config.initiator_name.clone(),
        Some(config.target_name.clone()),
    );
    initiator.isid = config.isid;
    initiator.operational.header_digest = config.header_digest;
    initiator.operational.data_digest = config.data_digest;
    if let Some(chap) = &config.chap {
        let mut challenge = [0; Authentication::RANDOM_LEN];
        engine::random::fill(&mut challenge).map_err(|error| {
            let message = format!("no random bytes for a challenge: {error}");
            Error::new(ErrorKind::Unreachable, message)
        })?;
        initiator.authentication = Some(Authentication::new(chap.clone(), challenge));
    }
    Ok(initiator)
}

/// `10.0.1.2`, `10.0.1.2:3260`, `[fd00::2]` or `[fd00::2]:3260`, perhaps with a portal group's tag.
/// A name would have to be looked up, for which a lane cannot wait.
fn parse(target_address: &str) -> Option<SocketAddr> {
    let address = match target_address.split_once(',') {
        Some((address, tag)) if tag.parse::<u16>().is_ok() => address,
        Some(_) => return None,
        None => target_address,
    };
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
    fn a_target_address_is_an_address_with_or_without_port_and_tag() {
        for (text, address) in [
            ("10.0.1.2", Some("10.0.1.2:3260")),
            ("10.0.1.2:4000", Some("10.0.1.2:4000")),
            ("10.0.1.2:4000,1", Some("10.0.1.2:4000")),
            ("[fd00::2]", Some("[fd00::2]:3260")),
            ("[fd00::2]:4000,65535", Some("[fd00::2]:4000")),
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
