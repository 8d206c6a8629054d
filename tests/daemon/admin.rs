//! Nobody who is slow, gone or no longer wanted holds up the administrator.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use harness::{
    directory::Directory,
    process::program,
    run::{Ran, run},
    sanstone::{IQN, Sanstone, binary, call},
    wire::{Direction, Session, is_closed, opcode, write_10},
};

/// Enough for what takes a moment.
const LIMIT: Duration = Duration::from_secs(120);
const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";

fn text(port: u16, allow: &str) -> String {
    format!(
        "peer_timeout = \"60min\"\n{RAM}[target.\"{IQN}\"]\nportals = [\"127.0.0.1:{port}\"]\nluns = [\"disk\"]\n\
         allow = [{allow}]\n"
    )
}

fn serve(directory: &Path, allow: &str) -> Sanstone {
    let port = harness::free_port();
    let server = Sanstone::serve_configuration(directory, &text(port, allow), port);
    server.answering(&directory.join("sanstone.state"))
}

fn on(verb: &str, path: &Path) -> Ran {
    call(&[verb, "-c", path.to_str().expect("plain text")])
}

/// What a daemon answers to this request line.
fn answer(directory: &Path, request: &str) -> String {
    let socket = directory.join("sanstone.state/admin.sock");
    let mut stream = UnixStream::connect(socket).expect("it listens");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn an_apply_of_what_is_no_file_is_refused_at_once() {
    let directory = Directory::new();
    let _server = serve(directory.path(), "\"*\"");
    let pipe = directory.join("pipe.toml");
    run(
        Command::new(program("mkfifo", "coreutils")).arg(&pipe),
        LIMIT,
    )
    .success();
    for (path, what) in [
        (pipe.as_path(), "a named pipe"),
        (Path::new("/dev/zero"), "a character device"),
        (directory.path(), "a directory"),
    ] {
        let shown = path.display();
        // More than there are places.
        for _ in 0..20 {
            let request = format!(
                "{{\"version\":1,\"request\":\"apply\",\"path\":\"{shown}\",\"dry_run\":true}}\n"
            );
            let said = answer(directory.path(), &request);
            assert!(said.contains("refused") && said.contains(what), "{said}");
        }
        let ran = on("apply", path);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains(what), "{ran}");
    }
    on("show", &directory.join("sanstone.toml")).success();
}

/// It goes on talking, and never sends the data of a write that it has begun.
#[test]
fn an_initiator_that_is_no_longer_allowed_does_not_hold_up_the_apply() {
    let directory = Directory::new();
    // As the initiators are called that the harness logs in.
    let (one, other) = (
        "iqn.2026-11.io.sanstone:wire-1",
        "iqn.2026-11.io.sanstone:wire-2",
    );
    let server = serve(directory.path(), &format!("\"{one}\", \"{other}\""));
    let address = format!("127.0.0.1:{}", server.port());
    let mut gone = Session::login(&address, IQN, 0, 1, &[]).expect("it is allowed");
    gone.wait_until_ready().expect("a disk");
    let begun = gone.command(&write_10(0, 8), Direction::Write, 4096, &[]);
    begun.expect("a session");
    while gone.receive().expect("a session").opcode() != opcode::R2T {}
    let mut stays = Session::login(&address, IQN, 0, 2, &[]).expect("it is allowed");
    stays.wait_until_ready().expect("a disk");
    let talking = thread::spawn(move || {
        loop {
            let said = gone.nop_out(7, u32::MAX).and_then(|()| {
                while gone.receive()?.opcode() != opcode::NOP_IN {}
                Ok(())
            });
            match said {
                Ok(()) => thread::sleep(Duration::from_millis(100)),
                Err(error) => return error,
            }
        }
    });
    let path = directory.join("sanstone.toml");
    let after = text(server.port(), &format!("\"{other}\""));
    fs::write(&path, after).expect("room");
    // Far less than the peer may take for its data.
    on("apply", &path).success();
    let ended = talking.join().expect("no panic");
    assert!(is_closed(&ended), "{ended}");
    stays.wait_until_ready().expect("it is still allowed");
}

