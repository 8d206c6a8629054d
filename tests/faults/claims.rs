//! Two daemons and one stripe, over two disks of a third, of tgt or of Linux's own target (LIO): the second daemon is
//! refused and told the name of the first, a daemon that was killed recovers by itself, and one whose stripe was taken
//! over never answers with stale data.

use engine::{Buf, Duration, Payload};
use harness::directory::Directory;
use harness::forwarder::Forwarder;
use harness::initiator::{on_lane, on_port, opened};
use harness::lio::{Backing, Lio};
use harness::run::Ran;
use harness::sanstone::{Sanstone, call, target_table};
use harness::tgt::Tgt;
use std::rc::Rc;
use std::thread::sleep;
use volume::{Durability, IscsiDisk, Volume};

const CHILDREN: &str = "\
[volume.a]\nfile = { path = \"a.img\", size = \"16MiB\", cache = \"write-back\" }\n\
[volume.b]\nfile = { path = \"b.img\", size = \"16MiB\", cache = \"write-back\" }\n";

/// Two disks served by some target.
struct Shares {
    /// The settings of an `iscsi` volume on each.
    disks: Vec<String>,
    _server: Box<dyn std::any::Any>,
}

fn of_sanstone() -> Shares {
    let directory = Directory::new();
    let server = Sanstone::serve(directory.path(), CHILDREN, &["a", "b"]).owning(directory);
    Shares {
        disks: [0, 1].map(|lun| at(&server.url(lun))).to_vec(),
        _server: Box::new(server),
    }
}

fn of_tgt() -> Shares {
    let directory = Directory::new();
    let mut tgt = Tgt::start();
    let files = ["a.img", "b.img"].map(|name| directory.sparse(name, 16 << 20));
    Shares {
        disks: files.iter().map(|file| at(&tgt.add_disk(file))).collect(),
        _server: Box::new((tgt, directory)),
    }
}

fn of_lio() -> Option<Shares> {
    Some(by_lio(lios()?, |lio| at(&lio.url())))
}

/// Disks of LIO over both of its portals, each in its own portal group.
fn of_lio_by_two_paths() -> Option<Shares> {
    let by_two = |lio: &Lio| {
        let [one, two] = lio.portals();
        let paths = format!("[{{ portal = \"{one}\" }}, {{ portal = \"{two}\" }}]");
        format!("{}, paths = {paths}", at(&lio.url()))
    };
    Some(by_lio(lios()?, by_two))
}

fn lios() -> Option<[Lio; 2]> {
    let disk = || Lio::serve(Backing::File, 16 << 20, 512);
    Some([disk()?, disk()?])
}

fn by_lio(disks: [Lio; 2], settings: impl Fn(&Lio) -> String) -> Shares {
    Shares {
        disks: disks.iter().map(settings).collect(),
        _server: Box::new(disks),
    }
}

/// The settings of an `iscsi` volume at this URL.
fn at(url: &str) -> String {
    // A target in a virtual machine may need some time for a login.
    format!("url = \"{url}\", connect_timeout = \"60s\"")
}

/// A machine with its own configuration of the stripe, state directory and initiator name.
struct Host {
    directory: Directory,
    port: u16,
    stripe: String,
}

impl Host {
    fn new(shares: &Shares) -> Host {
        Host::with(&shares.disks, |children| {
            let children = children.join(", ");
            format!(
                "[volume.db]\ncache = {{ size = \"4MiB\", of = {{ stripe = {{ unit = \"64KiB\", of = \
                 [{children}] }} }} }}\n"
            )
        })
    }

    /// One with a stripe of two stripes, x and y, of one disk each.
    fn of_stripes(disks: [&String; 2]) -> Host {
        Host::with(&disks.map(String::clone), |children| {
            let [x, y] = children else {
                panic!("two disks");
            };
            format!(
                "[volume.x]\nstripe = {{ of = [{x}] }}\n[volume.y]\nstripe = {{ of = [{y}] }}\n\
                 [volume.db]\nstripe = {{ of = [\"x\", \"y\"] }}\n"
            )
        })
    }

    /// One with the volumes that `write` makes of the settings of these disks.
    fn with(disks: &[String], write: impl FnOnce(&[String]) -> String) -> Host {
        let (directory, port) = (Directory::new(), harness::free_port());
        let child = |settings: &String| {
            let initiator = format!("initiator = \"iqn.2026-11.io.sanstone:host{port}\"");
            format!("{{ iscsi = {{ {settings}, {initiator} }} }}")
        };
        let children: Vec<String> = disks.iter().map(child).collect();
        let stripe = write(&children);
        let table = target_table(port, &["db"]);
        directory.write("sanstone.toml", format!("{stripe}{table}"));
        Host {
            directory,
            port,
            stripe,
        }
    }

