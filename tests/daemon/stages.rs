//! SIGUSR1 writes to the log where the time of commands has gone.

use harness::{
    directory::Directory,
    sanstone::{IQN, Sanstone},
    wire::{Direction, Session, opcode},
};

const READS: usize = 5;

#[test]
fn sigusr1_tells_where_the_time_went() {
    let directory = Directory::new();
    let volume = "[volume.disk]\nram = { size = \"16MiB\" }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["disk"]);
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    for _ in 0..READS {
        let read_10 = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
        session
            .command(&read_10, Direction::Read, 4096, &[])
            .expect("a command");
        let answer = session.receive().expect("an answer");
        assert_eq!(answer.opcode(), opcode::DATA_IN);
    }
    // The lane counts a command after its answer has gone, and before the answer to this one goes.
    session.nop_out(0x77, u32::MAX).expect("the target reads");
    let pong = session.receive().expect("an answer");
    assert_eq!(pong.opcode(), opcode::NOP_IN);
    server.daemon().signal("USR1");
    let log = server.daemon().log_with("initiator ");
    assert!(log.contains("volume disk"), "{log}");
    let reads = log.lines().find(|line| line.trim().starts_with("read "));
    let words: Vec<_> = reads.expect("reads").split_whitespace().collect();
    assert_eq!(words[1], READS.to_string(), "{log}");
    let log = server
        .daemon()
        .log_with(&format!("{READS} requests, 0 MiB, 0 errors"));
    assert!(log.contains("node disk/ram"), "{log}");
}
