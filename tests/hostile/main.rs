//! Whatever strangers and misbehaving initiators do to the daemon, a database using it is not affected: all its I/Os
//! complete with the right data, none of its connections is lost, all its new logins succeed, and the daemon's memory
//! stays under its bound. The throughput lost to the attacks is printed.
//!
//! `long` runs long commands next to another session's reads, `bursts` begins long writes next to another's, `waiting` has
//! a disk that hangs. `crowd` has the attacks of peers that only connect,
//! `session` those of initiators that may log in to their own LUN, and `database` is the client that must not notice.

mod bursts;
mod crowd;
mod database;
mod long;
mod session;
mod waiting;

use database::Database;
use harness::directory::Directory;
use harness::procfs::{cpu_time, resident_bytes, resident_peak_bytes};
use harness::sanstone::{IQN, Sanstone};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The target that requires a secret that no attacker has.
const GUARDED: &str = "iqn.2026-11.io.sanstone:guarded";

const MEMORY_BYTES: u64 = 64 << 20;
const CONNECTIONS: u64 = 128;
const LOGINS: u64 = 512;
/// The most memory the daemon may hold: the payload memory of its configuration, 24 MiB for the program and its rings,
/// 256 KiB for each allowed session, and 32 KiB for each connection before login, counted twice because as many again
/// may be closing.
const BOUND_BYTES: u64 =
    MEMORY_BYTES + (24 << 20) + CONNECTIONS * (256 << 10) + 2 * LOGINS * (32 << 10);

/// How long each kind of attack lasts, and the calm before and after them.
const ATTACK: Duration = Duration::from_secs(9);
const CALM: Duration = Duration::from_secs(4);

/// What is attacked.
pub(crate) struct Site {
    port: u16,
    /// Attack steps of any kind, counted so that a test whose attackers do nothing is noticed.
    done: AtomicU64,
}

impl Site {
    fn did(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// One attempt of an attacking thread; it ends when it fails or the time is up.
type Attack = fn(&Site, u16, Instant) -> std::io::Result<()>;

/// Runs each attack in as many threads as it says until `end`.
fn attack(site: &Site, attacks: &[(Attack, u16)], end: Instant) {
    std::thread::scope(|scope| {
        let mut number = 100;
        for &(attack, threads) in attacks {
            for _ in 0..threads {
                number += 1;
                scope.spawn(move || {
                    // Attackers that are dropped come back, but not in a hot loop.
                    while Instant::now() < end {
                        let _ = attack(site, number, end);
                        site.did();
                        sleep(Duration::from_millis(2));
                    }
                });
            }
        }
    });
}

fn serve() -> Sanstone {
    let directory = Directory::new();
    directory.write("secret", "a secret of enough bytes\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(directory.join("secret"), mode).expect("a mode");
    let port = harness::free_port();
    let configuration = format!(
        "memory = \"{}MiB\"\nconnections = {CONNECTIONS}\n[limits]\nlogins = {LOGINS}\nlogin_time = \"{}s\"\n\
         [volume.disk]\nfile = {{ path = \"disk.img\", size = \"64MiB\", cache = \"write-back\" }}\n\
         [volume.scratch]\nram = {{ size = \"16MiB\" }}\n\
         [volume.vault]\nram = {{ size = \"1MiB\" }}\n\
         [target.\"{IQN}\"]\nportals = [\"127.0.0.1:{port}\"]\nluns = [\"disk\", \"scratch\"]\nallow = [\"*\"]\n\
         [target.\"{GUARDED}\"]\nportals = [\"127.0.0.1:{port}\"]\nluns = [\"vault\"]\nallow = [\"*\"]\n\
         chap = {{ user = \"db\", secret_file = \"secret\" }}\n",
        MEMORY_BYTES >> 20,
        database::LOGIN_TIME.as_secs(),
    );
    Sanstone::serve_configuration(directory.path(), &configuration, port).owning(directory)
}

/// Raises this process's limit on open descriptors; the attackers hold thousands.
fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised to the hard one");
}

#[test]
fn a_database_notices_no_attack() {
    raise_descriptors();
    let mut server = serve();
    let site = Site {
        port: server.port(),
        done: AtomicU64::new(0),
    };
    let database = Database::begin(&site.address());
    let measure = |what: &str, attacks: &[(Attack, u16)], time: Duration| {
        let (before, begun) = (database.bytes(), Instant::now());
        let cpu_before = cpu_time(server.pid());
        attack(&site, attacks, begun + time);
        if attacks.is_empty() {
            sleep(time);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let mib = (database.bytes() - before) as f64 / f64::from(1 << 20);
        println!(
            "hostile: {what}: {:.1} MiB/s, {:.1} ms CPU a MiB, {} attacks so far, {} MiB resident, {} at the peak of {}",
            mib / seconds,
            (cpu_time(server.pid()) - cpu_before).as_secs_f64() * 1000.0 / mib,
            site.done.load(Ordering::Relaxed),
            resident_bytes(server.pid()) >> 20,
            resident_peak_bytes(server.pid()) >> 20,
            BOUND_BYTES >> 20,
        );
        database.check();
    };
    measure("before", &[], CALM);
    measure("those who only connect", crowd::ATTACKS, ATTACK);
    measure("those who log in", session::ATTACKS, ATTACK);
    let all = [crowd::ATTACKS, session::ATTACKS].concat();
    measure("all of them", &all, ATTACK);
    measure("afterwards", &[], CALM);
    println!("hostile: {}", database.end());
    let peak = resident_peak_bytes(server.pid());
    assert!(peak < BOUND_BYTES, "{} MiB at the peak", peak >> 20);
    assert!(
        server.daemon().ended().is_none(),
        "it does not serve any more"
    );
    let log = server.daemon().log_with("to make room for a new one");
    assert!(
        log.len() < 1 << 20,
        "the attackers wrote {} bytes of log",
        log.len()
    );
    server.daemon().signal("TERM");
    let status = server.daemon().wait(Duration::from_secs(60));
    assert_eq!(status.expect("it stops").code(), Some(0));
}
