//! A target and an initiator connected in virtual time by two byte streams that are split and delayed at random, with
//! a minimal driver for each. The target serves one array of bytes; its commands are `READ(16)` and `WRITE(16)` in
//! units of one byte.

use std::collections::HashMap;

use iscsi::frame::{DataDigest, Digests, frame};
use iscsi::*;

/// A seeded source of choices (xorshift; reproducibility matters here, quality does not).
#[derive(Clone)]
pub(crate) struct Choices(pub(crate) u64);

impl Choices {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }
}

/// Appends a PDU to a stream, taking its data from `payload`.
pub(crate) fn send(wire: &mut Vec<u8>, transmit: &Transmit, payload: &[u8]) {
    let before = wire.len();
    wire.extend_from_slice(&transmit.header);
    wire.extend(transmit.header_digest().into_iter().flatten());
    let data = match &transmit.data {
        TransmitData::None => &[][..],
        TransmitData::Inline(bytes) => bytes,
        TransmitData::Task { offset, len, .. } => {
            &payload[*offset as usize..(*offset + *len) as usize]
        }
    };
    wire.extend_from_slice(data);
    wire.extend(std::iter::repeat_n(0, transmit.padding()));
    if transmit.has_data_digest() {
        let mut digest = DataDigest::default();
        digest.update(data);
        wire.extend(digest.finish());
    }
    assert_eq!(wire.len() - before, transmit.wire_len());
}

pub(crate) struct Received {
    pub(crate) bhs: [u8; 48],
    pub(crate) ahs: Vec<u8>,
    pub(crate) data: Vec<u8>,
    pub(crate) payload: bool,
}

/// Removes one complete PDU from the front of a stream.
pub(crate) fn receive(
    stream: &mut Vec<u8>,
    limits: &frame::FrameLimits,
) -> Result<Option<Received>, Error> {
    let Some(found) = frame(stream, limits)? else {
        return Ok(None);
    };
    if stream.len() < found.total_len {
        return Ok(None);
    }
    found.verify_header(stream)?;
    let data = stream[found.data()].to_vec();
    if let Some(at) = found.data_digest_offset {
        let mut digest = DataDigest::default();
        data.chunks(7).for_each(|chunk| digest.update(chunk));
        digest.verify(stream[at..at + 4].try_into().unwrap())?;
    }
    let received = Received {
        bhs: stream[..48].try_into().unwrap(),
        ahs: stream[found.ahs()].to_vec(),
        data,
        payload: found.payload,
    };
    stream.drain(..found.total_len);
    Ok(Some(received))
}

pub(crate) fn rx_data(received: &Received) -> RxData<'_> {
    match received.payload {
        true => RxData::Length(received.data.len() as u32),
        false => RxData::Inline(&received.data),
    }
}

/// A command at the target.
pub(crate) struct Job {
    pub(crate) request: CommandRequest,
    pub(crate) buffer: Vec<u8>,
    /// For a write: how much was solicited, and whether it has arrived.
    granted: Option<u32>,
    complete: bool,
}

/// The target with its driver.
pub(crate) struct TargetSide {
    pub(crate) machine: TargetConnection,
    pub(crate) medium: Vec<u8>,
    pub(crate) jobs: HashMap<TaskId, Job>,
    /// Buffers of tasks whose answers are being sent.
    answering: HashMap<TaskId, Vec<u8>>,
    ready: Vec<TaskId>,
    pub(crate) stream: Vec<u8>,
    pub(crate) events: Vec<TargetEvent>,
    pub(crate) targets: Vec<TargetRecord>,
    /// If set, commands are refused with this sense data.
    pub(crate) refuse: Option<Vec<u8>>,
    /// Whether commands are kept without an answer.
    pub(crate) hold: bool,
    pub(crate) login_answer: Result<(), LoginStatus>,
    /// The authentication demanded of the initiator.
    pub(crate) authentication: Option<Authentication>,
    pub(crate) session_answer: Result<u16, LoginStatus>,
    pub(crate) tasks_seen_max: usize,
    /// The number of commands that asked for stage times.
    pub(crate) asked: usize,
}

fn extent(cdb: &[u8]) -> (usize, usize) {
    let offset = u64::from_be_bytes(cdb[2..10].try_into().unwrap());
    let len = u32::from_be_bytes(cdb[10..14].try_into().unwrap());
    (offset as usize, len as usize)
}

