//! Where a search begins: for each target a few inputs that mean something. They are recorded
//! exchanges of our own two roles, and scripts in the choices that [`Input`](crate::input::Input)
//! reads. Whatever else a corpus holds, libFuzzer has found from here.

use crate::initiator_side::InitiatorSide;
use crate::input::Seed;
use crate::peer::{TARGET, initiator_config, target_config};
use crate::stream::{Side, Stream};
use crate::target_side::TargetSide;
use crate::wire::{self, Pdu, filler};
use iscsi::frame::Digests;
use iscsi::{Direction, Outcome, TransmitData};

/// All seeds: the target that each is for, and its bytes.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    let mut seeds = Vec::new();
    for choice in [0, 1, 2, 3, 8] {
        for stream in record(choice & 3) {
            seeds.push(("pdu", Seed::default().choose(&[choice]).choose(&stream)));
        }
    }
    for choice in [0, 1] {
        let stream = additional_headers(choice == 1);
        seeds.push(("pdu", Seed::default().choose(&[choice]).choose(&stream)));
    }
    for choice in 0..=u8::MAX {
        // With every setting once as it is, and once with each text in three pieces.
        let setting = Seed::default().choose(&[choice.rotate_left(3), 0, choice, choice >> 5]);
        seeds.push(("login", setting.clone()));
        seeds.push(("login", setting.choose(&[0xa2, 20, 40].repeat(8))));
    }
    for kind in [0x00, 0x09, 0x68, 0x88] {
        for row in 0..80 {
            let command = [0, 0, row, 0x42, 0, 1, 3, 0, 0, 0];
            let seed = Seed::default().choose(&[kind]);
            // The first is answered with a unit attention.
            seeds.push(("scsi", seed.choose(&command).choose(&command)));
        }
    }
    for parameters in [0x00, 0x03, 0x04, 0x08, 0xf0] {
        for script in TARGET_SCRIPTS {
            let seed = Seed::default().choose(&[parameters, 0, 0]);
            seeds.push(("target", seed.choose(script)));
        }
        for script in INITIATOR_SCRIPTS {
            let seed = Seed::default().choose(&[parameters, 0, 0, 0]);
            seeds.push(("initiator", seed.choose(script)));
        }
        for script in PAIR_SCRIPTS {
            let seed = Seed::default().choose(&[parameters, parameters, 0]);
            seeds.push(("pair", seed.choose(script)));
        }
    }
    for opcode in 0..64 {
        for len in [0, 16, 64] {
            let seed = Seed::default().choose(&[0, opcode, len, 40, 9, 0, 0, 0]);
            seeds.push(("fuse", seed.choose(&[1, 0, 2, 0, 0, 0, 0, 0].repeat(8))));
        }
    }
    // Each answer, when the disk is asked what it is and later, once and over and over.
    for answer in 0..18 {
        for honest_first in [0, 7] {
            for again in [0, honest_first << 1 | 1] {
                let seed = Seed::default().choose(&[0; 7]).choose(&[0, 0]);
                let answers = seed.choose(&[honest_first + 1, again]);
                let answers = answers.choose(&vec![0; honest_first.into()]);
                let answers = answers.choose(&[answer, 4, 0x25, 0, 1, 2, 3]);
                seeds.push(("disk", answers.choose(DISK_STEPS)));
            }
        }
    }
    for login in [0x80, 0xa0, 0xa1, 0xd0, 0xd8, 0xf0] {
        // A write is in flight when its session is lost.
        let seed = Seed::default()
            .choose(&[0; 7])
            .choose(&[4, 0, 0, login, login, 0]);
        let seed = seed.choose(&[9, 0]).choose(&[0; 7]).choose(&[15, 16]);
        seeds.push(("disk", seed.choose(DISK_STEPS)));
    }
    for export in 0..16 {
        for script in NBD_SCRIPTS {
            let seed = Seed::default().choose(&[export, 0, export, 3]);
            seeds.push(("nbd", seed.choose(script)));
        }
    }
    seeds
}

