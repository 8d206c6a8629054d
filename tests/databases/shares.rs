//! Four shares from two daemons. One daemon is reached over two paths, the other over a single one, and each path can
//! fail.

use harness::directory::Directory;
use harness::forwarder::Forwarder;
use harness::free_port;
use harness::sanstone::{IQN, Sanstone};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Size of each share, in MiB.
const SHARE_MIB: u32 = 256;
const SHARES_EACH: usize = 2;
/// The cache over the stripe, in MiB: smaller than the tables of the load, so that it has to fetch what it has evicted.
const CACHE_MIB: u32 = 8;
/// How many ways lead to each daemon.
const WAYS: [usize; 2] = [2, 1];
/// The daemon with several ways.
const MULTIPATH: usize = 0;
/// The daemon that is killed.
const KILLED: usize = 1;

/// Two daemons with two shares each.
pub(crate) struct Shares {
    servers: Vec<Server>,
}

struct Server {
    directory: Directory,
    port: u16,
    /// The paths to it.
    ways: Vec<Forwarder>,
    daemon: Option<Sanstone>,
}

impl Server {
    fn new(ways: usize) -> Server {
        let port = free_port();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Server {
            directory: Directory::new(),
            port,
            ways: (0..ways).map(|_| Forwarder::new("127.0.0.1", to)).collect(),
            daemon: None,
        };
        server.start();
        server
    }

    fn start(&mut self) {
        let names: Vec<String> = (0..SHARES_EACH)
            .map(|number| format!("share{number}"))
            .collect();
        let mut volumes = "state = \"state\"\n".to_owned();
        for name in &names {
            let file = format!("{{ path = \"{name}.img\", size = \"{SHARE_MIB}MiB\" }}");
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

    /// The children of the stripe that it serves, with the default time limits.
    fn children(&self) -> impl Iterator<Item = String> + '_ {
        let portals = self.ways.iter().map(|way| way.address().to_string());
        let portals: Vec<String> = portals.collect();
        (0..SHARES_EACH).map(move |lun| {
            let url = format!("url = \"iscsi://{}/{IQN}/{lun}\"", portals[0]);
            if portals.len() == 1 {
                return format!("  {{ iscsi = {{ {url} }} }},\n");
            }
            let paths = portals
                .iter()
                .map(|portal| format!("{{ portal = \"{portal}\" }}"));
            let paths = paths.collect::<Vec<_>>().join(", ");
            format!("  {{ iscsi = {{ {url}, paths = [{paths}] }} }},\n")
        })
    }
}

impl Shares {
    /// Serves them.
    pub(crate) fn serve() -> Shares {
        Shares {
            servers: WAYS.into_iter().map(Server::new).collect(),
        }
    }

    /// The configuration of the volumes `stripe`, over all shares, and `db`, a cache over it.
    pub(crate) fn volumes(&self) -> String {
        let children: String = self.servers.iter().flat_map(Server::children).collect();
        format!(
            "[volume.stripe]\nstripe = {{ unit = \"64KiB\", of = [\n{children}] }}\n\
             [volume.db]\ncache = {{ size = \"{CACHE_MIB}MiB\", of = \"stripe\" }}\n"
        )
    }

    /// Every path to every daemon.
    pub(crate) fn ways(&self) -> impl Iterator<Item = &Forwarder> {
        self.servers.iter().flat_map(|server| &server.ways)
    }

    /// One of the two paths to the same daemon.
    pub(crate) fn one_of_two_ways(&self, way: usize) -> &Forwarder {
        &self.servers[MULTIPATH].ways[way]
    }

    /// How many sessions each path carries: one for each share.
    pub(crate) fn sessions_each_way(&self) -> usize {
        SHARES_EACH
    }

    /// Kills one of the daemons and starts it again.
    pub(crate) fn kill_one(&mut self) {
        let server = &mut self.servers[KILLED];
        let mut daemon = server.daemon.take().expect("it runs");
        daemon.daemon().signal("KILL");
        let limit = Duration::from_secs(60);
        daemon.daemon().wait(limit).expect("it is dead");
        server.start();
    }
}
