//! Peers that break the rules: each known violation by name, then random and damaged PDUs. Nothing may panic, and the
//! memory a machine holds stays within its limits.

use iscsi::pdu::{self, FINAL, RESERVED_TAG, opcode};
use iscsi::*;
use proptest::prelude::*;

use crate::pair::*;

/// A logged-in pair, whose target is then addressed directly.
fn logged_in(operational: OperationalConfig) -> Pair {
    let initiator = InitiatorConfig {
        operational: operational.clone(),
        ..normal()
    };
    let target = TargetConfig {
        operational,
        command_window: 8,
        immediate_max: 2,
        ..Default::default()
    };
    let mut pair = Pair::new(initiator, target, 1);
    pair.target.medium = vec![0; 1 << 16];
    pair.target.hold = true;
    pair.log_in();
    pair
}

fn command(tag: u32, cmd_sn: u32, flags: u8, expected: u32) -> pdu::ScsiCommand {
    pdu::ScsiCommand {
        opcode: opcode::SCSI_COMMAND,
        flags,
        initiator_task_tag: tag.into(),
        expected_data_transfer_length: expected.into(),
        cmd_sn: cmd_sn.into(),
        ..Default::default()
    }
}

const READ: u8 = FINAL | pdu::ScsiCommand::READ;
const WRITE: u8 = FINAL | pdu::ScsiCommand::WRITE;
/// CmdSN of the first command of our initiator's sessions.
const FIRST: u32 = 1;

impl Pair {
    /// Delivers a PDU to the target; returns the opcodes of the PDUs it sends.
    fn tell(&mut self, mut header: [u8; 48], data: &[u8]) -> Vec<u8> {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let data = match header[0] & 0x3f {
            opcode::SCSI_COMMAND | opcode::SCSI_DATA_OUT => RxData::Length(data.len() as u32),
            _ => RxData::Inline(data),
        };
        self.target.machine.receive(self.now, &header, &[], data);
        while let Some(event) = self.target.machine.poll_event() {
            self.target.events.push(event);
        }
        std::iter::from_fn(|| self.target.machine.poll_transmit())
            .map(|transmit| transmit.header[0])
            .collect()
    }

    fn task(&self) -> CommandRequest {
        let command = |event: &TargetEvent| match event {
            TargetEvent::Command(request) => Some(request.clone()),
            _ => None,
        };
        self.target.events.iter().rev().find_map(command).unwrap()
    }

    #[track_caller]
    fn assert_rejected_and_closed(&mut self, said: &[u8]) {
        assert_eq!(said, [opcode::REJECT]);
        let is_protocol =
            |event: &TargetEvent| matches!(event, TargetEvent::Closed(CloseReason::Protocol(_)));
        assert!(self.target.saw(is_protocol), "{:?}", self.target.events);
        assert!(!self.target.machine.wants_read());
    }
}

fn no_immediate() -> OperationalConfig {
    OperationalConfig {
        immediate_data: false,
        initial_r2t: true,
        ..Default::default()
    }
}

#[test]
fn commands_outside_of_the_window_are_ignored() {
    let mut pair = logged_in(OperationalConfig::default());
    for cmd_sn in [
        FIRST - 1,
        FIRST + 8,
        FIRST.wrapping_sub(1000),
        FIRST + 100_000,
    ] {
        assert!(
            pair.tell(command(1, cmd_sn, READ, 512).to_bytes(), &[])
                .is_empty()
        );
    }
    assert_eq!(pair.target.machine.tasks_len(), 0);
    pair.tell(command(1, FIRST, READ, 512).to_bytes(), &[]);
    pair.tell(command(2, FIRST, READ, 512).to_bytes(), &[]);
    assert_eq!(
        pair.target.machine.tasks_len(),
        1,
        "the same number twice is one command"
    );
}

#[test]
fn a_gap_in_the_only_connection_ends_it() {
    let mut pair = logged_in(OperationalConfig::default());
    let said = pair.tell(command(1, FIRST + 1, READ, 512).to_bytes(), &[]);
    pair.assert_rejected_and_closed(&said);
}

#[test]
fn a_tag_in_use_ends_the_connection() {
    let mut pair = logged_in(OperationalConfig::default());
    pair.tell(command(1, FIRST, READ, 512).to_bytes(), &[]);
    let said = pair.tell(command(1, FIRST + 1, READ, 512).to_bytes(), &[]);
    pair.assert_rejected_and_closed(&said);
}

