//! A served copy of a mirror remembers the highest key that it was ever fenced with in its own metadata: after a power cut
//! that took the state directory, and with it every reservation, nobody with an older key, or none, gets in.

use harness::directory::Directory;
use harness::sanstone::{IQN, Sanstone, call, target_table};
use harness::wire::{Session, read_10, write_10};
use std::fs::{self, File};
use std::time::Duration;

const GOOD: u8 = 0x00;
const CONFLICT: u8 = 0x18;
const REGISTER: u8 = 6;
const RESERVE: u8 = 1;
const CLEAR: u8 = 3;
const LOGICAL_UNIT_RESET: u8 = 5;
const FUNCTION_COMPLETE: u8 = 0;
const AUTHORIZATION_FAILED: u8 = 6;

/// The key of the first fence of this epoch.
fn key(epoch: u64) -> u64 {
    0xA5 << 56 | epoch << 24
}

struct Initiator(Session);

impl Initiator {
    fn login(server: &Sanstone, number: u16) -> Initiator {
        let address = format!("127.0.0.1:{}", server.port());
        let session = Session::login(&address, IQN, 0, number, &[]).expect("a login");
        Initiator(session)
    }

    /// Takes the unit attentions, of a login or of somebody's reset.
    fn is_ready(&mut self) {
        self.0.wait_until_ready().expect("a ready disk");
    }

    fn reserve_out(&mut self, action: u8, key: u64, new_key: u64) -> u8 {
        self.is_ready();
        let mut list = [key.to_be_bytes(), new_key.to_be_bytes()].concat();
        list.extend([0, 0, 0, 0, 1, 0, 0, 0]); // APTPL
        let cdb = [0x5F, action, 6, 0, 0, 0, 0, 0, 24, 0];
        self.0.execute(&cdb, &list, 0).expect("a response").0
    }

    fn write(&mut self) -> u8 {
        let written = self.0.execute(&write_10(0, 1), &[0x5A; 512], 0);
        written.expect("a response").0
    }

    fn read(&mut self) -> u8 {
        self.0.execute(&read_10(0, 1), &[], 512).expect("data").0
    }

    fn reset(&mut self) -> u8 {
        let task = self.0.task_management(LOGICAL_UNIT_RESET, None);
        let task = task.expect("it is sent");
        loop {
            let answer = self.0.receive().expect("an answer");
            if answer.task() == task {
                return answer.header[2];
            }
        }
    }

    fn is_let_in(&mut self) -> bool {
        self.is_ready();
        let ended = (self.read(), self.write(), self.reset());
        match ended {
            (GOOD, GOOD, FUNCTION_COMPLETE) => true,
            (CONFLICT, CONFLICT, AUTHORIZATION_FAILED) => false,
            other => panic!("{other:?}"),
        }
    }
}

/// The volumes of a server of a copy.
fn copy(mib: u64) -> String {
    format!(
        "[volume.copy]\nfile = {{ path = \"copy\", size = \"{mib}MiB\", cache = \"direct-sync\" }}\n"
    )
}

/// A server of a copy, whose power can be cut.
struct Target {
    directory: Directory,
    server: Option<Sanstone>,
    mib: u64,
}

impl Target {
    fn start() -> Target {
        let directory = Directory::new();
        let mib = 8;
        let server = Sanstone::serve(directory.path(), &copy(mib), &["copy"]);
        Target {
            directory,
            server: Some(server),
            mib,
        }
    }

    fn server(&self) -> &Sanstone {
        self.server.as_ref().expect("it runs")
    }

    /// Restarts it without its state directory.
    fn loses_its_state(&mut self) {
        self.restarts(|target| target.forgets());
    }

    fn forgets(&mut self) {
        fs::remove_dir_all(self.directory.join("sanstone.state")).expect("it was there");
    }

    /// Its file has this length, and so has its disk from the next start on.
    fn has(&mut self, mib: u64) {
        let file = File::options()
            .write(true)
            .open(self.directory.join("copy"));
        let set = file.and_then(|file| file.set_len(mib << 20));
        set.expect("room");
        self.mib = mib;
    }

    /// Its disk becomes this long while it is served.
    fn grows(&mut self, mib: u64) {
        self.mib = mib;
        let text = format!(
            "{}{}",
            copy(mib),
            target_table(self.server().port(), &["copy"])
        );
        let file = self.directory.write("sanstone.toml", text);
        call(&["apply", "-c", file.to_str().expect("plain text")]).success();
        let server = self.server.as_mut().expect("it runs");
        server.daemon().log_with("a disk has grown");
    }

    /// Kills it, and starts it again after this.
    fn restarts(&mut self, meanwhile: impl FnOnce(&mut Target)) {
        let mut server = self.server.take().expect("it runs");
        let port = server.port();
        server.daemon().signal("KILL");
        let ended = server.daemon().wait(Duration::from_secs(60));
        ended.expect("it ends");
        drop(server);
        meanwhile(self);
        let server = Sanstone::serve_on(port, self.directory.path(), &copy(self.mib), &["copy"]);
        self.server = Some(server);
    }
}

