//! Raises the limit on open files, because each connection needs one. The soft limit, often 1024, protects
//! old programs that use `select`; we may use everything up to the hard limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for volumes, rings, listening sockets, and connections being opened or closed.
const BESIDE_CONNECTIONS: u64 = 256;

/// Raises the soft limit to the hard one, and logs a warning if that is less than `connections` need.
pub(crate) fn raise(connections: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` means unlimited.
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
            "the limit on open files is too low for the allowed connections; raise the hard limit \
             (LimitNOFILE= of systemd, `ulimit -Hn`), or lower `connections` and `limits.logins`"
        );
    }
}
