//! Runs MariaDB and PostgreSQL, each with durable commits and its data in a given directory.

use std::{
    cell::RefCell,
    fs::{self, DirBuilder},
    os::unix::{
        fs::{DirBuilderExt, chown},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use engine::programs::find;
use rustix::{net::sockopt::socket_peercred, process::Signal};
use serde::Deserialize;

use super::{child::Child, stack::Stack};
use crate::{
    LabError, LabResult,
    load::Stop,
    machine,
    programs::{NOBODY, dying_with_us, program, run},
};

/// The number in the name of PostgreSQL's socket.
const PORT: &str = "5432";

/// How long it may take to start, even on a slow disk.
const START_LIMIT: Duration = Duration::from_secs(300);

/// The minimum that MariaDB accepts for its buffer pool, in pages: 24 MiB with the largest pages.
const POOL_PAGES_MIN: u64 = 384;

/// Which database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ServerKind {
    Mariadb,
    Postgresql,
}

/// A running server.
pub(crate) struct DatabaseServer {
    kind: ServerKind,
    child: Child,
    run_in: PathBuf,
    /// Its files, by which its clients know it.
    data: PathBuf,
}

impl ServerKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ServerKind::Mariadb => "MariaDB",
            ServerKind::Postgresql => "PostgreSQL",
        }
    }

    /// Checks that everything it needs is installed on this machine.
    ///
    /// # Errors
    /// Names what is missing, and its package.
    pub(crate) fn check(self) -> LabResult<()> {
        match self {
            ServerKind::Mariadb => {
                for name in ["mariadbd", "mariadb-install-db"] {
                    self.program(name)?;
                }
                self.client().map(drop)
            }
            ServerKind::Postgresql => {
                for name in ["postgres", "initdb", "psql"] {
                    self.program(name)?;
                }
                Ok(())
            }
        }
    }

    fn wanted(self) -> String {
        let (this, other) = match self {
            ServerKind::Mariadb => ("mariadb", "postgresql"),
            ServerKind::Postgresql => ("postgresql", "mariadb"),
        };
        format!("database = \"{this}\" (\"{other}\" is the other one)")
    }

    /// The client program that sends it SQL.
    pub(super) fn client(self) -> LabResult<PathBuf> {
        match self {
            ServerKind::Mariadb => program("mariadb", "mariadb-client", &self.wanted()),
            ServerKind::Postgresql => self.program("psql"),
        }
    }

    fn program(self, name: &str) -> LabResult<PathBuf> {
        match self {
            ServerKind::Mariadb => program(name, "mariadb-server-core", &self.wanted()),
            ServerKind::Postgresql => {
                // Debian has a directory for each version.
                let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
                let mut found = versions
                    .filter_map(|version| Some(version.ok()?.path().join("bin").join(name)))
                    .filter(|path| path.is_file());
                let found = found.next().or_else(|| find(name));
                found.map_or_else(|| program(name, "postgresql", &self.wanted()), Ok)
            }
        }
    }
}

impl DatabaseServer {
    /// Creates an empty database on `stack` and starts the server with `memory_bytes` for its page cache.
    /// `page_bytes` is MariaDB's page size, if not the default.
    ///
    /// # Errors
    /// It does not start, or [`LabError::Stopped`].
    pub(crate) fn create(
        kind: ServerKind,
        stack: &Stack,
        memory_bytes: u64,
        page_bytes: Option<u64>,
        stop: &Stop,
    ) -> LabResult<DatabaseServer> {
        let is_root = rustix::process::geteuid().is_root();
        let (data, run_in) = (stack.data().join("database"), stack.directory().join("run"));
        for directory in [&stack.seen(&data), &run_in] {
            make_private(directory, is_root)?;
        }
        let command = |name: &str| -> LabResult<Command> {
            let mut command = stack.dying(&kind.program(name)?, is_root)?;
            command.env("TMPDIR", &run_in).env("HOME", &run_in);
            // The one that this program was started in may be closed to the server.
            command.current_dir("/");
            Ok(command)
        };
        let mut server = match kind {
            ServerKind::Mariadb => {
                let mut install = command("mariadb-install-db")?;
                install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
                install.args(["--skip-test-db", "--innodb-log-file-size=32M"]);
                let page = page_bytes.map(|bytes| format!("--innodb-page-size={bytes}"));
                install.args(&page);
                let memory_bytes = memory_bytes.max(POOL_PAGES_MIN * page_bytes.unwrap_or(0));
                run(install.arg(format!("--datadir={}", data.display())), stop)?;
                let mut start = command("mariadbd")?;
                start.args(["--no-defaults", "--skip-networking", "--skip-name-resolve"]);
                // Each commit is durable before it is acknowledged: the default, and the subject of the
                // measurement.
                start.args([
                    "--innodb-flush-log-at-trx-commit=1",
                    "--innodb-log-file-size=32M",
                ]);
                start.arg(format!("--innodb-buffer-pool-size={memory_bytes}"));
                start.args(&page);
                start.arg(format!("--datadir={}", data.display()));
                start.arg(format!("--socket={}", run_in.join("socket").display()));
                start.arg(format!("--pid-file={}", run_in.join("pid").display()));
                start
            }
            ServerKind::Postgresql => {
                let mut init = command("initdb")?;
                init.args(["-U", "postgres", "-A", "trust", "-D"]);
                run(init.arg(&data), stop)?;
                let mut start = command("postgres")?;
                start.arg("-D").arg(&data).args(["-c", "listen_addresses="]);
                start.args(["-c", &format!("port={PORT}")]);
                start.args(["-c", &format!("shared_buffers={}kB", memory_bytes >> 10)]);
                let sockets = format!("unix_socket_directories={}", run_in.display());
                start.args(["-c", &sockets]);
                // Otherwise a scan may start where a concurrent or earlier one is, and LIMIT returns
                // different rows each time.
                start.args(["-c", "synchronize_seqscans=off"]);
                start
            }
        };
        let log = stack.directory().join("server.log");
        let mut server = DatabaseServer {
            kind,
            child: Child::start(kind.name(), &mut server, &log)?,
            run_in,
            data,
        };
        let socket = server.socket();
        let listens = |child: &Child| is_listening(&socket, child.pid());
        server.child.wait_until(START_LIMIT, stop, listens)?;
        server.create_database(stop)?;
        Ok(server)
    }