#[test]
fn data_that_was_not_negotiated_ends_the_connection() {
    let mut pair = logged_in(no_immediate());
    let said = pair.tell(command(1, FIRST, WRITE, 512).to_bytes(), &[0; 512]);
    pair.assert_rejected_and_closed(&said);
    let mut pair = logged_in(no_immediate());
    let unmarked = command(1, FIRST, WRITE & !FINAL, 512).to_bytes();
    let said = pair.tell(unmarked, &[]);
    pair.assert_rejected_and_closed(&said);
    // More immediate data than the command transfers, or immediate data without a write.
    for flags in [WRITE, READ] {
        let mut pair = logged_in(OperationalConfig::default());
        let said = pair.tell(command(1, FIRST, flags, 511).to_bytes(), &[0; 512]);
        pair.assert_rejected_and_closed(&said);
    }
}

fn data_out(tag: u32, target_tag: u32, data_sn: u32, offset: u32, flags: u8) -> [u8; 48] {
    pdu::DataOut {
        opcode: opcode::SCSI_DATA_OUT,
        flags,
        initiator_task_tag: tag.into(),
        target_transfer_tag: target_tag.into(),
        data_sn: data_sn.into(),
        buffer_offset: offset.into(),
        ..Default::default()
    }
    .to_bytes()
}

#[test]
fn data_out_must_fit_its_r2t() {
    // (tag offset, DataSN, Buffer Offset, flags, length)
    let wrong = [
        (1, 0, 0, FINAL, 4096),
        (0, 0, 512, FINAL, 4096),
        (0, 0, 0, FINAL, 4097),
        (0, 0, 0, FINAL, 4095),
    ];
    for (tag, data_sn, offset, flags, len) in wrong {
        let mut pair = logged_in(no_immediate());
        pair.tell(command(1, FIRST, WRITE, 4096).to_bytes(), &[]);
        let task = pair.task().task;
        pair.target.machine.solicit(task, 4096).unwrap();
        let r2t = pair.target.machine.poll_transmit().unwrap().header;
        let target_tag = u32::from_be_bytes(r2t[20..24].try_into().unwrap());
        let said = pair.tell(
            data_out(1, target_tag + tag, data_sn, offset, flags),
            &vec![0; len],
        );
        pair.assert_rejected_and_closed(&said);
    }
}

#[test]
fn lost_data_fails_its_command_and_no_other() {
    // One R2T with its two Data-Out in the wrong order; then the same unsolicited.
    for unsolicited in [false, true] {
        let operational = if unsolicited {
            OperationalConfig::default()
        } else {
            no_immediate()
        };
        let mut pair = logged_in(operational);
        let flags = if unsolicited { WRITE & !FINAL } else { WRITE };
        pair.tell(command(1, FIRST, flags, 4096).to_bytes(), &[]);
        let task = pair.task().task;
        pair.target.machine.solicit(task, 4096).unwrap();
        let tag = match pair.target.machine.poll_transmit() {
            Some(r2t) => u32::from_be_bytes(r2t.header[20..24].try_into().unwrap()),
            None => RESERVED_TAG,
        };
        assert_eq!(tag == RESERVED_TAG, unsolicited);
        assert!(pair.tell(data_out(1, tag, 1, 0, 0), &[0; 2048]).is_empty());
        assert!(
            pair.target
                .saw(|event| *event == TargetEvent::Failed { task })
        );
        assert!(pair.target.machine.solicit(task, 4096).is_err());
        let said = pair.tell(data_out(1, tag, 0, 2048, FINAL), &[0; 2048]);
        assert_eq!(said, [opcode::SCSI_RESPONSE]);
        assert_eq!(pair.target.machine.tasks_len(), 0);
        pair.tell(command(1, FIRST + 1, READ, 512).to_bytes(), &[]);
        assert_eq!(pair.target.machine.tasks_len(), 1, "the session goes on");
    }
}

#[test]
fn unsolicited_data_beyond_the_first_burst_ends_the_connection() {
    let operational = OperationalConfig {
        first_burst_length: 1024,
        ..Default::default()
    };
    let mut pair = logged_in(operational);
    pair.tell(
        command(1, FIRST, WRITE & !FINAL, 8192).to_bytes(),
        &[0; 512],
    );
    assert_eq!(
        (pair.task().immediate_len, pair.task().unsolicited_len),
        (512, 1024)
    );
    let said = pair.tell(data_out(1, RESERVED_TAG, 0, 512, FINAL), &[0; 513]);
    pair.assert_rejected_and_closed(&said);
}

