//! The time limits of a remote disk are changed while it is used: the new one is the one that counts, also for a request that
//! waits already.

use std::time::Duration;

use harness::{
    directory::Directory,
    health::Health,
    run::Ran,
    sanstone::{IQN, Sanstone, call, target_table},
    wire::{Direction, Session, write_10},
};

use crate::far::{Far, PATIENT};

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;

/// A daemon with a volume of a far disk, and a session to it.
struct Near {
    directory: Directory,
    port: u16,
    _server: Sanstone,
    health: Health,
    session: Session,
}

impl Near {
    fn new(far: &Far) -> Near {
        let (directory, port) = (Directory::new(), harness::free_port());
        let state = directory.join("sanstone.state");
        let text = configuration(far, PATIENT, port);
        let server = Sanstone::serve_configuration(directory.path(), &text, port);
        let server = server.answering(&state);
        let portal = format!("127.0.0.1:{port}");
        let mut session = Session::login(&portal, IQN, 0, 1, &[]).expect("a login");
        session.wait_until_ready().expect("a ready disk");
        Near {
            directory,
            port,
            _server: server,
            health: Health::of(&state),
            session,
        }
    }

    /// Sends a write that hangs.
    fn write(&mut self) -> u32 {
        let data = [0x5A; 512];
        let sent = self
            .session
            .command(&write_10(0, 1), Direction::Write, 512, &data);
        sent.expect("a command")
    }

    /// How the write ends.
    fn answer(&mut self, task: u32) -> u8 {
        let limit = Some(Duration::from_secs(120));
        self.session
            .stream()
            .set_read_timeout(limit)
            .expect("a limit");
        let answers = self.session.responses_to(&[task]).expect("it ends");
        answers[0].0
    }

    /// From now on the disk has the patience of an hour, but in this.
    fn apply(&self, far: &Far, setting: &str) -> Ran {
        let (name, _) = setting.split_once(' ').expect("a name");
        let settings: Vec<String> = PATIENT
            .split(", ")
            .map(|it| if it.starts_with(name) { setting } else { it }.to_owned())
            .collect();
        let text = configuration(far, &settings.join(", "), self.port);
        let file = self.directory.write("sanstone.toml", text);
        let ran = call(&["apply", "-c", file.to_str().expect("plain text")]).success();
        assert!(ran.stdout.contains(name), "{ran}");
        ran
    }
}

fn configuration(far: &Far, settings: &str, port: u16) -> String {
    let volume = far.volume(settings);
    format!("[volume.db]\n{volume}\n{}", target_table(port, &["db"]))
}

#[test]
fn a_request_that_waits_already_obeys_the_new_request_timeout() {
    let far = Far::new(1);
    let mut near = Near::new(&far);
    far.ways[0].stall();
    let task = near.write();
    near.health.shows(1, "1 write in progress");
    near.apply(&far, "request_timeout = \"2s\"");
    near.health.shows(2, "no session: ");
    far.ways[0].mend();
    assert_eq!(near.answer(task), GOOD);
    near.health.is_ok();
}

#[test]
fn a_silent_target_obeys_the_new_ping_timeout() {
    let far = Far::new(1);
    let near = Near::new(&far);
    far.ways[0].stall();
    near.health
        .shows(1, " is silent: it does not answer a ping");
    near.apply(&far, "ping_timeout = \"2s\"");
    near.health.shows(2, "no session: ");
    far.ways[0].mend();
    near.health.is_ok();
}

#[test]
fn a_request_that_waits_already_obeys_the_new_reconnect_timeout() {
    let far = Far::new(1);
    let mut near = Near::new(&far);
    far.ways[0].break_all();
    let task = near.write();
    near.health.shows(2, "no session: ");
    near.health.shows(2, "1 write in progress");
    near.apply(&far, "reconnect_timeout = \"1s\"");
    assert_eq!(near.answer(task), CHECK_CONDITION);
    // A longer one counts as well.
    near.apply(&far, "reconnect_timeout = \"50min\"");
    let task = near.write();
    near.health.shows(2, "1 write in progress");
    far.ways[0].mend();
    assert_eq!(near.answer(task), GOOD);
    near.health.is_ok();
}
