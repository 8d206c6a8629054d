//! A database whose administrator changes what is below it: the secret of the storage servers, the paths to one, the size of
//! the cache, the length of the disks; and each server is rebooted. Clients commit all the time. They lose no connection and
//! no row, and the longest that a commit has taken is printed for each step.
//!
//! The reboots come after the changes: a secret or a path that only one side knows would be found by the logins then.

use crate::attached::{Attached, FileSystem, can_attach};
use crate::ledger::{Clients, Ledger};
use crate::load;
use crate::storage_server::{Access, StorageServer};
use harness::database::{Database, Extent};
use harness::directory::Directory;
use harness::process::Daemon;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);
/// Rows that each client commits before and after a change.
const ROWS: usize = 25;
const OLD: &str = "the secret of last year";
const NEW: &str = "the secret of this year";

/// What the database is on, below a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Below {
    /// A disk of one server, which grows while it is used.
    Disk,
    /// A stripe of the disks of two servers, which grow while it is used.
    Stripe,
    /// A concat of the disk of one server, which takes that of another while it is used.
    Concat,
}

impl Below {
    fn servers(self) -> usize {
        match self {
            Below::Disk | Below::Concat => 1,
            Below::Stripe => 2,
        }
    }
}

/// What an administrator may write into the configuration of the database's machine.
struct Settings {
    /// The file with the secret.
    secret: PathBuf,
    cache_mib: u32,
    /// Which ways to the first server are used.
    ways: Vec<usize>,
}

struct Scene<D> {
    below: Below,
    servers: Vec<StorageServer>,
    settings: Settings,
    attached: Attached,
    database: D,
    ledger: Ledger,
    clients: Option<(Clients, Daemon)>,
    secrets: Directory,
    /// For the logs of the load.
    directory: Directory,
}

fn volumes(below: Below, servers: &[StorageServer], settings: &Settings) -> String {
    let account = format!(
        "chap = {{ user = \"host\", secret_file = {:?} }}",
        settings.secret
    );
    let mut disks = servers.iter().enumerate().map(|(number, server)| {
        let ways = if number == 0 {
            &settings.ways[..]
        } else {
            &[0]
        };
        let paths: Vec<String> = ways
            .iter()
            .map(|way| format!("{{ portal = \"{}\" }}", server.way(*way)))
            .collect();
        let (url, paths) = (server.url(), paths.join(", "));
        format!("{{ iscsi = {{ url = \"{url}\", paths = [{paths}], {account} }} }}")
    });
    let below = match below {
        Below::Disk => format!("[volume]\nbelow = {}\n", disks.next().expect("a server")),
        Below::Stripe | Below::Concat => {
            let kind = match below {
                Below::Stripe => "stripe",
                _ => "concat",
            };
            let disks: Vec<String> = disks.collect();
            format!(
                "[volume.below]\n{kind} = {{ of = [{}] }}\n",
                disks.join(", ")
            )
        }
    };
    let cache = settings.cache_mib;
    let cache = format!("size = \"{cache}MiB\", only_writer = true, of = \"below\"");
    format!("{below}[volume.db]\ncache = {{ {cache} }}\n")
}

impl<D: Database> Scene<D> {
    fn create(below: Below) -> Scene<D> {
        let servers: Vec<_> = (0..below.servers())
            .map(|_| StorageServer::start(OLD))
            .collect();
        let secrets = Directory::new();
        let settings = Settings {
            secret: secrets.secret("old", OLD),
            cache_mib: 8,
            ways: vec![0],
        };
        let text = volumes(below, &servers, &settings);
        let attached = match below {
            Below::Disk => Attached::create_with(&text, None, FileSystem::Xfs),
            Below::Stripe | Below::Concat => Attached::create(&text, "below", FileSystem::Xfs),
        };
        let (directory, database, ledger) = load::prepared(&attached.data());
        let mut scene = Scene {
            below,
            servers,
            settings,
            attached,
            database,
            ledger,
            clients: None,
            secrets,
            directory,
        };
        scene.begin();
        scene
    }

    fn begin(&mut self) {
        let clients = self.ledger.begin(&self.database);
        let load = load::start(&self.database, &self.directory);
        self.clients = Some((clients, load));
    }

    fn pause(&mut self) {
        let (clients, load) = self.clients.take().expect("they run");
        clients.stop();
        drop(load);
    }

    /// Puts the settings into effect on the database's machine; returns what has changed.
    fn apply(&self) -> String {
        let text = volumes(self.below, &self.servers, &self.settings);
        let told = self.attached.apply(&text);
        assert!(!told.contains('!'), "somebody notices:\n{told}");
        told
    }