    fn config(&self) -> String {
        self.directory.join("sanstone.toml").display().to_string()
    }

    fn serve(&self) -> Sanstone {
        Sanstone::serve_on(self.port, self.directory.path(), &self.stripe, &["db"])
    }

    fn volume(&self, verb: &str, more: &[&str]) -> Ran {
        self.volume_called("db", verb, more)
    }

    fn volume_called(&self, name: &str, verb: &str, more: &[&str]) -> Ran {
        let config = self.config();
        call(&[&["volume", verb, "-c", &config, name], more].concat())
    }

    /// The message of a `serve` that does not come up.
    fn is_refused(&self) -> String {
        let ran = call(&["serve", "-c", &self.config()]);
        assert_eq!(ran.code(), Some(1), "{}", ran.text());
        ran.stderr
    }

    async fn disk(&self) -> Rc<IscsiDisk> {
        opened(on_port(self.port)).await
    }
}

fn block(byte: u8) -> Payload {
    Buf::copy_of(&[byte; 4096]).into()
}

async fn write(disk: &IscsiDisk, byte: u8) {
    let written = disk.write(0, block(byte), Durability::Fua).await;
    written.unwrap_or_else(|error| panic!("{byte}: {error}"));
}

async fn first_byte(disk: &IscsiDisk) -> volume::Result<u8> {
    Ok(disk.read(0, 4096).await?.to_vec()[0])
}

fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} in: {text}");
    }
}

fn a_second_one_is_refused(shares: &Shares) {
    let (one, other) = (Host::new(shares), Host::new(shares));
    one.volume("create", &[]).success();
    let mut first = one.serve();
    let named = format!("in use by sanstone serve -c {}", one.config());
    on_lane(async {
        let disk = one.disk().await;
        write(&disk, 1).await;
        has(&other.is_refused(), &[&named, "take-over"]);
        let created = other.volume("create", &["--force"]);
        assert_ne!(created.code(), Some(0), "{}", created.text());
        has(&created.stderr, &[&named]);
        assert_eq!(first_byte(&disk).await.expect("it is served"), 1);
        write(&disk, 2).await;
        disk.close().await;
    });
    // After an orderly shutdown there is nothing to take over.
    first.daemon().signal("TERM");
    let ended = first.daemon().wait(Duration::from_secs(60));
    assert!(
        ended.expect("it ends").success(),
        "{}",
        first.daemon().log()
    );
    let second = other.serve();
    on_lane(async {
        let disk = other.disk().await;
        assert_eq!(first_byte(&disk).await.expect("it is served"), 2);
        disk.close().await;
    });
    drop(second);
}

fn one_that_was_killed_comes_back(shares: &Shares) {
    let (one, other) = (Host::new(shares), Host::new(shares));
    one.volume("create", &[]).success();
    let mut byte = 1;
    for _ in 0..2 {
        let mut first = one.serve();
        on_lane(async {
            let disk = one.disk().await;
            if byte > 1 {
                assert_eq!(first_byte(&disk).await.expect("it is served"), byte);
            }
            byte += 1;
            write(&disk, byte).await;
        });
        first.daemon().signal("KILL");
        let gone = first.daemon().wait(Duration::from_secs(60));
        gone.expect("nothing survives kill -9");
    }
    // To another daemon it may still be alive.
    let named = format!("in use by sanstone serve -c {}", one.config());
    has(&other.is_refused(), &[&named]);
    drop(one.serve());
    has(&other.is_refused(), &[&named]);
    other.volume("take-over", &[]).success();
    let _second = other.serve();
    on_lane(async {
        let disk = other.disk().await;
        assert_eq!(first_byte(&disk).await.expect("it is served"), byte);
        disk.close().await;
    });
    has(&one.is_refused(), &[&other.config()]);
}

