//! A remote disk that answers every command with a unit attention, or that others reset all the time: its requests fail
//! in time, and the daemon, its other volumes and, afterwards, the disk itself keep working.

use harness::directory::Directory;
use harness::foreign::ForeignTarget;
use harness::sanstone::{IQN, Sanstone};
use harness::wire::{Session, read_10, write_10};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};
use volume::foreign::{Claims, Instead};

const GOOD: u8 = 0;
/// The LUNs of the daemon under test.
const FAR: u8 = 0;
const NEAR: u8 = 1;

/// Serves the disk at `url` as [`FAR`] and a local one as [`NEAR`].
fn before(url: &str) -> Sanstone {
    let directory = Directory::new();
    let volumes = format!(
        "[volume.far]\niscsi = {{ url = \"{url}\", reconnect_timeout = \"2s\" }}\n\
         [volume.near]\nram = {{ size = \"1MiB\" }}\n"
    );
    Sanstone::serve(directory.path(), &volumes, &["far", "near"]).owning(directory)
}

fn login(server: &Sanstone, lun: u8, number: u16) -> Session {
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, lun, number, &[]).expect("a login");
    session.wait_until_ready().expect("it is ready");
    session
}

/// Reads and writes the near disk until `stop`, counting in `rounds`.
fn lives_on(server: &Sanstone, stop: &AtomicBool, rounds: &AtomicU32) {
    let mut session = login(server, NEAR, 90);
    while !stop.load(Ordering::Relaxed) {
        let block = [rounds.load(Ordering::Relaxed) as u8; 512];
        let written = session.execute(&write_10(7, 1), &block, 0);
        assert_eq!(written.expect("the daemon lives").0, GOOD);
        let (status, read) = session
            .execute(&read_10(7, 1), &[], 512)
            .expect("the daemon lives");
        assert!(status == GOOD && read == block);
        rounds.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(5));
    }
}

/// Whether `holds` becomes true while `thread` runs; waits a few minutes at most.
fn comes_true<T>(thread: &ScopedJoinHandle<'_, T>, holds: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(180);
    loop {
        if holds() {
            return true;
        }
        if thread.is_finished() || Instant::now() >= deadline {
            return false;
        }
        sleep(Duration::from_millis(10));
    }
}

fn count(counted: &AtomicU32) -> u32 {
    counted.load(Ordering::Relaxed)
}

/// Waits until the far disk can be read again.
fn works_again(server: &Sanstone) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut session = login(server, FAR, 91);
    loop {
        let (status, _) = session
            .execute(&read_10(0, 1), &[], 512)
            .expect("an answer");
        if status == GOOD {
            return;
        }
        assert!(Instant::now() < deadline, "the far disk does not come back");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_remote_that_has_a_unit_attention_for_every_command_takes_nobody_with_it() {
    const UNIT_ATTENTION: u8 = 6;
    const CAPACITY_DATA_HAS_CHANGED: Instead = Instead::Sense([UNIT_ATTENTION, 0x2a, 0x09]);
    let remote = ForeignTarget::serve(Claims::default(), |_| {}, CAPACITY_DATA_HAS_CHANGED);
    let server = before(&remote.url());
    let mut far = login(&server, FAR, 1);
    let (stop, rounds, failed) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    remote.be_hostile(true);
    scope(|scope| {
        let near = scope.spawn(|| lives_on(&server, &stop, &rounds));
        let reader = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let read = far.execute(&read_10(0, 1), &[], 512);
                let (status, _) = read.expect("it fails in time");
                assert_ne!(status, GOOD);
                failed.fetch_add(1, Ordering::Relaxed);
            }
        });
        // However long this machine pauses, there are many rounds for each failed read.
        let lives_on = comes_true(&near, || {
            count(&failed) >= 3 && 3 * count(&rounds) > 10 * count(&failed)
        });
        stop.store(true, Ordering::Relaxed);
        near.join().expect("the near disk lives on");
        reader.join().expect("the far disk fails in time");
        assert!(
            lives_on,
            "{rounds:?} rounds at the near disk, {failed:?} reads"
        );
    });
    remote.be_hostile(false);
    works_again(&server);
}

#[test]
fn strangers_who_reset_a_share_all_the_time_take_nobody_with_it() {
    const LOGICAL_UNIT_RESET: u8 = 5;
    const AT_ONCE: u32 = 16;
    let directory = Directory::new();
    let volume = "[volume.share]\nram = { size = \"1MiB\" }\n";
    let share = Sanstone::serve(directory.path(), volume, &["share"]);
    let server = before(&share.url(0));
    let stop = AtomicBool::new(false);
    let [rounds, resets, reads] = [const { AtomicU32::new(0) }; 3];
    // All must be logged in before the first reset, because after it no disk stays ready for long.
    let strangers = [11, 12].map(|number| login(&share, 0, number));
    let mut reader = login(&server, FAR, 21);
    scope(|scope| {
        for mut stranger in strangers {
            let (stop, resets) = (&stop, &resets);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let reset = |_| stranger.task_management(LOGICAL_UNIT_RESET, None);
                    let sent: std::io::Result<Vec<u32>> = (0..AT_ONCE).map(reset).collect();
                    let done = stranger.responses_to(&sent.expect("they are sent"));
                    done.expect("the share lives");
                    resets.fetch_add(AT_ONCE, Ordering::Relaxed);
                }
            });
        }
        // One command at a time, so that each meets a reset of its own.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Successful or not, it is answered.
                let read = reader.execute(&read_10(0, 1), &[], 512);
                read.expect("the daemon lives");
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let near = scope.spawn(|| lives_on(&server, &stop, &rounds));
        sleep(Duration::from_secs(8));
        let all = comes_true(&near, || {
            count(&rounds) > 10 && count(&resets) > 100 && count(&reads) > 10
        });
        stop.store(true, Ordering::Relaxed);
        near.join().expect("the near disk lives on");
        let said =
            format!("{rounds:?} rounds at the near disk, {resets:?} resets, {reads:?} reads");
        println!("{said}");
        assert!(all, "{said}");
    });
    works_again(&server);
}
