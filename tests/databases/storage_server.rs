//! A storage server: a `sanstone serve` with one disk behind CHAP, two ways to it, and what its administrator does.

use harness::directory::Directory;
use harness::forwarder::Forwarder;
use harness::free_port;
use harness::sanstone::{IQN, Sanstone, call, target_table};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// The size of its disk, in MiB, before and after it grows.
const SIZES_MIB: [u32; 2] = [400, 600];

/// The secrets that it accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// One.
    One(&'static str),
    /// The new one, and the old one for a while.
    Both {
        new: &'static str,
        old: &'static str,
    },
}

/// The server. Its configuration is what its administrator has written last.
pub(crate) struct StorageServer {
    directory: Directory,
    port: u16,
    ways: [Forwarder; 2],
    size_mib: u32,
    access: Access,
    daemon: Option<Sanstone>,
}

impl StorageServer {
    /// Starts it with this secret.
    pub(crate) fn start(secret: &'static str) -> StorageServer {
        let port = free_port();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = StorageServer {
            directory: Directory::new(),
            port,
            ways: [(); 2].map(|()| Forwarder::new("127.0.0.1", to)),
            size_mib: SIZES_MIB[0],
            access: Access::One(secret),
            daemon: None,
        };
        server.start_again();
        server
    }

    /// The URL of its disk.
    pub(crate) fn url(&self) -> String {
        format!("iscsi://127.0.0.1:{}/{IQN}/0", self.port)
    }

    /// Where one of the two ways to it begins.
    pub(crate) fn way(&self, number: usize) -> SocketAddr {
        self.ways[number].address()
    }

    /// That way fails for good.
    pub(crate) fn break_way(&self, number: usize) {
        self.ways[number].break_all();
    }

    fn configuration(&self) -> String {
        let account = |key: &str, secret: &str| {
            let file = self.directory.secret(key, secret);
            format!("{key} = {{ user = \"host\", secret_file = {file:?} }}\n")
        };
        let access = match self.access {
            Access::One(secret) => account("chap", secret),
            Access::Both { new, old } => account("chap", new) + &account("old_chap", old),
        };
        let (size, target) = (self.size_mib, target_table(self.port, &["disk"]));
        format!(
            "state = \"state\"\n[volume.disk]\nfile = {{ path = \"disk.img\", size = \"{size}MiB\" }}\n{target}{access}"
        )
    }

    /// Kills its daemon, as a machine that loses power, except that nothing on its disk is lost.
    pub(crate) fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.daemon().signal("KILL");
        daemon.daemon().wait(LIMIT).expect("it is dead");
    }

    /// Starts its daemon with the configuration as it is.
    pub(crate) fn start_again(&mut self) {
        let configuration = self.configuration();
        let started =
            Sanstone::serve_configuration(self.directory.path(), &configuration, self.port);
        self.daemon = Some(started.answering(&self.directory.join("state")));
    }

    /// Lets clients in with these secrets from now on; returns what `apply` has said.
    pub(crate) fn apply(&mut self, access: Access) -> String {
        self.access = access;
        self.applied()
    }

    /// Makes its disk larger.
    pub(crate) fn grow(&mut self) {
        self.size_mib = SIZES_MIB[1];
        self.applied();
    }

    fn applied(&self) -> String {
        let file = self.directory.write("sanstone.toml", self.configuration());
        let file = file.to_str().expect("a test's path is text");
        call(&["apply", "-c", file]).success().stdout
    }
}
