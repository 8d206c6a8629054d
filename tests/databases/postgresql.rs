//! PostgreSQL, from Debian's packages.

use harness::database::{Database, Extent, Server, as_nobody, give_to_nobody};
use harness::process::Daemon;
use harness::run::run;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

pub(crate) struct PostgreSql {
    run: PathBuf,
    server: Server,
}

/// A program of PostgreSQL: Debian keeps those of each version in a directory.
fn pg(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let found = versions
        .filter_map(|version| Some(version.ok()?.path().join("bin").join(name)))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not here: it comes with Debian's package postgresql, which `make test` installs")
    })
}

impl PostgreSql {
    fn reach(&self, program: &str) -> Command {
        let mut command = Command::new(pg(program));
        command.arg("-h").arg(&self.run).args(["-U", "postgres"]);
        command
    }

    fn answers(&self) -> bool {
        let mut ask = self.reach("psql");
        ask.args(["-X", "-c", "SELECT 1", "postgres"]);
        run(&mut ask, LIMIT).code() == Some(0)
    }
}

impl Database for PostgreSql {
    fn create(data: &Path, run_in: &Path) -> PostgreSql {
        let data = data.join("postgresql");
        std::fs::create_dir(&data).expect("an empty file system");
        give_to_nobody(&data);
        give_to_nobody(run_in);
        let mut init = as_nobody(&pg("initdb"));
        // Page checksums: what was torn or lost shows at the next read.
        init.args(["-U", "postgres", "-A", "trust", "--data-checksums", "-D"]);
        run(init.arg(&data), LIMIT).success();
        let mut database = PostgreSql {
            run: run_in.to_owned(),
            server: Server::of(data),
        };
        database.start();
        let mut create = database.reach("createdb");
        run(create.arg("bench"), LIMIT).success();
        database
    }

    fn start(&mut self) {
        let mut command = as_nobody(&pg("postgres"));
        command.arg("-D").arg(&self.server.data);
        // Next to no memory of its own, so that it reads the volume. It would accept 128 kB, but these few buffers may
        // all be in use at a time, which is an error.
        command.args(["-c", "listen_addresses=", "-c", "shared_buffers=1MB"]);
        // Its log must not fill a volume of a test.
        command.args(["-c", "max_wal_size=128MB"]);
        command.arg("-c");
        command.arg(format!("unix_socket_directories={}", self.run.display()));
        let mut server = Daemon::start(&command, self.run.join("server.log"));
        server.wait_until(|| self.answers());
        self.server.has_started(server);
    }

    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn client(&self) -> Command {
        let mut client = self.reach("psql");
        client.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "bench"]);
        client
    }

    fn sysbench(&self) -> Vec<String> {
        vec![
            "--db-driver=pgsql".into(),
            "--pgsql-user=postgres".into(),
            "--pgsql-db=bench".into(),
            format!("--pgsql-host={}", self.run.display()),
        ]
    }

    fn check(&self, extent: Extent) {
        let mut check = self.reach("pg_amcheck");
        check.args(["--install-missing", "--parent-check"]);
        if extent == Extent::All {
            check.args(["--heapallindexed", "--rootdescend"]);
        }
        let ran = run(check.arg("bench"), LIMIT).success();
        assert!(ran.stdout.is_empty(), "{ran}");
    }
}