    /// Its socket.
    fn socket(&self) -> PathBuf {
        self.run_in.join(match self.kind {
            ServerKind::Mariadb => "socket".to_owned(),
            ServerKind::Postgresql => format!(".s.PGSQL.{PORT}"),
        })
    }

    fn create_database(&mut self, stop: &Stop) -> LabResult<()> {
        let client = |statement: &str| -> LabResult<Command> {
            let mut client = self.client(None)?;
            client.arg(match self.kind {
                ServerKind::Mariadb => "-e",
                ServerKind::Postgresql => "-c",
            });
            client.arg(statement);
            Ok(client)
        };
        let mut create = client("CREATE DATABASE bench")?;
        // It accepts connections before it can answer.
        let ask = RefCell::new(client("SELECT 1")?);
        self.child.wait_until(START_LIMIT, stop, |_| {
            run(&mut ask.borrow_mut(), stop).is_ok()
        })?;
        run(&mut create, stop).map(drop)
    }

    /// The client program, set to print bare rows of our server, in this database if one is named.
    pub(super) fn client(&self, database: Option<&str>) -> LabResult<Command> {
        let mut command = dying_with_us(&self.kind.client()?)?;
        command.env("HOME", &self.run_in);
        match self.kind {
            ServerKind::Mariadb => {
                command.args(["--no-defaults", "--user=root", "--local-infile=1"]);
                command.arg(format!("--socket={}", self.socket().display()));
                command.args(["--batch", "--skip-column-names", "--quick", "--unbuffered"]);
                command.args(database);
            }
            ServerKind::Postgresql => {
                command.args(["-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1"]);
                command.arg("-h").arg(&self.run_in).args(["-p", PORT]);
                command.args(["-U", "postgres", "-d", database.unwrap_or("postgres")]);
            }
        }
        Ok(command)
    }

    /// Whether this is the answer of our server to [`ServerKind::place`].
    pub(super) fn is_ours(&self, place: &str) -> bool {
        Path::new(place.trim()) == self.data
    }

    pub(super) fn kind(&self) -> ServerKind {
        self.kind
    }

    /// sysbench's options to connect to it.
    pub(super) fn sysbench(&self) -> Vec<String> {
        match self.kind {
            ServerKind::Mariadb => vec![
                "--db-driver=mysql".into(),
                "--mysql-host=localhost".into(),
                "--mysql-user=root".into(),
                "--mysql-db=bench".into(),
                format!("--mysql-socket={}", self.socket().display()),
            ],
            ServerKind::Postgresql => vec![
                "--db-driver=pgsql".into(),
                "--pgsql-user=postgres".into(),
                "--pgsql-db=bench".into(),
                format!("--pgsql-host={}", self.run_in.display()),
                format!("--pgsql-port={PORT}"),
            ],
        }
    }

    /// Processor time of the server and its children, including those that have exited, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        machine::family_ns(self.child.pid())
    }

    /// Stops the server while others are measured, so that its background writes do not count against them.
    pub(crate) fn pause(&self) {
        self.child.signal(Signal::STOP);
    }

    /// Resumes it.
    pub(crate) fn go_on(&self) {
        self.child.signal(Signal::CONT);
    }

    /// An error that includes the end of its log.
    pub(crate) fn failed(&self, error: &LabError) -> LabError {
        self.child.failed(&error.to_string())
    }
}

/// Makes a directory for the server alone. Neither server runs as root.
fn make_private(directory: &Path, is_root: bool) -> LabResult<()> {
    let made = DirBuilder::new().mode(0o700).create(directory);
    let made = made.and_then(|()| match is_root {
        true => chown(directory, Some(NOBODY), Some(NOBODY)),
        false => Ok(()),
    });
    made.map_err(|source| LabError::File {
        path: directory.to_owned(),
        source,
    })
}

/// Whether the process `pid`, and no other, listens at this socket.
fn is_listening(socket: &Path, pid: u32) -> bool {
    let peer = UnixStream::connect(socket).ok();
    let peer = peer.and_then(|stream| socket_peercred(stream).ok());
    peer.is_some_and(|peer| peer.pid.as_raw_nonzero().get() as u32 == pid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_the_process_that_we_started_counts_as_our_server() {
        let directory = tempfile::tempdir().expect("room");
        let socket = directory.path().join("socket");
        let own = std::process::id();
        assert!(!is_listening(&socket, own));
        let _listener = UnixListener::bind(&socket).expect("a short path");
        assert!(is_listening(&socket, own));
        assert!(!is_listening(&socket, own + 1));
    }
}
