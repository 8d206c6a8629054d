//! The client that must not notice the attacks: a session with constant, verified I/O, and a new login every second.

use harness::noise;
use harness::sanstone::IQN;
use harness::wire::{Direction, Session, read_10, write_10};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

const KEYS: [&str; 3] = [
    "ImmediateData=Yes",
    "InitialR2T=No",
    "FirstBurstLength=65536",
];
const BLOCKS: u16 = 32;
const BYTES: usize = BLOCKS as usize * 512;
/// Commands in flight.
const DEPTH: u32 = 8;
/// Places that are written in turn, `BYTES` each.
const PLACES: u32 = 2048;
const TASK_SET_FULL: u8 = 0x28;
/// How long the target allows for a login.
pub(crate) const LOGIN_TIME: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Written and read.
    bytes: AtomicU64,
    /// Commands that had to be sent again because of TASK SET FULL.
    again: AtomicU64,
    logins: AtomicU64,
    /// Logins that took longer than the target allows, because this machine paused.
    late_logins: AtomicU64,
    slowest_login: Mutex<Duration>,
    slowest_round: Mutex<Duration>,
    failure: Mutex<Option<String>>,
}

pub(crate) struct Database {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Database {
    /// Logs in to LUN 0 and begins.
    pub(crate) fn begin(address: &str) -> Database {
        let shared = Arc::new(Shared::default());
        let mut session = Session::login(address, IQN, 0, 1, &KEYS).expect("a login");
        session.wait_until_ready().expect("a ready disk");
        let io = {
            let shared = shared.clone();
            std::thread::spawn(move || {
                let result = work(&shared, &mut session);
                shared.note("the session", result);
            })
        };
        let logins = {
            let (shared, address) = (shared.clone(), address.to_owned());
            std::thread::spawn(move || {
                let result = log_in(&shared, &address);
                shared.note("a new login", result);
            })
        };
        Database {
            shared,
            threads: vec![io, logins],
        }
    }

    /// Bytes written and read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Fails if it has noticed anything.
    pub(crate) fn check(&self) {
        let failure = self.shared.failure.lock().expect("no panic");
        assert_eq!(*failure, None);
    }

    /// Ends the client; returns a summary.
    pub(crate) fn end(self) -> String {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no panic");
        }
        let shared = &self.shared;
        assert_eq!(*shared.failure.lock().expect("no panic"), None);
        let logins = shared.logins.load(Ordering::Relaxed);
        let late = shared.late_logins.load(Ordering::Relaxed);
        assert!(logins > 0, "nobody has logged in");
        assert!(late <= 2, "{late} logins took longer than {LOGIN_TIME:?}");
        format!(
            "{logins} new logins, {:?} for the slowest, {late} later than {LOGIN_TIME:?}; {:?} for the slowest round of I/O; {} commands sent again",
            shared.slowest_login.lock().expect("no panic"),
            shared.slowest_round.lock().expect("no panic"),
            shared.again.load(Ordering::Relaxed),
        )
    }
}

impl Shared {
    fn note(&self, who: &str, result: io::Result<()>) {
        if let Err(error) = result {
            *self.failure.lock().expect("no panic") = Some(format!("{who}: {error}"));
        }
    }
}

/// Writes some places concurrently, reads them back, and also those of an earlier round.
fn work(shared: &Shared, session: &mut Session) -> io::Result<()> {
    let mut versions = vec![0u64; PLACES as usize];
    let mut round = 0u64;
    while !shared.stop.load(Ordering::Relaxed) {
        round += 1;
        let begun = Instant::now();
        let places: Vec<u32> = (0..DEPTH)
            .map(|n| (round as u32 * DEPTH + n) * 7919 % PLACES)
            .collect();
        for &place in &places {
            versions[place as usize] = round;
        }
        let contents = |place: u32, version: u64| noise(version << 32 | u64::from(place), BYTES);
        run(
            shared,
            session,
            &places,
            |session, place| {
                let data = contents(place, round);
                let cdb = write_10(place * u32::from(BLOCKS), BLOCKS);
                session.command(&cdb, Direction::Write, BYTES as u32, &data)
            },
            |_, _| Ok(()),
        )?;
        let earlier = (0..DEPTH).map(|n| (round as u32 + n * 257) % PLACES);
        let both: Vec<u32> = places.iter().copied().chain(earlier).collect();
        for places in both.chunks(DEPTH as usize) {
            run(
                shared,
                session,
                places,
                |session, place| {
                    let cdb = read_10(place * u32::from(BLOCKS), BLOCKS);
                    session.command(&cdb, Direction::Read, BYTES as u32, &[])
                },
                |place, data| {
                    let version = versions[place as usize];
                    let right = match version {
                        0 => data.iter().all(|byte| *byte == 0),
                        version => data == contents(place, version),
                    };
                    right
                        .then_some(())
                        .ok_or_else(|| io::Error::other(format!("place {place} holds wrong data")))
                },
            )?;
        }
        let took = begun.elapsed();
        let mut slowest = shared.slowest_round.lock().expect("no panic");
        *slowest = took.max(*slowest);
    }
    Ok(())
}

/// Runs one command per place concurrently and waits for all; commands refused for lack of memory are resent, as every
/// initiator does.
fn run(
    shared: &Shared,
    session: &mut Session,
    places: &[u32],
    send: impl Fn(&mut Session, u32) -> io::Result<u32>,
    check: impl Fn(u32, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut waiting: Vec<u32> = places.to_vec();
    while !waiting.is_empty() {
        let mut sent = Vec::new();
        while session.may_send() {
            let Some(place) = waiting.pop() else { break };
            sent.push((send(session, place)?, place));
        }
        if sent.is_empty() {
            // The target tells when its window is open again.
            session.receive()?;
        }
        let answers =
            session.responses_to(&sent.iter().map(|(task, _)| *task).collect::<Vec<_>>())?;
        for ((_, place), (status, data)) in sent.into_iter().zip(answers) {
            match status {
                0 => {
                    check(place, &data)?;
                    shared.bytes.fetch_add(BYTES as u64, Ordering::Relaxed);
                }
                TASK_SET_FULL => {
                    shared.again.fetch_add(1, Ordering::Relaxed);
                    waiting.push(place);
                }
                other => {
                    return Err(io::Error::other(format!(
                        "place {place}: status {other:#x}"
                    )));
                }
            }
        }
    }
    Ok(())
}

/// A new session every second, which checks that the disk is ready and ends.
fn log_in(shared: &Shared, address: &str) -> io::Result<()> {
    while !shared.stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let session = Session::login(address, IQN, 0, 2, &KEYS);
        let took = begun.elapsed();
        // Only a pause of this machine longer than the target waits excuses a failed login.
        if session.is_err() && took >= LOGIN_TIME {
            shared.late_logins.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let mut session = session?;
        session.wait_until_ready()?;
        shared.logins.fetch_add(1, Ordering::Relaxed);
        {
            let mut slowest = shared.slowest_login.lock().expect("no panic");
            *slowest = took.max(*slowest);
        }
        sleep(Duration::from_secs(1).saturating_sub(begun.elapsed()));
    }
    Ok(())
}
