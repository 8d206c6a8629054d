//! The command line: invalid addresses, sockets that are in use or left over, signals.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::process::{Command, Stdio};

use harness::directory::Directory;
use harness::free_port;
use harness::process::{Daemon, program};
use harness::run::run;
use harness::sanstone::{binary, call};

use crate::{Attached, LIMIT, nbdinfo, qemu_io};

const RAM: &str = "state = \"state\"\n[volume.db]\nram = { size = \"8MiB\" }\n";

#[test]
fn an_address_that_cannot_be_is_refused_with_what_to_write() {
    let directory = Directory::new();
    let config = directory.write("sanstone.toml", RAM).display().to_string();
    let attach = |address: &str| call(&["attach", "-c", &config, "db", "--nbd", address]);
    let ran = attach("10809");
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.text().contains("unix:PATH"), "{ran}");
    let ran = attach(&format!(
        "unix:{}",
        directory.join("none/db.sock").display()
    ));
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.text().contains("create its directory first"), "{ran}");
    // A file that is not a socket is left alone.
    let file = directory.write("file", "precious");
    let ran = attach(&format!("unix:{}", file.display()));
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert_eq!(std::fs::read(&file).expect("it is there"), b"precious");
    let ran = attach("no-such-host.invalid:10809");
    assert_eq!(ran.code(), Some(1), "{ran}");
    for word in [
        "no-such-host.invalid:10809",
        "cannot be resolved",
        "write an address of this machine",
    ] {
        assert!(ran.text().contains(word), "no {word:?}\n{ran}");
    }
    let ran = attach("192.0.2.1:10809");
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.text().contains("does not have that address"), "{ran}");
}

#[test]
fn a_socket_is_not_taken_from_who_listens_and_one_left_over_makes_way() {
    let mut first = Attached::file("", &[]);
    let address = format!("unix:{}", first.socket().display());
    let other = Directory::new();
    let config = other.write("sanstone.toml", RAM).display().to_string();
    let ran = call(&["attach", "-c", &config, "db", "--nbd", &address]);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.text().contains("another program listens"), "{ran}");
    nbdinfo(&["--size", &first.uri()]).success();
    first.daemon.signal("KILL");
    first.daemon.wait(LIMIT).expect("it ends");
    assert!(first.socket().exists(), "a killed one leaves it");
    // The kernel closes it a moment after the process has ended.
    while std::os::unix::net::UnixStream::connect(first.socket()).is_ok() {
        std::thread::yield_now();
    }
    let Attached { directory, .. } = first;
    let second = Attached::again(directory, &[]);
    nbdinfo(&["--size", &second.uri()]).success();
}

#[test]
fn told_to_end_it_finishes_and_takes_its_socket_away() {
    let mut attached = Attached::file("", &[]);
    let uri = attached.uri();
    let copy = std::thread::spawn(move || {
        let noise = harness::noise(3, 16 << 20);
        let directory = Directory::new();
        let image = directory.write("in.img", noise).display().to_string();
        let mut command = Command::new(program("nbdcopy", "libnbd-bin"));
        // Whether it had come to its end by then is not known.
        run(command.args([&image, &uri]), LIMIT);
    });
    attached.daemon.log_with("a client has connected");
    attached.daemon.signal("TERM");
    let status = attached.daemon.wait(LIMIT).expect("it ends");
    assert!(status.success(), "{}", attached.daemon.log());
    assert!(!attached.socket().exists());
    copy.join().expect("the copy ends");
}

/// A client of a disk has it as long as it is connected; a connection that has chosen no export has nothing.
#[test]
fn told_to_end_it_serves_its_clients_to_their_end_and_names_them() {
    let mut attached = Attached::file("", &[]);
    let mut command = Command::new(program("qemu-io", "qemu-utils"));
    command.args(["-f", "raw", &attached.uri()]);
    let mut client = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("it runs");
    attached.daemon.log_with("a client has connected");
    let _bare = std::os::unix::net::UnixStream::connect(attached.socket()).expect("it listens");
    attached.daemon.signal("TERM");
    let named = format!("(pid {}, uid ", client.id());
    let log = attached.daemon.log_with("in use by ");
    assert!(log.contains(&named), "{log}");
    assert!(
        attached.daemon.ended().is_none(),
        "{}",
        attached.daemon.log()
    );
    // Others may come as long as it serves.
    let ran = qemu_io(&attached.uri(), &["write -P 7 0 64k", "flush"]).success();
    assert!(!ran.text().contains("failed"), "{ran}");
    drop(client.stdin.take());
    assert!(client.wait().expect("it is ours").success());
    let status = attached.daemon.wait(LIMIT).expect("it ends");
    assert!(status.success(), "{}", attached.daemon.log());
    let image = std::fs::read(attached.directory.join("db.img")).expect("it is there");
    assert!(image[..65536].iter().all(|&byte| byte == 7));
}

#[test]
fn clients_come_by_tcp() {
    let directory = Directory::new();
    let config = directory.write("sanstone.toml", RAM);
    let port = free_port();
    let mut command = Command::new(binary());
    command.args(["attach", "-c"]).arg(config);
    command.args(["db", "--nbd", &format!("127.0.0.1:{port}")]);
    let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
    daemon.wait_for_port(port);
    let uri = format!("nbd://127.0.0.1:{port}/db");
    let told = nbdinfo(&["--size", &uri]).success();
    assert_eq!(told.stdout.trim(), (8 << 20).to_string());
}

#[test]
fn clients_come_to_each_address_of_a_name() {
    let directory = Directory::new();
    let config = directory.write("sanstone.toml", RAM);
    let port = free_port();
    let address = format!("localhost:{port}");
    let mut command = Command::new(binary());
    command.args(["attach", "-c"]).arg(config);
    command.args(["db", "--nbd", &address]);
    let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
    daemon.log_with(" attached ");
    // Those that this machine has: without IPv6 there is no ::1.
    let named = address.to_socket_addrs().expect("it has an address");
    let here = named.filter(|named| TcpListener::bind((named.ip(), 0)).is_ok());
    let here: BTreeSet<SocketAddr> = here.collect();
    assert!(!here.is_empty());
    for each in here {
        let told = nbdinfo(&["--size", &format!("nbd://{each}/db")]).success();
        assert_eq!(told.stdout.trim(), (8 << 20).to_string(), "{each}");
        assert!(daemon.log().contains(&each.to_string()), "{}", daemon.log());
    }
    daemon.signal("TERM");
    let status = daemon.wait(LIMIT).expect("it ends");
    assert!(status.success(), "{}", daemon.log());
}

#[test]
fn a_file_in_the_place_of_the_socket_is_told_of() {
    let directory = Directory::new();
    let config = directory.write("sanstone.toml", RAM);
    let file = directory.write("db.sock", "mine");
    let place = format!("unix:{}", file.display());
    let ran = call(&[
        "attach",
        "-c",
        &config.display().to_string(),
        "db",
        "--nbd",
        &place,
    ]);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr.contains("is not a socket"), "{ran}");
    assert_eq!(std::fs::read(&file).expect("it is there"), b"mine");
}
