//! One session of a case: it sends what the script says, segmented as the script says, answers R2Ts, and records what
//! the target sends. It sends nothing else, in particular no NOP-Out that could make the target re-examine its queues.
//! `listen` is its other half.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    ops::Range,
    rc::Rc,
    time::Duration,
};

use engine::{Gather, net::TcpStream, sync::Notify, time};
use iscsi::{SessionParameters, frame::FrameLimits, pdu};

use super::{
    history::{At, Sent, SentWhat, Shared},
    script::Function,
    wire::{self, Numbers, Prepared},
};

/// A session in full feature phase.
pub(super) struct Session {
    /// Its number in the history.
    pub(super) nexus: usize,
    pub(super) stream: TcpStream,
    pub(super) history: Shared,
    pub(super) parameters: SessionParameters,
    pub(super) limits: FrameLimits,
    pub(super) counts: RefCell<Counts>,
    /// What each command has to send.
    pub(super) commands: RefCell<BTreeMap<u32, Rc<Outgoing>>>,
    pub(super) changed: Notify,
    /// Whether it has ended, or the initiator is about to end it.
    pub(super) over: Cell<bool>,
    out: RefCell<VecDeque<Vec<u8>>>,
    wake: Notify,
    /// The segment that the script is assembling.
    pending: RefCell<Vec<u8>>,
    in_pending: RefCell<Vec<u32>>,
    segment: Cell<u64>,
    place: Cell<u64>,
    /// Set while a PDU has been sent in part: bytes that must wait for its rest.
    held: RefCell<Option<Vec<u8>>>,
    /// Commands that owe unsolicited data, by their tags, in order.
    owed: RefCell<VecDeque<u32>>,
}

/// Sequence numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) cmd_sn: u32,
    pub(super) exp_cmd_sn: u32,
    pub(super) max_cmd_sn: u32,
    /// The StatSN expected next.
    pub(super) stat_sn: u32,
}

/// What a command has to send.
pub(super) struct Outgoing {
    pub(super) prepared: Prepared,
    pub(super) cmd_sn: u32,
    pub(super) r2t_delay: Duration,
    pub(super) r2t_sn: Cell<u32>,
    /// Up to where R2Ts have asked for data.
    pub(super) asked: Cell<u32>,
    /// R2Ts to be answered: their transfer tags, and what they ask for.
    pub(super) r2ts: RefCell<VecDeque<(u32, Range<usize>)>>,
}

impl Session {
    pub(super) fn begin(
        stream: TcpStream,
        who: usize,
        history: &Shared,
        parameters: SessionParameters,
        limits: FrameLimits,
        response: &[u8; 48],
    ) -> Rc<Session> {
        let u32_at = |at: usize| {
            let bytes = response[at..at + 4].try_into().expect("four bytes");
            u32::from_be_bytes(bytes)
        };
        let nexus = history.lock().begin(who);
        Rc::new(Session {
            nexus,
            stream,
            history: history.clone(),
            parameters,
            limits,
            counts: RefCell::new(Counts {
                cmd_sn: u32_at(28),
                exp_cmd_sn: u32_at(28),
                max_cmd_sn: u32_at(32),
                stat_sn: u32_at(24).wrapping_add(1),
            }),
            commands: RefCell::default(),
            changed: Notify::new(),
            over: Cell::new(false),
            out: RefCell::default(),
            wake: Notify::new(),
            pending: RefCell::default(),
            in_pending: RefCell::default(),
            segment: Cell::default(),
            place: Cell::default(),
            held: RefCell::default(),
            owed: RefCell::default(),
        })
    }

    fn numbers(&self, tag: u32) -> Numbers {
        let counts = self.counts.borrow();
        Numbers {
            tag,
            cmd_sn: counts.cmd_sn,
            exp_stat_sn: counts.stat_sn,
        }
    }

    /// Waits up to half a second for room in the command window; returns whether there is any.
    pub(super) async fn has_window(&self) -> bool {
        let is_open = || {
            let counts = self.counts.borrow();
            self.over.get() || counts.cmd_sn <= counts.max_cmd_sn
        };
        if is_open() {
            return true;
        }
        self.flush(None).await;
        while self.send_unsolicited() {
            self.flush(None).await;
        }
        let opens = self.changed.wait_for(|| is_open().then_some(()));
        let opened = time::timeout(Duration::from_millis(500), opens).await;
        if opened.is_none() {
            let counts = *self.counts.borrow();
            let what = format!("session {}: the window stays shut: {counts:?}", self.nexus);
            self.history.lock().fault(what);
        }
        opened.is_some()
    }

    /// Adds a command to the segment. `skip`: how many CmdSNs to leave out.
    pub(super) fn command(&self, tag: u32, prepared: Prepared, what: SentWhat, skip: u32) {
        self.counts.borrow_mut().cmd_sn += skip;
        let numbers = self.numbers(tag);
        let pdu = prepared.pdu(numbers);
        if prepared.unsolicited_end > prepared.immediate_len {
            self.owed.borrow_mut().push_back(tag);
        }
        let (is_immediate, data_in_len) = (prepared.is_immediate, prepared.data_in_len);
        let r2t_delay = match &what {
            SentWhat::Command(command) => Duration::from_nanos(command.r2t_delay_ns),
            _ => Duration::ZERO,
        };
        let outgoing = Outgoing {
            asked: Cell::new(prepared.unsolicited_end as u32),
            cmd_sn: numbers.cmd_sn,
            prepared,
            r2t_delay,
            r2t_sn: Cell::default(),
            r2ts: RefCell::default(),
        };
        self.commands.borrow_mut().insert(tag, Rc::new(outgoing));
        self.add(tag, pdu, what, is_immediate, data_in_len);
    }