/// The stage times that the target reports for each command: small values, which arrive exactly.
pub(crate) const STAGE_TIMES: StageTimes = StageTimes {
    queue_ns: 1,
    volume_ns: 2 << 20,
    medium_ns: Some(3 << 10),
    reply_ns: 0,
};

pub(crate) const GOOD: u8 = 0;
pub(crate) const CHECK_CONDITION: u8 = 2;

impl TargetSide {
    fn take_events(&mut self, payload: &[u8]) {
        while let Some(event) = self.machine.poll_event() {
            match &event {
                TargetEvent::LoginRequest(_) => match self.login_answer {
                    Ok(()) => match self.authentication.take() {
                        Some(authentication) => {
                            self.machine.login_authenticate(1, authentication).unwrap();
                        }
                        None => self.machine.login_continue(1).unwrap(),
                    },
                    Err(status) => {
                        let address = (status.class() == 1).then_some("10.0.0.2:3260,1");
                        self.machine.login_reject(status, address).unwrap();
                    }
                },
                TargetEvent::SessionRequest(_) => match self.session_answer {
                    Ok(tsih) => self.machine.login_accept(tsih).unwrap(),
                    Err(status) => self.machine.login_reject(status, None).unwrap(),
                },
                TargetEvent::AuthenticationFailed { .. } => {
                    let status = LoginStatus::AUTHENTICATION_FAILURE;
                    self.machine.login_reject(status, None).unwrap();
                }
                TargetEvent::SendTargets(_) => {
                    let targets = iscsi::text::encode_targets(&self.targets);
                    self.machine.send_targets(&targets).unwrap();
                }
                TargetEvent::Command(request) => self.command(request.clone(), payload),
                TargetEvent::DataOut { task, offset, len } => {
                    let (offset, len) = (*offset as usize, *len as usize);
                    if let Some(job) = self.jobs.get_mut(task) {
                        let room = job.granted.unwrap_or(job.request.unsolicited_len);
                        assert!(offset + len <= room as usize, "beyond what was solicited");
                        job.buffer[offset..offset + len].copy_from_slice(&payload[..len]);
                    }
                }
                TargetEvent::DataComplete { task } => self.data_complete(*task),
                // The machine answers it, so the job is dropped.
                TargetEvent::Failed { task } => {
                    self.jobs.remove(task);
                    self.ready.retain(|ready| ready != task);
                }
                TargetEvent::TaskManagement(request) => self.function(request),
                TargetEvent::Logout { .. } => self.machine.logout_response(0).unwrap(),
                _ => {}
            }
            let is_data = matches!(
                event,
                TargetEvent::DataOut { .. }
                    | TargetEvent::DataComplete { .. }
                    | TargetEvent::Command(_)
            );
            if !is_data {
                self.events.push(event);
            }
        }
        self.tasks_seen_max = self.tasks_seen_max.max(self.machine.tasks_len());
    }

    fn command(&mut self, request: CommandRequest, payload: &[u8]) {
        let task = request.task;
        self.asked += usize::from(request.asks_stage_times);
        let immediate = request.immediate_len as usize;
        let mut buffer = vec![0; request.write_len as usize];
        buffer[..immediate].copy_from_slice(&payload[..immediate]);
        if let Some(sense) = &self.refuse {
            let outcome = Outcome {
                status: CHECK_CONDITION,
                sense,
                transfer_len: 0,
            };
            return self.machine.respond(task, outcome).unwrap();
        }
        let (_, len) = extent(&request.cdb);
        let wanted = request.write_len.min(len as u32);
        let is_write = request.direction == Direction::Write;
        self.jobs.insert(
            task,
            Job {
                request,
                buffer,
                granted: None,
                complete: !is_write,
            },
        );
        if is_write && !self.hold {
            // In one piece, or in two if the second part must be solicited.
            let job = self.jobs.get_mut(&task).unwrap();
            let first = match wanted / 2 >= job.request.unsolicited_len && wanted % 3 == 0 {
                true => wanted / 2,
                false => wanted,
            };
            job.granted = Some(first);
            self.machine.solicit(task, first).unwrap();
        }
        self.ready.push(task);
    }

