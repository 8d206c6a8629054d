//! Bidirectional commands: no disk supports them. An initiator that sends one, and even lies about its data, gets an
//! error and harms nobody.

use harness::{
    directory::Directory,
    sanstone::{IQN, Sanstone},
    wire::{Session, opcode, read_10, send},
};

const KEYS: [&str; 3] = [
    "ImmediateData=Yes",
    "InitialR2T=No",
    "FirstBurstLength=65536",
];

/// Sends a READ (10) of 1 MiB with R and W bits, whose unsolicited data are still to come, and gives
/// its task tag (RFC 7143 §11.3, §11.2.2.4).
fn both_ways(session: &mut Session, task: u32) {
    const READ_LEN: u32 = 1 << 20;
    let mut header = [0; 48];
    header[0] = 0x01;
    header[1] = 0x61; // R and W, and no F bit: SIMPLE
    header[4] = 2; // words of additional headers
    header[16..20].copy_from_slice(&task.to_be_bytes());
    header[20..24].copy_from_slice(&4096u32.to_be_bytes());
    header[24..28].copy_from_slice(&session.cmd_sn.to_be_bytes());
    header[28..32].copy_from_slice(&session.exp_stat_sn.to_be_bytes());
    header[32..42].copy_from_slice(&read_10(0, 2048));
    session.cmd_sn += 1;
    let mut length = [0, 5, 2, 0, 0, 0, 0, 0];
    length[4..].copy_from_slice(&READ_LEN.to_be_bytes());
    use std::io::Write;
    let bytes = [&header[..], &length].concat();
    session.stream().write_all(&bytes).expect("it is taken");
}

/// A Data-Out for `task` whose DataSN is not due: the last one.
fn out_of_order(session: &mut Session, task: u32) {
    let mut header = [0; 48];
    header[0] = 0x05;
    header[1] = 0x80;
    header[16..20].copy_from_slice(&task.to_be_bytes());
    header[20..24].fill(0xff);
    header[28..32].copy_from_slice(&session.exp_stat_sn.to_be_bytes());
    header[36..40].copy_from_slice(&7u32.to_be_bytes());
    send(session.stream(), &mut header, &[]).expect("it is taken");
}

#[test]
fn a_command_that_moves_data_both_ways_is_refused_and_harms_nobody() {
    const INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT: (u8, u8, u8) = (5, 0x0e, 0x03);
    let directory = Directory::new();
    let volume = "[volume.disk]\nram = { size = \"16MiB\" }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["disk"]);
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &KEYS).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    for task in [0x1000, 0x1001] {
        both_ways(&mut session, task);
        // It is answered once all its data has arrived, or no longer can.
        out_of_order(&mut session, task);
        let answer = session.receive().expect("an answer");
        assert_eq!(
            (answer.opcode(), answer.task()),
            (opcode::SCSI_RESPONSE, task)
        );
        let sense = &answer.data[2..];
        let sense = (sense[2] & 0xf, sense[12], sense[13]);
        assert_eq!(sense, INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    }
    session.wait_until_ready().expect("it serves on");
    assert!(server.daemon().ended().is_none());
}
