//! A concat that is served takes another child: the disk is longer for every initiator, and requests go on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use harness::{
    directory::Directory,
    free_port,
    sanstone::{IQN, Sanstone, call, target_table},
    wire::{Session, read_10, write_10},
};

use crate::growth::{BLOCK, CAPACITY_CHANGED, GOOD, capacity, test, write_and_read};

const MIB: u64 = 1 << 20;
const OLD: u64 = 16 * MIB;
const NEW: u64 = 24 * MIB;

fn login(port: u16, number: u16) -> Session {
    let session = Session::login(&format!("127.0.0.1:{port}"), IQN, 0, number, &[]);
    let mut session = session.expect("a login");
    session.wait_until_ready().expect("a ready disk");
    session
}

#[test]
fn a_concat_that_is_served_takes_another_child_and_every_session_is_told_once() {
    let directory = Directory::new();
    let port = free_port();
    let configured = |names: &[&str]| {
        // c is made when it is added.
        let child = |name: &&str| {
            let size = if *name == "c" {
                ", size = \"9MiB\""
            } else {
                ""
            };
            format!("{{ file = {{ path = \"{name}\"{size} }} }}")
        };
        let of: Vec<String> = names.iter().map(child).collect();
        let volumes = format!(
            "lanes = 2\n[volume.db]\nconcat = {{ of = [{}] }}\n",
            of.join(", ")
        );
        format!("{volumes}{}", target_table(port, &["db"]))
    };
    for name in ["a", "b"] {
        directory.sparse(name, 9 * MIB);
    }
    let old = configured(&["a", "b"]);
    let file = directory.write("sanstone.toml", &old);
    let file = file.to_str().expect("plain text");
    call(&["volume", "create", "-c", file, "db"]).success();
    let server = Sanstone::serve_configuration(directory.path(), &old, port);
    let mut server = server.answering(&directory.join("sanstone.state"));
    let mut sessions: Vec<Session> = (0..4).map(|number| login(port, number)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let (stopping, mut busy) = (stop.clone(), login(port, 9));
    let work = thread::spawn(move || {
        let (mut told, mut done) = (0, 0u64);
        while !stopping.load(Ordering::Relaxed) || told == 0 {
            // Across the border of a and b, too.
            let (lba, data) = (
                ((done * 8) % (OLD / BLOCK)) as u32,
                harness::noise(done, 8192),
            );
            let lba = lba.min((OLD / BLOCK) as u32 - 16);
            let (status, _) = busy.execute(&write_10(lba, 16), &data, 0).expect("a reply");
            if status != GOOD {
                told += 1;
                continue;
            }
            let (status, read) = busy.execute(&read_10(lba, 16), &[], 8192).expect("a reply");
            match status {
                GOOD => assert!(read == data, "write {done}"),
                _ => told += 1,
            }
            done += 1;
        }
        told
    });
    // With a portal that nobody can listen on, nothing of it is done.
    let new = configured(&["a", "b", "c"]);
    let with = format!("\"127.0.0.1:{port}\"");
    let broken = new.replace(&with, &format!("{with}, \"192.0.2.1:{port}\""));
    assert_ne!(broken, new);
    directory.write("sanstone.toml", &broken);
    let ran = call(&["apply", "-c", file]);
    assert_eq!(ran.code(), Some(1), "{ran}");
    for names in [&["a"][..], &["c", "a", "b"]] {
        directory.write("sanstone.toml", configured(names));
        let ran = call(&["apply", "-c", file]);
        assert_eq!(ran.code(), Some(2), "{ran}");
    }
    for session in &mut sessions {
        assert_eq!((test(session), capacity(session)), (vec![], OLD));
    }
    directory.write("sanstone.toml", &new);
    for arguments in [
        &["apply", "-c", file, "--dry-run"][..],
        &["apply", "-c", file],
    ] {
        let ran = call(arguments).success();
        let told = "~ volume db: its concat has 2 → 3 children, and is longer: behind the others comes c, which must be blank";
        assert!(ran.stdout.contains(told), "{ran}");
        assert!(!ran.stdout.contains('!'), "{ran}");
    }
    server
        .daemon()
        .log_with("a concat in use has more children");
    for (session, number) in sessions.iter_mut().zip(1..) {
        assert_eq!(test(session), CAPACITY_CHANGED);
        assert_eq!(test(session), Vec::<u8>::new());
        assert_eq!(capacity(session), NEW);
        write_and_read(session, OLD - 2048, number);
        write_and_read(session, NEW - 4096, number);
    }
    stop.store(true, Ordering::Relaxed);
    assert_eq!(work.join().expect("what is written reads back"), 1);
    let shown = call(&["show", "-c", file]).success();
    assert!(shown.stdout.contains("24 MiB"), "{shown}");
    drop((sessions, server));
    // A start finds the same disk.
    let server = Sanstone::serve_configuration(directory.path(), &new, port);
    let _server = server.answering(&directory.join("sanstone.state"));
    let mut session = login(port, 1);
    assert_eq!(capacity(&mut session), NEW);
    let (status, read) = session
        .execute(&read_10(((NEW - 4096) / BLOCK) as u32, 8), &[], 4096)
        .expect("a read");
    assert!(status == GOOD && read == harness::noise(4, 4096));
}