/// The first daemon keeps running and does not know; `pauses`: it is stopped during the take-over.
fn one_that_is_taken_over_answers_nothing_old(shares: &Shares, pauses: bool) {
    let (one, other) = (Host::new(shares), Host::new(shares));
    one.volume("create", &[]).success();
    let first = one.serve();
    let mut first = Some(first);
    on_lane(async {
        let old = one.disk().await;
        write(&old, 1).await;
        assert_eq!(first_byte(&old).await.expect("it is served"), 1);
        let daemon = first.as_mut().expect("it runs").daemon();
        if pauses {
            daemon.stop();
            // Longer than a cache may answer without checking its children.
            sleep(Duration::from_secs(4));
        }
        let refused = other.volume("take-over", &[]);
        assert_ne!(refused.code(), Some(0), "{}", refused.text());
        let named = format!("in use by sanstone serve -c {}", one.config());
        has(
            &refused.stderr,
            &[&named, " since ", "is running", "--force"],
        );
        other.volume("take-over", &["--force"]).success();
        let second = other.serve();
        let new = other.disk().await;
        assert_eq!(first_byte(&new).await.expect("it is served"), 1);
        write(&new, 2).await;
        match pauses {
            true => daemon.signal("CONT"),
            false => drop(daemon.log_with("was taken over by")),
        }
        match first_byte(&old).await {
            Err(_) | Ok(2) => {}
            Ok(byte) => panic!("{byte} was overwritten"),
        }
        daemon.log_with("was taken over by");
        first_byte(&old).await.expect_err("for good");
        let written = old.write(0, block(3), Durability::Fua).await;
        written.expect_err("for good");
        assert_eq!(first_byte(&new).await.expect("it is served"), 2);
        write(&new, 4).await;
        new.close().await;
        // Nothing is lost, so stopping it is not an error.
        daemon.signal("TERM");
        let ended = daemon.wait(Duration::from_secs(60));
        assert!(ended.expect("it ends").success(), "{}", daemon.log());
        daemon.log_with("closed without a last flush");
        drop(second);
    });
}

/// A stripe that `serve` would refuse keeps its owner: the take-over claims nothing of it.
fn one_that_would_be_refused_is_not_taken_over(shares: &Shares, others: &Shares) {
    let (one, other) = (Host::new(shares), Host::new(shares));
    one.volume("create", &[]).success();
    // The other host has served another stripe under this name.
    let before = Host::new(others);
    before.volume("create", &[]).success();
    drop(before.serve());
    let state = |host: &Host| host.directory.join("sanstone.state");
    std::fs::rename(state(&before), state(&other)).expect("it was served");
    let first = one.serve();
    on_lane(async {
        let disk = one.disk().await;
        write(&disk, 1).await;
        let refused = other.volume("take-over", &[]);
        assert_ne!(refused.code(), Some(0), "{}", refused.text());
        has(
            &refused.stderr,
            &["is another one now", "remove the table [disk."],
        );
        // Its watch would notice within a second.
        sleep(Duration::from_secs(2));
        write(&disk, 2).await;
        assert_eq!(first_byte(&disk).await.expect("it is served"), 2);
        disk.close().await;
    });
    // What it advises.
    std::fs::remove_dir_all(state(&other)).expect("a directory");
    other.volume("take-over", &["--force"]).success();
    drop(first);
    drop(other.serve());
}

#[test]
fn a_stripe_that_would_be_refused_is_not_taken_over() {
    one_that_would_be_refused_is_not_taken_over(&of_sanstone(), &of_sanstone());
}

#[test]
fn a_stripe_that_would_be_refused_is_not_taken_over_from_tgt() {
    one_that_would_be_refused_is_not_taken_over(&of_tgt(), &of_tgt());
}

#[test]
fn a_stripe_that_would_be_refused_is_not_taken_over_from_lio() {
    if let Some((shares, others)) = of_lio().zip(of_lio()) {
        one_that_would_be_refused_is_not_taken_over(&shares, &others);
    }
}

/// The same where only the outer one of two stripes would be refused: the inner one keeps its owner, too.
#[test]
fn a_stripe_in_a_stripe_that_would_be_refused_is_not_taken_over() {
    let (shares, others) = (of_sanstone(), of_sanstone());
    let [first_disk, second_disk] = &shares.disks[..] else {
        panic!("two disks");
    };
    let one = Host::of_stripes([first_disk, second_disk]);
    for name in ["x", "y", "db"] {
        one.volume_called(name, "create", &[]).success();
    }
    // Its second child is a stripe that is no part of another one.
    let alone = &others.disks[0];
    let other = Host::of_stripes([first_disk, alone]);
    other.volume_called("y", "create", &[]).success();
    let first = one.serve();
    on_lane(async {
        let disk = one.disk().await;
        write(&disk, 1).await;
        let refused = other.volume("take-over", &[]);
        assert_ne!(refused.code(), Some(0), "{}", refused.text());
        has(&refused.stderr, &["stripe child 1"]);
        // Its watch would notice within a second.
        sleep(Duration::from_secs(2));
        write(&disk, 2).await;
        assert_eq!(first_byte(&disk).await.expect("it is served"), 2);
        disk.close().await;
    });
    // Nobody has the second child, either.
    let unrelated = Host::of_stripes([alone, second_disk]);
    let created = unrelated.volume_called("x", "create", &["--force"]);
    created.success();
    // What would not be refused is taken over.
    let third = Host::of_stripes([first_disk, second_disk]);
    third.volume("take-over", &["--force"]).success();
    drop(first);
    let served = third.serve();
    on_lane(async {
        let disk = third.disk().await;
        assert_eq!(first_byte(&disk).await.expect("it is served"), 2);
        disk.close().await;
    });
    drop(served);
}

