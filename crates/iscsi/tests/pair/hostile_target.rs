//! A target that breaks the rules against our initiator, which must end the connection or disregard it.

use iscsi::pdu::{self, FINAL, RESERVED_TAG, opcode};
use iscsi::*;

use crate::pair::*;

/// A logged-in initiator with one command of 8192 bytes in flight.
struct Victim {
    machine: InitiatorConnection,
    task: TaskId,
    stat_sn: u32,
    sent: usize,
}

impl Victim {
    fn new(direction: Direction) -> Victim {
        let operational = OperationalConfig {
            immediate_data: false,
            initial_r2t: true,
            max_burst_length: 4096,
            max_outstanding_r2t: 1,
            ..Default::default()
        };
        let mut pair = Pair::with(operational, 1);
        pair.target.hold = true;
        pair.log_in();
        let task = pair.submit(direction, 0, 8192, vec![0; 8192]).unwrap();
        let mut machine = pair.initiator.machine;
        while machine.poll_transmit().is_some() {}
        // The two Login Responses used StatSN 0 and 1.
        Victim {
            machine,
            task,
            stat_sn: 2,
            sent: 0,
        }
    }

    fn tag(&self) -> u32 {
        self.task.slot() as u32 | self.task.generation() << 16
    }

    /// Delivers a PDU; returns the resulting events.
    fn tell(&mut self, mut header: [u8; 48], len: usize) -> Vec<InitiatorEvent> {
        header[5..8].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
        let bytes = vec![0; len];
        let data = match header[0] {
            opcode::SCSI_DATA_IN => RxData::Length(len as u32),
            _ => RxData::Inline(&bytes),
        };
        self.machine.receive(0, &header, &[], data);
        self.sent += std::iter::from_fn(|| self.machine.poll_transmit()).count();
        std::iter::from_fn(|| self.machine.poll_event()).collect()
    }

    fn data_in(&self, data_sn: u32, offset: u32, flags: u8) -> pdu::DataIn {
        pdu::DataIn {
            opcode: opcode::SCSI_DATA_IN,
            flags,
            initiator_task_tag: self.tag().into(),
            target_transfer_tag: RESERVED_TAG.into(),
            stat_sn: self.stat_sn.into(),
            data_sn: data_sn.into(),
            buffer_offset: offset.into(),
            ..Default::default()
        }
    }

    fn r2t(&self, sn: u32, offset: u32, len: u32) -> pdu::R2t {
        pdu::R2t {
            opcode: opcode::R2T,
            flags: FINAL,
            initiator_task_tag: self.tag().into(),
            target_transfer_tag: (90 + sn).into(),
            stat_sn: self.stat_sn.into(),
            r2t_sn: sn.into(),
            buffer_offset: offset.into(),
            desired_data_transfer_length: len.into(),
            ..Default::default()
        }
    }

    fn response(&self) -> pdu::ScsiResponse {
        pdu::ScsiResponse {
            opcode: opcode::SCSI_RESPONSE,
            flags: FINAL,
            initiator_task_tag: self.tag().into(),
            stat_sn: self.stat_sn.into(),
            ..Default::default()
        }
    }
}

#[track_caller]
fn assert_closed(events: &[InitiatorEvent]) {
    let protocol = matches!(events, [InitiatorEvent::Closed(CloseReason::Protocol(_))]);
    assert!(protocol, "{events:?}");
}

#[test]
fn read_data_must_follow_without_a_gap_and_end_in_time() {
    for (data_sn, offset, len) in [(1, 0, 512), (0, 512, 512), (0, 0, 8193)] {
        let mut victim = Victim::new(Direction::Read);
        let header = victim.data_in(data_sn, offset, FINAL).to_bytes();
        assert_closed(&victim.tell(header, len));
    }
    let mut victim = Victim::new(Direction::Write);
    let header = victim.data_in(0, 0, FINAL).to_bytes();
    assert_closed(&victim.tell(header, 512));
}

#[test]
fn short_data_is_never_called_complete() {
    let mut victim = Victim::new(Direction::Read);
    let header = victim.data_in(0, 0, FINAL | 1).to_bytes();
    let events = victim.tell(header, 512);
    assert_eq!(
        events.last(),
        Some(&InitiatorEvent::Done {
            task: victim.task,
            result: good(512)
        })
    );
    let mut victim = Victim::new(Direction::Write);
    let header = victim.response().to_bytes();
    let events = victim.tell(header, 0);
    assert_eq!(
        events,
        [InitiatorEvent::Done {
            task: victim.task,
            result: good(0)
        }]
    );
}