/// Options, then requests: with chunks and a context, and the old way.
const NBD_SCRIPTS: [&[u8]; 4] = [
    &[
        8, 0, 0, 0, 0, 10, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0x40, 0, 0, 1, 64, 1, 0, 0x46, 1, 0, 2,
        64, 2, 0, 0x45, 8, 0, 0, 64, 3, 0,
    ],
    &[
        1, 0, 0, 0, 0x40, 0, 0, 1, 64, 1, 0, 0x49, 1, 0, 2, 64, 2, 0, 0x4b, 0, 0, 0, 0, 3, 0, 0x4a,
        0, 0, 0, 0, 4, 0,
    ],
    &[5, 0, 0, 0, 0, 3, 0, 0, 0, 0, 2, 0, 0, 0, 0],
    &[
        6, 0x80, 2, 3, 1, 0, 0, 9, 0, 2, 1, 0, 0, 0, 0xff, 0xf8, 0, 0, 0xf0,
    ],
];

/// A read, a write, a flush, a discard and zeroes; several at once; sessions dropped; late writes
/// landed; another length.
const DISK_STEPS: &[u8] = &[
    4, 0, 0, 0, 7, 4, 2, 0, 0, 7, 4, 4, 0, 0, 0, 4, 5, 0, 0, 31, 4, 6, 0, 0, 31, 9, 2, 0, 1, 3, 0,
    0, 1, 3, 3, 0, 1, 9, 1, 4, 0, 0, 0, 7, 2, 3, 0, 0, 0, 0, 0, 0, 16, 0, 0, 4, 3, 0, 0, 7,
];

/// A read; a write that is asked for, and one that gives more than that; management; text; pings;
/// a logout.
const TARGET_SCRIPTS: [&[u8]; 7] = [
    &[0, 0x01, 0x40, 0, 0, 14, 0, 0, 0x40, 23],
    &[
        0, 0x12, 0x7f, 0, 0, 12, 0, 0, 23, 4, 0, 0x40, 0, 4, 0, 0x40, 0, 16, 0, 0, 0x7f, 23,
    ],
    &[
        0, 0x02, 0x7f, 0, 0, 12, 0, 0, 23, 4, 0, 0x40, 0, 4, 0xff, 0x60, 0,
    ],
    &[
        0, 0x01, 0x10, 0, 0, 7, 1, 0, 0xc0, 0, 18, 0, 0, 18, 1, 0, 0, 23,
    ],
    &[
        9, 0x80, 1, 0, 0, 0, 0, 18, 2, 200, 23, 9, 0x80, 4, 0, 1, 0, 0, 23,
    ],
    &[19, 23, 8, 1, 0, 0, 8, 0x80, 8, 0, 0, 23, 20, 0xff, 0xff],
    &[10, 0, 0x80, 0, 0, 18, 3, 23],
];

/// The same seen from the other side.
const INITIATOR_SCRIPTS: [&[u8]; 6] = [
    &[14, 0, 0x40, 22, 0, 0, 0, 0x20, 0, 0, 0, 1, 0x20, 0],
    &[
        14, 1, 0x7f, 22, 3, 0, 0x20, 0, 22, 3, 0, 0x20, 0, 22, 6, 2, 0, 0, 0, 0, 0,
    ],
    &[
        14, 0, 0x10, 22, 18, 0, 0, 22, 8, 0, 0, 0, 18, 1, 5, 22, 8, 0, 0, 0,
    ],
    &[
        18, 2, 22, 11, 0, 0x80, 0, 0, 0, 18, 2, 22, 11, 0, 0x40, 0, 0, 0,
    ],
    &[
        19, 22, 10, 0, 0, 0, 1, 0, 0, 10, 0, 0, 1, 0, 8, 0, 22, 20, 0xff, 0xff,
    ],
    &[18, 3, 22, 12, 1, 0, 0, 0],
];

