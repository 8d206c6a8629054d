//! Daemons under test: started with their output in a log, killed by pid when dropped, and killed by the kernel should
//! the test itself die.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A running daemon and the file that its standard output and error go to.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    name: String,
    log: PathBuf,
}

/// Sends a signal (`TERM`, `KILL`, …) to a process, or to a group when `id` is negative. It is not an error if the
/// process is already gone.
///
/// The shell's built-in `kill` is the only way without unsafe code that every system has.
pub fn signal(id: i64, signal: &str) {
    let _ = Command::new("sh")
        .args(["-c", "kill -s \"$0\" -- \"$1\"", signal, &id.to_string()])
        .stderr(Stdio::null())
        .status();
}

/// Finds a program by name, also in /usr/sbin, which is not in every account's PATH.
///
/// # Panics
/// If it is not found; the message names its Debian package.
pub fn program(name: &str, package: &str) -> PathBuf {
    find_program(name).unwrap_or_else(|| {
        panic!("{name} is not here: it comes with Debian's package {package}, which `make test` installs")
    })
}

/// Finds a program by name in PATH, /usr/sbin or /sbin.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .map(|directory| Path::new(directory).join(name))
        .find(|candidate| candidate.is_file())
}

/// Waits until nobody listens at this address; for a minute at most. The kernel releases a killed daemon's ring, and
/// its port with it, a moment after the process has ended.
pub fn wait_until_free(address: SocketAddr) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(address).is_ok() && Instant::now() < deadline {
        sleep(Duration::from_millis(10));
    }
}

impl Daemon {
    /// Starts a program whose output goes to `log`. The kernel kills it when the thread that
    /// started it ends, so a daemon belongs to one test and is never shared by several.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &Command, log: PathBuf) -> Daemon {
        let name = command.get_program().to_string_lossy().into_owned();
        let output = File::create(&log)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", log.display()));
        let mut wrapped = Command::new("setpriv");
        wrapped
            .args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program());
        wrapped.args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(key, value),
                None => wrapped.env_remove(key),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            wrapped.current_dir(directory);
        }
        let child = wrapped
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a log can be opened twice"))
            .stderr(output)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Daemon { child, name, log }
    }

    /// Waits until something accepts connections on this port of 127.0.0.1.
    ///
    /// # Panics
    /// If the daemon ends first or does not listen within a minute; the message holds its log.
    pub fn wait_for_port(&mut self, port: u16) {
        self.wait_until(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// The same for a Unix socket.
    ///
    /// # Panics
    /// Like [`Daemon::wait_for_port`].
    pub fn wait_for_socket(&mut self, socket: &Path) {
        self.wait_until(|| UnixStream::connect(socket).is_ok());
    }

    /// Waits until `listens` returns true.
    ///
    /// # Panics
    /// Like [`Daemon::wait_for_port`].
    pub fn wait_until(&mut self, listens: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !listens() {
            if let Some(status) = self.ended() {
                panic!("{} ended at start ({status}):\n{}", self.name, self.log());
            }
            assert!(
                Instant::now() < deadline,
                "{} does not listen after a minute:\n{}",
                self.name,
                self.log()
            );
            sleep(Duration::from_millis(10));
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All that it has printed so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The complete lines it has printed, once they contain `text`. The log is written asynchronously: a line may
    /// appear after the answer that it is about.
    ///
    /// # Panics
    /// If `text` is not in it within a minute.
    pub fn log_with(&self, text: &str) -> String {
        self.log_with_times(text, 1)
    }

    /// The same once they contain `text` this many times.
    ///
    /// # Panics
    /// If that does not happen within a minute.
    pub fn log_with_times(&self, text: &str, times: usize) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let log = self.complete_lines();
            if log.matches(text).count() >= times {
                return log;
            }
            assert!(
                Instant::now() < deadline,
                "not {times} × {text:?} in\n{log}"
            );
            sleep(Duration::from_millis(5));
        }
    }

    /// The first line it has printed with `text`; until there is one, `step` is repeated, ten times a second at most.
    ///
    /// # Panics
    /// If there is none within `limit`.
    #[track_caller]
    pub fn line_with(&self, text: &str, limit: Duration, mut step: impl FnMut()) -> String {
        let deadline = Instant::now() + limit;
        loop {
            step();
            let log = self.complete_lines();
            if let Some(line) = log.lines().find(|line| line.contains(text)) {
                return line.to_owned();
            }
            assert!(Instant::now() < deadline, "not {text:?} in\n{log}");
            sleep(Duration::from_millis(100));
        }
    }

    fn complete_lines(&self) -> String {
        let mut log = self.log();
        log.truncate(log.rfind('\n').map_or(0, |end| end + 1));
        log
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .expect("a child of ours can be waited for")
    }

    /// Sends it a signal by name (`TERM`, `KILL`).
    pub fn signal(&self, name: &str) {
        signal(i64::from(self.pid()), name);
    }

    /// Stops it (SIGSTOP) and waits until all its threads are stopped; `signal("CONT")` continues it.
    ///
    /// # Panics
    /// If it does not stop within a minute.
    pub fn stop(&self) {
        self.signal("STOP");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !crate::procfs::stands_still(self.pid()) {
            assert!(Instant::now() < deadline, "{} does not stop", self.name);
            sleep(Duration::from_millis(1));
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if it is still running after `limit`.
    pub fn wait(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("{} still runs after {limit:?}:\n{}", self.name, self.log()),
                ));
            }
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of {}:\n{}", self.name, self.log());
        }
    }
}
