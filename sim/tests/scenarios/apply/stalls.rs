//! The disk of a daemon stalls while the daemon is asked for something that needs it: no session waits for the disk.

use std::{cell::Cell, path::Path, rc::Rc, time::Duration};

use engine::{
    Payload,
    cross::{Sender, oneshot},
    fs::{OpenOptions, SharedFile},
    sim::{Host, World, seeds},
    spawn,
    task::JoinHandle,
    time,
};

use sim::{Count, assert_occurred};

use super::{
    Ask, CONFIG, HUNG, KEPT, TEST_UNIT_READY, ask, create_stripe, described, login, start,
};

/// A file that is served whole, and its length at the start.
const OPEN: &str = "/srv/open";
const LEN: usize = 4096;
/// How long a disk stalls that does not hang.
const STALL: Duration = Duration::from_secs(2);

fn stalled_text(luns: &str) -> String {
    format!(
        "lanes = 1\nmemory = \"32MiB\"\n\
         [volume.kept]\nfile = {{ path = \"kept\", size = \"64KiB\" }}\n\
         [volume.more]\nfile = {{ path = \"more\", size = \"64KiB\" }}\n\
         [volume.open]\nfile = {{ path = \"open\" }}\n\
         [volume.wide.stripe]\nof = [{{ file = {{ path = \"s0\", size = \"4MiB\" }} }}, \
         {{ file = {{ path = \"s1\", size = \"4MiB\" }} }}]\n\
         [target.\"{KEPT}\"]\nluns = [{luns}]\nallow = [\"*\"]\n"
    )
}

/// What a daemon with one lane is asked, and a session that sends it one command after the other meanwhile.
struct Stalled {
    asks: Sender<Ask>,
    is_over: Rc<Cell<bool>>,
    /// How many commands were answered.
    answered: Rc<Cell<usize>>,
    /// The longest that a command took.
    slowest: Rc<Cell<Duration>>,
    /// Whether it ended the session itself.
    loaded: JoinHandle<bool>,
}

impl Stalled {
    /// Starts the daemon and the session.
    async fn start(server: &Host) -> Stalled {
        server.put_file(OPEN, &[0; LEN]);
        server.put_file(CONFIG, stalled_text("\"kept\", \"open\"").as_bytes());
        create_stripe(server, "wide").await;
        let asks = start(server, 1);
        // It serves when it answers.
        described(&asks).await;
        let session = login(server, KEPT).await;
        let (is_over, slowest) = (Rc::new(Cell::new(false)), Rc::new(Cell::default()));
        let answered = Rc::new(Cell::new(0));
        let loaded = spawn({
            let (is_over, slowest) = (is_over.clone(), slowest.clone());
            let answered = answered.clone();
            async move {
                while !is_over.get() {
                    let begun = time::now();
                    let task = session.submit(&TEST_UNIT_READY, &[], 0);
                    let Ok(task) = task else { return false };
                    if session.answer(task).await.is_err() {
                        return false;
                    }
                    answered.set(answered.get() + 1);
                    slowest.set((time::now() - begun).max(slowest.get()));
                }
                session.end();
                true
            }
        });
        Stalled {
            asks,
            is_over,
            answered,
            slowest,
            loaded,
        }
    }

    /// Waits for the end of the session, whose commands must not have waited for the disk. Returns whether the daemon
    /// has ended it.
    async fn ended(self) -> bool {
        let is_ended = !self.loaded.await;
        let slowest = self.slowest.get();
        assert!(slowest < STALL, "a command took {slowest:?}");
        is_ended
    }
}

/// Gives a daemon with one lane a stripe more while its disk stalls; a session of it is served all the time.
fn apply_with_a_stalled_disk(seed: u64, waited: &Count, meanwhile: &Count) {
    let world = World::new(seed);
    let (server, client) = (world.host("server"), world.host("client"));
    world.block_on(&client, async {
        let stalled = Stalled::start(&server).await;
        server.stall_disk(STALL);
        let luns = "\"kept\", \"open\", \"wide\", \"more\"";
        server.put_file(CONFIG, stalled_text(luns).as_bytes());
        let (begun, answered) = (time::now(), stalled.answered.get());
        let applied = ask(&stalled.asks, Ask::Apply).await;
        waited.when(time::now() - begun >= STALL);
        meanwhile.add(stalled.answered.get() - answered);
        let changes = applied.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(changes.iter().any(|it| it.contains("wide")), "{changes:?}");
        stalled.is_over.set(true);
        assert!(!stalled.ended().await, "the session goes on");
    });
}

#[test]
fn a_disk_that_stalls_while_it_is_looked_at_holds_up_no_session() {
    let (waited, meanwhile) = (Count::new(), Count::new());
    seeds(5, |seed| {
        apply_with_a_stalled_disk(seed, &waited, &meanwhile);
    });
    assert_occurred([
        ("changes that waited for the disk", waited.get()),
        ("commands answered meanwhile", meanwhile.get()),
    ]);
}

/// SIGHUP to a daemon whose file has grown: it follows the file if the disk answers in time.
fn look_again_at_a_stalled_disk(seed: u64, stall: Duration, waited: &Count, meanwhile: &Count) {
    const GROWN: usize = 2 * LEN;
    let world = World::new(seed);
    let (server, client) = (world.host("server"), world.host("client"));
    world.block_on(&client, async {
        let stalled = Stalled::start(&server).await;
        let grown = server.spawn(async {
            let options = OpenOptions {
                write: true,
                ..OpenOptions::default()
            };
            let file = SharedFile::open(Path::new(OPEN), &options)?.on_lane();
            let more = Payload::zeroes(GROWN - LEN);
            file.write_all_at(LEN as u64, more, false).await
        });
        grown.await.expect("it grows");
        server.stall_disk(stall);
        let (begun, answered) = (time::now(), stalled.answered.get());
        ask(&stalled.asks, Ask::LookAgain).await;
        waited.when(time::now() - begun >= STALL);
        meanwhile.add(stalled.answered.get() - answered);
        assert!(time::now() - begun < Duration::from_secs(60), "it waits on");
        let volumes = described(&stalled.asks).await.volumes;
        let has_followed = volumes["open"].tree.size_bytes == Some(GROWN as u64);
        assert_eq!(has_followed, stall < HUNG);
        // A stop ends the session, but it cannot end itself before the disk has flushed.
        let begun = time::now();
        let (stop, _stopped) = oneshot();
        assert!(stalled.asks.send(Ask::Stop(stop)).is_ok());
        assert!(stalled.ended().await, "the daemon stops");
        assert!(time::now() - begun < Duration::from_secs(60), "it waits on");
    });
}

#[test]
fn a_disk_that_stalls_while_its_files_are_looked_at_holds_up_no_session_and_no_stop() {
    let [stalled, hung, meanwhile] = [const { Count::new() }; 3];
    for (stall, waited) in [(STALL, &stalled), (HUNG, &hung)] {
        seeds(3, |seed| {
            look_again_at_a_stalled_disk(seed, stall, waited, &meanwhile);
        });
    }
    assert_occurred([
        ("looks that waited for a stalled disk", stalled.get()),
        ("looks that waited for a hung disk", hung.get()),
        ("commands answered meanwhile", meanwhile.get()),
    ]);
}