    fn data_complete(&mut self, task: TaskId) {
        let job = self.jobs.get_mut(&task).unwrap();
        let wanted = job.request.write_len.min(extent(&job.request.cdb).1 as u32);
        match job.granted < Some(wanted) {
            true => {
                job.granted = Some(wanted);
                self.machine.solicit(task, wanted).unwrap();
            }
            false => job.complete = true,
        }
    }

    fn function(&mut self, request: &TaskManagementRequest) {
        let victims: Vec<TaskId> = match request.function {
            1 => request.referenced.into_iter().collect(),
            _ => self.jobs.keys().copied().collect(),
        };
        let response = match (request.function, victims.is_empty()) {
            (1, true) => TaskManagementRequest::TASK_DOES_NOT_EXIST,
            _ => TaskManagementRequest::FUNCTION_COMPLETE,
        };
        for victim in victims {
            let _ = self.machine.abort(victim);
            self.jobs.remove(&victim);
            self.ready.retain(|task| *task != victim);
        }
        self.machine
            .task_management_response(request.task, response)
            .unwrap();
    }

    /// Executes a random one of the commands that are ready.
    fn work(&mut self, choices: &mut Choices) {
        if self.ready.is_empty() || self.hold {
            return;
        }
        let index = choices.below(self.ready.len());
        let task = self.ready[index];
        if !self.jobs[&task].complete {
            return;
        }
        self.ready.swap_remove(index);
        let job = self.jobs.remove(&task).unwrap();
        let (offset, len) = extent(&job.request.cdb);
        let offset = offset.min(self.medium.len());
        let len = len.min(self.medium.len() - offset);
        let good = Outcome {
            status: GOOD,
            sense: &[],
            transfer_len: len as u64,
        };
        if job.request.direction == Direction::Write {
            let len = len.min(job.buffer.len());
            self.medium[offset..offset + len].copy_from_slice(&job.buffer[..len]);
            return self.machine.respond(task, good).unwrap();
        }
        self.answering
            .insert(task, self.medium[offset..offset + len].to_vec());
        let first = choices.below(len + 1) as u32;
        match choices.below(3) {
            0 => self.machine.data_in(task, len as u32, Some(good)).unwrap(),
            1 => {
                self.machine.data_in(task, first, None).unwrap();
                self.machine
                    .data_in(task, len as u32 - first, Some(good))
                    .unwrap();
            }
            _ => {
                self.machine.data_in(task, len as u32, None).unwrap();
                self.machine.respond(task, good).unwrap();
            }
        }
    }

    fn transmit(&mut self, wire: &mut Vec<u8>, choices: &mut Choices) {
        while let Some(mut transmit) = self.machine.poll_transmit() {
            if self.machine.parameters().stage_times {
                transmit.tell_stage_times(&STAGE_TIMES);
            }
            let payload = match &transmit.data {
                TransmitData::Task { task, .. } => &self.answering[task][..],
                _ => &[],
            };
            send(wire, &transmit, payload);
            if let Some(task) = transmit.ends {
                self.answering.remove(&task);
            }
            if choices.below(8) == 0 {
                break;
            }
        }
    }
}

/// The initiator with its driver.
pub(crate) struct InitiatorSide {
    pub(crate) machine: InitiatorConnection,
    pub(crate) buffers: HashMap<TaskId, Vec<u8>>,
    pub(crate) done: HashMap<TaskId, TaskResult>,
    pub(crate) events: Vec<InitiatorEvent>,
    pub(crate) stream: Vec<u8>,
}

impl InitiatorSide {
    fn take_events(&mut self, payload: &[u8]) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                InitiatorEvent::DataIn { task, offset, len } => {
                    let (offset, len) = (offset as usize, len as usize);
                    let buffer = self.buffers.get_mut(&task).unwrap();
                    buffer[offset..offset + len].copy_from_slice(&payload[..len]);
                }
                InitiatorEvent::Done { task, result } => {
                    assert!(
                        self.done.insert(task, result).is_none(),
                        "a task ended twice"
                    );
                }
                event => self.events.push(event),
            }
        }
    }
}

