//! What a session of our initiator does right now, for whoever looks from another thread.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

/// Whether one `iscsi` volume has a session; clones are the same. Written when a session begins or is lost,
/// never for a command.
#[derive(Clone, Debug, Default)]
pub struct SessionStatus(Arc<Mutex<SessionState>>);

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
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
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
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = change(std::mem::take(&mut state));
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
