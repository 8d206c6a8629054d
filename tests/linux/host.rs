//! The server for the guests: a check's private `sanstone serve` on this machine, at addresses that are the same in the
//! guests.

use harness::directory::Directory;
use harness::process::{Daemon, wait_until_free};
use harness::sanstone::binary;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Addresses at which guests reach this machine; see tests/linux/guest/init.
pub(crate) const ADDRESSES: [&str; 2] = ["127.0.2.1", "127.0.2.2"];

/// A daemon with one target and two portals.
pub(crate) struct Host {
    daemon: Daemon,
    /// The target's name.
    pub(crate) iqn: String,
    /// `ADDRESS:PORT` on both addresses.
    pub(crate) portals: [SocketAddr; 2],
    directory: Directory,
}

impl Host {
    /// Serves the volume `disk`, whose table (and others) `volumes_toml` holds, as LUN 0 of a target
    /// called after `name`.
    pub(crate) fn serve(name: &str, volumes_toml: &str) -> Host {
        Host::serve_with(name, volumes_toml, "", &[])
    }

    /// The same with a file of this size in bytes behind the disk, whose table names no size.
    pub(crate) fn serve_file_of(name: &str, size_bytes: u64, volumes_toml: &str) -> Host {
        let directory = Directory::new();
        directory.sparse("disk.img", size_bytes);
        Host::serve_in(directory, name, volumes_toml, "")
    }

    /// The same with more lines in the target's table and secrets in files beside it.
    pub(crate) fn serve_with(
        name: &str,
        volumes_toml: &str,
        target_toml: &str,
        secrets: &[(&str, &str)],
    ) -> Host {
        let directory = Directory::new();
        for (file, secret) in secrets {
            let path = directory.write(file, secret);
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(path, private).expect("a file of ours");
        }
        Host::serve_in(directory, name, volumes_toml, target_toml)
    }

    fn serve_in(directory: Directory, name: &str, volumes_toml: &str, target_toml: &str) -> Host {
        let iqn = format!("iqn.2026-11.io.sanstone:{name}");
        let portals = portals();
        let [one, two] = portals;
        directory.write(
            "sanstone.toml",
            format!(
                "{volumes_toml}\n[target.\"{iqn}\"]\nportals = [\"{one}\", \"{two}\"]\n\
                 luns = [\"disk\"]\nallow = [\"*\"]\n{target_toml}\n"
            ),
        );
        let daemon = start(&directory, one);
        Host {
            daemon,
            iqn,
            portals,
            directory,
        }
    }

    /// A daemon at separate portals that redirects initiators to `there`.
    pub(crate) fn redirect(there: &Host, permanent: bool) -> Host {
        let directory = Directory::new();
        let (iqn, [to, _]) = (there.iqn.clone(), there.portals);
        let portals = portals();
        let [one, two] = portals;
        directory.write(
            "sanstone.toml",
            format!(
                "[target.\"{iqn}\"]\nportals = [\"{one}\", \"{two}\"]\nallow = [\"*\"]\n\
                 redirect = {{ to = \"{to}\", permanent = {permanent} }}\n"
            ),
        );
        let daemon = start(&directory, one);
        Host {
            daemon,
            iqn,
            portals,
            directory,
        }
    }

    /// A file of this size in MiB behind the disk.
    pub(crate) fn file(size_mib: u32) -> String {
        format!(
            "[volume.disk]\nfile = {{ path = \"disk.img\", size = \"{size_mib}MiB\", \
             cache = \"write-back\" }}\n"
        )
    }

    /// Restarts it at the same portals.
    fn restart(&mut self) {
        wait_until_free(self.portals[0]);
        self.daemon = start(&self.directory, self.portals[0]);
    }

    /// Kills the daemon and restarts it.
    pub(crate) fn kill_and_restart(&mut self) {
        self.daemon.signal("KILL");
        let ended = self.daemon.wait(Duration::from_secs(60));
        assert!(!ended.expect("it is killed").success());
        self.restart();
    }

    /// Sends the daemon a signal.
    pub(crate) fn signal(&self, name: &str) {
        self.daemon.signal(name);
    }

    /// Makes the file behind the disk larger.
    pub(crate) fn grow(&self, size_bytes: u64) {
        let file = std::fs::File::options().write(true).open(self.image());
        file.and_then(|file| file.set_len(size_bytes))
            .expect("a file of ours");
    }

    /// The file behind the disk.
    pub(crate) fn image(&self) -> PathBuf {
        self.directory.join("disk.img")
    }

    /// The target and its first portal as the guest's functions take them.
    pub(crate) fn node(&self) -> String {
        format!("{} {}", self.iqn, self.portals[0])
    }

    /// All that the daemon has printed since it started, once `text` is in it.
    #[track_caller]
    pub(crate) fn log_with(&self, text: &str) -> String {
        self.daemon.log_with(text)
    }
}

fn start(directory: &Directory, portal: SocketAddr) -> Daemon {
    let mut command = Command::new(binary());
    command
        .args(["serve", "-c"])
        .arg(directory.join("sanstone.toml"));
    let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
    daemon.wait_until(|| TcpStream::connect(portal).is_ok());
    daemon
}

/// Two portals at one free port.
fn portals() -> [SocketAddr; 2] {
    let port = harness::free_port();
    ADDRESSES.map(|address| SocketAddr::new(address.parse().expect("an address"), port))
}
