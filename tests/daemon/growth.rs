//! SIGHUP makes the daemon check the lengths of its files again: disks grow while in use, each initiator is told once,
//! and changes that cannot be followed are logged.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use harness::{
    directory::Directory,
    free_port,
    sanstone::{IQN, Sanstone, call},
    wire::{Direction, Session, opcode, read_10, write_10},
};

const BEFORE: u64 = 16 << 20;
const AFTER: u64 = 40 << 20;
pub(crate) const BLOCK: u64 = 512;
pub(crate) const GOOD: u8 = 0;
const TEST_UNIT_READY: [u8; 6] = [0; 6];
pub(crate) const CAPACITY_CHANGED: &[u8] = &[6, 0x2a, 0x09];

fn set_len(directory: &Directory, name: &str, len: u64) {
    let file = File::options().write(true).open(directory.join(name));
    file.and_then(|file| file.set_len(len)).expect("room");
}

/// A command without data; its sense key, code and qualifier if it was not good.
pub(crate) fn test(session: &mut Session) -> Vec<u8> {
    let sent = session.command(&TEST_UNIT_READY, Direction::None, 0, &[]);
    sent.expect("a command");
    let response = session.receive().expect("a response");
    assert_eq!(response.opcode(), opcode::SCSI_RESPONSE);
    let sense = response.data.get(2..).unwrap_or_default(); // after its length
    match response.status() {
        GOOD => Vec::new(),
        _ => vec![sense[2] & 0xf, sense[12], sense[13]],
    }
}

/// READ CAPACITY (16), in bytes.
pub(crate) fn capacity(session: &mut Session) -> u64 {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
    let (status, data) = session.execute(&cdb, &[], 32).expect("a reply");
    assert_eq!(status, GOOD);
    let last = u64::from_be_bytes(data[..8].try_into().expect("eight bytes"));
    (last + 1) * BLOCK
}

pub(crate) fn write_and_read(session: &mut Session, at: u64, seed: u64) {
    let (lba, data) = ((at / BLOCK) as u32, harness::noise(seed, 4096));
    let (status, _) = session
        .execute(&write_10(lba, 8), &data, 0)
        .expect("a write");
    assert_eq!(status, GOOD, "at {at}");
    let (status, read) = session
        .execute(&read_10(lba, 8), &[], 4096)
        .expect("a read");
    assert!(status == GOOD && read == data, "at {at}");
}

#[test]
fn a_file_that_grew_is_longer_for_every_session_and_io_goes_on() {
    for cache in ["direct", "write-back"] {
        let directory = Directory::new();
        directory.sparse("disk.img", BEFORE);
        let ports = [free_port(), free_port()];
        let configuration = format!(
            "lanes = 2\n[volume.disk]\nfile = {{ path = \"disk.img\", cache = \"{cache}\" }}\n\
             [target.\"{IQN}\"]\nluns = [\"disk\"]\nallow = [\"*\"]\n\
             portal_groups = {{ 1 = [\"127.0.0.1:{}\"], 2 = [\"127.0.0.1:{}\"] }}\n",
            ports[0], ports[1]
        );
        let mut server = Sanstone::serve_configuration(directory.path(), &configuration, ports[0]);
        let login = |port: u16, number: u16| {
            let address = format!("127.0.0.1:{port}");
            let mut session = Session::login(&address, IQN, 0, number, &[]).expect("a login");
            session.wait_until_ready().expect("a ready disk");
            session
        };
        // Two on each port, so that they land on different lanes.
        let mut sessions: Vec<_> = (0..4)
            .map(|number| login(ports[usize::from(number / 2)], number))
            .collect();
        // One writes all the time, and must receive exactly one unit attention.
        let stop = Arc::new(AtomicBool::new(false));
        let mut busy = login(ports[0], 9);
        let stopping = stop.clone();
        let work = thread::spawn(move || {
            let (mut told, mut done) = (0, 0u64);
            while !stopping.load(Ordering::Relaxed) || told == 0 {
                let lba = (done * 8 % (BEFORE / 2 / BLOCK)) as u32;
                let data = harness::noise(done, 4096);
                let write = busy.execute(&write_10(lba, 8), &data, 0).expect("a write");
                if write.0 != GOOD {
                    told += 1;
                    continue;
                }
                let read = busy.execute(&read_10(lba, 8), &[], 4096).expect("a read");
                match read.0 {
                    GOOD => assert!(read.1 == data, "write {done}"),
                    _ => told += 1,
                }
                done += 1;
            }
            (told, done)
        });
        let end = AFTER - 4096;
        for session in &mut sessions {
            assert_eq!(capacity(session), BEFORE);
        }
        // The file alone changes nothing.
        set_len(&directory, "disk.img", AFTER);
        assert_eq!(
            (capacity(&mut sessions[0]), test(&mut sessions[0])),
            (BEFORE, vec![])
        );
        server.daemon().signal("HUP");
        let log = server.daemon().log_with("a disk has grown");
        let (from, to) = (format!("from={BEFORE}"), format!("to={AFTER}"));
        let file = log.lines().find(|line| line.contains("a file has grown"));
        let disk = log.lines().find(|line| line.contains("a disk has grown"));
        for line in [file, disk] {
            assert!(
                line.is_some_and(|line| line.contains(&from) && line.contains(&to)),
                "{log}"
            );
        }
        for (session, number) in sessions.iter_mut().zip(1..) {
            assert_eq!(test(session), CAPACITY_CHANGED);
            assert_eq!(capacity(session), AFTER);
            write_and_read(session, end, number);
            write_and_read(session, BEFORE - 2048, number);
        }
        // There are no further attentions, even after another SIGHUP without a change.
        server.daemon().signal("HUP");
        server
            .daemon()
            .log_with("no file or remote disk has changed");
        for session in &mut sessions {
            assert_eq!((test(session), capacity(session)), (vec![], AFTER));
        }
        assert_eq!(server.daemon().log().matches("a disk has grown").count(), 1);
        stop.store(true, Ordering::Relaxed);
        let (told, done) = work.join().expect("no I/O was disturbed");
        assert!(told == 1 && done > 0, "{told} attentions in {done} rounds");
    }
}

