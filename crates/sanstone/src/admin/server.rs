//! The daemon's side of the admin socket. One thread accepts connections and starts a short-lived thread for
//! each; no lane ever waits for them. A client that sends or reads nothing is dropped after a timeout, or as soon as
//! another one needs its place.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use engine::lane::looked;
use node::{
    Config, ConfigChange, DaemonFailure, View,
    description::{Node, PathSession},
    health::Verdict,
};
use rustix::{
    net::sockopt::socket_peercred,
    process::geteuid,
    time::{ClockId, clock_gettime},
};

use super::{
    aside::Aside,
    places::{ClientPlace, ClientPlaces},
    protocol::{
        AdminCall, AdminRefusal, Applied, BEAT, Compared, Sample, asked, read_line, reply,
        write_line,
    },
    socket,
};

/// Maximum number of clients served at a time; others are turned away.
const CLIENTS_MAX: usize = 8;
/// Of those, the most that may wait for an `apply`, which may take long: others can still look at what is served.
const APPLIES_MAX: usize = CLIENTS_MAX / 2;
/// Maximum length of a request, in bytes.
const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// How long a client may take to send its request, and to accept each piece of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long reading and checking a configuration may take: it looks at every file that is served.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause before the next attempt after a failed accept.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

/// The requests that the daemon handles on its own lane. Answers to a client that has gone are dropped.
pub(crate) struct Daemon {
    /// Returns the current view.
    pub(crate) view: Hand<mpsc::Sender<View>>,
    /// Applies another configuration.
    pub(crate) apply: Hand<ApplyRequest>,
    /// Reads and checks a configuration that is to be applied.
    pub(crate) load: LoadConfig,
}

/// Reads and checks the configuration in a file, where no lane waits for it; also returns what is to be said about it.
pub(crate) type LoadConfig =
    Arc<dyn Fn(&Path) -> Result<(Box<Config>, Vec<String>), DaemonFailure> + Send + Sync>;

/// Passes a request to the daemon; false once it no longer takes any.
type Hand<T> = Box<dyn Fn(T) -> bool + Send + Sync>;

/// Another configuration to apply or, in a dry run, to report the difference of.
pub(crate) struct ApplyRequest {
    pub(crate) config: Box<Config>,
    pub(crate) is_dry_run: bool,
    pub(crate) answer: mpsc::Sender<Result<Vec<ConfigChange>, DaemonFailure>>,
}

/// The listening socket.
pub(crate) struct AdminServer {
    path: PathBuf,
    stopping: Arc<AtomicBool>,
}

impl AdminServer {
    /// Listens in the state directory `state`. Because this process holds the directory's lock, an existing
    /// socket is a leftover of a process that has ended. A failure is logged: the daemon serves even without it.
    pub(crate) fn start(state: &Path, daemon: Daemon) -> Option<AdminServer> {
        let started = AdminServer::listen(state, daemon);
        started
            .inspect_err(|error| {
                let state = state.display();
                tracing::error!(
                    %state,
                    %error,
                    "there is no admin socket: `sanstone show`, `top` and `apply` cannot reach this daemon"
                );
            })
            .ok()
    }

    fn listen(state: &Path, daemon: Daemon) -> io::Result<AdminServer> {
        let path = socket::path(state);
        let new = socket::new_address(state)?;
        match fs::remove_file(new.path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Bound under a temporary name until its permissions exclude other users.
        let listener = UnixListener::bind(new.path())?;
        fs::set_permissions(new.path(), fs::Permissions::from_mode(0o600))?;
        fs::rename(new.path(), &path)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        thread::Builder::new()
            .name("admin".into())
            .spawn(move || serve(&listener, &Arc::new(daemon), &stop))?;
        Ok(AdminServer { path, stopping })
    }

    /// Stops answering requests.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Err(error) = fs::remove_file(&self.path) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the admin socket could not be removed");
        }
    }
}