#[test]
fn a_refusal_waits_for_data_on_its_way_and_asks_for_no_more() {
    let refusal = Outcome {
        status: CHECK_CONDITION,
        sense: &[0x70],
        transfer_len: 0,
    };
    // Unsolicited data has not arrived yet.
    let mut pair = logged_in(OperationalConfig::default());
    assert!(
        pair.tell(
            command(1, FIRST, WRITE & !FINAL, 8192).to_bytes(),
            &[0; 512]
        )
        .is_empty()
    );
    let task = pair.task().task;
    pair.target.machine.respond(task, refusal).unwrap();
    assert!(
        pair.tell(data_out(1, RESERVED_TAG, 0, 512, 0), &[0; 512])
            .is_empty()
    );
    let said = pair.tell(data_out(1, RESERVED_TAG, 1, 1024, FINAL), &[0; 512]);
    assert_eq!(said, [opcode::SCSI_RESPONSE]);
    // The same for data requested by an R2T, which was the last one.
    let mut pair = logged_in(OperationalConfig {
        max_burst_length: 512,
        ..no_immediate()
    });
    pair.tell(command(1, FIRST, WRITE, 8192).to_bytes(), &[]);
    let task = pair.task().task;
    pair.target.machine.solicit(task, 8192).unwrap();
    let tags: Vec<u32> = std::iter::from_fn(|| pair.target.machine.poll_transmit())
        .map(|r2t| u32::from_be_bytes(r2t.header[20..24].try_into().unwrap()))
        .collect();
    assert_eq!(tags.len(), 4, "MaxOutstandingR2T");
    pair.target.machine.respond(task, refusal).unwrap();
    for (index, tag) in tags.into_iter().enumerate() {
        let said = pair.tell(data_out(1, tag, 0, index as u32 * 512, FINAL), &[0; 512]);
        assert_eq!(!said.is_empty(), index == 3);
    }
    let dropped = |event: &TargetEvent| {
        matches!(
            event,
            TargetEvent::DataOut { .. } | TargetEvent::DataComplete { .. }
        )
    };
    assert!(!pair.target.saw(dropped));
    assert!(
        pair.target.machine.respond(task, refusal).is_err(),
        "it has ended"
    );
}

#[test]
fn an_extended_cdb_and_a_bidirectional_command_are_understood() {
    let mut pair = logged_in(OperationalConfig::default());
    let mut header = command(1, FIRST, READ | WRITE, 1024);
    header.total_ahs_length = 7;
    let mut ahs = vec![0, 17, 1, 0];
    ahs.extend([0xab; 16]);
    ahs.extend([0, 5, 2, 0, 0, 0, 2, 0]);
    pair.target
        .machine
        .receive(0, &header.to_bytes(), &ahs, RxData::Length(0));
    let Some(TargetEvent::Command(request)) = pair.target.machine.poll_event() else {
        panic!()
    };
    assert_eq!(
        (request.cdb.len(), &request.cdb[16..]),
        (32, &[0xab; 16][..])
    );
    assert_eq!(request.direction, Direction::Bidirectional);
    assert_eq!((request.read_len, request.write_len), (512, 1024));
    let outcome = Outcome {
        status: GOOD,
        sense: &[],
        transfer_len: 0,
    };
    pair.target
        .machine
        .data_in(request.task, 100, Some(outcome))
        .unwrap();
    let said: Vec<_> = std::iter::from_fn(|| pair.target.machine.poll_transmit()).collect();
    let opcodes: Vec<u8> = said.iter().map(|transmit| transmit.header[0]).collect();
    assert_eq!(opcodes, [opcode::SCSI_DATA_IN, opcode::SCSI_RESPONSE]);
    let response = &said[1].header;
    assert_eq!(response[1], FINAL | 0x08 | 0x02, "underflow both ways");
    assert_eq!(
        (&response[40..44], &response[44..48]),
        (&[0, 0, 1, 156][..], &[0, 0, 4, 0][..])
    );
}

#[test]
fn data_for_tasks_that_do_not_exist_is_dropped() {
    let mut pair = logged_in(OperationalConfig::default());
    assert!(
        pair.tell(data_out(77, RESERVED_TAG, 0, 0, FINAL), &[0; 512])
            .is_empty()
    );
    assert!(pair.target.machine.wants_read());
}

