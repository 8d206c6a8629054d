//! Our target and our initiator on one wire. The input leads what both do and how their bytes
//! travel: delayed, cut, damaged, lost, doubled. On a wire that did no harm every command ends
//! well and with the right data; with a data digest no bit that flipped goes unnoticed.

use iscsi::{Direction, Outcome, TaskResult};

use crate::initiator_side::{InitiatorSide, tag};
use crate::input::Input;
use crate::peer::{STAGE_TIMES, TARGET, initiator_config, target_config};
use crate::stream::{Side, Stream};
use crate::target_side::TargetSide;
use crate::wire::{self, filler};

/// More steps teach nothing new and cost time.
const STEPS_MAX: usize = 256;
/// Rounds after which everything on a good wire has ended.
const ROUNDS_MAX: usize = 1000;
/// CDBs of the two commands that the target knows; the rest of a CDB does not matter here.
const READ: [u8; 16] = [0x88; 16];
const WRITE: [u8; 16] = [0x8a; 16];

/// Both roles, joined.
pub fn pair(input: &[u8]) {
    let mut input = Input::new(input);
    let (initiator, target) = (input.u8(), input.u8());
    let discovery = input.u8() == 0xff;
    let target_name = if discovery { None } else { Some(TARGET) };
    let mut pair = Pair {
        input,
        initiator: InitiatorSide::new(initiator_config(initiator, target_name)),
        target: TargetSide::new(target_config(target)),
        to_target: Way::default(),
        to_initiator: Way::default(),
        harmed: false,
        ends_early: false,
    };
    for _ in 0..STEPS_MAX {
        if pair.input.is_empty() {
            break;
        }
        pair.step();
    }
    pair.end();
}

/// Bytes under way in one direction, and the end that they come to.
#[derive(Default)]
struct Way {
    bytes: Vec<u8>,
    stream: Stream,
}

impl Way {
    fn deliver(&mut self, side: &mut impl Side, len: usize) {
        let len = len.min(self.bytes.len());
        let arriving: Vec<u8> = self.bytes.drain(..len).collect();
        self.stream.arrive(side, &arriving);
    }

    /// Does harm to what is under way; false if there is nothing.
    fn harm(&mut self, input: &mut Input<'_>) -> bool {
        let how = input.u8();
        let at = usize::from(input.u16());
        let Some(at) = at.checked_rem(self.bytes.len()) else {
            return false;
        };
        let end = self.bytes.len().min(at + usize::from(input.u8()));
        match how & 3 {
            0 => self.bytes[at] ^= 1 << (how >> 5),
            1 => drop(self.bytes.drain(at..end)),
            2 => self.bytes.extend_from_within(at..end),
            _ => input.harm(&mut self.bytes[at..end]),
        }
        true
    }
}

struct Pair<'a> {
    input: Input<'a>,
    initiator: InitiatorSide,
    target: TargetSide,
    to_target: Way,
    to_initiator: Way,
    harmed: bool,
    /// Somebody logged out, aborted or ran out of patience: not everything has to end well.
    ends_early: bool,
}