/// Accepts clients until the process ends.
fn serve(listener: &UnixListener, daemon: &Arc<Daemon>, stopping: &AtomicBool) {
    let places = ClientPlaces::new(CLIENTS_MAX);
    let refusal = refusal().unwrap_or_default();
    let hall = Arc::new(Hall::default());
    loop {
        let accepted = listener.accept();
        if stopping.load(Ordering::Relaxed) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a client of the admin socket could not be accepted");
                thread::sleep(PAUSE_AFTER_ERROR);
                continue;
            }
        };
        let place = places.enter(&stream, Instant::now(), &refusal);
        let (daemon, hall) = (daemon.clone(), hall.clone());
        let answer = move || {
            let answered = place.and_then(|place| match place {
                Some(place) => attend(&stream, &place, &daemon, &hall),
                None => refuse(&stream),
            });
            if let Err(error) = answered {
                tracing::debug!(%error, "a client of the admin socket has disconnected");
            }
        };
        if let Err(error) = thread::Builder::new()
            .name("admin-client".into())
            .spawn(answer)
        {
            tracing::warn!(%error, "a client of the admin socket could not be served");
        }
    }
}

/// What the clients share.
#[derive(Default)]
struct Hall {
    /// Counts its clones: the clients that wait for an `apply`.
    applies: Arc<()>,
    aside: Aside,
}

impl Hall {
    /// Lets a client wait for an `apply` for as long as it has the value.
    fn admit(&self) -> Result<Arc<()>, AdminRefusal> {
        let admitted = self.applies.clone();
        match Arc::strong_count(&admitted) <= APPLIES_MAX + 1 {
            true => Ok(admitted),
            false => Err(AdminRefusal::failed(format!(
                "{APPLIES_MAX} other `apply`s are waiting; try again when one of them has ended"
            ))),
        }
    }
}

/// Reads what a client sends until a moment, however it is spread.
struct Until<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into)
    }
}

/// Reads one client's request and answers it.
fn attend(
    stream: &UnixStream,
    place: &ClientPlace,
    daemon: &Daemon,
    hall: &Hall,
) -> io::Result<()> {
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let peer = socket_peercred(stream)?;
    if peer.uid != geteuid() && !peer.uid.is_root() {
        let user = peer.uid.as_raw();
        let message = format!("the daemon belongs to another user, not to user {user}");
        return write_line(stream, &reply(Err::<(), _>(AdminRefusal::failed(message)))?);
    }
    let until = Instant::now() + CLIENT_TIMEOUT;
    let line = read_line(Until { stream, until }, REQUEST_BYTES_MAX)?;
    place.set_idle(false);
    let line = while_beating(stream, || match asked(&line) {
        Err(refusal) => reply(Err::<(), _>(refusal)),
        Ok(asked) => {
            let timeout = asked.timeout();
            match asked {
                AdminCall::Show => {
                    let view = call(&daemon.view, timeout, |answer| answer);
                    reply(view.map(|view| view.describe()))
                }
                AdminCall::Counters => {
                    let view = call(&daemon.view, timeout, |answer| answer);
                    reply(view.map(|view| sample(&view)))
                }
                AdminCall::Compare { mirror, at_bytes } => {
                    reply(compare(daemon, timeout, &mirror, at_bytes))
                }
                AdminCall::Log { filter } => {
                    let changed = crate::log::change_level(filter.as_deref());
                    reply(changed.map_err(|message| AdminRefusal {
                        is_wrong: true,
                        message,
                    }))
                }
                AdminCall::Apply { path, dry_run } => {
                    reply(apply(daemon, hall, timeout, &path, dry_run))
                }
            }
        }
    })?;
    place.set_idle(true);
    write_line(stream, &line)
}

/// Runs `work` and meanwhile sends the client spaces to show that it continues.
fn while_beating<T>(stream: &UnixStream, work: impl FnOnce() -> T) -> T {
    let (working, over) = mpsc::channel::<()>();
    let beat = move || {
        let mut stream = stream;
        while over.recv_timeout(BEAT) == Err(mpsc::RecvTimeoutError::Timeout) {
            // A client that has disconnected needs none.
            if stream.write_all(b" ").is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let beating = thread::Builder::new().name("admin-beat".into());
        if let Err(error) = beating.spawn_scoped(scope, beat) {
            tracing::warn!(%error, "cannot send progress to a client of the admin socket");
        }
        let done = work();
        drop(working);
        done
    })
}

fn refuse(stream: &UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    write_line(stream, &refusal()?)
}

fn refusal() -> io::Result<Vec<u8>> {
    let message = format!("{CLIENTS_MAX} other clients are being served; try again");
    reply(Err::<(), _>(AdminRefusal::failed(message)))
}