#[test]
fn r2ts_must_stay_within_the_command_and_what_was_negotiated() {
    for (sn, offset, len) in [(1, 0, 512), (0, 512, 512), (0, 0, 4097), (0, 0, 0)] {
        let mut victim = Victim::new(Direction::Write);
        let header = victim.r2t(sn, offset, len).to_bytes();
        assert_closed(&victim.tell(header, 0));
    }
    let mut victim = Victim::new(Direction::Read);
    let header = victim.r2t(0, 0, 512).to_bytes();
    assert_closed(&victim.tell(header, 0));
    // A second one while the first is open.
    let mut victim = Victim::new(Direction::Write);
    let (first, second) = (
        victim.r2t(0, 0, 512).to_bytes(),
        victim.r2t(1, 512, 512).to_bytes(),
    );
    victim.machine.receive(0, &first, &[], RxData::Inline(&[]));
    assert_closed(&victim.tell(second, 0));
    // A valid one is answered.
    let mut victim = Victim::new(Direction::Write);
    assert!(victim.tell(first, 0).is_empty());
    assert_eq!(victim.sent, 1);
}

#[test]
fn a_lost_status_ends_the_connection() {
    let mut victim = Victim::new(Direction::Read);
    let mut header = victim.response();
    header.stat_sn = (victim.stat_sn + 1).into();
    assert_closed(&victim.tell(header.to_bytes(), 0));
}

#[test]
fn the_window_moves_forwards_only() {
    let mut victim = Victim::new(Direction::Read);
    let mut nop = pdu::NopIn {
        opcode: opcode::NOP_IN,
        flags: FINAL,
        initiator_task_tag: RESERVED_TAG.into(),
        target_transfer_tag: RESERVED_TAG.into(),
        exp_cmd_sn: 2.into(),
        max_cmd_sn: 1.into(),
        ..Default::default()
    };
    assert!(victim.tell(nop.to_bytes(), 0).is_empty());
    assert!(victim.machine.can_submit(), "an old MaxCmdSN is ignored");
    nop.max_cmd_sn = 1_000_000.into();
    victim.tell(nop.to_bytes(), 0);
    let command = OutgoingCommand {
        lun: LunField(0),
        cdb: &[0],
        attribute: 1,
        direction: Direction::None,
        data_len: 0,
        asks_stage_times: false,
    };
    let taken = std::iter::from_fn(|| victim.machine.submit(command).ok()).count();
    assert_eq!(taken, 1023, "tasks_max holds whatever the target allows");
}

#[test]
fn pings_from_the_target_are_answered_up_to_a_bound() {
    let mut victim = Victim::new(Direction::Read);
    let nop = pdu::NopIn {
        opcode: opcode::NOP_IN,
        flags: FINAL,
        initiator_task_tag: RESERVED_TAG.into(),
        target_transfer_tag: 5.into(),
        ..Default::default()
    };
    let mut taken = 0;
    while victim.machine.wants_read() {
        victim
            .machine
            .receive(0, &nop.to_bytes(), &[], RxData::Inline(&[]));
        taken += 1;
    }
    assert_eq!(taken, 32);
    assert_eq!(
        std::iter::from_fn(|| victim.machine.poll_transmit()).count(),
        32
    );
    assert!(victim.machine.wants_read());
}

/// A Reject of a request with this opcode and tag.
fn reject(victim: &mut Victim, opcode: u8, tag: u32) -> Vec<InitiatorEvent> {
    let header = pdu::Reject {
        opcode: opcode::REJECT,
        flags: FINAL,
        reason: 4,
        data_segment_length: [0, 0, 48],
        tag: RESERVED_TAG.into(),
        stat_sn: victim.stat_sn.into(),
        ..Default::default()
    };
    victim.stat_sn += 1;
    let refused = pdu::ScsiCommand {
        opcode,
        initiator_task_tag: tag.into(),
        ..Default::default()
    };
    let data = RxData::Inline(&refused.to_bytes());
    victim.machine.receive(0, &header.to_bytes(), &[], data);
    std::iter::from_fn(|| victim.machine.poll_event()).collect()
}

#[test]
fn a_rejected_command_ends() {
    let mut victim = Victim::new(Direction::Read);
    let tag = victim.tag();
    let done = InitiatorEvent::Done {
        task: victim.task,
        result: TaskResult::Rejected { reason: 4 },
    };
    assert_eq!(reject(&mut victim, opcode::SCSI_COMMAND, tag), [done]);
}

#[test]
fn a_reject_ends_only_what_it_names_by_opcode_and_tag() {
    let mut victim = Victim::new(Direction::Read);
    let command = victim.tag();
    let function = victim.machine.abort(victim.task).unwrap();
    let function_tag = function.slot() as u32 | function.generation() << 16;
    let nothing = [InitiatorEvent::Rejected { reason: 4 }];
    for opcode in [
        opcode::TEXT_REQUEST,
        opcode::NOP_OUT,
        opcode::TASK_MANAGEMENT_REQUEST,
    ] {
        assert_eq!(reject(&mut victim, opcode, command), nothing);
    }
    for opcode in [opcode::SCSI_COMMAND, opcode::TEXT_REQUEST] {
        assert_eq!(reject(&mut victim, opcode, function_tag), nothing);
    }
    assert_eq!(victim.machine.tasks_len(), 2);
    let done = InitiatorEvent::TaskManagementDone {
        task: function,
        response: 255,
    };
    assert_eq!(
        reject(&mut victim, opcode::TASK_MANAGEMENT_REQUEST, function_tag),
        [done]
    );
}
