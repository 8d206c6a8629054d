//! Runs MariaDB and PostgreSQL, each with durable commits and its data in a given directory.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::process::Signal;
use serde::Deserialize;

use super::{
    child::{Child, dying_with_us},
    programs::{find, program, run},
    stack::Stack,
};
use crate::{Error, Result, machine};

/// How long it may take to start, even on a slow disk.
const START_LIMIT: Duration = Duration::from_secs(300);

/// The minimum that MariaDB accepts for its buffer pool, in pages: 24 MiB with the largest pages.
const POOL_PAGES_MIN: u64 = 384;

/// Which database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Mariadb,
    Postgresql,
}

/// A running server.
pub(crate) struct Server {
    kind: Kind,
    child: Child,
    run_in: PathBuf,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Mariadb => "MariaDB",
            Kind::Postgresql => "PostgreSQL",
        }
    }

    /// Checks that everything it needs is installed on this machine.
    ///
    /// # Errors
    /// Names what is missing, and its package.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Kind::Mariadb => {
                for name in ["mariadbd", "mariadb-install-db"] {
                    self.program(name)?;
                }
                self.client().map(drop)
            }
            Kind::Postgresql => {
                for name in ["postgres", "initdb", "createdb", "psql"] {
                    self.program(name)?;
                }
                Ok(())
            }
        }
    }

    fn wanted(self) -> String {
        let (this, other) = match self {
            Kind::Mariadb => ("mariadb", "postgresql"),
            Kind::Postgresql => ("postgresql", "mariadb"),
        };
        format!("database = \"{this}\" (\"{other}\" is the other one)")
    }

    /// The client program that sends it SQL.
    pub(super) fn client(self) -> Result<PathBuf> {
        match self {
            Kind::Mariadb => program("mariadb", "mariadb-client", &self.wanted()),
            Kind::Postgresql => self.program("psql"),
        }
    }

    fn program(self, name: &str) -> Result<PathBuf> {
        match self {
            Kind::Mariadb => program(name, "mariadb-server-core", &self.wanted()),
            Kind::Postgresql => {
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

impl Server {
    /// Creates an empty database on `stack` and starts the server with `memory_bytes` for its page cache.
    /// `page_bytes` is MariaDB's page size, if not the default.
    pub(crate) fn create(
        kind: Kind,
        stack: &Stack,
        memory_bytes: u64,
        page_bytes: Option<u64>,
    ) -> Result<Server> {
        let is_root = rustix::process::geteuid().is_root();
        let (data, run_in) = (stack.data().join("database"), stack.directory().join("run"));
        for directory in [&data, &run_in] {
            let mut make = stack.command();
            make.args(["install", "-d", "-m", "700"]);
            if is_root {
                // Neither server runs as root.
                make.args(["-o", "65534", "-g", "65534"]);
            }
            run(make.arg(directory))?;
        }
        let command = |name: &str| -> Result<Command> {
            let mut command = dying_with_us(stack.command(), &kind.program(name)?, is_root);
            // TMPDIR may be accessible only to this program's user.
            command.env("TMPDIR", &run_in);
            Ok(command)
        };
        let mut server = match kind {
            Kind::Mariadb => {
                let mut install = command("mariadb-install-db")?;
                install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
                install.args(["--skip-test-db", "--innodb-log-file-size=32M"]);
                let page = page_bytes.map(|bytes| format!("--innodb-page-size={bytes}"));
                install.args(&page);
                let memory_bytes = memory_bytes.max(POOL_PAGES_MIN * page_bytes.unwrap_or(0));
                run(install.arg(format!("--datadir={}", data.display())))?;
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
            Kind::Postgresql => {
                let mut init = command("initdb")?;
                init.args(["-U", "postgres", "-A", "trust", "-D"]);
                run(init.arg(&data))?;
                let mut start = command("postgres")?;
                start.arg("-D").arg(&data).args(["-c", "listen_addresses="]);
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
        let mut server = Server {
            kind,
            child: Child::start(kind.name(), &mut server, &log)?,
            run_in,
        };
        let socket = match kind {
            Kind::Mariadb => server.run_in.join("socket"),
            Kind::Postgresql => server.run_in.join(".s.PGSQL.5432"),
        };
        server
            .child
            .wait_until(START_LIMIT, |_| UnixStream::connect(&socket).is_ok())?;
        server.create_database()?;
        Ok(server)
    }

    fn create_database(&mut self) -> Result<()> {
        match self.kind {
            Kind::Mariadb => {
                let mut create = Command::new(self.kind.client()?);
                create.args(["--no-defaults", "--user=root"]);
                create.arg(format!("--socket={}", self.run_in.join("socket").display()));
                run(create.args(["-e", "CREATE DATABASE bench"])).map(drop)
            }
            Kind::Postgresql => {
                let reach = |name: &str| -> Result<Command> {
                    let mut command = Command::new(self.kind.program(name)?);
                    command.arg("-h").arg(&self.run_in).args(["-U", "postgres"]);
                    Ok(command)
                };
                let mut ask = reach("psql")?;
                ask.args(["-X", "-c", "SELECT 1", "postgres"]);
                let mut create = reach("createdb")?;
                // It accepts connections before it can answer.
                let ask = std::cell::RefCell::new(ask);
                self.child
                    .wait_until(START_LIMIT, |_| run(&mut ask.borrow_mut()).is_ok())?;
                run(create.arg("bench")).map(drop)
            }
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// The directory of its socket.
    pub(super) fn run_in(&self) -> &Path {
        &self.run_in
    }

    /// sysbench's options to connect to it.
    pub(super) fn sysbench(&self) -> Vec<String> {
        let run_in = self.run_in.display();
        match self.kind {
            Kind::Mariadb => vec![
                "--db-driver=mysql".into(),
                "--mysql-user=root".into(),
                "--mysql-db=bench".into(),
                format!("--mysql-socket={run_in}/socket"),
            ],
            Kind::Postgresql => vec![
                "--db-driver=pgsql".into(),
                "--pgsql-user=postgres".into(),
                "--pgsql-db=bench".into(),
                format!("--pgsql-host={run_in}"),
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
    pub(crate) fn failed(&self, error: &Error) -> Error {
        self.child.failed(&error.to_string())
    }
}

/// Gives the server's user access to a directory.
pub(super) fn open_to_all(directory: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory, permissions).map_err(|source| Error::File {
        path: directory.to_owned(),
        source,
    })
}
