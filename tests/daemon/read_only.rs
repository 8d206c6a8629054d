//! A LUN that is `read_only` to one host, while another one writes to the same disk through another target.

use harness::{
    directory::Directory,
    sanstone::{IQN, Sanstone, call, target_table},
    wire::{Session, write_10},
};
use serde_json::Value;

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const MODE_SELECT_SAVED: [u8; 6] = [0x15, 0x11, 0, 0, 16, 0];
/// A control page with SWP.
const SWP: [u8; 16] = [
    0, 0, 0, 0, 0x0A, 0x0A, 0x02, 0x10, 0x08, 0x40, 0, 0, 0xFF, 0xFF, 0, 0,
];
const REGISTER: [u8; 10] = [0x5F, 6, 0, 0, 0, 0, 0, 0, 24, 0];
const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];

#[test]
fn who_may_only_read_does_not_keep_others_from_writing_and_who_has_done_so_is_shown() {
    let directory = Directory::new();
    let port = harness::free_port();
    let reading = format!("{IQN}-reading");
    let configuration = format!(
        "[volume.disk]\nfile = {{ path = \"disk.img\", size = \"16MiB\" }}\n{}\
         [target.\"{reading}\"]\nportals = [\"127.0.0.1:{port}\"]\nallow = [\"*\"]\n\
         luns = [{{ volume = \"disk\", read_only = true }}]\n",
        target_table(port, &["disk"])
    );
    let state = directory.path().join("sanstone.state");
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let server = server.answering(&state);
    let portal = format!("127.0.0.1:{}", server.port());
    let login = |target: &str, number| {
        let mut session = Session::login(&portal, target, 0, number, &[]).expect("a login");
        session.wait_until_ready().expect("a ready disk");
        session
    };
    let (mut reads, mut writes) = (login(&reading, 1), login(IQN, 2));
    let status = |session: &mut Session, cdb: &[u8], data: &[u8]| {
        session.execute(cdb, data, 0).expect("a response").0
    };
    let mut key = [0; 24];
    key[15] = 1;
    assert_eq!(
        status(&mut reads, &MODE_SELECT_SAVED, &SWP),
        CHECK_CONDITION
    );
    assert_eq!(status(&mut reads, &REGISTER, &key), CHECK_CONDITION);
    assert_eq!(status(&mut reads, &RESERVE_6, &[]), GOOD);
    assert_eq!(status(&mut writes, &write_10(0, 1), &[0x5A; 512]), GOOD);

    let state = state.to_str().expect("plain text");
    let shown = |more: &[&str]| {
        let arguments = [&["show", "--state", state], more].concat();
        call(&arguments).success().stdout
    };
    const TOLD: &str = "  write-protected by an initiator (SWP)\n";
    let is_protected = || {
        let shown: Value = serde_json::from_str(&shown(&["--json", "-"])).expect("it is JSON");
        shown["volumes"]["disk"]["unit"]["write_protected"].clone()
    };
    assert!(!shown(&[]).contains(TOLD));
    assert_eq!(is_protected(), false);
    assert_eq!(status(&mut writes, &MODE_SELECT_SAVED, &SWP), GOOD);
    assert_eq!(
        status(&mut writes, &write_10(0, 1), &[0x5A; 512]),
        CHECK_CONDITION
    );
    assert!(shown(&[]).contains(TOLD));
    assert_eq!(is_protected(), true);
}

/// Nobody reads, so no answer of the target tells of it.
#[test]
fn a_remote_disk_that_its_target_no_longer_protects_takes_the_next_write() {
    let (far, near) = (Directory::new(), Directory::new());
    let port = harness::free_port();
    let share = |read_only: bool| {
        format!(
            "[volume.db]\nfile = {{ path = \"db.img\", size = \"4MiB\" }}\n\
             [target.\"{IQN}\"]\nportals = [\"127.0.0.1:{port}\"]\nallow = [\"*\"]\n\
             luns = [{{ volume = \"db\", read_only = {read_only} }}]\n"
        )
    };
    let server = Sanstone::serve_configuration(far.path(), &share(true), port);
    let server = server.answering(&far.path().join("sanstone.state"));
    let url = server.url(0);
    let volumes = format!("[volume.db]\nstats = {{ of = {{ iscsi = {{ url = \"{url}\" }} }} }}\n");
    let above = Sanstone::serve(near.path(), &volumes, &["db"]);
    let portal = format!("127.0.0.1:{}", above.port());
    let mut session = Session::login(&portal, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let mut write = || {
        let written = session.execute(&write_10(0, 1), &[0x5A; 512], 0);
        written.expect("an answer").0
    };
    assert_eq!(write(), CHECK_CONDITION);
    let path = far.path().join("sanstone.toml");
    std::fs::write(&path, share(false)).expect("room");
    call(&["apply", "-c", path.to_str().expect("plain text")]).success();
    assert_eq!(write(), GOOD);
}
