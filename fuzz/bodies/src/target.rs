//! Whole sessions against our target: an initiator that mostly keeps to the protocol and a
//! driver that mostly answers in time, both led by the input. Each input runs twice, its bytes
//! arriving whole and cut anywhere: the target must do the same.

use iscsi::{Outcome, TargetRecord};

use crate::input::Input;
use crate::peer::{INITIATOR, TARGET, Way, spoil, target_config, whole_and_cut};
use crate::stream::Side;
use crate::target_side::{Seen, TargetSide};
use crate::wire::{Pdu, filler, text};

/// More steps teach nothing new and cost time.
const STEPS_MAX: usize = 256;

/// A target with an initiator played by the input.
pub fn target(input: &[u8]) {
    whole_and_cut(input, run);
}

fn run(input: &[u8], way: Way) -> Vec<Seen> {
    let mut input = Input::new(input);
    let (parameters, choice) = (input.u8(), input.u8());
    let mut session = Session {
        input,
        side: TargetSide::new(target_config(parameters)),
        way,
        cmd_sn: 1,
        tag: 0,
        unsolicited: Vec::new(),
    };
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
    assert!(
        session.way.waiting_len() <= input_len_max(),
        "bytes pile up"
    );
    session.side.log
}

/// What the longest input can make of bytes on the wire.
fn input_len_max() -> usize {
    STEPS_MAX * 2 * 8192
}

/// A target that has logged an initiator in, without digests.
pub(crate) fn logged_in() -> TargetSide {
    let mut session = Session {
        input: Input::new(&[]),
        side: TargetSide::new(target_config(0)),
        way: Way::default(),
        cmd_sn: 1,
        tag: 0,
        unsolicited: Vec::new(),
    };
    session.log_in(0, 0);
    assert!(session.side.logged_in.is_some(), "the login is right");
    session.side
}

struct Session<'a> {
    input: Input<'a>,
    side: TargetSide,
    way: Way,
    cmd_sn: u32,
    tag: u32,
    /// Unsolicited data that was announced.
    unsolicited: Vec<Unsolicited>,
}

#[derive(Clone, Copy)]
struct Unsolicited {
    tag: u32,
    next: u32,
    end: u32,
    data_sn: u32,
}

