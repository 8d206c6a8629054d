//! The limit on open files: each connection is one. The soft limit is what old programs with
//! `select` can bear, 1024 on most systems; the hard limit is what we may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For volumes, rings, listening sockets, and connections on their way in and out.
const BESIDE_CONNECTIONS: u64 = 256;

/// Raises the soft limit to the hard one, and says so when that is less than `connections` need.
pub(crate) fn raise(connections: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // None is without a limit.
    if current != maximum {
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit on open files could not be raised");
        }
    }
    let needed = connections + BESIDE_CONNECTIONS;
    if let Some(most) = getrlimit(Resource::Nofile)
        .current
        .filter(|most| *most < needed)
    {
        tracing::warn!(
            most,
            needed,
            "fewer files may be open than connections are allowed; raise the hard limit \
             (LimitNOFILE= of systemd, `ulimit -Hn`), or lower `connections` and `limits.logins`"
        );
    }
}
