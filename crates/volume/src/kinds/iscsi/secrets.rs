//! The secrets with which a disk's sessions log in. Where they come from files, each login reads them again: who changes a
//! secret need not tell us, and the target may ask for the new one at any time.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use engine::{Duration, blocking};
use iscsi::Chap;

use crate::values::ConfigError;

/// Reads the secrets from their files.
type Read = dyn Fn() -> std::result::Result<Option<Arc<Chap>>, ConfigError> + Send + Sync;

/// Where the secrets come from. Clones share what is known.
#[derive(Clone)]
pub struct Secrets(Arc<Source>);

struct Source {
    /// As last read, and why they could not be read again.
    known: Mutex<(Arc<Chap>, Option<String>)>,
    read: Option<Arc<Read>>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(…)")
    }
}

impl Secrets {
    /// These, for good.
    pub fn fixed(chap: Arc<Chap>) -> Secrets {
        Secrets(Arc::new(Source {
            known: Mutex::new((chap, None)),
            read: None,
        }))
    }

    /// These for now, as they were read by `read`, with which each login reads them again.
    pub(super) fn read_again(
        chap: Arc<Chap>,
        read: impl Fn() -> std::result::Result<Option<Arc<Chap>>, ConfigError> + Send + Sync + 'static,
    ) -> Secrets {
        Secrets(Arc::new(Source {
            known: Mutex::new((chap, None)),
            read: Some(Arc::new(read)),
        }))
    }

    /// As they are now. If they cannot be read within `limit`, as they were: that a file is away is logged once, and no
    /// reason not to try.
    pub(super) async fn now(&self, limit: Duration) -> Arc<Chap> {
        if let Some(read) = self.0.read.clone() {
            let reading = blocking::run_within(limit, blocking::WorkKind::Files, move || read());
            let read = reading.await.map_err(|error| error.to_string());
            let read = read.and_then(|read| read.map_err(|error| error.message().to_owned()));
            let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
            match read {
                Ok(Some(chap)) => *known = (chap, None),
                Ok(None) => {}
                Err(why) if known.1.as_ref() == Some(&why) => {}
                Err(why) => {
                    tracing::warn!("a login uses the secret that was read before: {why}");
                    known.1 = Some(why);
                }
            }
        }
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use engine::{Lane, LaneConfig};
    use iscsi::{ChapAccount, ChapSecret};

    use super::*;

    fn chap(number: usize) -> Arc<Chap> {
        let secret = format!("the secret number {number}");
        let secret = ChapSecret::new(secret.as_bytes()).expect("long enough");
        let account = ChapAccount::new("host", secret).expect("a name");
        Arc::new(Chap::new(account, None).expect("one secret"))
    }

    #[test]
    fn each_login_has_the_secret_that_is_in_the_file_then_or_was_in_it_last() {
        static READS: AtomicUsize = AtomicUsize::new(0);
        let read = || match READS.fetch_add(1, Relaxed) {
            1 => Err(ConfigError::new(None, "the file is away")),
            number => Ok(Some(chap(number))),
        };
        let secrets = Secrets::read_again(chap(9), read);
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let limit = Duration::from_secs(60);
            for number in [0, 0, 2] {
                assert_eq!(secrets.now(limit).await, chap(number));
            }
            let fixed = Secrets::fixed(chap(9));
            assert_eq!(fixed.now(limit).await, chap(9));
        });
    }
}