    /// Adds a task management function to the segment.
    pub(super) fn function(&self, tag: u32, function: &Function) {
        let numbers = self.numbers(tag);
        let referenced = self.commands.borrow().get(&function.referenced).cloned();
        let ref_cmd_sn = referenced.map_or(numbers.cmd_sn, |command| command.cmd_sn);
        let pdu = wire::function(function, ref_cmd_sn, numbers);
        let what = SentWhat::Function(function.clone());
        self.add(tag, pdu, what, function.is_immediate, 0);
    }

    /// Adds a Logout Request to the segment.
    pub(super) fn logout(&self, tag: u32) {
        let pdu = wire::logout(self.numbers(tag));
        self.history
            .lock()
            .note(format_args!("{} --> logout {tag}", self.nexus));
        self.pending.borrow_mut().extend(pdu);
    }

    fn add(&self, tag: u32, pdu: Vec<u8>, what: SentWhat, is_immediate: bool, data_in_len: u32) {
        if !is_immediate {
            self.counts.borrow_mut().cmd_sn += 1;
        }
        self.place.set(self.place.get() + 1);
        let mut history = self.history.lock();
        let segment = self.segment.get();
        let at = history.note(format_args!(
            "{} --> {tag}: {what:?}, segment {segment}",
            self.nexus
        ));
        if !matches!(what, SentWhat::Beside(_)) {
            history.nexuses[self.nexus].last_sent = tag;
        }
        let sent = Sent {
            nexus: self.nexus,
            place: self.place.get(),
            segment,
            at,
            out: None,
            what,
            unsolicited: None,
            answer: None,
            last: None,
            r2ts: Vec::new(),
            data: vec![0; data_in_len as usize],
        };
        history.sent.insert(tag, sent);
        self.in_pending.borrow_mut().push(tag);
        self.pending.borrow_mut().extend(pdu);
    }

    /// Adds the unsolicited data of the oldest command that owes some to the segment.
    pub(super) fn send_unsolicited(&self) -> bool {
        let Some(tag) = self.owed.borrow_mut().pop_front() else {
            return false;
        };
        let command = self.commands.borrow()[&tag].clone();
        let Prepared {
            immediate_len,
            unsolicited_end,
            ..
        } = command.prepared;
        let what = (command.prepared.lun, pdu::RESERVED_TAG);
        let pdus = self.data_out(tag, what, &command, immediate_len..unsolicited_end);
        self.pending.borrow_mut().extend(pdus);
        let mut history = self.history.lock();
        let at = history.note(format_args!("{} --> {tag}: that unsolicited", self.nexus));
        if let Some(sent) = history.sent.get_mut(&tag) {
            sent.unsolicited = Some(at);
        }
        true
    }

    pub(super) fn data_out(
        &self,
        tag: u32,
        what: (u32, u32),
        command: &Outgoing,
        range: Range<usize>,
    ) -> Vec<u8> {
        self.history.lock().note(format_args!(
            "{} --> {tag}: data {range:?}, transfer tag {:x}",
            self.nexus, what.1
        ));
        let segment = self.parameters.max_send_data_segment_length as usize;
        let (data, offset) = (&command.prepared.data_out[range.clone()], range.start);
        wire::data_out(what, data, offset, segment, self.numbers(tag)).concat()
    }

    /// Sends the segment, in two if it is to be cut.
    pub(super) async fn flush(&self, cut: Option<(usize, u64)>) {
        let mut segment = self.pending.take();
        let tags = self.in_pending.take();
        if segment.is_empty() {
            return;
        }
        if let Some((at, pause_ns)) = cut {
            let rest = segment.split_off(1 + (segment.len() - 1) * at / 1000);
            self.push(segment);
            *self.held.borrow_mut() = Some(Vec::new());
            time::sleep(Duration::from_nanos(pause_ns)).await;
            segment = rest;
            segment.extend(self.held.take().unwrap_or_default());
        }
        self.push(segment);
        self.segment.set(self.segment.get() + 1);
        let mut history = self.history.lock();
        let out = history.note(format_args!("{} --> all of {tags:?} is out", self.nexus));
        for tag in tags {
            if let Some(sent) = history.sent.get_mut(&tag) {
                sent.out = Some(out);
            }
        }
    }

    fn push(&self, segment: Vec<u8>) {
        self.out.borrow_mut().push_back(segment);
        self.wake.notify();
    }

    /// Sends whole PDUs between the segments of the script.
    pub(super) fn send_between(&self, pdus: Vec<u8>) {
        match &mut *self.held.borrow_mut() {
            Some(held) => held.extend(pdus),
            None => self.push(pdus),
        }
    }

    /// Closes the connection.
    pub(super) fn close(&self) -> At {
        self.over.set(true);
        self.stream.shutdown();
        self.wake.notify();
        self.changed.notify();
        let mut history = self.history.lock();
        history.note(format_args!("{} --> closes the connection", self.nexus))
    }
}

pub(super) async fn send(session: Rc<Session>) {
    loop {
        let segment = session.wake.wait_for(|| {
            let next = session.out.borrow_mut().pop_front();
            next.map(Some).or(session.over.get().then_some(None))
        });
        let Some(segment) = segment.await else {
            return;
        };
        let mut gather = Gather::new();
        gather.push_bytes(&segment);
        if session.stream.send_all(gather).await.0.is_err() {
            return;
        }
    }
}
