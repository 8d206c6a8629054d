//! What an input means for the target and its initiator: claims, an answer for each command and each
//! login, and what is asked of the disk.

use std::time::Duration;

use volume::foreign::{Claims, Instead};

use crate::input::Input;

/// More teaches nothing new and costs time.
const STEPS_MAX: usize = 24;
const ANSWERS_MAX: usize = 96;
const BLOCKS_MAX: u16 = 32;

/// What happens.
pub(super) struct Plan {
    pub(super) claims: Claims,
    pub(super) len_blocks: u64,
    pub(super) reset_response: u8,
    pub(super) ignores_unmap: bool,
    pub(super) answers: Answers<Option<Instead>>,
    pub(super) logins: Answers<u8>,
    pub(super) steps: Vec<Step>,
}

/// What is done next.
pub(super) enum Step {
    /// So many milliseconds pass.
    Wait(u16),
    DropConnections,
    /// What was late reaches the medium.
    Land,
    /// The disk has this length now, in blocks.
    Grow(u64),
    /// Requests at once.
    Ask(Vec<Request>),
}

/// One request.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) kind: u8,
    pub(super) lba: u64,
    pub(super) blocks: u16,
}

impl Request {
    /// How many commands it makes at most: one for each block, and a flush.
    pub(super) fn commands_max(self) -> u32 {
        u32::from(self.blocks) + 1
    }
}

/// Answers in order; then over and over from a place on, or none.
pub(super) struct Answers<T> {
    all: Vec<T>,
    next: usize,
    again_from: Option<usize>,
}

impl<T: Clone> Answers<T> {
    pub(super) fn next(&mut self) -> Option<T> {
        if self.next == self.all.len() {
            self.next = self.again_from?;
        }
        let answer = self.all.get(self.next)?.clone();
        self.next += 1;
        Some(answer)
    }
}

impl Plan {
    pub(super) fn read(mut input: Input<'_>) -> Plan {
        let choice = input.u8();
        let bit = |at: u8| choice >> at & 1 != 0;
        let claims = Claims {
            transfer_max_blocks: [0, 1, 3, 64, u32::MAX][input.below(5)],
            compare_max_blocks: u8::from(bit(4)),
            write_same_max_blocks: [0, 1, 9, u64::MAX][input.below(4)],
            unmap_max_blocks: [u32::MAX, 0, 1, 5][input.below(4)],
            unmap_max_descriptors: u32::from(!bit(0)),
            unmaps_same: !bit(1),
            reads_zeroes: !bit(2),
            designators: designators(&mut input),
        };
        let len_blocks = [2048, 1, 8, 1 << 33, u64::MAX / 4096][input.below(5)];
        let reset_response = [0, 0, 5, 255][input.below(4)];
        let logins = answers(&mut input, 16, Input::u8);
        let answers = answers(&mut input, ANSWERS_MAX, answer);
        let mut steps = Vec::new();
        while steps.len() < STEPS_MAX && !input.is_empty() {
            steps.push(step(&mut input));
        }
        Plan {
            claims,
            len_blocks,
            reset_response,
            ignores_unmap: bit(3),
            answers,
            logins,
            steps,
        }
    }
}

fn designators(input: &mut Input<'_>) -> Vec<u8> {
    let len = usize::from(input.u8() & 0x3f);
    input.bytes(len).to_vec()
}

fn answers<'a, T>(
    input: &mut Input<'a>,
    max: usize,
    mut read: impl FnMut(&mut Input<'a>) -> T,
) -> Answers<T> {
    let (count, again) = (usize::from(input.u8()).min(max), input.u8());
    let all: Vec<T> = (0..count).map(|_| read(input)).collect();
    let again_from = (again & 1 != 0).then(|| usize::from(again >> 1).min(count.saturating_sub(1)));
    Answers {
        all,
        next: 0,
        again_from,
    }
}

/// Instead of executing a command; `None`: it is executed.
fn answer(input: &mut Input<'_>) -> Option<Instead> {
    const UNIT_ATTENTION: u8 = 6;
    Some(match input.below(18) {
        0..=3 => return None,
        4 => Instead::Sense([UNIT_ATTENTION, 0x2a, 0x09]),
        5 => Instead::Sense([UNIT_ATTENTION, 0x29, input.u8() & 7]),
        6 => Instead::Sense([input.u8() & 0xf, input.u8(), input.u8()]),
        7 => Instead::Status(*input.pick(&[0x08, 0x28, 0x40, 0x18, 0x02, 0x04, 0x30])?),
        8 => Instead::Status(input.u8()),
        9 => {
            let (status, sense, data) = (input.u8() & 2, input.u8(), input.u8());
            Instead::Reply {
                status,
                sense: input.bytes(usize::from(sense & 0x3f)).to_vec(),
                data: input.bytes(data.into()).to_vec(),
            }
        }
        10 | 11 => {
            let (len, at, count) = (input.u8(), input.u8() & 0x3f, input.u8() & 0xf);
            Instead::Changed {
                len: if len == 0 { usize::MAX } else { len.into() },
                at: at.into(),
                bytes: input.bytes(count.into()).to_vec(),
            }
        }
        12 => Instead::Slow(Duration::from_millis(u64::from(input.u8()) * 16)),
        13 => Instead::Overtaken,
        14 => Instead::Shut,
        15 => Instead::Late,
        16 => Instead::Drop,
        _ => Instead::After(unsolicited(input)),
    })
}

/// A PDU that nobody asked for, perhaps many times.
fn unsolicited(input: &mut Input<'_>) -> Vec<u8> {
    const OPCODES: [u8; 8] = [0x20, 0x21, 0x22, 0x25, 0x31, 0x32, 0x3f, 0x26];
    let mut pdu = [0; 48];
    (pdu[0], pdu[1]) = (*input.pick(&OPCODES).unwrap_or(&0x20), input.u8());
    pdu[16..20].copy_from_slice(&[0xff; 4]);
    pdu[20..24].copy_from_slice(&[0xff; 4]);
    let count = 1 + usize::from(input.u8());
    for _ in 0..input.below(6) {
        let at = usize::from(input.u8()) % pdu.len();
        pdu[at] = input.u8();
    }
    pdu.repeat(count)
}

fn step(input: &mut Input<'_>) -> Step {
    match input.below(16) {
        0 => Step::Wait(input.u16() & 0x3fff),
        1 => Step::DropConnections,
        2 => Step::Land,
        3 => Step::Grow(input.u64() >> input.u8().min(63)),
        kind => {
            let count = if kind < 8 { 1 } else { kind - 6 };
            let request = |_| Request {
                kind: input.u8() & 7,
                lba: input.u16().into(),
                blocks: 1 + u16::from(input.u8()) % BLOCKS_MAX,
            };
            Step::Ask((0..count).map(request).collect())
        }
    }
}