/// Sends the daemon the request that `ask` builds, and waits for the answer.
fn call<Q, T>(
    hand: &Hand<Q>,
    timeout: Duration,
    ask: impl FnOnce(mpsc::Sender<T>) -> Q,
) -> Result<T, AdminRefusal> {
    let (sender, answer) = mpsc::channel();
    let stopping = "the daemon is stopping";
    if !hand(ask(sender)) {
        return Err(AdminRefusal::failed(stopping));
    }
    answer.recv_timeout(timeout).map_err(|error| {
        AdminRefusal::failed(match error {
            mpsc::RecvTimeoutError::Disconnected => stopping.to_owned(),
            mpsc::RecvTimeoutError::Timeout => {
                format!("the daemon has not answered within {timeout:?}")
            }
        })
    })
}

/// Has a mirror compare a part of its copies.
fn compare(
    daemon: &Daemon,
    timeout: Duration,
    mirror: &str,
    at_bytes: u64,
) -> Result<Compared, AdminRefusal> {
    let view = call(&daemon.view, timeout, |answer| answer)?;
    let handle = view.mirror(mirror);
    let handle =
        handle.ok_or_else(|| AdminRefusal::failed(format!("no mirror {mirror} is open")))?;
    let compared = handle.compare(at_bytes).recv_timeout(timeout);
    let late = |_| {
        AdminRefusal::failed(format!(
            "mirror {mirror} has not answered within {timeout:?}"
        ))
    };
    let compared = compared.map_err(late)?;
    let compared = compared.map_err(|error| AdminRefusal::failed(error.to_string()))?;
    let differ = compared.differ.iter();
    Ok(Compared {
        next_bytes: compared.next_bytes,
        len_bytes: compared.len_bytes,
        differ: differ.map(|range| (range.start, range.end)).collect(),
    })
}

/// Reads and checks a configuration like a start would, beside the lanes so that none waits for the disk,
/// and then has the daemon apply it.
fn apply(
    daemon: &Daemon,
    hall: &Hall,
    timeout: Duration,
    path: &Path,
    is_dry_run: bool,
) -> Result<Applied, AdminRefusal> {
    let _admitted = hall.admit()?;
    let what = path.display().to_string();
    let (path, load) = (path.to_owned(), daemon.load.clone());
    let loaded = hall.aside.run(&what, LOAD_TIMEOUT, move || load(&path))?;
    let (config, notes) = loaded?;
    let changes = call(&daemon.apply, timeout, |answer| ApplyRequest {
        config,
        is_dry_run,
        answer,
    })??;
    let warnings = changes
        .iter()
        .filter(|it| matches!(it, ConfigChange::Warning(_)));
    Ok(Applied {
        warnings: warnings.count(),
        changes: changes.iter().map(ToString::to_string).collect(),
        notes,
    })
}

impl From<DaemonFailure> for AdminRefusal {
    fn from(failure: DaemonFailure) -> AdminRefusal {
        AdminRefusal {
            is_wrong: !matches!(failure, DaemonFailure::Failed(_)),
            message: failure.to_string(),
        }
    }
}

fn sample(view: &View) -> Sample {
    let description = view.describe();
    let mut paths = BTreeMap::new();
    for volume in description.volumes.values() {
        note_paths(&volume.tree, &mut paths);
    }
    Sample {
        paths,
        at_ns: clock_ns(ClockId::Monotonic),
        cpu_ns: clock_ns(ClockId::ProcessCPUTime),
        looked_ns: looked().as_nanos() as u64,
        counters: view.counters(),
        verdict: Verdict::of(&description),
    }
}

/// Collects the sessions of a node and of everything below it.
fn note_paths(node: &Node, paths: &mut BTreeMap<String, Vec<PathSession>>) {
    if !node.sessions.is_empty() {
        paths.insert(node.path.clone(), node.sessions.clone());
    }
    for child in &node.children {
        note_paths(child, paths);
    }
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_hears_that_the_daemon_is_at_work() {
        let (ours, mut its) = UnixStream::pair().expect("two sockets");
        let mut space = [0];
        while_beating(&ours, || its.read_exact(&mut space).expect("a space"));
        assert_eq!(space, [b' ']);
    }
}