/// Makes the disks of these targets a mirror, which nobody uses.
fn make_a_mirror(targets: [&Target; 2]) {
    let directory = Directory::new();
    let of =
        targets.map(|target| format!("{{ iscsi = {{ url = \"{}\" }} }}", target.server().url(0)));
    let volume = format!("[volume.db]\nmirror = {{ of = [{}] }}\n", of.join(", "));
    let text = format!("{volume}{}", target_table(harness::free_port(), &["db"]));
    let file = directory.write("sanstone.toml", text);
    let file = file.to_str().expect("plain text");
    call(&["volume", "create", "-c", file, "db"]).success();
}

#[test]
fn a_copy_that_has_lost_its_reservations_lets_in_nobody_with_an_older_key() {
    let (mut target, other) = (Target::start(), Target::start());
    make_a_mirror([&target, &other]);
    let mut old = Initiator::login(target.server(), 1);
    assert_eq!(old.reserve_out(REGISTER, 0, key(4)), GOOD);
    let mut new = Initiator::login(target.server(), 2);
    assert_eq!(new.reserve_out(REGISTER, 0, key(5)), GOOD);
    assert!(!old.is_let_in(), "already before the reservation");
    assert_eq!(new.reserve_out(RESERVE, key(5), 0), GOOD);
    assert!(new.is_let_in());

    target.loses_its_state();
    let mut old = Initiator::login(target.server(), 1);
    assert!(!old.is_let_in(), "without a key");
    assert_eq!(old.reserve_out(REGISTER, 0, key(4)), CONFLICT);
    assert!(!old.is_let_in());
    let mut new = Initiator::login(target.server(), 2);
    assert!(!new.is_let_in(), "its registration is lost");
    assert_eq!(new.reserve_out(REGISTER, 0, key(5)), GOOD);
    assert!(new.is_let_in());
    assert_eq!(old.reserve_out(REGISTER, 0, key(6)), GOOD);
    assert!(old.is_let_in() && !new.is_let_in());

    // Whoever clears the reservation by a key of its own has another use for the disk.
    let mut guest = Initiator::login(target.server(), 3);
    assert_eq!(guest.reserve_out(REGISTER, 0, 0x1234), GOOD);
    assert_eq!(guest.reserve_out(CLEAR, 0x1234, 0), GOOD);
    target.loses_its_state();
    let mut guest = Initiator::login(target.server(), 4);
    assert!(guest.is_let_in());
}

#[test]
fn a_copy_that_has_become_longer_keeps_out_whom_it_has_kept_out_before() {
    let (mut target, other) = (Target::start(), Target::start());
    make_a_mirror([&target, &other]);
    let mut old = Initiator::login(target.server(), 1);
    assert_eq!(old.reserve_out(REGISTER, 0, key(4)), GOOD);
    let mut new = Initiator::login(target.server(), 2);
    assert_eq!(new.reserve_out(REGISTER, 0, key(5)), GOOD);

    target.grows(12);
    assert!(new.is_let_in() && !old.is_let_in());
    // A higher key goes where the floor was, not where it would be.
    assert_eq!(new.reserve_out(REGISTER, 0, key(6)), GOOD);
    assert!(new.is_let_in() && !old.is_let_in());
    let keeps = |target: &Target| {
        let mut old = Initiator::login(target.server(), 1);
        assert!(!old.is_let_in(), "without a key");
        assert_eq!(old.reserve_out(REGISTER, 0, key(5)), CONFLICT);
        let mut new = Initiator::login(target.server(), 2);
        assert_eq!(new.reserve_out(REGISTER, 0, key(6)), GOOD);
        assert!(new.is_let_in());
    };
    target.loses_its_state();
    keeps(&target);
    // While nobody serves it: its server remembers.
    target.restarts(|target| target.has(20));
    keeps(&target);
    target.restarts(|target| target.has(33));
    keeps(&target);
    target.loses_its_state();
    keeps(&target);
    // It is cut off where it was longer, and then where the floor is.
    target.restarts(|target| {
        target.has(8);
        target.forgets();
    });
    keeps(&target);
    target.restarts(|target| target.mib = 7);
    let mut old = Initiator::login(target.server(), 1);
    assert!(!old.is_let_in(), "its server remembers");
    let server = target.server.as_mut().expect("it runs");
    server.daemon().log_with("has become shorter");
    // Whoever clears it has another use for the disk.
    let mut guest = Initiator::login(target.server(), 3);
    assert_eq!(guest.reserve_out(REGISTER, 0, 0x1234), GOOD);
    assert_eq!(guest.reserve_out(CLEAR, 0x1234, 0), GOOD);
    assert!(guest.is_let_in());
    target.restarts(|_| {});
    assert!(Initiator::login(target.server(), 4).is_let_in());
}

#[test]
fn a_disk_that_is_no_copy_has_no_floor_whatever_keys_are_used() {
    let target = Target::start();
    let mut first = Initiator::login(target.server(), 1);
    assert_eq!(first.reserve_out(REGISTER, 0, key(5)), GOOD);
    let mut second = Initiator::login(target.server(), 2);
    assert!(second.is_let_in());
    assert_eq!(second.reserve_out(REGISTER, 0, key(4)), GOOD);
    assert!(second.is_let_in());
}