/// Reads and writes at once; management; harm of each kind.
const PAIR_SCRIPTS: [&[u8]; 4] = [
    &[
        14, 0, 14, 0, 14, 0, 14, 0, 14, 0, 0, 0, 0x40, 0, 1, 0x7f, 14, 0, 14, 0, 14, 1,
    ],
    &[
        14, 0, 14, 0, 14, 0, 14, 0, 14, 0, 0, 0, 0x40, 4, 16, 0, 0, 4, 16, 2, 14, 0,
    ],
    &[
        14, 0, 14, 0, 14, 0, 14, 0, 14, 0, 0, 1, 0x7f, 4, 15, 0, 0, 0, 60, 1, 14, 0,
    ],
    &[
        14, 0, 14, 0, 14, 0, 14, 0, 14, 0, 17, 14, 0, 18, 4, 15, 1, 1, 0, 0, 48, 14, 0,
    ],
];

/// Commands with additional headers: extended CDBs of several lengths, a read length, both.
fn additional_headers(header: bool) -> Vec<u8> {
    let digests = Digests {
        header,
        data: false,
    };
    let extended = |len: u8| {
        let mut ahs = vec![0, len + 1, 1, 0];
        ahs.resize((4 + usize::from(len)).next_multiple_of(4), 0xee);
        ahs
    };
    let read_len = [0, 5, 2, 0, 0, 0, 2, 0];
    let lists = [
        extended(0),
        extended(4),
        extended(15),
        read_len.to_vec(),
        [&extended(16)[..], &read_len].concat(),
        [&read_len[..], &extended(1)].concat(),
    ];
    // The window has room for four; the others are for immediate delivery.
    let command = |(at, ahs): (usize, Vec<u8>)| {
        let opcode = if at < 4 { 0x01 } else { 0x41 };
        let number = at as u32 + 1;
        let pdu = Pdu::new(opcode, 0xe1).word(16, number).word(24, number);
        pdu.ahs(ahs).bytes(digests)
    };
    lists.into_iter().enumerate().flat_map(command).collect()
}

/// What our two roles send each other in a session with a read and a write: both directions.
fn record(choice: u8) -> [Vec<u8>; 2] {
    let mut initiator = InitiatorSide::new(initiator_config(choice, Some(TARGET)));
    let mut target = TargetSide::new(target_config(choice));
    let (mut to_target, mut to_initiator) = (Stream::default(), Stream::default());
    let mut recorded = [Vec::new(), Vec::new()];
    for round in 0..40 {
        if round == 10 {
            initiator.submit(&[0x88; 16], Direction::Read, 700, Vec::new());
            initiator.submit(&[0x8a; 16], Direction::Write, 3000, filler(1, 0, 3000));
            initiator.ping();
        }
        if round == 30 {
            initiator.logout();
        }
        let mut sent = [Vec::new(), Vec::new()];
        while let Some((transmit, data)) = initiator.transmit() {
            sent[0].extend(wire::bytes(&transmit, &data));
        }
        while let Some(transmit) = target.transmit() {
            let data = match &transmit.data {
                TransmitData::None => Vec::new(),
                TransmitData::Inline(data) => data.clone(),
                TransmitData::Task { offset, len, .. } => filler(1, *offset, *len),
            };
            sent[1].extend(wire::bytes(&transmit, &data));
        }
        to_target.arrive(&mut target, &sent[0]);
        to_initiator.arrive(&mut initiator, &sent[1]);
        serve(&mut target);
        recorded[0].extend(&sent[0]);
        recorded[1].extend(&sent[1]);
    }
    recorded
}

fn serve(target: &mut TargetSide) {
    for at in 0..target.open.len() {
        let (request, complete) = (target.open[at].request.clone(), target.open[at].complete);
        let outcome = Outcome {
            status: 0,
            sense: &[],
            transfer_len: 0,
        };
        match request.direction {
            _ if target.open[at].is_over() => {}
            Direction::Read => target.data_in(at, request.read_len, Some(outcome)),
            _ if complete => target.respond(at, outcome),
            _ if target.open[at].granted.is_none() => target.solicit(at, request.write_len),
            _ => {}
        }
    }
    if target.logout {
        target.logout_response();
        target.follow_events();
    }
}