#[test]
fn immediate_commands_are_bounded() {
    let mut pair = logged_in(OperationalConfig::default());
    for tag in 0..2 {
        let mut header = command(tag, FIRST, READ, 512);
        header.opcode |= opcode::IMMEDIATE;
        assert!(pair.tell(header.to_bytes(), &[]).is_empty());
    }
    let mut header = command(2, FIRST, READ, 512);
    header.opcode |= opcode::IMMEDIATE;
    assert_eq!(pair.tell(header.to_bytes(), &[]), [opcode::REJECT]);
    assert!(pair.target.machine.wants_read(), "the session goes on");
}

#[test]
fn a_flood_of_pings_stops_the_reading() {
    let mut pair = logged_in(OperationalConfig::default());
    let ping = pdu::NopOut {
        opcode: opcode::NOP_OUT | opcode::IMMEDIATE,
        flags: FINAL,
        initiator_task_tag: 5.into(),
        target_transfer_tag: RESERVED_TAG.into(),
        ..Default::default()
    };
    let mut taken = 0;
    while pair.target.machine.wants_read() {
        pair.target
            .machine
            .receive(0, &ping.to_bytes(), &[], RxData::Inline(&[]));
        taken += 1;
    }
    assert_eq!(taken, TargetConfig::default().queued_replies_max);
    // A driver that keeps reading anyway gets to at most twice that.
    for _ in 0..1000 {
        pair.target
            .machine
            .receive(0, &ping.to_bytes(), &[], RxData::Inline(&[]));
    }
    let queued = std::iter::from_fn(|| pair.target.machine.poll_transmit()).count();
    assert!(queued <= 2 * taken + 2, "{queued}");
}

#[test]
fn unknown_opcodes_and_snacks_are_rejected() {
    let mut pair = logged_in(OperationalConfig::default());
    for opcode in [0x10, 0x1f, 0x21] {
        let mut header = [0; 48];
        header[0] = opcode;
        assert_eq!(pair.tell(header, &[]), [opcode::REJECT]);
        assert!(pair.target.machine.wants_read());
    }
}

fn login(flags: u8, version_min: u8, tsih: u16) -> pdu::LoginRequest {
    pdu::LoginRequest {
        opcode: opcode::LOGIN_REQUEST | opcode::IMMEDIATE,
        flags,
        version_min,
        tsih: tsih.into(),
        initiator_task_tag: 3.into(),
        ..Default::default()
    }
}

/// The status of the last Login Response to these requests; `None` if the login continues.
fn login_status(requests: &[(pdu::LoginRequest, &str)]) -> Option<LoginStatus> {
    let mut pair = Pair::new(normal(), TargetConfig::default(), 1);
    for (request, text) in requests {
        let seen = pair.target.events.len();
        pair.tell(request.to_bytes(), text.replace(' ', "\0").as_bytes());
        if matches!(pair.target.events[seen..], [TargetEvent::LoginRequest(_)]) {
            pair.target.machine.login_continue(1).unwrap();
            while let Some(event) = pair.target.machine.poll_event() {
                if matches!(event, TargetEvent::AuthenticationFailed { .. }) {
                    let status = LoginStatus::AUTHENTICATION_FAILURE;
                    pair.target.machine.login_reject(status, None).unwrap();
                }
                pair.target.events.push(event);
            }
        }
        while pair.target.machine.poll_transmit().is_some() {}
    }
    pair.target.events.iter().find_map(|event| match event {
        TargetEvent::Closed(CloseReason::LoginRefused { status, .. }) => Some(*status),
        _ => None,
    })
}

