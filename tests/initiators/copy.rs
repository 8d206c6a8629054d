//! EXTENDED COPY between two units of a target, by a LID1 list as VMware sends it and by a LID4 list: the data arrives,
//! the results report it, and a unit that the target does not serve is an error.

use harness::directory::Directory;
use harness::noise;
use harness::sanstone::{IQN, Sanstone};
use harness::wire::{Direction, Pdu, Session, opcode, read_10, write_10};

const BLOCKS: u16 = 100;
const BYTES: usize = BLOCKS as usize * 512;
const KEYS: [&str; 1] = ["MaxRecvDataSegmentLength=262144"];

fn login(server: &Sanstone, lun: u8) -> Session {
    let address = format!("127.0.0.1:{}", server.port());
    let number = u16::from(lun) + 1;
    let mut session = Session::login(&address, IQN, lun, number, &KEYS).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    session
}

fn send(session: &mut Session, cdb: &[u8], data: &[u8]) -> Pdu {
    let len = data.len() as u32;
    let sent = session.command(cdb, Direction::Write, len, data);
    sent.expect("a command");
    session.receive().expect("a response")
}

fn receive(session: &mut Session, cdb: &[u8], len: u32) -> Vec<u8> {
    let sent = session.command(cdb, Direction::Read, len, &[]);
    sent.expect("a command");
    let reply = session.receive().expect("a reply");
    assert_eq!((reply.opcode(), reply.status()), (opcode::DATA_IN, 0));
    reply.data
}

/// The unit's NAA name, from the device identification page.
fn naa(session: &mut Session) -> [u8; 16] {
    let page = receive(session, &[0x12, 1, 0x83, 0, 255, 0], 255);
    let at = page.windows(4).position(|head| head == [0x01, 0x03, 0, 16]);
    let at = at.expect("a designator of 16 bytes") + 4;
    page[at..at + 16].try_into().expect("16 bytes")
}

/// CSCD and segment descriptors of a copy of blocks 10 … from the first unit to 2000 … of the other.
fn descriptors(source: [u8; 16], destination: [u8; 16]) -> Vec<u8> {
    let mut list = Vec::new();
    for name in [source, destination] {
        list.extend([0xE4, 0, 0, 0, 1, 3, 0, 16]);
        list.extend(name);
        list.extend([0, 0, 0, 0, 0, 0, 2, 0]); // blocks of 512 bytes
    }
    list.extend([0x02, 0, 0, 24, 0, 0, 0, 1, 0, 0]);
    list.extend(BLOCKS.to_be_bytes());
    list.extend(10_u64.to_be_bytes());
    list.extend(2000_u64.to_be_bytes());
    list
}

/// The command and its list: LID1 with identifier 5, or LID4 with 0x01020304.
fn copy(long: bool, descriptors: &[u8]) -> ([u8; 16], Vec<u8>) {
    let mut list;
    if long {
        list = vec![0; 48];
        (list[0], list[3], list[16]) = (1, 0x20, 0xFF);
        list[20..24].copy_from_slice(&[1, 2, 3, 4]);
        (list[43], list[45]) = (64, 28);
    } else {
        list = vec![0; 16];
        (list[0], list[3], list[11]) = (5, 64, 28);
    }
    list.extend(descriptors);
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x83, long.into(), list.len() as u8);
    (cdb, list)
}

/// RECEIVE COPY STATUS in the same form.
fn status(session: &mut Session, long: bool) -> Vec<u8> {
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x84, 128);
    if long {
        cdb[1] = 5;
        cdb[2..6].copy_from_slice(&[1, 2, 3, 4]);
    } else {
        cdb[2] = 5;
    }
    receive(session, &cdb, 128)
}

#[test]
fn a_copy_between_units_is_the_same_by_either_list() {
    let volumes = "[volume.a]\nfile = { path = \"a.img\", size = \"2MiB\" }\n\
                   [volume.b]\nram = { size = \"2MiB\" }\n";
    for long in [false, true] {
        let directory = Directory::new();
        let server = Sanstone::serve(directory.path(), volumes, &["a", "b"]);
        let (mut a, mut b) = (login(&server, 0), login(&server, 1));
        let (name_a, name_b) = (naa(&mut a), naa(&mut b));
        let data = noise(7, BYTES);
        assert_eq!(send(&mut a, &write_10(10, BLOCKS), &data).status(), 0);

        let (cdb, list) = copy(long, &descriptors(name_a, name_b));
        assert_eq!(send(&mut a, &cdb, &list).status(), 0);
        let copied = receive(&mut b, &read_10(2000, BLOCKS), BYTES as u32);
        assert!(copied == data, "the copy differs");
        let told = status(&mut a, long);
        let state = if long { told[5] } else { told[4] };
        assert_eq!(state, 1, "completed without an error: {told:?}");

        // A unit that nobody serves: COPY ABORTED, and the results keep the sense.
        let (cdb, list) = copy(long, &descriptors(name_a, [0x60; 16]));
        let refused = send(&mut a, &cdb, &list);
        assert_eq!((refused.status(), refused.data[2 + 2]), (2, 0x0A));
        let told = status(&mut a, long);
        let state = if long { told[5] } else { told[4] };
        assert_eq!(state, 2, "completed with errors: {told:?}");
    }
}
