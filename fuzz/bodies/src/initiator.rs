//! Whole sessions of our initiator with a target that mostly keeps to the protocol and a driver
//! that sends commands, both led by the input. Each input runs twice, its bytes arriving whole
//! and cut anywhere: the initiator must do the same.

use std::collections::BTreeMap;

use iscsi::Direction;

use crate::initiator_side::{InitiatorSide, Seen, tag};
use crate::input::Input;
use crate::peer::{TARGET, Way, initiator_config, spoil, whole_and_cut};
use crate::stream::Side;
use crate::wire::{Pdu, filler, text};

/// More steps teach nothing new and cost time.
const STEPS_MAX: usize = 256;
/// The command window that our target grants.
const WINDOW: u32 = 3;

/// An initiator with a target played by the input.
pub fn initiator(input: &[u8]) {
    whole_and_cut(input, run);
}

fn run(input: &[u8], way: Way) -> Vec<Seen> {
    let mut input = Input::new(input);
    let (parameters, choice) = (input.u8(), input.u8());
    let mut session = Session::new(input, way, parameters, choice & 2 != 0);
    if choice & 1 == 0 {
        session.log_in(parameters, choice);
    }
    for _ in 0..STEPS_MAX {
        if session.input.is_empty() {
            break;
        }
        session.step();
    }
    session.side.finish();
    session.side.log
}

/// An initiator that has logged in, without digests.
pub(crate) fn logged_in() -> InitiatorSide {
    let mut session = Session::new(Input::new(&[]), Way::default(), 0, false);
    session.log_in(0, 0);
    assert!(session.side.logged_in.is_some(), "the login is right");
    session.side
}

struct Session<'a> {
    input: Input<'a>,
    side: InitiatorSide,
    way: Way,
    stat_sn: u32,
    /// Commands that came here.
    commands: u32,
    /// Data-In PDUs and R2Ts sent for each tag.
    sent: BTreeMap<u32, (u32, u32)>,
    transfer_tag: u32,
}