#[test]
fn a_wrong_login_is_refused_with_its_status() {
    const NAMES: &str = "InitiatorName=iqn.i TargetName=iqn.t ";
    let security = 0x81;
    let operational = 0x87;
    let refused = [
        (
            login(security, 1, 0),
            NAMES,
            LoginStatus::UNSUPPORTED_VERSION,
        ),
        (
            login(security, 0, 0),
            "TargetName=iqn.t ",
            LoginStatus::MISSING_PARAMETER,
        ),
        (
            login(security, 0, 0),
            "InitiatorName=iqn.i ",
            LoginStatus::MISSING_PARAMETER,
        ),
        (
            login(security, 0, 0),
            "InitiatorName=iqn.i SessionType=Odd ",
            LoginStatus::SESSION_TYPE_NOT_SUPPORTED,
        ),
        (
            login(security, 0, 0),
            "InitiatorName=iqn.i TargetName=iqn.t AuthMethod=CHAP ",
            LoginStatus::AUTHENTICATION_FAILURE,
        ),
        (login(0x82, 0, 0), NAMES, LoginStatus::INITIATOR_ERROR),
        (login(0x80, 0, 0), NAMES, LoginStatus::INITIATOR_ERROR),
        (login(0x8f, 0, 0), NAMES, LoginStatus::INITIATOR_ERROR),
        (login(0xc1, 0, 0), NAMES, LoginStatus::INITIATOR_ERROR),
        (
            login(security, 0, 0),
            "nonsense",
            LoginStatus::INITIATOR_ERROR,
        ),
        (
            login(security, 0, 0),
            "InitiatorName=iqn.i\nreservation TargetName=iqn.t ",
            LoginStatus::INITIATOR_ERROR,
        ),
        (
            login(operational, 0, 0),
            "InitiatorName=iqn.i TargetName=iqn.t InitialR2T=Yes InitialR2T=Yes ",
            LoginStatus::INITIATOR_ERROR,
        ),
    ];
    for (request, text, status) in refused {
        assert_eq!(
            login_status(&[(request, text)]),
            Some(status),
            "{text} {:#x}",
            request.flags
        );
    }
    assert_eq!(login_status(&[(login(security, 0, 0), NAMES)]), None);
    // The stage, the session identifier and the tag must not change.
    let back = (login(security, 0, 0), "");
    let other_tsih = (login(operational, 0, 9), "");
    for second in [back, other_tsih] {
        let status = login_status(&[(login(security, 0, 0), NAMES), second]);
        assert_eq!(status, Some(LoginStatus::INITIATOR_ERROR));
    }
    // Names may be repeated, but not changed.
    let second = |text| {
        let leave = login(0x81, 0, 0);
        login_status(&[(leave, NAMES), (login(operational, 0, 0), text)])
    };
    assert_eq!(second(NAMES), None);
    assert_eq!(second("InitiatorName=IQN.I SessionType=Normal "), None);
    for other in [
        "InitiatorName=iqn.j ",
        "TargetName=iqn.u ",
        "SessionType=Discovery ",
        "TargetName=nonsense ",
    ] {
        assert_eq!(second(other), Some(LoginStatus::INITIATOR_ERROR), "{other}");
    }
    // A login that never ends.
    let endless = vec![(login(0x00, 0, 0), NAMES); 1].into_iter();
    let endless: Vec<_> = endless.chain(vec![(login(0x00, 0, 0), ""); 40]).collect();
    assert_eq!(login_status(&endless), Some(LoginStatus::OUT_OF_RESOURCES));
    let long = format!("X-k={} ", "v".repeat(8000));
    let endless: Vec<_> = (0..10).map(|_| (login(0x40, 0, 0), &long[..])).collect();
    assert_eq!(login_status(&endless), Some(LoginStatus::OUT_OF_RESOURCES));
    let command = pdu::LoginRequest {
        opcode: opcode::SCSI_COMMAND,
        ..login(0, 0, 0)
    };
    assert_eq!(
        login_status(&[(command, "")]),
        Some(LoginStatus::INVALID_DURING_LOGIN)
    );
}

#[test]
fn login_text_may_come_in_pieces_and_may_skip_the_security_stage() {
    let first = (login(0x44, 0, 0), "InitiatorName=iq");
    let second = (
        login(0x87, 0, 0),
        "n.i TargetName=iqn.t MaxBurstLength=4096 ",
    );
    let mut pair = Pair::new(normal(), TargetConfig::default(), 1);
    let text = |text: &str| text.replace(' ', "\0").into_bytes();
    assert_eq!(
        pair.tell(first.0.to_bytes(), &text(first.1)),
        [opcode::LOGIN_RESPONSE]
    );
    assert!(pair.tell(second.0.to_bytes(), &text(second.1)).is_empty());
    pair.target.machine.login_continue(1).unwrap();
    pair.target.machine.login_accept(5).unwrap();
    let response = pair.target.machine.poll_transmit().unwrap();
    assert_eq!(
        (response.header[1], &response.header[14..16]),
        (0x87, &[0, 5][..])
    );
    let TransmitData::Inline(answer) = response.data else {
        panic!()
    };
    let answer = String::from_utf8(answer).unwrap();
    let keys = "MaxBurstLength=4096\0TargetPortalGroupTag=1\0MaxRecvDataSegmentLength=524288\0";
    assert_eq!(answer, keys);
    assert_eq!(pair.target.machine.parameters().max_burst_length, 4096);
}

