//! Four shares from two daemons, the first of which is reached over a path that can fail.

use harness::directory::Directory;
use harness::forwarder::Forwarder;
use harness::free_port;
use harness::sanstone::Sanstone;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};

/// Size of each share, in MiB.
const SHARE_MIB: u32 = 256;
const SHARES_EACH: usize = 2;

/// Two daemons with two shares each.
pub(crate) struct Shares {
    servers: Vec<Server>,
    /// The only path to the first daemon.
    pub(crate) way: Forwarder,
}

struct Server {
    directory: Directory,
    port: u16,
    /// The caching mode of its files.
    cache: &'static str,
    daemon: Option<Sanstone>,
}

impl Server {
    fn start(&mut self) {
        let names: Vec<String> = (0..SHARES_EACH)
            .map(|number| format!("share{number}"))
            .collect();
        let mut volumes = "state = \"state\"\n".to_owned();
        for name in &names {
            let cache = self.cache;
            let file = format!(
                "{{ path = \"{name}.img\", size = \"{SHARE_MIB}MiB\", cache = \"{cache}\" }}"
            );
            writeln!(volumes, "[volume.{name}]\nfile = {file}").expect("room");
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.daemon = Some(Sanstone::serve_on(
            self.port,
            self.directory.path(),
            &volumes,
            &names,
        ));
    }
}

impl Shares {
    /// Serves them.
    pub(crate) fn serve() -> Shares {
        // The second daemon is killed. Unflushed data of a disk with a volatile cache then counts as lost, and the
        // volume fails until it is reopened; only without a volatile cache is the kill a mere pause.
        let servers = ["direct", "direct-sync"].into_iter().map(|cache| {
            let mut server = Server {
                cache,
                directory: Directory::new(),
                port: free_port(),
                daemon: None,
            };
            server.start();
            server
        });
        let servers: Vec<Server> = servers.collect();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, servers[0].port));
        Shares {
            servers,
            way: Forwarder::new("127.0.0.1", to),
        }
    }

    /// The configuration of the volumes `stripe`, over all shares, and `db`, a cache over it.
    pub(crate) fn volumes(&self) -> String {
        let ports = [self.way.address().port(), self.servers[1].port];
        let urls = ports.iter().flat_map(|port| {
            let iqn = harness::sanstone::IQN;
            (0..SHARES_EACH).map(move |lun| format!("iscsi://127.0.0.1:{port}/{iqn}/{lun}"))
        });
        let children = urls.map(|url| format!("  {{ iscsi = {{ url = \"{url}\" }} }},\n"));
        let children: String = children.collect();
        format!(
            "[volume.stripe]\nstripe = {{ unit = \"64KiB\", of = [\n{children}] }}\n\
             [volume.db]\ncache = {{ size = \"64MiB\", of = \"stripe\" }}\n"
        )
    }

    /// Kills the second daemon and starts it again.
    pub(crate) fn kill_one(&mut self) {
        let server = self.servers.last_mut().expect("there are two");
        let mut daemon = server.daemon.take().expect("it runs");
        daemon.daemon().signal("KILL");
        let limit = std::time::Duration::from_secs(60);
        daemon.daemon().wait(limit).expect("it is dead");
        server.start();
    }
}
