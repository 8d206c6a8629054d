//! Registrations and the reservation made with APTPL (SPC-4 5.13.5) are restored after the daemon was stopped or
//! killed, even if its set of targets has changed; those made without APTPL are not.

use harness::directory::Directory;
use harness::sanstone::{IQN, Sanstone, target_table};
use harness::wire::{Direction, Session, opcode, write_10};
use std::time::Duration;

const VOLUME: &str = "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\" }\n";
const KEY: u8 = 0x11;
const GOOD: u8 = 0x00;
const CONFLICT: u8 = 0x18;

struct Initiator(Session);

impl Initiator {
    /// Logs in as initiator `number`, always with the same ISID, and consumes the unit attentions.
    fn login(server: &Sanstone, number: u16) -> Initiator {
        let address = format!("127.0.0.1:{}", server.port());
        let session = Session::login(&address, IQN, 0, number, &[]).expect("a login");
        let mut initiator = Initiator(session);
        initiator.0.wait_until_ready().expect("a ready disk");
        initiator
    }

    fn write(&mut self) -> u8 {
        self.send(&write_10(0, 1), &[0x5A; 512])
    }

    /// PERSISTENT RESERVE OUT; gives its status.
    fn reserve_out(&mut self, action: u8, key: u8, new_key: u8, aptpl: bool) -> u8 {
        const EXCLUSIVE_ACCESS_REGISTRANTS_ONLY: u8 = 6;
        let mut list = [0; 24];
        (list[7], list[15], list[20]) = (key, new_key, aptpl.into());
        let kind = EXCLUSIVE_ACCESS_REGISTRANTS_ONLY;
        self.send(&[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], &list)
    }

    fn send(&mut self, cdb: &[u8], data: &[u8]) -> u8 {
        let len = data.len() as u32;
        let sent = self.0.command(cdb, Direction::Write, len, data);
        sent.expect("a command");
        let response = self.0.receive().expect("a response");
        assert_eq!(response.opcode(), opcode::SCSI_RESPONSE);
        response.status()
    }

    /// PERSISTENT RESERVE IN: READ KEYS (0) or READ RESERVATION (1).
    fn reserve_in(&mut self, action: u8) -> Vec<u8> {
        let cdb = [0x5E, action, 0, 0, 0, 0, 0, 0, 64, 0];
        let sent = self.0.command(&cdb, Direction::Read, 64, &[]);
        sent.expect("a command");
        let reply = self.0.receive().expect("a reply");
        assert_eq!(reply.opcode(), opcode::DATA_IN);
        reply.data
    }
}

/// Ends the daemon by this signal and starts it again.
fn restart(mut server: Sanstone, directory: &Directory, signal: &str) -> Sanstone {
    let port = server.port();
    server.daemon().signal(signal);
    let ended = server.daemon().wait(Duration::from_secs(60));
    ended.expect("it ends");
    drop(server);
    Sanstone::serve_on(port, directory.path(), VOLUME, &["disk"])
}

fn outlive(signal: &str) {
    const REGISTER: u8 = 0;
    const RESERVE: u8 = 1;
    let directory = Directory::new();
    let mut server = Sanstone::serve(directory.path(), VOLUME, &["disk"]);
    let mut holder = Initiator::login(&server, 1);
    assert_eq!(holder.reserve_out(REGISTER, 0, KEY, true), GOOD);
    assert_eq!(holder.reserve_out(RESERVE, KEY, 0, false), GOOD);
    let before = holder.reserve_in(1);
    server = restart(server, &directory, signal);

    let mut other = Initiator::login(&server, 2);
    assert_eq!(other.write(), CONFLICT, "the reservation is gone");
    let mut holder = Initiator::login(&server, 1);
    assert_eq!(holder.write(), GOOD, "the holder is not known again");
    // PRGENERATION restarts from zero; everything else is unchanged.
    assert_eq!(
        holder.reserve_in(0),
        [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, KEY]
    );
    assert_eq!(holder.reserve_in(1)[4..], before[4..]);

    // A registration without APTPL switches persistence off again.
    assert_eq!(holder.reserve_out(REGISTER, KEY, KEY, false), GOOD);
    server = restart(server, &directory, signal);
    let mut other = Initiator::login(&server, 2);
    assert_eq!(other.write(), GOOD, "a reservation without APTPL came back");
    assert_eq!(other.reserve_in(0), [0; 8]);
}

#[test]
fn reservations_outlive_a_stop() {
    outlive("TERM");
}

#[test]
fn reservations_outlive_a_kill() {
    outlive("KILL");
}

#[test]
fn a_registration_stays_with_its_port_when_a_target_comes_before_it() {
    const REGISTER: u8 = 0;
    const RESERVE: u8 = 1;
    const READ_FULL_STATUS: u8 = 3;
    let directory = Directory::new();
    let server = Sanstone::serve(directory.path(), VOLUME, &["disk"]);
    let mut holder = Initiator::login(&server, 1);
    assert_eq!(holder.reserve_out(REGISTER, 0, KEY, true), GOOD);
    assert_eq!(holder.reserve_out(RESERVE, KEY, 0, false), GOOD);
    let before = holder.reserve_in(READ_FULL_STATUS);
    let port = server.port();
    drop(server);

    // Its name sorts before the other's.
    let first = target_table(harness::free_port(), &["other"]).replace(IQN, "iqn.2026-11.a:first");
    let other = "[volume.other]\nram = { size = \"1MiB\" }\n";
    let own = target_table(port, &["disk"]);
    let configuration = format!("{VOLUME}{other}{first}{own}");
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let mut holder = Initiator::login(&server, 1);
    assert_eq!(holder.write(), GOOD, "the holder is not known again");
    assert_eq!(holder.reserve_in(READ_FULL_STATUS)[4..], before[4..]);
}