#[test]
fn a_second_daemon_is_refused_with_the_name_of_the_first() {
    a_second_one_is_refused(&of_sanstone());
}

#[test]
fn a_second_daemon_is_refused_with_the_name_of_the_first_over_tgt() {
    a_second_one_is_refused(&of_tgt());
}

#[test]
fn a_second_daemon_is_refused_with_the_name_of_the_first_over_lio() {
    if let Some(shares) = of_lio() {
        a_second_one_is_refused(&shares);
    }
}

#[test]
fn a_daemon_that_was_killed_comes_back_and_another_has_to_take_over() {
    one_that_was_killed_comes_back(&of_sanstone());
}

#[test]
fn a_daemon_that_was_killed_comes_back_over_tgt() {
    one_that_was_killed_comes_back(&of_tgt());
}

#[test]
fn a_second_daemon_is_refused_with_the_name_of_the_first_over_two_paths_to_lio() {
    if let Some(shares) = of_lio_by_two_paths() {
        a_second_one_is_refused(&shares);
    }
}

/// Of the initiator name that holds the reservation, LIO admits only the very initiator port that made it.
#[test]
fn a_daemon_that_was_killed_comes_back_over_lio() {
    if let Some(shares) = of_lio() {
        one_that_was_killed_comes_back(&shares);
    }
}

#[test]
fn a_daemon_that_was_killed_comes_back_over_two_paths_to_lio() {
    if let Some(shares) = of_lio_by_two_paths() {
        one_that_was_killed_comes_back(&shares);
    }
}

/// Only the second path is there when the disks are reserved, and both are when the daemon comes back.
#[test]
fn a_daemon_that_was_killed_finds_the_reservation_of_its_second_path_to_lio() {
    let Some(lios) = lios() else {
        return;
    };
    let [one, two] = lios[0].portals();
    let way = Forwarder::new("127.0.0.1", one);
    let paths = format!(
        "[{{ portal = \"{}\" }}, {{ portal = \"{two}\" }}]",
        way.address()
    );
    let shares = by_lio(lios, |lio| format!("{}, paths = {paths}", at(&lio.url())));
    let host = Host::new(&shares);
    way.break_all();
    host.volume("create", &[]).success();
    let mut first = host.serve();
    on_lane(async {
        let disk = host.disk().await;
        write(&disk, 1).await;
    });
    first.daemon().signal("KILL");
    let gone = first.daemon().wait(Duration::from_secs(60));
    gone.expect("nothing survives kill -9");
    way.mend();
    let _second = host.serve();
    on_lane(async {
        let disk = host.disk().await;
        assert_eq!(first_byte(&disk).await.expect("it is served"), 1);
        write(&disk, 2).await;
        disk.close().await;
    });
}

#[test]
fn a_second_daemon_is_refused_with_the_name_of_the_first_over_two_sessions_to_lio() {
    if let Some(lios) = lios() {
        let by_two = |lio: &Lio| format!("{}, sessions = 2", at(&lio.url()));
        a_second_one_is_refused(&by_lio(lios, by_two));
    }
}

/// Every REGISTER, also one that unregisters, sets APTPL for all registrations of the disk.
#[test]
fn a_daemon_that_is_refused_leaves_a_fence_that_lasts() {
    let Some([a, b]) = lios() else {
        return;
    };
    let shares = Shares {
        disks: [&a, &b].map(|lio| at(&lio.url())).to_vec(),
        _server: Box::new(()),
    };
    let (one, other) = (Host::new(&shares), Host::new(&shares));
    one.volume("create", &[]).success();
    let first = one.serve();
    assert!(a.keeps_registrations() && b.keeps_registrations());
    has(&other.is_refused(), &["in use by"]);
    assert!(a.keeps_registrations() && b.keeps_registrations());
    drop(first);
}

#[test]
fn a_daemon_that_is_taken_over_answers_nothing_from_its_past() {
    one_that_is_taken_over_answers_nothing_old(&of_sanstone(), false);
}

