//! Our initiator's disk with a target that answers anything: statuses, sense, lengths, pages,
//! capacities, out of order, late, never, over and over the same, with sessions refused, redirected
//! and dropped. The input says what the target does and what is asked of the disk.
//!
//! It runs in the simulated world. Every request ends in bounded virtual time and after a bounded
//! number of commands, nothing runs in circles, and when the disk is closed no session of it is
//! left.

mod plan;

use std::{cell::RefCell, rc::Rc, time::Duration};

use engine::{
    Payload,
    net::TcpListener,
    sim::{Host, World, WorldConfig},
    task, time,
};
use iscsi::Isid;
use volume::{
    Durability, IscsiConfig, IscsiDisk, Multipath, Volume,
    foreign::{AtLogin, Foreign, Group, Instead},
};

use crate::input::Input;
use plan::{Answers, Plan, Request, Step};

const PORTS: [u16; 2] = [3260, 3261];
const CONNECT: Duration = Duration::from_secs(1);
const REQUEST: Duration = Duration::from_secs(2);
const RECONNECT: Duration = Duration::from_secs(4);
/// What one command may take: its time for trouble, and what was begun when that ended, which is an
/// answer, a capacity that is asked for three times, and a logout.
const COMMAND: Duration = Duration::from_secs(4 + 4 * 2 + 2 + 2);
/// What one command makes: attempts at once, one after each pause, each with what is asked beside
/// it; and as many for each session, of which there is a bounded number in its time.
const COMMANDS_MAX: u64 = 2_000;
/// Commands that the disk is asked when it is opened.
const QUESTIONS: u32 = 8;

/// A disk with a target played by the input.
pub fn disk(input: &[u8]) {
    let plan = Plan::read(Input::new(input));
    // Far more than any input needs: more is a loop.
    let config = WorldConfig {
        time_max: Duration::from_secs(4 * 3600),
        steps_max: 2_000_000,
        ..WorldConfig::default()
    };
    let world = World::with_config(1, config);
    let (client, host) = (world.host("client"), world.host("target"));
    let foreign = Rc::new(Foreign::new(plan.claims.clone()));
    foreign.len_blocks.set(plan.len_blocks);
    foreign.reset_response.set(plan.reset_response);
    foreign.ignores_unmap.set(plan.ignores_unmap);
    for (group, port) in (1..).zip(PORTS) {
        let (served, address) = (foreign.clone(), host.addr(port));
        host.spawn(async move {
            let listener = TcpListener::bind(address).expect("a free port");
            served.serve(listener, Group(group));
        });
    }
    let addresses = PORTS.map(|port| host.addr(port).to_string());
    play(&foreign, plan.answers, plan.logins, addresses);
    world.run_for(Duration::from_millis(10));
    world.block_on(&client, run(&foreign, &host, plan.steps));
    // What ends a connection at one end arrives at the other one, where a slow target first answers
    // everything that came before.
    for _ in 0..600 {
        world.run_for(CONNECT + REQUEST);
        if foreign.connected.get() == 0 {
            break;
        }
    }
    assert_eq!(foreign.connected.get(), 0, "sessions are left");
}

/// Lets the target do what the input says.
fn play(
    foreign: &Foreign,
    answers: Answers<Option<Instead>>,
    logins: Answers<u8>,
    to: [String; 2],
) {
    let answers = RefCell::new(answers);
    foreign.answer(move |_| answers.borrow_mut().next().flatten());
    let logins = RefCell::new(logins);
    foreign.at_login(move |_| {
        let Some(choice) = logins.borrow_mut().next() else {
            return AtLogin::LetIn;
        };
        match choice {
            0..=0x7f => AtLogin::LetIn,
            0x80..=0x9f => AtLogin::LetInAt(Group((choice & 3).into())),
            0xa0..=0xcf => AtLogin::Redirect(to[usize::from(choice & 1)].clone()),
            0xd0..=0xd7 => AtLogin::Redirect("[::1".to_owned()),
            0xd8..=0xef => AtLogin::Refuse(iscsi::LoginStatus(0x0300 | u16::from(choice & 3))),
            _ => AtLogin::Refuse(iscsi::LoginStatus(0x0200 | u16::from(choice & 0xf))),
        }
    });
}

async fn run(foreign: &Rc<Foreign>, host: &Host, steps: Vec<Step>) {
    let config = IscsiConfig {
        address: host.addr(PORTS[0]),
        target_name: "iqn.2026-11.example:foreign".into(),
        lun: 0,
        initiator_name: "iqn.2026-11.io.sanstone:initiator".into(),
        isid: Isid::random([1, 2, 3], 1),
        multipath: Multipath::default(),
        chap: None,
        header_digest: false,
        data_digest: false,
        stage_times: true,
        connect_timeout: CONNECT,
        request_timeout: REQUEST,
        reconnect_timeout: RECONNECT,
    };
    // The first login may be sent elsewhere a few times.
    let opened = bounded(foreign, QUESTIONS, IscsiDisk::open(config)).await;
    let Ok(disk) = opened else { return };
    for step in steps {
        match step {
            Step::Wait(ms) => time::sleep(Duration::from_millis(ms.into())).await,
            Step::DropConnections => foreign.drop_connections(),
            Step::Land => foreign.land(),
            Step::Grow(blocks) => foreign.len_blocks.set(blocks.max(1)),
            Step::Ask(requests) => {
                let commands = requests.iter().map(|request| request.commands_max());
                let commands = commands.sum::<u32>();
                let asked = requests
                    .iter()
                    .map(|request| Box::pin(ask(&disk, *request)));
                let all = task::join_all(asked);
                bounded(foreign, commands, all).await;
            }
        }
    }
    disk.close().await;
}

/// Runs `future`, which may send so many commands: it ends in their time.
async fn bounded<T>(foreign: &Foreign, commands: u32, future: impl Future<Output = T>) -> T {
    let limit = COMMAND * commands;
    let (began, before) = (time::now(), foreign.commands.get());
    let ended = time::timeout(limit, future).await;
    let took = time::now() - began;
    let sent = foreign.commands.get() - before;
    assert!(
        sent <= COMMANDS_MAX * u64::from(commands),
        "{sent} commands in {took:?}"
    );
    ended.unwrap_or_else(|| panic!("{commands} commands have not ended within {limit:?}"))
}

/// What comes of it is the target's; that it ends is ours.
async fn ask(disk: &IscsiDisk, request: Request) {
    let shape = disk.shape();
    let block = u64::from(shape.block_size_bytes);
    let len = (u64::from(request.blocks) * block).min(shape.len_bytes());
    let last = (shape.len_bytes() - len) / block;
    let at = request.lba % (last + 1) * block;
    let zeroes = || Payload::zeroes(len as usize);
    let _ = match request.kind {
        0 | 1 => disk.read(at, len as usize).await.map(|read| {
            assert_eq!(read.len() as u64, len, "a read is whole");
        }),
        2 => disk.write(at, zeroes(), Durability::Cached).await,
        3 => disk.write(at, zeroes(), Durability::Fua).await,
        4 => disk.flush().await,
        5 => disk.discard(at, len).await,
        7 if request.blocks == 1 => {
            let both = Payload::zeroes(2 * len as usize);
            let compared = disk.compare_and_write(at, both, Durability::Fua).await;
            compared.map(drop)
        }
        6 => disk.write_zeroes(at, len, true, Durability::Cached).await,
        _ => disk.write_zeroes(at, len, false, Durability::Fua).await,
    };
}
