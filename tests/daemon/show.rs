//! `sanstone show` queries a running daemon or an attached volume over the socket in its state directory.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use harness::{
    directory::Directory,
    process::Daemon,
    run::Ran,
    sanstone::{IQN, Sanstone, binary, call},
    wire::{Direction, Session, opcode, read_10, write_10},
};
use serde_json::Value;

const VOLUMES: &str = "[volume.db]\ncache = { size = \"8MiB\", of = \"below\" }\n\
                       [volume.below]\nfile = { path = \"db.img\", size = \"16MiB\" }\n\
                       [volume.spare]\nram = { size = \"1MiB\" }\n";

fn serve(directory: &Path) -> Sanstone {
    let server = Sanstone::serve(directory, VOLUMES, &["db"]);
    server.answering(&directory.join("sanstone.state"))
}

fn state(directory: &Path) -> String {
    let state = directory.join("sanstone.state");
    state.to_str().expect("plain text").to_owned()
}

fn show(directory: &Path) -> Ran {
    call(&["show", "--state", &state(directory)])
}

fn shown(directory: &Path) -> Value {
    let configuration = directory.join("sanstone.toml");
    let configuration = configuration.to_str().expect("plain text");
    let ran = call(&["show", "-c", configuration, "--json", "-"]).success();
    serde_json::from_str(&ran.stdout).expect("it is JSON")
}

fn portal(server: &Sanstone) -> String {
    format!("127.0.0.1:{}", server.port())
}

