//! What the sessions of our initiator do right now, for whoever looks from another thread.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Whether one `iscsi` volume has a session, and each of its sessions; clones are the same. Written when a
/// session begins or is lost, never for a command.
#[derive(Clone, Debug, Default)]
pub struct SessionStatus(Arc<Mutex<Status>>);

#[derive(Debug, Default)]
struct Status {
    volume: SessionState,
    paths: Vec<PathStatus>,
}

/// One session of a volume, or the place where one is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// The portal: that of the session, or the configured one.
    pub portal: SocketAddr,
    /// Our end of the session that is or was there.
    pub local: Option<SocketAddr>,
    /// The number of the lane on which it is.
    pub lane: usize,
    /// What it does.
    pub state: PathState,
}

/// What one session of a volume does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathState {
    /// It is logged in.
    LoggedIn,
    /// It is logged in, at a target port that the target lets nobody use now.
    Standby,
    /// There is none, and why, if that is known.
    None(Option<String>),
}

/// Whether there is a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SessionState {
    /// There was none yet.
    #[default]
    None,
    /// It is logged in.
    LoggedIn {
        /// The portal that it has reached, which a redirection may have named.
        address: SocketAddr,
        /// How often it was lost and is there again.
        relogins: u64,
    },
    /// It was lost, and requests wait for another one.
    Lost {
        /// Where it was.
        address: Option<SocketAddr>,
        /// How often it was there again before.
        relogins: u64,
        /// What ended it.
        why: String,
    },
}

impl SessionStatus {
    /// What it does now.
    pub fn now(&self) -> SessionState {
        self.lock().volume.clone()
    }

    /// Each of its sessions now, those first that are configured first.
    pub fn paths(&self) -> Vec<PathStatus> {
        self.lock().paths.clone()
    }

    pub(super) fn set_paths(&self, paths: Vec<PathStatus>) {
        self.lock().paths = paths;
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a session, by `address`; one more beside another changes nothing.
    pub(super) fn logged_in(&self, address: SocketAddr) {
        if matches!(self.now(), SessionState::LoggedIn { .. }) {
            return;
        }
        self.change(|before| SessionState::LoggedIn {
            address,
            relogins: match before {
                SessionState::None => 0,
                SessionState::LoggedIn { relogins, .. } | SessionState::Lost { relogins, .. } => {
                    relogins + 1
                }
            },
        });
    }

    pub(super) fn lost(&self, why: String) {
        self.change(|before| {
            let (address, relogins) = match before {
                SessionState::None => (None, 0),
                SessionState::LoggedIn { address, relogins } => (Some(address), relogins),
                SessionState::Lost {
                    address, relogins, ..
                } => (address, relogins),
            };
            SessionState::Lost {
                address,
                relogins,
                why,
            }
        });
    }

    fn change(&self, change: impl FnOnce(SessionState) -> SessionState) {
        let state = &mut self.lock().volume;
        *state = change(std::mem::take(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_comes_back_is_counted() {
        let (status, address) = (SessionStatus::default(), "10.0.0.1:3260".parse());
        let address: SocketAddr = address.expect("an address");
        assert_eq!(status.now(), SessionState::None);
        status.logged_in(address);
        let first = SessionState::LoggedIn {
            address,
            relogins: 0,
        };
        assert_eq!(status.now(), first);
        status.lost("it was reset".to_owned());
        let lost = SessionState::Lost {
            address: Some(address),
            relogins: 0,
            why: "it was reset".to_owned(),
        };
        assert_eq!(status.now(), lost);
        status.logged_in(address);
        let again = SessionState::LoggedIn {
            address,
            relogins: 1,
        };
        assert_eq!(status.now(), again);
    }
}