/// A roughly sensible PDU: field values come from small sets, so that they often match.
fn pdu_strategy() -> impl Strategy<Value = (Vec<u8>, usize)> {
    let small = || prop_oneof![0..12u32, Just(RESERVED_TAG), any::<u32>()];
    let opcodes = vec![
        0u8, 1, 2, 3, 4, 5, 6, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f,
    ];
    let words = prop::collection::vec(small(), 12);
    let head = (prop::sample::select(opcodes), any::<bool>(), any::<u8>());
    (
        head,
        words,
        prop::sample::select(vec![0usize, 1, 4, 48, 512, 4096, 9000]),
    )
        .prop_map(|((opcode, immediate, flags), words, len)| {
            let mut header: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            header[0] = opcode | if immediate { opcode::IMMEDIATE } else { 0 };
            header[1] = flags;
            header[4] = 0;
            header[5..8].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
            (header, len)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_sequence_of_pdus_harms_either_side(
        pdus in prop::collection::vec(pdu_strategy(), 1..60),
        before_login in any::<bool>(),
        hold in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let operational = OperationalConfig { first_burst_length: 4096, ..Default::default() };
        let mut pair = match before_login {
            true => Pair::with(operational, seed),
            false => logged_in(operational),
        };
        pair.target.hold = hold;
        if !before_login {
            for _ in 0..4 {
                pair.read(0, 4096);
                pair.write(0, vec![1; 20_000]);
            }
        }
        for (mut bytes, len) in pdus {
            bytes.resize(48 + len + (len.wrapping_neg() & 3), b'=');
            let to_target = bytes[0] & 0x20 == 0;
            match to_target {
                true => pair.target.stream.extend(bytes),
                false => pair.initiator.stream.extend(bytes),
            }
            pair.step();
            prop_assert!(pair.target.machine.tasks_len() <= 10 || before_login);
            prop_assert!(pair.initiator.machine.tasks_len() <= 1024 + 32);
        }
        for _ in 0..50 {
            pair.step();
        }
    }

    #[test]
    fn a_damaged_stream_harms_neither_side(seed in any::<u64>(), chances in 1..30usize) {
        let mut pair = Pair::with(OperationalConfig::default(), seed);
        pair.target.medium = vec![0; 1 << 16];
        pair.damage_one_in = Some(chances);
        for round in 0..200usize {
            if round % 3 == 0 {
                pair.write(0, vec![1; 20_000]);
                pair.read(0, 30_000);
            }
            if round % 17 == 0 {
                pair.initiator.machine.ping(pair.now, 1_000_000_000);
                let _ = pair.initiator.machine.task_management(5, LunField(0));
            }
            pair.step();
        }
    }

    #[test]
    fn digests_turn_damage_into_an_end(seed in any::<u64>()) {
        let operational = OperationalConfig {
            header_digest: true, data_digest: true, ..Default::default()
        };
        let mut pair = Pair::with(operational, seed);
        pair.target.medium = vec![0; 1 << 16];
        pair.log_in();
        pair.damage_one_in = Some(6);
        let mut written = Vec::new();
        for round in 0..20 {
            written.extend(pair.write(round * 3000, pattern(round, 3000)).map(|task| (task, round)));
        }
        for _ in 0..300 {
            pair.step();
        }
        for (task, round) in written {
            if let Some(TaskResult::Completed { status: GOOD, .. }) = pair.initiator.done.get(&task) {
                let at = round * 3000;
                prop_assert!(pair.target.medium[at..at + 3000] == pattern(round, 3000));
            }
        }
    }
}

#[test]
fn replies_that_nobody_takes_are_bounded_by_their_bytes() {
    const DATA: [u8; 8192] = [7; 8192];
    let mut pair = logged_in(OperationalConfig::default());
    let mut ping = pdu::NopOut {
        opcode: opcode::NOP_OUT | opcode::IMMEDIATE,
        flags: FINAL,
        initiator_task_tag: 7.into(),
        target_transfer_tag: RESERVED_TAG.into(),
        ..Default::default()
    }
    .to_bytes();
    ping[5..8].copy_from_slice(&(DATA.len() as u32).to_be_bytes()[1..]);
    let machine = &mut pair.target.machine;
    let mut queued = 0;
    while machine.wants_read() {
        machine.receive(pair.now, &ping, &[], RxData::Inline(&DATA));
        queued += DATA.len();
    }
    assert!(queued <= TargetConfig::default().queued_bytes_max + DATA.len());
    assert!(machine.is_answering());
    while machine.poll_transmit().is_some() {}
    assert!(machine.wants_read() && !machine.is_answering());
}