fn login(server: &Sanstone) -> Session {
    let mut session = Session::login(&portal(server), IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    session
}

fn good(session: &mut Session, cdb: &[u8], data: &[u8]) {
    let sent = session.command(cdb, Direction::Write, data.len() as u32, data);
    sent.expect("a command");
    let response = session.receive().expect("a response");
    assert_eq!(
        (response.opcode(), response.status()),
        (opcode::SCSI_RESPONSE, 0)
    );
}

#[test]
fn it_shows_trees_targets_sessions_and_reservations() {
    let directory = Directory::new();
    let server = serve(directory.path());
    let mut session = login(&server);
    good(&mut session, &write_10(0, 8), &[0x5A; 4096]);
    // A written block, an unwritten one, and the latter again.
    for lba in [0, 1024, 1024] {
        let task = session.command(&read_10(lba, 8), Direction::Read, 4096, &[]);
        let task = task.expect("a command");
        let answers = session.responses_to(&[task]).expect("a response");
        assert_eq!(answers[0].0, 0);
    }
    // PERSISTENT RESERVE OUT: REGISTER with key 0x11, then RESERVE, Exclusive Access.
    let mut list = [0; 24];
    list[15] = 0x11;
    good(&mut session, &[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list);
    list.rotate_left(8);
    good(&mut session, &[0x5F, 1, 3, 0, 0, 0, 0, 0, 24, 0], &list);

    let shown = shown(directory.path());
    assert_eq!(shown["version"], 1);
    let volume = &shown["volumes"]["db"];
    assert_eq!(volume["uuid"].as_str().map(str::len), Some(36), "{volume}");
    let cache = &volume["tree"];
    assert_eq!(cache["path"], "db/cache");
    assert_eq!(cache["memory_bytes"], 8 << 20);
    let counted = &cache["cache"];
    assert_eq!(
        (&counted["hits"], &counted["misses"]),
        (&2.into(), &1.into())
    );
    assert_eq!(counted["held_bytes"], 2 * (16 << 10), "{counted}");
    let file = &cache["children"][0];
    assert_eq!(
        (&file["kind"], &file["name"]),
        (&"file".into(), &"below".into())
    );
    assert_eq!(file["path"], "below/file");
    assert_eq!(file["place"], "db.img");
    assert_eq!(file["size_bytes"], 16 << 20);
    assert_eq!(file["requests"]["write"]["bytes"], 4096);
    assert_eq!(shown["volumes"]["spare"]["tree"]["open"], false);
    let unit = &volume["unit"];
    assert_eq!(unit["registrations"][0]["key"], "0x0000000000000011");
    assert_eq!(unit["reservation"]["type"], "Exclusive Access");
    let port = &unit["registrations"][0]["initiator_port"];
    assert_eq!(&unit["reservation"]["holder"], port);
    let target = &shown["targets"][IQN];
    assert_eq!(target["luns"]["0"]["volume"], "db");
    assert_eq!(target["portal_groups"][0]["portals"][0], portal(&server));
    let sessions = shown["sessions"].as_array().expect("a list");
    assert_eq!(sessions.len(), 1, "{shown}");
    assert_eq!(sessions[0]["target"], IQN);
    let peer = session.stream().local_addr().expect("connected");
    assert_eq!(sessions[0]["peer"], peer.to_string());

    let text = show(directory.path()).success().stdout;
    for part in [
        "volume db  ",
        "  cache of 8 MiB, 16 MiB",
        "  hits                2      66.7 %  late 0 misses 1 holding 32 KiB",
        "    file (volume below) db.img, 16 MiB",
        "\n  a read takes ",
        " (mean of 3)\n",
        "\n  a write takes ",
        " here: transfer ",
        "volume spare  not served",
        "reserved: Exclusive Access, by ",
        "registered: 0x0000000000000011 ",
        "  LUN 0  db",
        "  allowed everybody",
        "session ",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn the_socket_is_its_users_alone_and_goes_with_the_daemon() {
    let directory = Directory::new();
    let mut server = serve(directory.path());
    let socket = Path::new(&state(directory.path())).join("admin.sock");
    let mode = fs::metadata(&socket)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // The socket left by a killed daemon does not get in the way.
    server.daemon().signal("KILL");
    server
        .daemon()
        .wait(Duration::from_secs(60))
        .expect("it ends");
    drop(server);
    let ran = show(directory.path());
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr.contains("has exited; start it again"), "{ran}");
    let mut server = serve(directory.path());
    show(directory.path()).success();
    server.daemon().signal("TERM");
    server
        .daemon()
        .wait(Duration::from_secs(60))
        .expect("it ends");
    let ran = show(directory.path());
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(
        ran.stderr.contains("runs with the state directory"),
        "{ran}"
    );
    assert!(!socket.exists());
}

#[test]
fn a_state_directory_may_have_a_long_path() {
    let directory = Directory::new();
    let long = directory.join(&"long".repeat(40));
    fs::create_dir(&long).expect("room");
    let _server = serve(&long);
    show(&long).success();
}

#[test]
fn clients_that_say_nothing_nonsense_or_too_much_harm_nobody() {
    let directory = Directory::new();
    let _server = serve(directory.path());
    let socket = Path::new(&state(directory.path())).join("admin.sock");
    let connect = || UnixStream::connect(&socket).expect("it listens");
    let answer = |mut stream: UnixStream| {
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("an answer, or the end");
        answer
    };
    for (nonsense, part) in [
        ("GET / HTTP/1.1\n", "not a JSON object"),
        ("{\"version\":2,\"request\":\"show\"}\n", "version 2"),
        ("{\"version\":1,\"request\":\"dance\"}\n", "dance"),
    ] {
        let mut stream = connect();
        stream.write_all(nonsense.as_bytes()).expect("it reads");
        let said = answer(stream);
        assert!(said.contains("refused") && said.contains(part), "{said}");
    }
    // Silent clients take all places, and lose them to others, or in time.
    let silent: Vec<UnixStream> = (0..40).map(|_| connect()).collect();
    std::thread::sleep(Duration::from_secs(1));
    show(directory.path()).success();
    let ends: Vec<String> = silent.into_iter().map(answer).collect();
    assert!(ends.iter().any(|end| end.contains("try again")), "{ends:?}");
    let mut endless = connect();
    let piece = [b'x'; 4096];
    let sent = (0..10_000).all(|_| endless.write_all(&piece).is_ok());
    assert!(!sent, "it reads for ever");
    show(directory.path()).success();
}

#[test]
fn a_daemon_that_is_not_there_is_named() {
    let directory = Directory::new();
    directory.write("sanstone.toml", VOLUMES);
    let configuration = directory.join("sanstone.toml");
    let ran = call(&["show", "-c", configuration.to_str().expect("plain text")]);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(
        ran.stderr.contains("runs with the state directory"),
        "{ran}"
    );
    let ran = call(&["show", "-c", "/nowhere.toml"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("check the path given with -c"), "{ran}");
}

#[test]
fn top_tells_what_happens_node_by_node_and_initiator_by_initiator() {
    let directory = Directory::new();
    let server = serve(directory.path());
    let mut session = login(&server);
    let is_over = AtomicBool::new(false);
    let ran = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                good(&mut session, &write_10(0, 8), &[0x5A; 4096]);
            }
        });
        let state = state(directory.path());
        let ran = call(&["top", "--state", &state, "--json", "-", "--count", "3"]);
        is_over.store(true, Ordering::Relaxed);
        ran.success()
    });
    let lines: Vec<Value> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    assert_eq!(lines.len(), 3, "{ran}");
    let last = &lines[2];
    assert_eq!(last["version"], 1);
    let initiators = last["initiators"].as_object().expect("an object");
    let (_, initiator) = initiators.iter().next().expect("one");
    assert!(last["caches"]["db/cache"]["misses"].is_number(), "{last}");
    let writes = [
        &last["total"],
        &last["nodes"]["below/file"]["kinds"]["write"],
        &last["nodes"]["db/cache"]["all"],
        &last["volumes"]["db"]["all"],
        &initiator["kinds"]["write"],
    ];
    for rates in writes {
        let figure = |name: &str| rates[name].as_f64().unwrap_or_default();
        assert!(figure("iops") > 0.0, "{last}");
        assert!(figure("p99_us") >= figure("p50_us"), "{last}");
        // Each request had 4096 bytes.
        let bytes = figure("bytes") / figure("iops");
        assert!((bytes - 4096.0).abs() < 1024.0, "{bytes}: {last}");
    }
    assert!(
        last["cpu_us_per_io"].as_f64().is_some_and(|us| us > 0.0),
        "{last}"
    );
    let percent = |name: &str| last[name].as_f64().expect("a percentage");
    assert!(
        (0.0..=percent("cpu_percent")).contains(&percent("busy_percent")),
        "{last}"
    );
    // A test has no terminal.
    let ran = call(&["top", "--state", &state(directory.path())]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("--json -"), "{ran}");
}

