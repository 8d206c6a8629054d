//! Many ORDERED commands at a time: each waits for those before it, and costs no more than it does alone.

use engine::{Duration, share::counts, time};
use harness::wire::{Direction, opcode, read_10};

use crate::{Backing, login, with_server};

/// Polls of tasks for one command, those of the reader and the writer included.
const POLLS_MAX: u64 = 24;

/// Polls that each of `count` ORDERED reads takes when all are sent at once.
fn polls_each(count: u64) -> u64 {
    let run = move || {
        with_server(Backing::Ram, async |address| {
            let before = counts().polls;
            let thread = std::thread::spawn(move || {
                let mut session = login(address, 1);
                session.attribute = 2;
                let (mut sent, mut ended) = (0, 0);
                while ended < count {
                    // As many as the window takes.
                    while sent < count
                        && session.cmd_sn.wrapping_sub(session.max_cmd_sn) as i32 <= 0
                    {
                        let command = session.command(&read_10(0, 1), Direction::Read, 512, &[]);
                        command.expect("a command");
                        sent += 1;
                    }
                    let pdu = session.receive().expect("an answer");
                    let is_last = pdu.header[1] & 1 != 0;
                    if pdu.opcode() == opcode::SCSI_RESPONSE
                        || (pdu.opcode() == opcode::DATA_IN && is_last)
                    {
                        assert_eq!(pdu.status(), 0);
                        ended += 1;
                    }
                }
            });
            while !thread.is_finished() {
                time::sleep(Duration::from_millis(5)).await;
            }
            thread.join().expect("answers");
            (counts().polls - before) / count
        })
    };
    std::thread::spawn(run).join().expect("a count")
}

#[test]
fn an_ordered_command_costs_the_same_however_many_are_open() {
    let (few, many) = (polls_each(16), polls_each(4000));
    println!("ordered: {few} polls for each of 16, {many} for each of 4000");
    assert!(many <= POLLS_MAX, "{many} polls for each of 4000");
}
