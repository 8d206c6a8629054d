//! MariaDB, from Debian's packages.

use crate::database::{Database, Extent, Server, as_nobody, give_to_nobody};
use crate::process::{Daemon, program};
use crate::run::run;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// MariaDB's server, with InnoDB and durable commits.
#[derive(Debug)]
pub struct MariaDb {
    run: PathBuf,
    server: Server,
}

impl MariaDb {
    fn socket(&self) -> PathBuf {
        self.run.join("socket")
    }

    /// Waits until all deleted rows are gone. An extended check warns of an index entry whose row is purged between its
    /// look at one and at the other.
    fn wait_for_purge(&self) {
        let wait = "SET GLOBAL innodb_max_purge_lag_wait=0";
        run(self.client().args(["-e", wait]), LIMIT).success();
    }
}

impl Database for MariaDb {
    fn create(data: &Path, run_in: &Path) -> MariaDb {
        let data = data.join("mariadb");
        std::fs::create_dir(&data).expect("an empty file system");
        give_to_nobody(&data);
        give_to_nobody(run_in);
        let mut install = as_nobody(&program("mariadb-install-db", "mariadb-server-core"));
        // A server that starts removes what others have for temporary tables in the same directory.
        install.env("TMPDIR", run_in);
        install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
        install.args(["--skip-test-db", "--innodb-log-file-size=32M"]);
        install.arg(format!("--datadir={}", data.display()));
        run(&mut install, LIMIT).success();
        let mut database = MariaDb {
            run: run_in.to_owned(),
            server: Server::of(data),
        };
        database.start();
        let mut client = Command::new(program("mariadb", "mariadb-client"));
        client.arg("--no-defaults").arg("--user=root");
        client.arg(format!("--socket={}", database.socket().display()));
        run(client.args(["-e", "CREATE DATABASE bench"]), LIMIT).success();
        database
    }

    fn start(&mut self) {
        let mut command = as_nobody(&program("mariadbd", "mariadb-server-core"));
        command.env("TMPDIR", &self.run);
        command.args(["--no-defaults", "--skip-networking", "--skip-name-resolve"]);
        // Next to no memory of its own, so that it reads the volume: 6 MiB are the least that it accepts.
        command.args([
            "--innodb-log-file-size=32M",
            "--innodb-buffer-pool-size=6M",
            "--innodb-flush-method=O_DIRECT",
        ]);
        // Each commit is durable before it is acknowledged: the default, and what this is about.
        command.args(["--innodb-flush-log-at-trx-commit=1"]);
        command.arg(format!("--datadir={}", self.server.data.display()));
        command.arg(format!("--socket={}", self.socket().display()));
        command.arg(format!("--pid-file={}", self.run.join("pid").display()));
        let socket = self.socket();
        let _ = std::fs::remove_file(&socket);
        let mut server = Daemon::start(&command, self.run.join("server.log"));
        server.wait_for_socket(&socket);
        self.server.has_started(server);
    }

    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn client(&self) -> Command {
        let mut client = Command::new(program("mariadb", "mariadb-client"));
        client.args(["--no-defaults", "--user=root", "--batch", "--unbuffered"]);
        client.arg("--skip-column-names");
        client.arg(format!("--socket={}", self.socket().display()));
        client.arg("bench");
        client
    }

    fn sysbench(&self) -> Vec<String> {
        vec![
            "--db-driver=mysql".into(),
            "--mysql-user=root".into(),
            "--mysql-db=bench".into(),
            "--mysql-ignore-errors=all".into(),
            format!("--mysql-socket={}", self.socket().display()),
        ]
    }

    fn check(&self, extent: Extent) {
        let mut check = Command::new(program("mysqlcheck", "mariadb-client"));
        check.args(["--no-defaults", "--user=root", "--check"]);
        check.arg(format!("--socket={}", self.socket().display()));
        if extent == Extent::All {
            self.wait_for_purge();
            check.arg("--extended");
        }
        let ran = run(check.arg("bench"), LIMIT).success();
        let tables = ran.stdout.lines().count();
        let sound = ran.stdout.lines().filter(|line| line.ends_with(" OK"));
        assert!(tables > 0 && sound.count() == tables, "{ran}");
    }
}