#[test]
fn a_daemon_that_stands_still_is_told_of_in_time() {
    let directory = Directory::new();
    let mut server = serve(directory.path());
    let pid = server.daemon().pid();
    server.daemon().stop();
    let configuration = directory.join("sanstone.toml");
    let configuration = configuration.to_str().expect("plain text");
    let calls: [&[&str]; 3] = [
        &["show", "-c", configuration],
        &["top", "--once", "--json", "-", "-c", configuration],
        &["apply", "-c", configuration],
    ];
    thread::scope(|scope| {
        let calls = calls.map(|arguments| scope.spawn(|| call(arguments)));
        for ran in calls.map(|ran| ran.join().expect("it ends")) {
            assert_eq!(ran.code(), Some(1), "{ran}");
            for part in [
                "admin.sock",
                "has not responded",
                &format!("kill -CONT {pid}"),
            ] {
                assert!(ran.stderr.contains(part), "{ran}");
            }
        }
    });
    server.daemon().signal("CONT");
    show(directory.path()).success();
}

#[test]
fn a_daemon_that_stops_and_waits_is_named() {
    let directory = Directory::new();
    let volume = "[volume.db.fault]\nrules = [{ on = \"write\", hang = true }]\n\
                  of = { ram = { size = \"1MiB\" } }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["db"]);
    let mut session = login(&server);
    let write = session.command(&write_10(0, 1), Direction::Write, 512, &[1; 512]);
    write.expect("a command");
    // Behind it: so it has begun.
    session.execute(&read_10(8, 1), &[], 512).expect("a read");
    server.daemon().signal("TERM");
    server.daemon().log_with("stopping: finishing");
    let named = format!(
        "process {} holds the state directory",
        server.daemon().pid()
    );
    let socket = directory.join("sanstone.state/admin.sock");
    while socket.exists() {
        thread::sleep(Duration::from_millis(5));
    }
    let ran = show(directory.path());
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr.contains(&named), "{ran}");
    assert!(ran.stderr.contains("a second SIGTERM"), "{ran}");
}

#[test]
fn an_attach_is_asked_by_the_same_configuration_and_takes_another() {
    let directory = Directory::new();
    let configuration = directory.write("sanstone.toml", VOLUMES);
    let configuration = configuration.to_str().expect("plain text");
    let socket = directory.join("db.sock");
    let address = format!("unix:{}", socket.display());
    let mut command = Command::new(binary());
    command.args(["attach", "-c", configuration, "db", "--read-only"]);
    command.args(["--nbd", &address]);
    let mut attached = Daemon::start(&command, directory.join("attach.log"));
    attached.wait_for_socket(&socket);
    attached.log_with("attached");
    let shown = shown(directory.path());
    let at = serde_json::json!({
        "volume": "db", "front": "nbd", "place": address, "read_only": true,
    });
    assert_eq!(shown["attached"], at, "{shown}");
    let volumes = shown["volumes"].as_object().expect("an object");
    assert_eq!(volumes.keys().collect::<Vec<_>>(), ["db"]);
    let tree = &shown["volumes"]["db"]["tree"];
    assert_eq!(tree["children"][0]["path"], "below/file");
    let text = show(directory.path()).success().stdout;
    let line = format!("attached db to NBD clients at {address}, read-only\n");
    assert!(text.ends_with(&line), "{text}");
    for more in [&[][..], &["--dry-run"]] {
        let ran = call(&[&["apply", "-c", configuration], more].concat()).success();
        assert_eq!(ran.stdout, "nothing changes\n");
    }
    attached.signal("TERM");
    let ended = attached.wait(Duration::from_secs(60)).expect("it ends");
    assert_eq!(ended.code(), Some(0), "{}", attached.log());
    assert!(
        !Path::new(&state(directory.path()))
            .join("attached/db/admin.sock")
            .exists()
    );
}
