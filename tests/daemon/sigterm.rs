//! SIGTERM finishes accepted commands, then stops: a write whose R2T has been sent can still send its data and gets
//! GOOD status, and acknowledged data is in the file.

use harness::directory::Directory;
use harness::disk::Disk;
use harness::process::{Daemon, wait_until_free};
use harness::sanstone::{IQN, Sanstone, binary, target_table};
use harness::wire::{Direction, Session, opcode, write_10};
use std::process::Command;
use std::time::{Duration, Instant};

const BLOCKS: u16 = 64;
const BYTES: usize = BLOCKS as usize * 512;
/// No data before an R2T, and one R2T for all of it.
const SOLICITED: [&str; 4] = [
    "InitialR2T=Yes",
    "ImmediateData=No",
    "FirstBurstLength=65536",
    "MaxBurstLength=65536",
];

/// Sends a write and returns the R2T that shows that the target has accepted it.
fn begin_write(session: &mut Session, lba: u32) -> harness::wire::Pdu {
    let cdb = write_10(lba, BLOCKS);
    session
        .command(&cdb, Direction::Write, BYTES as u32, &[])
        .expect("a command");
    let r2t = session.receive().expect("an R2T");
    assert_eq!((r2t.opcode(), r2t.word(44)), (opcode::R2T, BYTES as u32));
    r2t
}

/// Receives asynchronous event 1: log out (RFC 7143 §11.9.1).
fn asked_to_log_out(session: &mut Session) {
    let asked = session.receive().expect("a word before the end");
    assert_eq!(
        (asked.opcode(), asked.header[36]),
        (opcode::ASYNC_MESSAGE, 1)
    );
}

fn finish_write(session: &mut Session, r2t: &harness::wire::Pdu, data: &[u8]) {
    session
        .answer_r2t(r2t, data)
        .expect("the target still takes the data");
    let response = session.receive().expect("the target still answers");
    assert_eq!(response.opcode(), opcode::SCSI_RESPONSE);
    assert_eq!((response.task(), response.status()), (r2t.task(), 0));
}

#[test]
fn a_solicited_write_works_at_all() {
    let disk = Disk::new(16 << 20);
    let (target, lun) = disk.target_and_lun();
    let mut session = Session::login(disk.address(), target, lun, 1, &SOLICITED).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let r2t = begin_write(&mut session, 0);
    finish_write(&mut session, &r2t, &harness::noise(1, BYTES));
}

#[test]
fn sigterm_finishes_an_accepted_write_and_then_stops() {
    // The target waits two and a half seconds for a silent initiator, so an attempt during which this machine paused
    // that long proves nothing.
    let told = (0..5).any(|_| accepted_write_at_sigterm());
    assert!(told, "this machine was never awake for two seconds");
}

/// Returns whether the data was sent in time; if so, everything was checked.
fn accepted_write_at_sigterm() -> bool {
    let directory = Directory::new();
    let volume = "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\", cache = \"write-through\" }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["disk"]);
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &SOLICITED).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let r2t = begin_write(&mut session, 128);
    let begun = Instant::now();
    server.daemon().signal("TERM");
    asked_to_log_out(&mut session);
    wait_until_free(address.parse().expect("an address"));
    let had_ended = server.daemon().ended().is_some();
    if begun.elapsed() > Duration::from_secs(2) {
        return false;
    }
    assert!(!had_ended, "it did not wait for the accepted write");
    let data = harness::noise(2, BYTES);
    finish_write(&mut session, &r2t, &data);
    let status = server
        .daemon()
        .wait(Duration::from_secs(60))
        .expect("it stops");
    assert_eq!(status.code(), Some(0), "{}", server.daemon().log());
    let file = std::fs::read(directory.join("disk.img")).expect("the share's file");
    assert!(
        file[128 * 512..][..BYTES] == data,
        "an acknowledged write is not in the file"
    );
    true
}

#[test]
fn a_second_sigterm_ends_what_the_first_one_waits_for() {
    // Two signals at once are two requests if this machine pauses between them.
    let told = (0..5).any(|_| writes_until_told_again());
    assert!(told, "two signals at once were two requests each time");
}

