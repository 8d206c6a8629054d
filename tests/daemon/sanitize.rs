//! SANITIZE across a restart (SBC-3 4.11): an unfinished one has failed, and a failure cleared by EXIT FAILURE MODE
//! does not come back.

use harness::directory::Directory;
use harness::foreign::ForeignTarget;
use harness::sanstone::{IQN, Sanstone};
use harness::wire::{Direction, Session, read_10, write_10};
use std::time::Duration;
use volume::foreign::{Claims, Instead};

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
/// AUSE: the failure may be cleared by EXIT FAILURE MODE.
const UNRESTRICTED_EXIT: u8 = 0x20;
const IMMED: u8 = 0x80;
const OVERWRITE: u8 = 0x01;
const BLOCK_ERASE: u8 = 0x02;
const EXIT_FAILURE_MODE: u8 = 0x1F;
/// One pass of a pattern of four zeroes.
const LIST: [u8; 8] = [1, 0, 0, 4, 0, 0, 0, 0];

/// A disk whose first write behaves as this fault rule says.
fn volume(rule: &str) -> String {
    format!(
        "[volume.disk.fault]\nrules = [{{ on = \"write\", {rule} }}]\n\
         of = {{ file = {{ path = \"disk.img\", size = \"16MiB\" }} }}\n"
    )
}

fn login(server: &Sanstone) -> Session {
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    // The unit attention of a new nexus.
    let told = session.execute(&[0; 6], &[], 0).expect("a response");
    assert_eq!(told.0, CHECK_CONDITION);
    session
}

fn sanitize(session: &mut Session, action: u8, list: &[u8]) -> u8 {
    let cdb = [0x48, action, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    let response = session.execute(&cdb, list, 0);
    response.expect("a response").0
}

fn read(session: &mut Session) -> u8 {
    let response = session.execute(&read_10(0, 1), &[], 512);
    response.expect("a response").0
}

/// Ends the daemon by this signal and starts it again.
fn restart(mut server: Sanstone, directory: &Directory, volume: &str, signal: &str) -> Sanstone {
    let port = server.port();
    server.daemon().signal(signal);
    let ended = server.daemon().wait(Duration::from_secs(60));
    ended.expect("it ends");
    drop(server);
    Sanstone::serve_on(port, directory.path(), volume, &["disk"])
}

#[test]
fn a_failure_that_was_left_does_not_come_back() {
    let directory = Directory::new();
    let volume = volume("fail = \"medium\", times = 1");
    let server = Sanstone::serve(directory.path(), &volume, &["disk"]);
    let mut session = login(&server);
    let failed = sanitize(&mut session, UNRESTRICTED_EXIT | OVERWRITE, &LIST);
    assert_eq!(failed, CHECK_CONDITION);
    assert_eq!(read(&mut session), CHECK_CONDITION);
    assert_eq!(sanitize(&mut session, EXIT_FAILURE_MODE, &[]), GOOD);
    let written = session.execute(&write_10(0, 1), &[0x5A; 512], 0);
    assert_eq!(written.expect("a response").0, GOOD);

    let server = restart(server, &directory, &volume, "TERM");
    assert_eq!(read(&mut login(&server)), GOOD);
}

#[test]
fn one_that_was_answered_at_its_beginning_is_not_forgotten() {
    let directory = Directory::new();
    // The sanitize is waiting for a write in progress, and has not begun to overwrite anything.
    let volume = volume("delay = \"60s\", times = 1");
    let server = Sanstone::serve(directory.path(), &volume, &["disk"]);
    let mut session = login(&server);
    let block = [0x5A; 512];
    let sent = session.command(&write_10(100, 1), Direction::Write, 512, &block);
    sent.expect("a command");
    assert_eq!(sanitize(&mut session, IMMED | OVERWRITE, &LIST), GOOD);

    let server = restart(server, &directory, &volume, "KILL");
    let mut session = login(&server);
    assert_eq!(read(&mut session), CHECK_CONDITION, "it is forgotten");
    let request_sense = [0x03, 0, 0, 0, 18, 0];
    let told = session.execute(&request_sense, &[], 18);
    let (_, sense) = told.expect("a response");
    const MEDIUM_ERROR: u8 = 3;
    const SANITIZE_COMMAND_FAILED: [u8; 2] = [0x31, 0x03];
    assert_eq!(sense[2], MEDIUM_ERROR);
    assert_eq!(sense[12..14], SANITIZE_COMMAND_FAILED);
}

/// LBPRZ says what an unmapped block reads as, not that UNMAP unmaps (SBC-3 4.7.3.4).
#[test]
fn nothing_is_left_on_a_remote_disk_that_ignores_unmap() {
    for unmaps_same in [false, true] {
        let claims = Claims {
            unmaps_same,
            ..Claims::default()
        };
        let ignore = |foreign: &volume::foreign::Foreign| foreign.ignores_unmap.set(true);
        let remote = ForeignTarget::serve(claims, ignore, Instead::Status(0));
        let directory = Directory::new();
        let volume = format!("[volume.disk]\niscsi = {{ url = \"{}\" }}\n", remote.url());
        let server = Sanstone::serve(directory.path(), &volume, &["disk"]);
        let mut session = login(&server);
        let write = |session: &mut Session| {
            let written = session.execute(&write_10(100, 1), &[0x5A; 512], 0);
            assert_eq!(written.expect("a response").0, GOOD);
        };
        let holds = |session: &mut Session| {
            let read = session.execute(&read_10(100, 1), &[], 512);
            read.expect("a response").1
        };
        write(&mut session);
        if sanitize(&mut session, BLOCK_ERASE, &[]) == GOOD {
            assert_ne!(
                holds(&mut session),
                [0x5A; 512],
                "it said that it is erased"
            );
        }
        write(&mut session);
        assert_eq!(sanitize(&mut session, OVERWRITE, &LIST), GOOD);
        assert_eq!(holds(&mut session), [0; 512]);
    }
}