pub(crate) struct Pair {
    pub(crate) initiator: InitiatorSide,
    pub(crate) target: TargetSide,
    pub(crate) to_target: Vec<u8>,
    pub(crate) to_initiator: Vec<u8>,
    pub(crate) choices: Choices,
    pub(crate) now: u64,
    /// Whether everything the target sends is dropped.
    pub(crate) deaf: bool,
    /// Whether the initiator asks for stage times.
    pub(crate) asks: bool,
    /// Flips a bit in about one in this many arriving chunks.
    pub(crate) damage_one_in: Option<usize>,
}

impl Pair {
    pub(crate) fn new(initiator: InitiatorConfig, target: TargetConfig, seed: u64) -> Pair {
        Pair {
            initiator: InitiatorSide {
                machine: InitiatorConnection::new(initiator),
                buffers: HashMap::new(),
                done: HashMap::new(),
                events: Vec::new(),
                stream: Vec::new(),
            },
            target: TargetSide {
                machine: TargetConnection::new(target),
                medium: Vec::new(),
                jobs: HashMap::new(),
                answering: HashMap::new(),
                ready: Vec::new(),
                stream: Vec::new(),
                events: Vec::new(),
                targets: Vec::new(),
                refuse: None,
                hold: false,
                login_answer: Ok(()),
                authentication: None,
                session_answer: Ok(7),
                tasks_seen_max: 0,
                asked: 0,
            },
            to_target: Vec::new(),
            to_initiator: Vec::new(),
            choices: Choices(seed | 1),
            now: 0,
            deaf: false,
            asks: false,
            damage_one_in: None,
        }
    }

    /// Both sides with the same configuration, in a normal session.
    pub(crate) fn with(operational: OperationalConfig, seed: u64) -> Pair {
        let initiator = InitiatorConfig {
            operational: operational.clone(),
            ..normal()
        };
        let target = TargetConfig {
            operational,
            ..TargetConfig::default()
        };
        Pair::new(initiator, target, seed)
    }

    /// One round: each side sends, some bytes arrive, some commands are executed. True if anything moved.
    pub(crate) fn step(&mut self) -> bool {
        self.now += 1_000_000;
        if self
            .initiator
            .machine
            .next_timeout()
            .is_some_and(|due| due <= self.now)
        {
            self.initiator.machine.handle_timeout(self.now);
            self.initiator.take_events(&[]);
        }
        if self
            .target
            .machine
            .next_timeout()
            .is_some_and(|due| due <= self.now)
        {
            self.target.machine.handle_timeout(self.now);
            self.target.take_events(&[]);
        }
        while let Some(transmit) = self.initiator.machine.poll_transmit() {
            let payload = match &transmit.data {
                TransmitData::Task { task, .. } => &self.initiator.buffers[task][..],
                _ => &[],
            };
            send(&mut self.to_target, &transmit, payload);
            if self.choices.below(8) == 0 {
                break;
            }
        }
        self.target.work(&mut self.choices);
        self.target
            .transmit(&mut self.to_initiator, &mut self.choices);
        if self.deaf {
            self.to_initiator.clear();
        }
        let moving = !self.to_target.is_empty() || !self.to_initiator.is_empty();
        let arrived = cut(&mut self.to_target, &mut self.choices, self.damage_one_in);
        self.target.stream.extend(arrived);
        while self.target.machine.wants_read() {
            let limits = self.target.machine.frame_limits();
            match receive(&mut self.target.stream, &limits) {
                Ok(None) => break,
                Err(error) => self.target.machine.fail(error),
                Ok(Some(pdu)) => {
                    let data = rx_data(&pdu);
                    self.target
                        .machine
                        .receive(self.now, &pdu.bhs, &pdu.ahs, data);
                    self.target.take_events(&pdu.data);
                }
            }
        }
        self.target.take_events(&[]);
        let arrived = cut(
            &mut self.to_initiator,
            &mut self.choices,
            self.damage_one_in,
        );
        self.initiator.stream.extend(arrived);
        while self.initiator.machine.wants_read() {
            let limits = self.initiator.machine.frame_limits();
            match receive(&mut self.initiator.stream, &limits) {
                Ok(None) => break,
                Err(error) => self.initiator.machine.fail(error),
                Ok(Some(pdu)) => {
                    let data = rx_data(&pdu);
                    self.initiator
                        .machine
                        .receive(self.now, &pdu.bhs, &pdu.ahs, data);
                    self.initiator.take_events(&pdu.data);
                }
            }
        }
        self.initiator.take_events(&[]);
        moving
    }

