//! The current state of our initiator's sessions, readable from any thread.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::silence::Silence;

/// Whether an `iscsi` volume has a session, and the state of each; clones share it. Updated when a session begins or
/// is lost, never per command.
#[derive(Clone, Debug, Default)]
pub struct SessionStatus(Arc<Mutex<Status>>);

#[derive(Debug, Default)]
struct Status {
    volume: SessionState,
    /// A silence begins and ends without being told.
    paths: Vec<(PathStatus, Silence)>,
    lacks_fence: bool,
}

/// One configured session of a volume, established or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// The portal: the session's, or the configured one.
    pub portal: SocketAddr,
    /// Our local address in the current or last session.
    pub local: Option<SocketAddr>,
    /// The number of the session's lane.
    pub lane: usize,
    /// Its state.
    pub state: PathState,
}

/// The state of one session of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Logged in.
    LoggedIn,
    /// Logged in at a target port that cannot be used now.
    Standby,
    /// Logged in, but the target has not answered a ping for a while.
    Silent,
    /// Not logged in, and why, if known.
    None(Option<String>),
}

/// The state of a volume's sessions taken together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SessionState {
    /// There has been no session yet.
    #[default]
    None,
    /// Logged in.
    LoggedIn {
        /// The portal it has reached, perhaps by redirection.
        address: SocketAddr,
        /// How often it was lost and restored.
        relogins: u64,
    },
    /// Lost; requests wait for another session.
    Lost {
        /// Where it was.
        address: Option<SocketAddr>,
        /// How often it was restored before.
        relogins: u64,
        /// What ended it.
        why: String,
    },
}

impl SessionStatus {
    /// The current state.
    pub fn now(&self) -> SessionState {
        self.lock().volume.clone()
    }

    /// The state of each session, in configuration order.
    pub fn paths(&self) -> Vec<PathStatus> {
        self.all().1
    }

    /// Both, of one moment.
    pub fn all(&self) -> (SessionState, Vec<PathStatus>) {
        let status = self.lock();
        let paths = status.paths.iter().map(|(path, silence)| {
            let mut path = path.clone();
            if silence.is_on() && !matches!(path.state, PathState::None(_)) {
                path.state = PathState::Silent;
            }
            path
        });
        (status.volume.clone(), paths.collect())
    }

    /// Whether the disk is claimed, and its target has no persistent reservations that would keep other owners out.
    pub fn lacks_fence(&self) -> bool {
        self.lock().lacks_fence
    }

    pub(super) fn set_lacks_fence(&self, lacks_fence: bool) {
        self.lock().lacks_fence = lacks_fence;
    }

    pub(super) fn set_paths(&self, paths: Vec<(PathStatus, Silence)>) {
        self.lock().paths = paths;
    }

    /// The session with `address` is now the first.
    pub(super) fn moved(&self, to: SocketAddr) {
        if let SessionState::LoggedIn { address, .. } = &mut self.lock().volume {
            *address = to;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session has been established with `address`. Changes nothing if there already was one.
    pub(super) fn logged_in(&self, address: SocketAddr) {
        if matches!(self.now(), SessionState::LoggedIn { .. }) {
            return;
        }
        self.change(|before| SessionState::LoggedIn {
            address,
            relogins: match before {
                SessionState::None | SessionState::Lost { address: None, .. } => 0,
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
