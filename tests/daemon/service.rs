//! What a service manager is told (sd_notify(3)): the test is at the other end of `NOTIFY_SOCKET`, as systemd is.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::directory::Directory;
use harness::process::Daemon;
use harness::sanstone::{IQN, binary, target_table};
use harness::wire::Session;

const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";
/// How long a message may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The manager's end.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).expect("a socket");
        socket.set_read_timeout(Some(LIMIT)).expect("a limit");
        Manager(socket)
    }

    /// Waits for a message with `line`.
    #[track_caller]
    fn told(&self, line: &str) -> String {
        let mut message = [0; 4096];
        loop {
            let len = self.0.recv(&mut message);
            let len = len.unwrap_or_else(|error| panic!("no {line}: {error}"));
            let text = String::from_utf8_lossy(&message[..len]).into_owned();
            if text.lines().any(|told| told == line) {
                return text;
            }
        }
    }
}

fn started(directory: &Directory, arguments: &[&str], watchdog: Option<Duration>) -> Daemon {
    let mut command = Command::new(binary());
    command
        .args(arguments)
        .env("NOTIFY_SOCKET", directory.join("notify"));
    if let Some(limit) = watchdog {
        command.env("WATCHDOG_USEC", limit.as_micros().to_string());
    }
    Daemon::start(&command, directory.join("log"))
}

#[test]
fn the_manager_is_told_when_the_portals_listen_and_that_the_daemon_stops() {
    let directory = Directory::new();
    let manager = Manager::at(&directory.join("notify"));
    let port = harness::free_port();
    let file = directory.write(
        "serve.toml",
        format!("{RAM}{}", target_table(port, &["disk"])),
    );
    let file = file.to_str().expect("plain text");
    let mut daemon = started(&directory, &["serve", "-c", file], None);
    manager.told("STATUS=opening its volumes");
    let ready = manager.told("READY=1");
    assert!(ready.contains("STATUS=serving at 127.0.0.1"), "{ready}");
    std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens when it is ready");
    daemon.signal("TERM");
    manager.told("STOPPING=1");
    let ended = daemon.wait(LIMIT).expect("it ends");
    assert!(ended.success(), "{}", daemon.log());
}

#[test]
fn an_attached_volume_is_ready_when_its_clients_can_connect() {
    let directory = Directory::new();
    let manager = Manager::at(&directory.join("notify"));
    let file = directory.write("attach.toml", RAM);
    let (file, socket) = (file.to_str().expect("plain text"), directory.join("nbd"));
    let place = format!("unix:{}", socket.display());
    let call = ["attach", "-c", file, "disk", "--nbd", &place];
    let daemon = started(&directory, &call, None);
    manager.told("STATUS=opening volume disk");
    manager.told("READY=1");
    std::os::unix::net::UnixStream::connect(&socket).expect("it listens when it is ready");
    daemon.signal("TERM");
    manager.told("STOPPING=1");
}

#[test]
fn the_manager_is_told_of_a_trouble_and_of_its_end() {
    const MODE_SELECT: [u8; 6] = [0x15, 0x10, 0, 0, 16, 0];
    const SWP: u8 = 0x08;
    let directory = Directory::new();
    let manager = Manager::at(&directory.join("notify"));
    let port = harness::free_port();
    let table = target_table(port, &["disk"]);
    let file = directory.write("serve.toml", format!("{RAM}{table}"));
    let file = file.to_str().expect("plain text");
    let _daemon = started(&directory, &["serve", "-c", file], None);
    let ready = manager.told("READY=1");
    let status = ready.lines().find_map(|line| line.strip_prefix("STATUS="));
    let status = status.expect("it says what it does");
    let portal = format!("127.0.0.1:{port}");
    let mut session = Session::login(&portal, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let mut control_page = |byte: u8| {
        let page = [
            0, 0, 0, 0, 0x0A, 0x0A, 0x02, 0x10, byte, 0x40, 0, 0, 0xFF, 0xFF, 0, 0,
        ];
        let set = session.execute(&MODE_SELECT, &page, 0);
        assert_eq!(set.expect("a response").0, 0);
    };
    control_page(SWP);
    manager.told(&format!(
        "STATUS=degraded: disk: write-protected by an initiator (SWP); an initiator that may write takes it back: \
         `sdparm --clear SWP --save /dev/sdX` ({status})"
    ));
    control_page(0);
    manager.told(&format!("STATUS={status}"));
}

#[test]
fn the_watchdog_is_fed() {
    let directory = Directory::new();
    let manager = Manager::at(&directory.join("notify"));
    let table = target_table(harness::free_port(), &["disk"]);
    let file = directory.write("serve.toml", format!("{RAM}{table}"));
    let file = file.to_str().expect("plain text");
    let limit = Duration::from_millis(300);
    let _daemon = started(&directory, &["serve", "-c", file], Some(limit));
    for _ in 0..5 {
        manager.told("WATCHDOG=1");
    }
}