#[test]
fn what_is_not_followed_is_said_with_the_mend_and_the_disks_stay() {
    let directory = Directory::new();
    for name in ["shrunk.img", "fixed.img", "odd.img"] {
        directory.sparse(name, BEFORE);
    }
    let volumes = "[volume.shrunk]\nfile = { path = \"shrunk.img\", cache = \"write-back\" }\n\
         [volume.fixed]\nfile = { path = \"fixed.img\", size = \"16MiB\" }\n\
         [volume.odd]\nfile = { path = \"odd.img\" }\n";
    let names = ["shrunk", "fixed", "odd"];
    let mut server = Sanstone::serve(directory.path(), volumes, &names);
    let address = format!("127.0.0.1:{}", server.port());
    let mut sessions: Vec<_> = (0..3)
        .map(|lun| {
            let mut session =
                Session::login(&address, IQN, lun, 1 + u16::from(lun), &[]).expect("a login");
            session.wait_until_ready().expect("a ready disk");
            session
        })
        .collect();
    server.daemon().signal("HUP");
    let log = server
        .daemon()
        .log_with("no file or remote disk has changed");
    assert!(!log.contains("ERROR"), "{log}");
    set_len(&directory, "shrunk.img", BEFORE / 2);
    set_len(&directory, "fixed.img", AFTER);
    set_len(&directory, "odd.img", BEFORE + 100);
    server.daemon().signal("HUP");
    for said in ["fixed.img has grown", "odd.img has grown"] {
        server.daemon().log_with(said);
    }
    let log = server.daemon().log_with("shrunk.img was truncated");
    let said = |parts: &[&str]| {
        let mut errors = log.lines().filter(|line| line.contains("ERROR"));
        let all = |line: &str| parts.iter().all(|part| line.contains(part));
        assert!(errors.any(all), "{parts:?} in\n{log}");
    };
    let mend = format!("truncate -s {BEFORE}");
    said(&["shrunk.img was truncated", "8388608", "16777216", &mend]);
    said(&[
        "fixed.img",
        "16777216 to 41943040",
        "size = \"41943040B\"",
        "restart",
    ]);
    said(&["odd.img", "16777216 to 16777316", "truncate -s "]);
    for session in &mut sessions {
        assert_eq!((test(session), capacity(session)), (vec![], BEFORE));
        write_and_read(session, 4096, 1);
    }
    // I/O beyond the end of a shrunk file fails, and works again once the file is restored.
    let behind = ((BEFORE - 4096) / BLOCK) as u32;
    let read = sessions[0]
        .execute(&read_10(behind, 8), &[], 4096)
        .expect("an answer");
    assert_ne!(read.0, GOOD);
    set_len(&directory, "shrunk.img", BEFORE);
    write_and_read(&mut sessions[0], BEFORE - 4096, 2);
    assert!(!server.daemon().log().contains("a disk has grown"));
}