impl<'a> Session<'a> {
    fn new(input: Input<'a>, way: Way, parameters: u8, discovery: bool) -> Session<'a> {
        let target_name = if discovery { None } else { Some(TARGET) };
        Session {
            input,
            side: InitiatorSide::new(initiator_config(parameters, target_name)),
            way,
            stat_sn: 0,
            commands: 0,
            sent: BTreeMap::new(),
            transfer_tag: 0,
        }
    }

    /// The two responses of a login that goes well.
    fn log_in(&mut self, parameters: u8, choice: u8) {
        self.transmit(usize::MAX);
        let security = [("TargetPortalGroupTag", "1"), ("AuthMethod", "None")];
        self.respond_to_login(0x81, text(&security));
        self.transmit(usize::MAX);
        let bit = |at: u8| parameters >> at & 1 != 0;
        let digest = |on| if on { "CRC32C" } else { "None" };
        let yes = |on| if on { "Yes" } else { "No" };
        let immediate = !bit(3) && choice & 8 == 0;
        let mut pairs = vec![
            ("HeaderDigest", digest(bit(0))),
            ("DataDigest", digest(bit(1))),
            (
                "MaxRecvDataSegmentLength",
                if choice & 4 != 0 { "512" } else { "8192" },
            ),
        ];
        if choice & 2 == 0 {
            pairs.push(("InitialR2T", yes(bit(2))));
            pairs.push(("ImmediateData", yes(immediate)));
            pairs.push(("MaxBurstLength", "1024"));
            pairs.push(("FirstBurstLength", "512"));
            pairs.push(("MaxOutstandingR2T", if bit(7) { "3" } else { "1" }));
        }
        self.respond_to_login(0x87, text(&pairs));
    }

    fn respond_to_login(&mut self, flags: u8, data: Vec<u8>) {
        let pdu = self
            .status(0x23, flags, 0)
            .put(8, [0x80, 0, 0, 0, 0, 0, 0, 7]);
        self.send(pdu.data(data));
    }

    fn send(&mut self, pdu: Pdu) {
        let digests = self.side.frame_limits().digests;
        let bytes = spoil(&mut self.input, pdu, digests);
        self.way.arrive(&mut self.side, &bytes);
    }

    /// A response for the task with this tag, its numbers as they are due.
    fn response(&self, opcode: u8, flags: u8, tag: u32) -> Pdu {
        let expected = 1 + self.commands;
        Pdu::new(opcode, flags)
            .word(16, tag)
            .word(20, u32::MAX)
            .word(24, self.stat_sn)
            .word(28, expected)
            .word(32, expected + WINDOW - 1)
    }

    /// A response that carries status.
    fn status(&mut self, opcode: u8, flags: u8, tag: u32) -> Pdu {
        let pdu = self.response(opcode, flags, tag);
        self.stat_sn = self.stat_sn.wrapping_add(1);
        pdu
    }

    fn transmit(&mut self, count: usize) {
        for _ in 0..count {
            let Some((transmit, _)) = self.side.transmit() else {
                break;
            };
            self.commands += u32::from(transmit.header[0] == 0x01);
        }
    }

    fn step(&mut self) {
        match self.input.below(24) {
            0..=2 => self.data_in(),
            3..=5 => self.r2t(),
            6 | 7 => self.scsi_response(),
            8 => self.function_response(),
            9 => self.reject(),
            10 => self.nop_in(),
            11 => self.text_response(),
            12 => self.other_response(),
            13 => {
                let len = usize::from(self.input.u16());
                let bytes = self.input.bytes(len);
                self.way.arrive(&mut self.side, bytes);
            }
            14..=17 => self.submit(),
            18 => self.manage(),
            19 => self.side.ping(),
            20 => self.side.wait(u64::from(self.input.u16())),
            21 => {
                let count = self.input.below(8);
                self.transmit(count);
            }
            _ => self.transmit(usize::MAX),
        }
        // The driver reads on as soon as it may.
        self.way.arrive(&mut self.side, &[]);
    }

    /// One of the commands that were sent: its tag, how far it is, how long it is.
    fn any(&mut self, direction: Direction) -> Option<(u32, u32, u32, u32)> {
        let sent = self
            .side
            .open
            .iter()
            .filter(|open| open.sent && open.direction == direction);
        let sent: Vec<_> = sent
            .map(|o| (tag(o.task), o.received, o.r2t_end, o.data_len))
            .collect();
        self.input.pick(&sent).copied()
    }

    fn data_in(&mut self) {
        let (tag, received, _, whole) = self.any(Direction::Read).unwrap_or((99, 0, 0, 64));
        let (how, len) = (self.input.u8(), self.input.length().min(4096));
        let len = match how {
            0xf0.. => len,
            _ => len.min(whole - received),
        };
        let carries_status = how & 1 != 0;
        let flags = if carries_status { 0x81 } else { how & 0x80 };
        let sent = self.sent.entry(tag).or_default();
        let data_sn = sent.0;
        sent.0 += 1;
        let pdu = match carries_status {
            true => self.status(0x25, flags, tag),
            false => self.response(0x25, flags, tag),
        };
        self.send(
            pdu.word(36, data_sn)
                .word(40, received)
                .data(filler(tag, received, len)),
        );
    }

    fn r2t(&mut self) {
        let (tag, _, at, whole) = self.any(Direction::Write).unwrap_or((99, 0, 0, 64));
        let len = match self.input.length() {
            // Mostly what the data and MaxBurstLength allow.
            len @ 0x2000.. => len,
            len => len.min(whole - at).min(1024),
        };
        let sent = self.sent.entry(tag).or_default();
        let r2t_sn = sent.1;
        sent.1 += 1;
        self.transfer_tag += 1;
        let pdu = self
            .response(0x31, 0x80, tag)
            .word(20, self.transfer_tag)
            .word(36, r2t_sn)
            .word(40, at)
            .word(44, len);
        self.send(pdu);
    }

    fn scsi_response(&mut self) {
        let direction = [Direction::None, Direction::Read, Direction::Write];
        let direction = *self.input.pick(&direction).expect("there are some");
        let (tag, ..) = self.any(direction).unwrap_or((99, 0, 0, 0));
        let (flags, status) = (self.input.u8() & 0x1e | 0x80, self.input.u8());
        let residual = self.input.length();
        let sense = match status {
            0 => Vec::new(),
            _ => [&[0, 18, 0x70][..], &[0; 17]].concat(),
        };
        let pdu = self
            .status(0x21, flags, tag)
            .put(3, [status])
            .word(44, residual);
        self.send(pdu.data(sense));
    }

    fn function_response(&mut self) {
        let tags: Vec<u32> = self.side.functions.iter().map(|task| tag(*task)).collect();
        let tag = self.input.pick(&tags).copied().unwrap_or(98);
        let response = self.input.u8();
        let pdu = self.status(0x22, 0x80, tag).put(2, [response]);
        self.send(pdu);
    }

    /// A Reject of something that was or might have been sent.
    fn reject(&mut self) {
        let tags = self.side.open.iter().map(|open| tag(open.task));
        let tags: Vec<u32> = tags
            .chain(self.side.functions.iter().map(|task| tag(*task)))
            .collect();
        let tag = self.input.pick(&tags).copied().unwrap_or(97);
        let opcode = self.input.u8() & 0x47;
        let refused = Pdu::new(opcode, 0x80).word(16, tag);
        let reason = self.input.u8();
        let pdu = self.status(0x3f, 0x80, u32::MAX).put(2, [reason]);
        self.send(pdu.data(refused.bhs.to_vec()));
    }

    fn nop_in(&mut self) {
        let (tag, len) = (self.input.u32(), self.input.length().min(2048));
        let pdu = match tag & 1 {
            0 => self.response(0x20, 0x80, u32::MAX).word(20, tag >> 8),
            // Slots are used again, so a small tag is likely to be the ping's.
            _ => self.status(0x20, 0x80, tag >> 28),
        };
        self.send(pdu.data(filler(0, 0, len)));
    }

    fn text_response(&mut self) {
        let (slot, flags) = (self.input.u8() & 7, self.input.u8() & 0xc0);
        let words: [&[u8]; 4] = [
            b"TargetName=iqn.a\0TargetAddress=[::1]:3260,1\0",
            b"TargetAddress=",
            b"TargetName=",
            b"",
        ];
        let mut data = self.input.pick(&words).expect("there are some").to_vec();
        let more = usize::from(self.input.u8());
        data.extend_from_slice(self.input.bytes(more));
        let transfer_tag = if flags & 0x80 != 0 { u32::MAX } else { 5 };
        let pdu = self.status(0x24, flags, slot.into()).word(20, transfer_tag);
        self.send(pdu.data(data));
    }

    fn other_response(&mut self) {
        let opcode = *self
            .input
            .pick(&[0x32, 0x26, 0x23, 0x1c, 0x00])
            .expect("there are some");
        let tag = u32::from(self.input.u8() & 7);
        let code = self.input.u8();
        let pdu = self.status(opcode, 0x80, tag).put(36, [code & 7]);
        self.send(pdu);
    }

    fn submit(&mut self) {
        let (kind, len) = (self.input.below(3), self.input.length().min(1 << 14));
        let (direction, len) = match kind {
            0 => (Direction::Read, len),
            1 => (Direction::Write, len),
            _ => (Direction::None, 0),
        };
        let data = match direction {
            Direction::Write => filler(0, 0, len),
            _ => Vec::new(),
        };
        self.side.submit(&[0x88; 16], direction, len, data);
    }

    fn manage(&mut self) {
        match self.input.below(4) {
            0 => {
                let at = usize::from(self.input.u8());
                if let Some(at) = at.checked_rem(self.side.open.len()) {
                    self.side.abort(at);
                }
            }
            1 => {
                let function = self.input.u8() & 7;
                self.side.task_management(function);
            }
            2 => self.side.discover(),
            _ => self.side.logout(),
        }
    }
}