#[test]
fn a_check_says_everything_at_once() {
    let directory = Directory::new();
    let state = directory.join("bad.state");
    fs::create_dir(&state).expect("room");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let port = harness::free_port();
    let text = format!(
        "lanes = 0\n\
         [volume.a]\nfile = {{ path = \"none.img\" }}\n\
         [volume.b]\nfile = {{ path = \"nowhere/b.img\", size = \"1MiB\" }}\n\
         [target.\"{IQN}\"]\nportals = [\"192.0.2.1:{port}\", \"127.0.0.1:{port}\"]\nluns = [\"a\", \"b\"]\n\
         allow = [\"iqn. 1\", \"iqn. 2\"]\nallow_from = [\"10.0.0.0/33\", \"10.0.0.0/34\"]\n\
         chap = {{ user = \"u\", secret_file = \"no.secret\" }}\n\
         [target.\"{IQN}-2\"]\nportals = [\"10.0.0.1:0\", \"10.0.0.2:0\"]\nluns = [\"c\", \"d\"]\nallow = [\"*\"]\n"
    );
    let path = directory.write("bad.toml", text);
    let ran = on("check", &path);
    assert_eq!(ran.code(), Some(2), "{ran}");
    for part in [
        "lanes = 0",
        "none.img",
        "nowhere",
        "192.0.2.1",
        "iqn. 1",
        "iqn. 2",
        "10.0.0.0/33",
        "10.0.0.0/34",
        "no.secret",
        "10.0.0.1:0",
        "10.0.0.2:0",
        "\"c\"",
        "\"d\"",
    ] {
        assert!(ran.stderr.contains(part), "no {part:?} in\n{ran}");
    }
    let line_of = |line: &str| line.split(':').nth(2)?.parse::<u32>().ok();
    let lines: Vec<u32> = ran.stderr.lines().filter_map(line_of).collect();
    assert!(
        lines.len() >= 12 && lines.is_sorted(),
        "{lines:?} of\n{ran}"
    );
    let many: Vec<String> = (0..400).map(|n| format!("\"none-{n}\"")).collect();
    let many = format!(
        "[target.\"{IQN}\"]\nportals = [\"127.0.0.1:{port}\"]\nluns = [{}]\nallow = [\"*\"]\n",
        many.join(", ")
    );
    let ran = on("check", &directory.write("many.toml", many));
    assert!(
        ran.stderr.contains("none-299") && !ran.stderr.contains("none-300"),
        "{ran}"
    );
    assert!(ran.stderr.contains("100 more errors"), "{ran}");
    let fixed = format!(
        "{RAM}[target.\"{IQN}\"]\nportals = [\"192.0.2.1:{port}\"]\nluns = [\"disk\"]\nallow = [\"*\"]\n"
    );
    let path = directory.write("bad.toml", fixed);
    let ran = on("check", &path);
    assert_eq!(ran.code(), Some(2), "{ran}");
    for part in [
        "bad.toml:4",
        "does not have that address",
        "mode 0777",
        "chmod -R go-w",
    ] {
        assert!(ran.stderr.contains(part), "no {part:?} in\n{ran}");
    }
    fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

#[test]
fn a_check_finds_out_whether_a_lane_can_work_here() {
    let directory = Directory::new();
    let path = directory.write("sanstone.toml", text(harness::free_port(), "\"*\""));
    on("check", &path).success();
    let mut check = Command::new(program("prlimit", "util-linux"));
    // One for a file that is read.
    check.arg("--nofile=4:4").arg(binary());
    let ran = run(check.args(["check", "-c"]).arg(&path), LIMIT);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr.contains("lane cannot be started"), "{ran}");
}
