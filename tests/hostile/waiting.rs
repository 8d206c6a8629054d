//! A disk that hangs holds the memory that its reads have been given. Who waits for some can have its commands aborted,
//! and its initiator can log in again; other disks are served.

use harness::directory::Directory;
use harness::sanstone::{IQN, Sanstone, target_table};
use harness::wire::{Direction, Session, read_10};

/// The longest read.
const READ: u32 = 4 << 20;
const BLOCKS: u16 = (READ / 512) as u16;
/// How many sessions read from the disk that hangs, and how much.
const SESSIONS: u16 = 8;
const READS: usize = 4;
const HUNG: u8 = 0;
const HEALTHY: u8 = 1;

/// A daemon with one lane and a disk that hangs; with `others`, it has another one.
fn serve(others: bool) -> Sanstone {
    let directory = Directory::new();
    let port = harness::free_port();
    let hung = "lanes = 1\nmemory = \"64MiB\"\n[volume.hung]\nfault = { rules = [{ on = \"read\", hang = true }, \
                { on = \"discard\", hang = true }], of = { ram = { size = \"16MiB\" } } }\n";
    let healthy = "[volume.healthy]\nram = { size = \"16MiB\" }\n";
    let configuration = match others {
        false => format!("{hung}{}", target_table(port, &["hung"])),
        true => format!(
            "{hung}{healthy}{}",
            target_table(port, &["hung", "healthy"])
        ),
    };
    Sanstone::serve_configuration(directory.path(), &configuration, port).owning(directory)
}

fn login(server: &Sanstone, lun: u8, number: u16) -> Session {
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, lun, number, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    session
}

/// Sessions that read from the disk that hangs as much as they may, and more.
fn hang(server: &Sanstone) -> Vec<Session> {
    let sessions = (0..SESSIONS).map(|number| {
        let mut session = login(server, HUNG, 100 + number);
        for _ in 0..READS {
            let read = session.command(&read_10(0, BLOCKS), Direction::Read, READ, &[]);
            read.expect("it is open");
        }
        // Its answer shows that the target has seen all of them.
        session.execute(&[0; 6], &[], 0).expect("it is open");
        session
    });
    sessions.collect()
}

#[test]
fn who_waits_for_memory_is_aborted_at_once_and_can_log_in_again() {
    const ABORT_TASK: u8 = 1;
    let server = serve(false);
    let _hung = hang(&server);
    let mut session = login(&server, HUNG, 1);
    let read = |session: &mut Session| {
        let read = session.command(&read_10(0, BLOCKS), Direction::Read, READ, &[]);
        read.expect("it is open")
    };
    let waiting = read(&mut session);
    let abort = session.task_management(ABORT_TASK, Some(waiting));
    let answers = session.responses_to(&[abort.expect("it is open")]);
    assert_eq!(answers.expect("an answer")[0].0, 0);
    read(&mut session);
    login(&server, HUNG, 1);
}

#[test]
fn a_disk_that_hangs_leaves_memory_and_steps_to_others() {
    let server = serve(true);
    let mut hung = hang(&server);
    for session in &mut hung {
        let mut unmap = [0; 10];
        (unmap[0], unmap[8]) = (0x42, 24);
        let list = [
            0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
        ];
        for _ in 0..READS {
            let unmap = session.command(&unmap, Direction::Write, 24, &list);
            unmap.expect("it is open");
        }
        session.nop_out(0x7777_0000, u32::MAX).expect("it is open");
        while session.receive().expect("it is open").task() != 0x7777_0000 {}
    }
    let mut session = login(&server, HEALTHY, 1);
    for blocks in [8, 256, BLOCKS] {
        let length = u32::from(blocks) * 512;
        let read = session.execute(&read_10(0, blocks), &[], length);
        let (status, data) = read.expect("an answer");
        assert_eq!((status, data.len()), (0, length as usize));
    }
    let mut compare_and_write = [0; 16];
    (compare_and_write[0], compare_and_write[13]) = (0x89, 1);
    let written = session.execute(&compare_and_write, &[0; 1024], 0);
    assert_eq!(written.expect("an answer").0, 0);
}