    /// Steps until `condition`.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, condition: impl Fn(&Pair) -> bool) {
        for _ in 0..100_000 {
            if condition(self) {
                return;
            }
            self.step();
        }
        panic!(
            "never: {what}\ninitiator {:?}\ntarget {:?}",
            self.initiator.events, self.target.events
        );
    }

    #[track_caller]
    pub(crate) fn log_in(&mut self) {
        self.until("logged in", |pair| {
            pair.initiator
                .saw(|event| matches!(event, InitiatorEvent::LoggedIn { .. }))
        });
    }

    pub(crate) fn submit(
        &mut self,
        direction: Direction,
        at: usize,
        cdb_len: usize,
        buffer: Vec<u8>,
    ) -> Option<TaskId> {
        let mut cdb = [0; 16];
        cdb[0] = if direction == Direction::Write {
            0x8a
        } else {
            0x88
        };
        cdb[2..10].copy_from_slice(&(at as u64).to_be_bytes());
        cdb[10..14].copy_from_slice(&(cdb_len as u32).to_be_bytes());
        let data_len = if direction == Direction::None {
            0
        } else {
            buffer.len() as u32
        };
        let lun = LunField(0);
        let command = OutgoingCommand {
            lun,
            cdb: &cdb,
            attribute: 1,
            direction,
            data_len,
            asks_stage_times: self.asks,
        };
        let task = self.initiator.machine.submit(command).ok()?;
        self.initiator.buffers.insert(task, buffer);
        Some(task)
    }

    pub(crate) fn write(&mut self, at: usize, data: Vec<u8>) -> Option<TaskId> {
        let len = data.len();
        self.submit(Direction::Write, at, len, data)
    }

    pub(crate) fn read(&mut self, at: usize, len: usize) -> Option<TaskId> {
        self.submit(Direction::Read, at, len, vec![0; len])
    }

    #[track_caller]
    pub(crate) fn result(&mut self, task: TaskId) -> TaskResult {
        self.until("task done", |pair| pair.initiator.done.contains_key(&task));
        self.initiator.done.remove(&task).unwrap()
    }
}

impl InitiatorSide {
    pub(crate) fn saw(&self, which: impl Fn(&InitiatorEvent) -> bool) -> bool {
        self.events.iter().any(which)
    }
}

impl TargetSide {
    pub(crate) fn saw(&self, which: impl Fn(&TargetEvent) -> bool) -> bool {
        self.events.iter().any(which)
    }
}

/// The part of a stream that arrives in this round: nothing, some bytes, or all; possibly damaged.
fn cut(wire: &mut Vec<u8>, choices: &mut Choices, damage_one_in: Option<usize>) -> Vec<u8> {
    let len = match choices.below(4) {
        0 => 0,
        1 => choices.below(wire.len().min(100) + 1),
        2 => choices.below(wire.len() + 1),
        _ => wire.len(),
    };
    let mut arrived: Vec<u8> = wire.drain(..len).collect();
    if len > 0 && damage_one_in.is_some_and(|chances| choices.below(chances) == 0) {
        // Near the front, where headers are likely to be.
        let at = choices.below(arrived.len().min(48));
        arrived[at] ^= 1 << choices.below(8);
    }
    arrived
}

pub(crate) const TARGET: &str = "iqn.2026-11.io.sanstone:t0";
pub(crate) const INITIATOR: &str = "iqn.2026-11.io.sanstone:host";

pub(crate) fn normal() -> InitiatorConfig {
    InitiatorConfig::new(INITIATOR, Some(TARGET.to_owned()))
}

/// Bytes that differ by position and by seed.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((at ^ at >> 8 ^ at >> 16).wrapping_mul(31) ^ seed.wrapping_mul(97)) as u8)
        .collect()
}

pub(crate) fn good(transferred: usize) -> TaskResult {
    TaskResult::Completed {
        status: GOOD,
        sense: Vec::new(),
        residual: Residual::None,
        transferred: transferred as u32,
        stage_times: None,
    }
}

pub(crate) fn digests(on: bool) -> Digests {
    Digests {
        header: on,
        data: on,
    }
}
