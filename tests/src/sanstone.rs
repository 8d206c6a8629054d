//! The `sanstone` binary under test: `SANSTONE_BIN`, or the one cargo built next to the tests.

use crate::directory::Directory;
use crate::process::{Daemon, wait_until_free};
use crate::run::{Ran, run};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The target name that the tests' configurations use.
pub const IQN: &str = "iqn.2026-11.io.sanstone:test";

/// The binary under test.
///
/// # Panics
/// If there is none; the message says how to build it.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("SANSTONE_BIN").map_or_else(built_beside_the_tests, PathBuf::from);
    assert!(
        path.is_file(),
        "{} is not there: `cargo build` makes it, or set SANSTONE_BIN",
        path.display()
    );
    path
}

/// Tests run from TARGET/PROFILE/deps, tools from TARGET/PROFILE; the binary is in the latter.
fn built_beside_the_tests() -> PathBuf {
    let own = std::env::current_exe().expect("a running program has a path");
    let profile = own
        .ancestors()
        .find(|path| !path.ends_with("deps") && path.is_dir());
    profile
        .map(|path| path.join("sanstone"))
        .unwrap_or_default()
}

/// Runs `sanstone` with these arguments to its end, 60 seconds at most.
///
/// # Panics
/// If it cannot be started.
#[track_caller]
pub fn call(arguments: &[&str]) -> Ran {
    run(
        Command::new(binary()).args(arguments),
        Duration::from_secs(60),
    )
}

/// A private `sanstone serve`, in its own directory.
#[derive(Debug)]
pub struct Sanstone {
    daemon: Daemon,
    port: u16,
    _directory: Option<Directory>,
}

/// The target table that serves volumes as LUN 0, 1, … of [`IQN`] on this port to everybody. It must follow the
/// volumes' own tables.
pub fn target_table(port: u16, volumes: &[&str]) -> String {
    let luns = volumes
        .iter()
        .map(|name| format!("{name:?}"))
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "\n[target.\"{IQN}\"]\nportals = [\"127.0.0.1:{port}\"]\nluns = [{luns}]\nallow = [\"*\"]\n"
    )
}

impl Sanstone {
    /// Serves the volumes named, whose tables `volumes_toml` holds, from the directory given
    /// (paths in the tables are relative to it), and waits until it accepts connections.
    ///
    /// # Panics
    /// If it does not come up; the message holds its log.
    pub fn serve(directory: &Path, volumes_toml: &str, volumes: &[&str]) -> Sanstone {
        Sanstone::serve_on(crate::free_port(), directory, volumes_toml, volumes)
    }

    /// The same on this port of 127.0.0.1, for example that of an earlier daemon whose clients reconnect.
    ///
    /// # Panics
    /// If it does not come up; the message holds its log.
    pub fn serve_on(port: u16, directory: &Path, volumes_toml: &str, volumes: &[&str]) -> Sanstone {
        let configuration = format!("{volumes_toml}{}", target_table(port, volumes));
        Sanstone::serve_configuration(directory, &configuration, port)
    }

    /// Serves a whole configuration, which must have a portal on this port of 127.0.0.1.
    ///
    /// # Panics
    /// If it does not come up; the message holds its log.
    pub fn serve_configuration(directory: &Path, configuration: &str, port: u16) -> Sanstone {
        let file = directory.join("sanstone.toml");
        std::fs::write(&file, configuration).expect("a test can write its configuration");
        let mut command = Command::new(binary());
        command.args(["serve", "-c"]).arg(&file);
        wait_until_free((Ipv4Addr::LOCALHOST, port).into());
        let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
        daemon.wait_for_port(port);
        Sanstone {
            daemon,
            port,
            _directory: None,
        }
    }

    /// Waits until it answers on the admin socket in its state directory, `state`, which it opens a moment after its
    /// portals.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn answering(mut self, state: &Path) -> Sanstone {
        let answers = || {
            let mut show = Command::new(binary());
            let shown = show.args(["show", "--state"]).arg(state).output();
            shown.is_ok_and(|shown| shown.status.success())
        };
        self.daemon.wait_until(answers);
        self
    }

    /// Keeps the directory for as long as the server runs.
    pub fn owning(mut self, directory: Directory) -> Sanstone {
        self._directory = Some(directory);
        self
    }

    /// The process.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Its portal's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The portal as libiscsi and QEMU write it.
    pub fn portal(&self) -> String {
        format!("iscsi://127.0.0.1:{}", self.port)
    }

    /// A LUN as libiscsi and QEMU write it.
    pub fn url(&self, lun: u32) -> String {
        format!("{}/{IQN}/{lun}", self.portal())
    }
}