#[test]
fn a_daemon_that_stood_still_meanwhile_answers_nothing_from_its_past() {
    one_that_is_taken_over_answers_nothing_old(&of_sanstone(), true);
}

#[test]
fn a_daemon_that_is_taken_over_answers_nothing_from_its_past_over_tgt() {
    one_that_is_taken_over_answers_nothing_old(&of_tgt(), true);
}

#[test]
fn a_daemon_that_is_taken_over_answers_nothing_from_its_past_over_lio() {
    if let Some(shares) = of_lio() {
        one_that_is_taken_over_answers_nothing_old(&shares, false);
        let shares = of_lio().expect("as before");
        one_that_is_taken_over_answers_nothing_old(&shares, true);
    }
}

#[test]
fn a_stripe_of_files_is_claimed_too() {
    let directory = Directory::new();
    let stripe = "[volume.db.stripe]\nof = [{ file = { path = \"a\", size = \"4MiB\" } }, { file = \
                  { path = \"b\", size = \"4MiB\" } }]\n";
    let port = harness::free_port();
    let text = |state: &str| {
        let table = target_table(port, &["db"]);
        format!("state = \"{state}\"\n{stripe}{table}")
    };
    let config = directory.write("one.toml", text("one"));
    let other = directory.write("other.toml", text("other"));
    let [config, other] = [&config, &other].map(|path| path.display().to_string());
    call(&["volume", "create", "-c", &config, "db"]).success();
    let mut first = Sanstone::serve_configuration(directory.path(), &text("one"), port);
    let refused = call(&["volume", "create", "--force", "-c", &other, "db"]);
    has(&refused.stderr, &["in use by process"]);
    first.daemon().signal("KILL");
    let gone = first.daemon().wait(Duration::from_secs(60));
    gone.expect("nothing survives kill -9");
    // Nobody else has it open, and the owner ran on this machine in its current boot.
    let mut second = Sanstone::serve_configuration(directory.path(), &text("other"), port);
    // The log is written asynchronously.
    second.daemon().log_with("of an owner that has stopped");
}

/// Whether a child can be had shows only when it is claimed, after a stripe beside it has claimed its own.
#[test]
fn a_take_over_that_fails_late_leaves_no_claim_behind() {
    const BLOCK_BYTES: usize = 4096;
    const LABEL_AT: usize = (1 << 20) - BLOCK_BYTES;
    /// Zeroes in the label of a child that nobody has claimed.
    const OWNER: std::ops::Range<usize> = LABEL_AT + 40..LABEL_AT + 56;
    let directory = Directory::new();
    let stripe = |file: &str| {
        format!("stripe = {{ of = [{{ file = {{ path = \"{file}\", size = \"4MiB\" }} }}] }}")
    };
    let volumes = format!(
        "[volume.x]\n{}\n[volume.y]\n{}\n[volume.db]\nstripe = {{ of = [\"x\", \"y\"] }}\n",
        stripe("a"),
        stripe("b")
    );
    let port = harness::free_port();
    let text = |state: &str| {
        let table = target_table(port, &["db"]);
        format!("state = \"{state}\"\n{volumes}{table}")
    };
    let other = directory.write("other.toml", text("other"));
    let other = other.display().to_string();
    for name in ["x", "y", "db"] {
        call(&["volume", "create", "-c", &other, name]).success();
    }
    let mut first = Sanstone::serve_configuration(directory.path(), &text("one"), port);
    first.daemon().signal("KILL");
    let gone = first.daemon().wait(Duration::from_secs(60));
    gone.expect("nothing survives kill -9");
    let [a, b] = ["a", "b"].map(|file| directory.join(file));
    let mut damaged = std::fs::read(&b).expect("a child");
    damaged[LABEL_AT + 100] ^= 1;
    std::fs::write(&b, &damaged).expect("a child");
    let is_owned = || {
        std::fs::read(&a).expect("a child")[OWNER]
            .iter()
            .any(|&byte| byte != 0)
    };
    assert!(is_owned(), "its owner was killed");
    let refused = call(&["volume", "take-over", "-c", &other, "db"]);
    assert_eq!(refused.code(), Some(1), "{}", refused.text());
    has(&refused.stderr, &["(b)", "--force"]);
    assert!(!is_owned(), "the first child is claimed");
    assert!(std::fs::read(&b).expect("a child") == damaged);
    call(&["volume", "take-over", "--force", "-c", &other, "db"]).success();
    assert!(is_owned());
}