impl Session<'_> {
    /// One Login Request that says it all.
    fn log_in(&mut self, parameters: u8, choice: u8) {
        let bit = |at: u8| parameters >> at & 1 != 0;
        let digest = |on| if on { "CRC32C,None" } else { "None" };
        let segment = if choice & 4 != 0 { "512" } else { "8192" };
        let mut pairs = vec![
            ("InitiatorName", INITIATOR),
            ("HeaderDigest", digest(bit(0))),
            ("DataDigest", digest(bit(1))),
            ("MaxRecvDataSegmentLength", segment),
        ];
        if choice & 2 != 0 {
            pairs.push(("SessionType", "Discovery"));
        } else {
            pairs.push(("TargetName", TARGET));
            pairs.push(("InitialR2T", "No"));
            pairs.push(("MaxOutstandingR2T", "8"));
        }
        let request = Pdu::new(0x43, 0x87)
            .put(8, [0x80, 0, 0, 0, 0, 1])
            .word(24, self.cmd_sn)
            .data(text(&pairs));
        self.send(request);
    }

    fn send(&mut self, pdu: Pdu) {
        let digests = self.side.frame_limits().digests;
        let bytes = spoil(&mut self.input, pdu, digests);
        self.way.arrive(&mut self.side, &bytes);
    }

    /// A request with the next CmdSN and a tag of its own.
    fn request(&mut self, opcode: u8, flags: u8) -> Pdu {
        let immediate = self.input.u8() >= 0xc0;
        let pdu = Pdu::new(opcode | if immediate { 0x40 } else { 0 }, flags)
            .word(16, self.tag)
            .word(24, self.cmd_sn);
        self.tag += 1;
        if !immediate {
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
        }
        pdu
    }

    fn step(&mut self) {
        match self.input.below(24) {
            0..=3 => self.command(),
            4..=6 => self.data_out(),
            7 => self.task_management(),
            8 => self.nop_out(),
            9 => self.text_request(),
            10 => self.other_request(),
            11 => {
                let len = usize::from(self.input.u16());
                let bytes = self.input.bytes(len);
                self.way.arrive(&mut self.side, bytes);
            }
            12 | 13 => self.solicit(),
            14 | 15 => self.data_in(),
            16 | 17 => self.respond(),
            18 => self.manage(),
            19 => self.side.machine.ping(self.side.now, 1_000),
            20 => self.side.wait(u64::from(self.input.u16())),
            21 => match self.input.below(2) {
                0 => self.side.announce(3),
                _ => {
                    let by = self.input.u8().into();
                    self.side.widen(by);
                }
            },
            22 => drop(self.side.transmit()),
            _ => while self.side.transmit().is_some() {},
        }
        // The driver reads on as soon as it may.
        self.way.arrive(&mut self.side, &[]);
    }

    fn command(&mut self) {
        let choice = self.input.u8();
        let len = self.input.length();
        let (reads, writes) = (choice & 1 != 0, choice & 2 != 0);
        let parameters = self.side.machine.parameters().clone();
        let first = if writes {
            len.min(parameters.first_burst_length)
        } else {
            0
        };
        let immediate = match choice >> 2 & 3 {
            0 => 0,
            1 => first.min(parameters.max_recv_data_segment_length),
            2 => first / 2,
            _ => self.input.length().min(2048),
        };
        let more = writes && choice & 0x10 != 0 && !parameters.initial_r2t;
        let mut flags = if more { 0 } else { 0x80 };
        flags |= if reads { 0x40 } else { 0 } | if writes { 0x20 } else { 0 } | 1;
        let tag = self.tag;
        let mut pdu = self
            .request(0x01, flags)
            .word(20, len)
            .word(32, 0x0800_0000);
        if choice & 0xc0 == 0xc0 {
            let read_len = self.input.u32().to_be_bytes();
            let mut ahs = vec![0, 5, 2, 0];
            ahs.extend(read_len);
            pdu = pdu.ahs(ahs);
        }
        if choice & 0xe0 == 0xa0 {
            let cdb_len = self.input.u8() & 0x1f;
            let mut ahs = vec![0, cdb_len + 1, 1, 0];
            ahs.resize((4 + usize::from(cdb_len)).next_multiple_of(4), 0xee);
            pdu = pdu.ahs(ahs);
        }
        if more && immediate < first {
            self.unsolicited.push(Unsolicited {
                tag,
                next: immediate,
                end: first,
                data_sn: 0,
            });
        }
        self.send(pdu.data(filler(tag, 0, immediate)));
    }

    /// The next piece of data that somebody waits for, unsolicited or solicited.
    fn data_out(&mut self) {
        let which = self.input.u8();
        let len = self.input.length().clamp(1, 2048);
        let len = len.min(self.side.machine.parameters().max_recv_data_segment_length);
        let open = &self.side.open;
        self.unsolicited
            .retain(|u| u.next < u.end && open.iter().any(|open| open.tag == u.tag));
        let (owed, r2ts) = (self.unsolicited.len(), self.side.r2ts.len());
        let Some(at) = usize::from(which).checked_rem(owed + r2ts) else {
            // Data for nothing.
            let pdu = Pdu::new(0x05, 0x80).word(16, self.tag).word(20, u32::MAX);
            return self.send(pdu.data(filler(0, 0, len)));
        };
        let (tag, transfer_tag, offset, end, data_sn) = if at < owed {
            let u = &mut self.unsolicited[at];
            let before = *u;
            u.next += len.min(u.end - u.next);
            u.data_sn += 1;
            (
                before.tag,
                u32::MAX,
                before.next,
                before.end,
                before.data_sn,
            )
        } else {
            let r2t = self.side.r2ts[at - owed];
            (
                r2t.tag,
                r2t.transfer_tag,
                r2t.offset + r2t.received.min(r2t.end - r2t.offset),
                r2t.end,
                r2t.data_sn,
            )
        };
        let len = match which {
            0xf0.. => len,
            _ => len.min(end - offset),
        };
        let flags = if offset + len == end { 0x80 } else { 0 };
        let pdu = Pdu::new(0x05, flags)
            .word(16, tag)
            .word(20, transfer_tag)
            .word(36, data_sn)
            .word(40, offset)
            .data(filler(tag, offset, len));
        self.send(pdu);
    }

    fn task_management(&mut self) {
        let function = self.input.u8() & 0x8f | 0x80;
        let tags: Vec<u32> = self.side.open.iter().map(|open| open.tag).collect();
        let referenced = self.input.pick(&tags).copied().unwrap_or(u32::MAX);
        let pdu = self.request(0x02, function).word(20, referenced);
        self.send(pdu);
    }

    fn nop_out(&mut self) {
        let (answer, len) = (self.input.u8(), self.input.length().min(4096));
        let pdu = match answer {
            // Our pings are numbered from 1.
            0..=0x7f => Pdu::new(0x40, 0x80)
                .word(16, u32::MAX)
                .word(20, u32::from(answer))
                .word(24, self.cmd_sn),
            _ => self
                .request(0x00, 0x80)
                .word(20, u32::MAX)
                .data(filler(0, 0, len)),
        };
        self.send(pdu);
    }

    fn text_request(&mut self) {
        let flags = self.input.u8() & 0xc0;
        let words: [&[u8]; 5] = [
            b"SendTargets=All\0",
            b"SendTargets=\0",
            b"SendTargets=iqn.x\0",
            b"MaxRecvDataSegmentLength=1024\0",
            b"X-unknown=",
        ];
        let mut data = self.input.pick(&words).expect("there are some").to_vec();
        let more = usize::from(self.input.u8());
        data.extend_from_slice(self.input.bytes(more));
        // The same exchange goes on, or another begins.
        let transfer_tag = if self.input.u8() & 1 == 0 {
            u32::MAX
        } else {
            1
        };
        if transfer_tag == 1 {
            self.tag = self.tag.saturating_sub(1);
        }
        let pdu = self.request(0x04, flags).word(20, transfer_tag).data(data);
        self.send(pdu);
    }

    fn other_request(&mut self) {
        let opcode = *self
            .input
            .pick(&[0x06, 0x10, 0x03, 0x1c, 0x20])
            .expect("there are some");
        let flags = self.input.u8();
        let pdu = self.request(opcode, flags);
        self.send(pdu);
    }

    /// One of the open commands.
    fn any(&mut self) -> Option<usize> {
        let at = usize::from(self.input.u8());
        at.checked_rem(self.side.open.len())
    }

    fn solicit(&mut self) {
        let (Some(at), how) = (self.any(), self.input.u8()) else {
            return;
        };
        let write_len = self.side.open[at].request.write_len;
        let end = match how & 3 {
            0 => write_len.min(1 << 16),
            1 => write_len / 2,
            2 => write_len.saturating_add(1),
            _ => self.input.length(),
        };
        self.side.solicit(at, end.min(1 << 24));
    }

    fn data_in(&mut self) {
        let Some(at) = self.any() else { return };
        let (how, len) = (self.input.u8(), self.input.length().min(1 << 14));
        let sense = [0x70; 18];
        let outcome = Outcome {
            status: if how & 2 != 0 { 2 } else { 0 },
            sense: if how & 2 != 0 { &sense } else { &[] },
            transfer_len: u64::from(len),
        };
        self.side
            .data_in(at, len, (how & 1 == 0).then_some(outcome));
    }

    fn respond(&mut self) {
        let Some(at) = self.any() else { return };
        let (status, len) = (self.input.u8(), self.input.length());
        let sense = vec![0x72; usize::from(status)];
        let transfer_len = u64::from(len);
        self.side.respond(
            at,
            Outcome {
                status,
                sense: &sense,
                transfer_len,
            },
        );
    }

    /// Task management and what else a driver answers.
    fn manage(&mut self) {
        match self.input.below(4) {
            0 => {
                if let Some(at) = self.any() {
                    self.side.abort(at);
                }
            }
            1 => {
                let at = usize::from(self.input.u8());
                if let Some(at) = at.checked_rem(self.side.functions.len()) {
                    let response = self.input.u8();
                    self.side.answer_function(at, response);
                }
            }
            2 => {
                let record = TargetRecord {
                    name: TARGET.to_owned(),
                    addresses: vec!["[::1]:3260,1".to_owned(); 3],
                };
                let count = usize::from(self.input.u8());
                self.side.send_targets(&vec![record; count]);
            }
            _ => self.side.logout_response(),
        }
        self.side.follow_events();
    }
}
