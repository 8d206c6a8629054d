//! Texts with as many pairs as there is room for: each is answered, a limited part of them for each request.

use iscsi::pdu::{self, FINAL, RESERVED_TAG, opcode};
use iscsi::*;

use crate::pair::*;

/// The most that the target may answer to one request, in bytes.
const ANSWER_MAX: usize = 3 << 10;

fn discovery() -> Pair {
    let operational = OperationalConfig {
        max_recv_data_segment_length: 1 << 20,
        ..Default::default()
    };
    let initiator = InitiatorConfig {
        operational,
        ..InitiatorConfig::new(INITIATOR, None)
    };
    let mut pair = Pair::new(initiator, TargetConfig::default(), 4);
    pair.log_in();
    pair
}

impl Pair {
    /// Sends a Text Request; returns the answer's flags, tag and text.
    fn ask(&mut self, cmd_sn: u32, tag: u32, text: &[u8]) -> Option<(u8, u32, Vec<u8>)> {
        let header = pdu::TextRequest {
            opcode: opcode::TEXT_REQUEST,
            flags: FINAL,
            data_segment_length: (text.len() as u32).to_be_bytes()[1..].try_into().unwrap(),
            initiator_task_tag: 77.into(),
            target_transfer_tag: tag.into(),
            cmd_sn: cmd_sn.into(),
            ..Default::default()
        };
        let machine = &mut self.target.machine;
        machine.receive(self.now, &header.to_bytes(), &[], RxData::Inline(text));
        while let Some(event) = machine.poll_event() {
            self.target.events.push(event);
        }
        let transmit = self.target.machine.poll_transmit()?;
        let tag = u32::from_be_bytes(transmit.header[20..24].try_into().unwrap());
        let TransmitData::Inline(text) = transmit.data else {
            return Some((transmit.header[1], tag, Vec::new()));
        };
        Some((transmit.header[1], tag, text))
    }
}

/// CmdSN of the first request of our initiator's sessions.
const FIRST: u32 = 1;

#[test]
fn every_pair_is_answered_but_not_all_at_once() {
    let mut pair = discovery();
    let text = b"a=\0".repeat(1200);
    let (mut answered, mut tag, mut requests) = (Vec::new(), RESERVED_TAG, 0);
    loop {
        let text = if requests == 0 { &text[..] } else { &[] };
        let (flags, next, answer) = pair.ask(FIRST + requests, tag, text).expect("an answer");
        assert!(answer.len() <= ANSWER_MAX, "{}", answer.len());
        answered.extend(answer);
        (tag, requests) = (next, requests + 1);
        if flags & FINAL != 0 {
            break;
        }
    }
    assert_eq!(answered, b"a=NotUnderstood\0".repeat(1200));
    assert!(requests > 3, "{requests}");
}

#[test]
fn targets_are_asked_for_after_the_pairs_before_them() {
    let mut pair = discovery();
    let text = [b"a=\0".repeat(200), b"SendTargets=All\0".to_vec()].concat();
    let (_, tag, _) = pair.ask(FIRST, RESERVED_TAG, &text).expect("an answer");
    assert!(
        !pair
            .target
            .saw(|event| matches!(event, TargetEvent::SendTargets(_)))
    );
    assert_eq!(pair.ask(FIRST + 1, tag, &[]), None, "the driver is asked");
    assert!(
        pair.target
            .saw(|event| *event == TargetEvent::SendTargets(SendTargets::All))
    );
    pair.target.machine.send_targets(b"TargetName=t\0").unwrap();
    let transmit = pair.target.machine.poll_transmit().expect("an answer");
    let TransmitData::Inline(text) = transmit.data else {
        panic!("no text");
    };
    assert!(text.ends_with(b"a=NotUnderstood\0TargetName=t\0"));
    assert_eq!(transmit.header[1], FINAL);
}

#[test]
fn a_pair_that_is_none_ends_the_connection_when_its_turn_comes() {
    let mut pair = discovery();
    let text = [b"a=\0".repeat(200), b"none\0".to_vec()].concat();
    let (_, tag, _) = pair.ask(FIRST, RESERVED_TAG, &text).expect("an answer");
    pair.ask(FIRST + 1, tag, &[]);
    let is_protocol =
        |event: &TargetEvent| matches!(event, TargetEvent::Closed(CloseReason::Protocol(_)));
    assert!(pair.target.saw(is_protocol));
}

#[test]
fn a_login_with_more_pairs_than_there_are_keys_is_refused() {
    let login = |pairs: usize| {
        let mut target = TargetConnection::new(TargetConfig::default());
        let mut text = b"InitiatorName=iqn.2026-11.test:i\0SessionType=Discovery\0".to_vec();
        text.extend(b"a=\0".repeat(pairs));
        let mut header = [0; 48];
        (header[0], header[1], header[8]) = (0x43, 0x87, 0x80);
        header[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
        target.receive(0, &header, &[], RxData::Inline(&text));
        target.poll_event()
    };
    assert!(matches!(login(100), Some(TargetEvent::LoginRequest(_))));
    let Some(TargetEvent::Closed(CloseReason::LoginRefused { status, .. })) = login(300) else {
        panic!("it is let in");
    };
    assert_eq!(status, LoginStatus::OUT_OF_RESOURCES);
}