#[test]
fn a_sanitize_ends_before_the_disk_that_it_sanitizes_grows() {
    let directory = Directory::new();
    directory.sparse("disk.img", AFTER);
    let volume = "[volume.disk]\nfile = { path = \"disk.img\", cache = \"write-back\" }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["disk"]);
    let address = format!("127.0.0.1:{}", server.port());
    let mut sessions = [1, 2].map(|number| {
        let mut session = Session::login(&address, IQN, 0, number, &[]).expect("a login");
        session.wait_until_ready().expect("a ready disk");
        session
    });
    let [sanitizing, other] = &mut sessions;
    // OVERWRITE, answered at its end: some passes of 512 bytes of FFh (SBC-4 5.30).
    let mut list = vec![0xff; 4 + 512];
    list[..4].copy_from_slice(&[5, 0, 2, 0]);
    let [high, low] = (list.len() as u16).to_be_bytes();
    let cdb = [0x48, 1, 0, 0, 0, 0, 0, high, low, 0];
    let sent = sanitizing.command(&cdb, Direction::Write, list.len() as u32, &list);
    let sanitize = sent.expect("a command");
    const SANITIZE_IN_PROGRESS: &[u8] = &[2, 0x04, 0x1b];
    let deadline = Instant::now() + Duration::from_secs(60);
    while test(other) != SANITIZE_IN_PROGRESS {
        assert!(Instant::now() < deadline, "no sanitize begins");
    }
    set_len(&directory, "disk.img", 2 * AFTER);
    server.daemon().signal("HUP");
    let log = server.daemon().log_with("a file has grown");
    let mut said = test(other);
    if said == SANITIZE_IN_PROGRESS {
        assert!(!log.contains("a disk has grown"), "{log}");
    }
    let ended = sanitizing.responses_to(&[sanitize]).expect("an answer");
    assert_eq!(ended[0].0, GOOD);
    server.daemon().log_with("a disk has grown");
    // It is reported once: if this machine paused, that may already have happened above.
    if said != CAPACITY_CHANGED {
        said = test(other);
    }
    assert_eq!(said, CAPACITY_CHANGED);
    assert_eq!(test(sanitizing), CAPACITY_CHANGED);
    for session in &mut sessions {
        assert_eq!(capacity(session), 2 * AFTER);
    }
    let file = std::fs::read(directory.join("disk.img")).expect("the disk's file");
    let (old, new) = file.split_at(AFTER as usize);
    assert!(
        old.iter().all(|&byte| byte == 0xff),
        "all that was the disk"
    );
    assert!(new.iter().all(|&byte| byte == 0), "nothing that was not");
}

#[test]
fn a_configuration_that_has_changed_is_logged_and_not_applied() {
    let directory = Directory::new();
    let volume = "[volume.disk]\nram = { size = \"16MiB\" }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["disk"]);
    server.daemon().signal("HUP");
    let log = server
        .daemon()
        .log_with("no file or remote disk has changed");
    assert!(!log.contains("configuration"), "{log}");
    let file = directory.join("sanstone.toml");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    std::fs::write(&file, format!("lanes = 1\n{text}")).expect("another one");
    server.daemon().signal("HUP");
    let said = "the configuration file has changed; `sanstone apply -c` with this path, or a restart, \
         puts it into effect";
    server.daemon().log_with(said);
    std::fs::write(&file, format!("lanez = 1\n{text}")).expect("another one");
    server.daemon().signal("HUP");
    let log = server.daemon().log_with("a restart would fail: ");
    assert!(
        log.contains("sanstone.toml:1:1: unknown key `lanez`"),
        "{log}"
    );
    std::fs::remove_file(&file).expect("it is there");
    server.daemon().signal("HUP");
    let log = server
        .daemon()
        .log_with("the configuration file can no longer be read");
    assert_eq!(log.matches(said).count(), 1, "{log}");
}

/// A file that is shorter than it was when it had grown is another file, or a broken one.
#[test]
fn the_length_that_a_file_has_grown_to_is_recorded() {
    let directory = Directory::new();
    directory.sparse("disk.img", BEFORE);
    let port = free_port();
    let volume = "[volume.disk]\nfile = { path = \"disk.img\" }\n";
    let mut server = Sanstone::serve_on(port, directory.path(), volume, &["disk"]);
    set_len(&directory, "disk.img", AFTER);
    server.daemon().signal("HUP");
    server.daemon().log_with("a disk has grown");
    server.daemon().signal("TERM");
    server
        .daemon()
        .wait(Duration::from_secs(60))
        .expect("it ends");
    set_len(&directory, "disk.img", AFTER - 4096);
    let config = directory.join("sanstone.toml").display().to_string();
    for verb in ["check", "serve"] {
        let refused = call(&[verb, "-c", &config]);
        let said = format!("has {} bytes, but disk", AFTER - 4096);
        assert!(
            refused.code() != Some(0)
                && refused.stderr.contains(&said)
                && refused.stderr.contains(&format!("had {AFTER}")),
            "{refused}"
        );
    }
    set_len(&directory, "disk.img", AFTER);
    drop(Sanstone::serve_on(
        port,
        directory.path(),
        volume,
        &["disk"],
    ));
}
