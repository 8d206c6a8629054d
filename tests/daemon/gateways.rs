//! Two daemons serve one remote disk to initiators that coordinate through it.

use harness::{
    directory::Directory,
    sanstone::{IQN, Sanstone},
    wire::{Session, write_10},
};
use std::{sync::Barrier, thread};

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const ROUNDS: usize = 200;

/// Serves `volumes`, and gives a session of an initiator with this number.
fn serve(directory: &Directory, volumes: &str, number: u16) -> (Sanstone, Session) {
    let server = Sanstone::serve(directory.path(), volumes, &["db"]);
    let portal = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&portal, IQN, 0, number, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    (server, session)
}

/// Sends COMPARE AND WRITE of block 0: zeroes become `own`. Whether it did.
fn take(session: &mut Session, own: u8) -> bool {
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, 1);
    let data = [[0; 512], [own; 512]].concat();
    let status = session.execute(&cdb, &data, 0).expect("an answer").0;
    assert!(matches!(status, GOOD | CHECK_CONDITION), "{status:02x}h");
    status == GOOD
}

#[test]
fn two_daemons_over_one_disk_never_both_succeed_at_a_compare_and_write() {
    let directories = [(); 3].map(|()| Directory::new());
    let file = "[volume.db]\nfile = { path = \"disk.img\", size = \"16MiB\" }\n";
    let (share, _shared) = serve(&directories[0], file, 1);
    let iscsi = |name: &str| {
        let (url, initiator) = (share.url(0), format!("iqn.2026-11.io.test:{name}"));
        format!("iscsi = {{ url = \"{url}\", initiator = \"{initiator}\" }}")
    };
    let volumes = [
        format!("[volume.db]\n{}\n", iscsi("a")),
        format!("[volume.db]\nstats = {{ of = {{ {} }} }}\n", iscsi("b")),
    ];
    let (_one, mut one) = serve(&directories[1], &volumes[0], 2);
    let (_other, mut other) = serve(&directories[2], &volumes[1], 3);
    for round in 0..ROUNDS {
        let cleared = one.execute(&write_10(0, 1), &[0; 512], 0);
        assert_eq!(cleared.expect("an answer").0, GOOD);
        let both = Barrier::new(2);
        let at_once = |session, own| {
            both.wait();
            take(session, own)
        };
        let taken = thread::scope(|scope| {
            let other = scope.spawn(|| at_once(&mut other, 2));
            [at_once(&mut one, 1), other.join().expect("it ends")]
        });
        let winners = taken.iter().filter(|taken| **taken).count();
        assert_eq!(winners, 1, "round {round}: {taken:?}");
    }
}