    /// Makes a change that the database must not feel.
    fn under_load(&mut self, what: &str, change: impl FnOnce(&mut Self)) {
        let losses = self.ledger.losses();
        self.ledger.wait_for(ROWS, LIMIT);
        self.ledger.longest_commit();
        change(self);
        self.ledger.wait_for(ROWS, LIMIT);
        let longest = self.ledger.longest_commit();
        println!("{what}: the longest commit took {longest:.2?}");
        let (lost, log) = (self.ledger.losses() - losses, self.attached.log());
        assert_eq!(lost, 0, "{what}: the database felt it\n{log}");
        let load = self.clients.as_mut().map(|(_, load)| load);
        let load = load.expect("it runs");
        assert!(load.ended().is_none(), "{what}: {}", load.log());
        assert!(!log.contains(" ERROR "), "{what}:\n{log}");
    }

    fn rotates_the_secret(&mut self) {
        self.under_load("the servers know two secrets", |scene| {
            for server in &mut scene.servers {
                let told = server.apply(Access::Both { new: NEW, old: OLD });
                assert!(told.contains("still with the old secret"), "{told}");
            }
        });
        self.under_load("the client knows the new secret", |scene| {
            scene.settings.secret = scene.secrets.secret("new", NEW);
            scene.apply();
        });
    }

    /// Nobody has the old secret any more.
    fn removes_the_old_secret(&mut self) {
        self.under_load("the servers forget the old secret", |scene| {
            for server in &mut scene.servers {
                let told = server.apply(Access::One(NEW));
                assert!(!told.contains('!'), "{told}");
            }
        });
    }

    fn changes_paths(&mut self) {
        self.under_load("a path is added", |scene| {
            scene.settings.ways = vec![0, 1];
            scene.apply();
        });
        self.under_load("a path is removed, and fails", |scene| {
            scene.settings.ways = vec![1];
            scene.apply();
            scene.servers[0].break_way(0);
        });
    }

    fn changes_the_cache(&mut self) {
        self.under_load("another cache size", |scene| {
            for mib in [32, 4] {
                scene.settings.cache_mib = mib;
                scene.apply();
            }
        });
    }

    fn grows(&mut self) {
        let before = self.attached.file_system_bytes();
        if self.below == Below::Concat {
            self.under_load("the concat takes the disk of another server", |scene| {
                scene.servers.push(StorageServer::start(NEW));
                scene.apply();
                scene.attached.use_what_has_grown();
            });
            let after = self.attached.file_system_bytes();
            return assert!(after > before + before / 2, "{after} after {before}");
        }
        self.under_load("the servers' disks grow", |scene| {
            for server in &mut scene.servers {
                server.grow();
            }
            if scene.below == Below::Disk {
                scene.attached.use_what_has_grown();
            }
        });
        if self.below == Below::Stripe {
            self.under_load("the stripe takes their new length", |scene| {
                // The servers tell with what the database does next.
                let deadline = Instant::now() + LIMIT;
                while !scene.apply().contains("its stripe grows") {
                    assert!(Instant::now() < deadline, "{}", scene.attached.log());
                    sleep(Duration::from_millis(100));
                }
                scene.attached.use_what_has_grown();
            });
        }
        let after = self.attached.file_system_bytes();
        assert!(after > before + before / 4, "{after} after {before}");
    }

    fn reboots_each(&mut self, away: Duration) {
        for number in 0..self.servers.len() {
            self.under_load(&format!("a server is away for {away:?}"), |scene| {
                let logins = scene.attached.has_logged("logged in again");
                scene.servers[number].kill();
                sleep(away);
                scene.servers[number].start_again();
                scene.attached.wait_for_log("logged in again", logins + 1);
            });
        }
    }
}

/// A database of kind `D` sees nothing of all that, and neither does it see that each server is `away` for a while.
pub(crate) fn outlives<D: Database>(below: Below, away: Duration) {
    if !can_attach() {
        return;
    }
    let mut scene = Scene::<D>::create(below);
    scene.rotates_the_secret();
    scene.reboots_each(Duration::from_secs(1));
    scene.removes_the_old_secret();
    scene.changes_paths();
    scene.changes_the_cache();
    scene.grows();
    scene.reboots_each(away);
    scene.pause();
    let rows = scene.ledger.check(&scene.database);
    println!("{rows} rows were committed, and are there");
    scene.database.check(Extent::All);
    scene.database.kill();
    scene.attached.check_and_end();
}