/// Returns whether two simultaneous signals counted as one request; if so, a later one ended the write.
fn writes_until_told_again() -> bool {
    let directory = Directory::new();
    let volume =
        "[volume.disk]\nthrottle = { rate = \"8kbit/s\", of = { ram = { size = \"16MiB\" } } }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["disk"]);
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &SOLICITED).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let r2t = begin_write(&mut session, 0);
    session
        .answer_r2t(&r2t, &harness::noise(3, BYTES))
        .expect("the target takes the data");
    // The link takes 32 s; two simultaneous signals, as `timeout` sends them, are one request.
    for _ in 0..2 {
        server.daemon().signal("TERM");
    }
    server
        .daemon()
        .log_with("a second SIGTERM or SIGINT ends at once");
    std::thread::sleep(Duration::from_millis(1500));
    if server.daemon().ended().is_some() {
        return false;
    }
    server.daemon().signal("INT");
    let ended = server.daemon().wait(Duration::from_secs(15));
    assert_eq!(ended.expect("it ends").code(), Some(1));
    let log = server.daemon().log();
    assert!(log.contains("second request to stop"), "{log}");
    true
}

#[test]
fn sigterm_does_not_wait_for_ever_for_a_silent_client() {
    let directory = Directory::new();
    let volume = "[volume.disk]\nram = { size = \"16MiB\" }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["disk"]);
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &SOLICITED).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let _never_answered = begin_write(&mut session, 0);
    server.daemon().signal("TERM");
    asked_to_log_out(&mut session);
    // The initiator has a few seconds to continue what it began, far less than a ping timeout.
    let status = server
        .daemon()
        .wait(Duration::from_secs(15))
        .expect("it stops");
    assert_eq!(status.code(), Some(0), "{}", server.daemon().log());
}

#[test]
fn a_last_flush_that_fails_is_told_by_the_exit_code() {
    let directory = Directory::new();
    let volume = "[volume.disk.fault]\nrules = [{ on = \"flush\", fail = \"medium\" }]\n\
                  of = { file = { path = \"disk.img\", size = \"16MiB\" } }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["disk"]);
    server.daemon().signal("TERM");
    let status = server.daemon().wait(Duration::from_secs(60));
    let log = server.daemon().log();
    assert_eq!(status.expect("it stops").code(), Some(1), "{log}");
    let said = "sanstone: the last flush of volume disk failed";
    assert!(log.contains(said), "{log}");
    // The reason is logged once, however many lanes there are.
    assert_eq!(
        log.matches("the last flush of a volume failed").count(),
        1,
        "{log}"
    );
    assert_eq!(log.matches("a fault rule made this").count(), 1, "{log}");
}

/// A disk that never answers is given up after a minute, and what others have written is on their disks then.
#[test]
fn sigterm_does_not_wait_for_ever_for_a_disk_that_hangs() {
    let directory = Directory::new();
    let volume = "[volume.hung.fault]\nrules = [{ on = \"write\", hang = true }, { on = \"flush\", hang = true }]\n\
                  of = { ram = { size = \"16MiB\" } }\n\
                  [volume.sound.fault]\nrules = [{ on = \"flush\", fail = \"medium\" }]\n\
                  of = { ram = { size = \"16MiB\" } }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["hung", "sound"]);
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let data = vec![7; 4096];
    let task = session.command(&write_10(0, 8), Direction::Write, 4096, &data);
    task.expect("a command");
    server.daemon().signal("TERM");
    let log = server.daemon().log_with("still waiting for volume hung");
    assert!(log.contains("a second SIGTERM"), "{log}");
    let status = server.daemon().wait(Duration::from_secs(300));
    let log = server.daemon().log();
    assert_eq!(status.expect("it ends").code(), Some(1), "{log}");
    assert!(
        log.contains("sanstone: volume hung did not answer"),
        "{log}"
    );
    // The other one was flushed, which its rule makes known.
    assert!(log.contains("a fault rule made this"), "{log}");
}

#[test]
fn a_start_that_waits_for_a_disk_ends_when_it_is_told_to_stop() {
    let directory = Directory::new();
    let url = format!("iscsi://127.0.0.1:{}/{IQN}/0", harness::free_port());
    let volume = format!(
        "[volume.far]\niscsi = {{ url = \"{url}\", wait_at_start = \"10min\" }}\n{}",
        target_table(harness::free_port(), &["far"])
    );
    let config = directory.write("sanstone.toml", volume);
    let mut command = Command::new(binary());
    command.args(["serve", "-c"]).arg(config);
    let mut daemon = Daemon::start(&command, directory.join("log"));
    daemon.log_with("waiting for the disk");
    daemon.signal("TERM");
    let status = daemon.wait(Duration::from_secs(60)).expect("it ends");
    assert_eq!(status.code(), Some(1), "{}", daemon.log());
    daemon.log_with("told to stop before its disks were there");
}