impl Pair<'_> {
    fn step(&mut self) {
        match self.input.below(20) {
            0..=3 => self.submit(),
            4..=6 => drop(self.send(8)),
            7 | 8 => {
                let len = usize::from(self.input.u16());
                self.to_target.deliver(&mut self.target, len);
            }
            9 | 10 => {
                let len = usize::from(self.input.u16());
                self.to_initiator.deliver(&mut self.initiator, len);
            }
            11..=13 => drop(self.serve()),
            14 => drop(self.round()),
            15 => {
                let way = match self.input.below(2) {
                    0 => &mut self.to_target,
                    _ => &mut self.to_initiator,
                };
                self.harmed |= way.harm(&mut self.input);
            }
            16 => self.manage(),
            17 => self.initiator.discover(),
            18 => {
                self.initiator.ping();
                self.target.machine.ping(self.target.now, 1_000);
            }
            _ => {
                let ns = u64::from(self.input.u8());
                self.ends_early |= ns > 0;
                self.initiator.wait(ns * 8);
                self.target.wait(ns * 8);
            }
        }
    }

    fn submit(&mut self) {
        let (kind, len) = (self.input.below(3), self.input.length().min(1 << 14));
        match kind {
            0 => self
                .initiator
                .submit(&READ, Direction::Read, len, Vec::new()),
            1 => self
                .initiator
                .submit(&WRITE, Direction::Write, len, filler(len, 0, len)),
            _ => self.initiator.submit(&READ, Direction::None, 0, Vec::new()),
        };
    }

    fn manage(&mut self) {
        self.ends_early = true;
        match self.input.below(4) {
            0 => {
                let at = usize::from(self.input.u8());
                if let Some(at) = at.checked_rem(self.initiator.open.len()) {
                    self.initiator.abort(at);
                }
            }
            1 => {
                let function = self.input.u8() & 7;
                self.initiator.task_management(function);
            }
            2 => self.initiator.logout(),
            _ => self.target.announce(1),
        }
    }

    /// Each side puts up to `count` PDUs on the wire.
    fn send(&mut self, count: usize) -> bool {
        let mut moved = false;
        for _ in 0..count {
            let Some((transmit, data)) = self.initiator.transmit() else {
                break;
            };
            self.to_target.bytes.extend(wire::bytes(&transmit, &data));
            moved = true;
        }
        for _ in 0..count {
            let Some(transmit) = self.target.transmit() else {
                break;
            };
            let data = match &transmit.data {
                iscsi::TransmitData::None => Vec::new(),
                iscsi::TransmitData::Inline(data) => data.clone(),
                iscsi::TransmitData::Task { offset, len, .. } => {
                    filler(wire::word(&transmit.header, 16), *offset, *len)
                }
            };
            self.to_initiator
                .bytes
                .extend(wire::bytes(&transmit, &data));
            moved = true;
        }
        moved
    }

    /// The target does one of the things that it has to do; false if there are none.
    fn serve(&mut self) -> bool {
        if self.target.asked {
            self.target.send_targets(&[]);
            return true;
        }
        if self.target.logout {
            self.target.logout_response();
            return true;
        }
        if let Some(at) = self.target.functions.iter().position(|f| !f.answered) {
            let victim = self.target.functions[at].referenced;
            let open = &self.target.open;
            let victim = open
                .iter()
                .position(|open| Some(open.request.task) == victim);
            let response = if victim.is_some() { 0 } else { 1 };
            if let Some(victim) = victim {
                self.target.abort(victim);
            }
            self.target.answer_function(at, response);
            return true;
        }
        let start = usize::from(self.input.u8());
        let count = self.target.open.len();
        for at in (0..count).map(|at| (at + start) % count) {
            let open = &self.target.open[at];
            if open.is_over() {
                continue;
            }
            let request = &open.request;
            let good = |len: u32| Outcome {
                status: 0,
                sense: &[],
                transfer_len: len.into(),
            };
            match request.direction {
                Direction::Read => {
                    let len = request.read_len.min(1 << 14);
                    self.target.data_in(at, len, Some(good(len)));
                }
                Direction::Write if open.complete => {
                    let len = request.write_len;
                    self.check_written(at);
                    self.target.respond(at, good(len));
                }
                Direction::Write if open.granted.is_none() => {
                    let len = request.write_len;
                    self.target.solicit(at, len);
                }
                Direction::Write => continue,
                _ => self.target.respond(at, good(0)),
            }
            return true;
        }
        false
    }

    /// Whether harm cannot have changed data without being seen. A whole PDU that was lost or
    /// doubled keeps its digests; the numbers give that away.
    fn data_is_right(&self) -> bool {
        !self.harmed
    }

    fn check_written(&self, at: usize) {
        let open = &self.target.open[at];
        if self.data_is_right() {
            let len = open.request.write_len;
            assert!(
                open.buffer == filler(len, 0, len),
                "a write of {len} bytes was changed"
            );
        }
    }

    /// Everybody does everything once.
    fn round(&mut self) -> bool {
        let served = self.serve();
        let under_way = !self.to_target.bytes.is_empty() || !self.to_initiator.bytes.is_empty();
        let sent = self.send(usize::MAX) || under_way;
        self.to_target.deliver(&mut self.target, usize::MAX);
        self.to_initiator.deliver(&mut self.initiator, usize::MAX);
        served || sent
    }

    fn end(mut self) {
        // What waited in a stream while its reader paused is found a round later.
        let mut idle_rounds = 0;
        for round in 0.. {
            idle_rounds = if self.round() { 0 } else { idle_rounds + 1 };
            if idle_rounds > 1 {
                break;
            }
            assert!(round < ROUNDS_MAX, "they do not come to an end");
        }
        if !self.harmed && !self.ends_early {
            let (left, right) = (&self.initiator.closed, &self.target.closed);
            assert!(left.is_none() && right.is_none(), "{left:?}, {right:?}");
            let logged_in = self.initiator.logged_in.is_some() && self.target.logged_in.is_some();
            assert!(logged_in, "the login did not end");
            assert!(self.initiator.open.is_empty(), "a command did not end");
        }
        if self.data_is_right() {
            for (open, result) in &self.initiator.done {
                self.check_done(open, result);
            }
        }
        self.target.finish();
        self.initiator.finish();
    }

    fn check_done(&self, open: &crate::initiator_side::Open, result: &TaskResult) {
        let TaskResult::Completed {
            status: 0,
            transferred,
            stage_times,
            ..
        } = result
        else {
            assert!(self.ends_early, "{result:?} without a cause");
            return;
        };
        assert_eq!(*transferred, open.data_len);
        assert!(stage_times.is_none_or(|times| times == STAGE_TIMES));
        if open.direction == Direction::Read {
            assert!(
                open.buffer == filler(tag(open.task), 0, open.data_len),
                "a read was changed"
            );
        }
    }
}
