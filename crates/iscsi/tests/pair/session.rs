//! Everything except reads and writes: login and its refusals, discovery, task management, pings, logout, async
//! messages.

use iscsi::*;

use crate::pair::*;

fn refused(pair: &mut Pair) -> (LoginStatus, Option<String>) {
    pair.until("login refused", |pair| {
        pair.initiator
            .saw(|event| matches!(event, InitiatorEvent::Closed(_)))
    });
    let is_refusal = |event: &TargetEvent| {
        matches!(event, TargetEvent::Closed(CloseReason::LoginRefused { .. }))
    };
    assert!(pair.target.saw(is_refusal));
    match pair.initiator.events.last() {
        Some(InitiatorEvent::Closed(CloseReason::LoginRefused {
            status,
            target_address,
        })) => (*status, target_address.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_sides_log_in_with_the_same_parameters() {
    let mut pair = Pair::with(OperationalConfig::default(), 1);
    pair.log_in();
    let initiator = pair.initiator.machine.parameters();
    assert_eq!(initiator, pair.target.machine.parameters());
    assert_eq!(initiator.first_burst_length, 262_144);
    assert!(pair.initiator.saw(|event| matches!(
        event,
        InitiatorEvent::LoggedIn {
            tsih: 7,
            portal_group_tag: Some(1),
            ..
        }
    )));
    let request = LoginRequest {
        initiator_name: INITIATOR.into(),
        initiator_alias: None,
        target_name: Some(TARGET.into()),
        session_type: SessionType::Normal,
        isid: Isid::random([0; 3], 0),
        tsih: 0,
        cid: 0,
    };
    assert_eq!(
        pair.target.events[0],
        TargetEvent::LoginRequest(request.clone())
    );
    assert_eq!(pair.target.events[1], TargetEvent::SessionRequest(request));
}

#[test]
fn the_driver_refuses_at_either_question() {
    for status in [LoginStatus::NOT_FOUND, LoginStatus::AUTHORIZATION_FAILURE] {
        let mut pair = Pair::with(OperationalConfig::default(), 2);
        pair.target.login_answer = Err(status);
        assert_eq!(refused(&mut pair), (status, None));
    }
    let mut pair = Pair::with(OperationalConfig::default(), 2);
    pair.target.session_answer = Err(LoginStatus::OUT_OF_RESOURCES);
    assert_eq!(refused(&mut pair), (LoginStatus::OUT_OF_RESOURCES, None));
}

#[test]
fn a_redirection_says_where_to_go() {
    let mut pair = Pair::with(OperationalConfig::default(), 2);
    pair.target.login_answer = Err(LoginStatus::MOVED_TEMPORARILY);
    let address = Some("10.0.0.2:3260,1".to_owned());
    assert_eq!(
        refused(&mut pair),
        (LoginStatus::MOVED_TEMPORARILY, address)
    );
}

#[test]
fn reinstatement_waits_until_the_driver_has_ended_the_old_session() {
    let mut target = TargetConnection::new(TargetConfig::default());
    let mut initiator = InitiatorConnection::new(normal());
    let mut wire = Vec::new();
    // Up to SessionRequest, which is left unanswered.
    for _ in 0..2 {
        let transmit = initiator.poll_transmit().unwrap();
        send(&mut wire, &transmit, &[]);
        let pdu = receive(&mut wire, &target.frame_limits()).unwrap().unwrap();
        target.receive(0, &pdu.bhs, &pdu.ahs, rx_data(&pdu));
        if let Some(TargetEvent::LoginRequest(_)) = target.poll_event() {
            assert!(target.poll_transmit().is_none() && !target.wants_read());
            target.login_continue(1).unwrap();
            let mut wire = Vec::new();
            send(&mut wire, &target.poll_transmit().unwrap(), &[]);
            let pdu = receive(&mut wire, &initiator.frame_limits())
                .unwrap()
                .unwrap();
            initiator.receive(0, &pdu.bhs, &pdu.ahs, rx_data(&pdu));
        }
    }
    assert!(target.poll_transmit().is_none() && !target.wants_read());
    assert!(target.login_accept(0).is_err(), "TSIH 0 is no session");
    target.login_accept(9).unwrap();
    assert!(
        target.login_accept(9).is_err(),
        "there is nothing to answer any more"
    );
    assert!(target.poll_transmit().is_some() && target.wants_read());
    assert!(matches!(
        target.poll_event(),
        Some(TargetEvent::LoggedIn(_))
    ));
}

fn records(count: usize) -> Vec<TargetRecord> {
    let record = |index| TargetRecord {
        name: format!("iqn.2026-11.io.sanstone:target{index}"),
        addresses: vec![
            format!("192.0.{}.{}:3260,1", index / 256, index % 256),
            format!("[2001:db8::{index}]:3260,2"),
        ],
    };
    (0..count).map(record).collect()
}

#[test]
fn discovery_lists_targets_in_as_many_pieces_as_needed() {
    for (count, segment) in [(0, 8192), (1, 8192), (100, 512), (1000, 512 << 10)] {
        let operational = OperationalConfig {
            max_recv_data_segment_length: segment,
            ..Default::default()
        };
        let initiator = InitiatorConfig {
            operational,
            ..InitiatorConfig::new(INITIATOR, None)
        };
        let mut pair = Pair::new(initiator, TargetConfig::default(), 4);
        pair.target.targets = records(count);
        pair.log_in();
        for _ in 0..2 {
            pair.initiator.machine.discover().unwrap();
            assert!(pair.initiator.machine.discover().is_err(), "one at a time");
            pair.until("targets listed", |pair| {
                pair.initiator
                    .saw(|event| matches!(event, InitiatorEvent::Targets(_)))
            });
            let expected = InitiatorEvent::Targets(records(count));
            assert_eq!(pair.initiator.events.pop(), Some(expected));
        }
        assert!(
            pair.target
                .saw(|event| *event == TargetEvent::SendTargets(SendTargets::All))
        );
        assert!(
            pair.read(0, 512).is_none(),
            "no commands in a discovery session"
        );
        pair.initiator.machine.logout().unwrap();
        pair.until("logged out", |pair| closed(pair, CloseReason::Logout));
    }
}

#[test]
fn a_normal_session_asks_for_its_own_target() {
    let mut pair = Pair::with(OperationalConfig::default(), 4);
    pair.target.targets = records(1);
    pair.log_in();
    pair.initiator.machine.discover().unwrap();
    pair.until("targets listed", |pair| {
        pair.initiator
            .saw(|event| *event == InitiatorEvent::Targets(records(1)))
    });
    assert!(
        pair.target
            .saw(|event| *event == TargetEvent::SendTargets(SendTargets::Session))
    );
}

#[test]
fn a_discovery_answer_beyond_the_bound_ends_the_connection() {
    let initiator = InitiatorConfig {
        text_len_max: 4096,
        ..InitiatorConfig::new(INITIATOR, None)
    };
    let mut pair = Pair::new(initiator, TargetConfig::default(), 4);
    pair.target.targets = records(100);
    pair.log_in();
    pair.initiator.machine.discover().unwrap();
    let error = Error::Limit {
        what: "bytes of negotiation text",
        max: 4096,
    };
    pair.until("refused", |pair| {
        let reason = CloseReason::Protocol(error.clone());
        pair.initiator
            .saw(|event| *event == InitiatorEvent::Closed(reason.clone()))
    });
}

fn closed(pair: &Pair, reason: CloseReason) -> bool {
    pair.initiator
        .saw(|event| *event == InitiatorEvent::Closed(reason.clone()))
        && pair
            .target
            .saw(|event| *event == TargetEvent::Closed(reason.clone()))
}

#[test]
fn logout_ends_both_sides_after_all_answers() {
    let mut pair = Pair::with(OperationalConfig::default(), 6);
    pair.target.medium = vec![3; 100_000];
    pair.log_in();
    let task = pair.read(0, 100_000).unwrap();
    assert_eq!(pair.result(task), good(100_000));
    pair.initiator.machine.logout().unwrap();
    assert!(pair.read(0, 512).is_none() && pair.initiator.machine.logout().is_err());
    pair.until("logged out", |pair| closed(pair, CloseReason::Logout));
    assert!(
        pair.target
            .saw(|event| *event == TargetEvent::Logout { reason: 0 })
    );
}

fn function_done(pair: &mut Pair, task: TaskId) -> u8 {
    let is_done = move |event: &InitiatorEvent| match event {
        InitiatorEvent::TaskManagementDone {
            task: done,
            response,
        } if *done == task => Some(*response),
        _ => None,
    };
    pair.until("function done", |pair| {
        pair.initiator.saw(|event| is_done(event).is_some())
    });
    pair.initiator.events.iter().find_map(is_done).unwrap()
}

#[test]
fn abort_task_ends_it_once_and_the_session_goes_on() {
    for is_write in [false, true] {
        let mut pair = Pair::with(OperationalConfig::default(), 8);
        pair.target.medium = vec![0; 1 << 20];
        pair.target.hold = true;
        pair.log_in();
        let submit = |pair: &mut Pair| match is_write {
            true => pair.write(0, pattern(1, 1 << 20)),
            false => pair.read(0, 1 << 20),
        };
        let (first, second) = (submit(&mut pair).unwrap(), submit(&mut pair).unwrap());
        pair.until("both commands there", |pair| pair.target.jobs.len() == 2);
        let function = pair.initiator.machine.abort(first).unwrap();
        assert_eq!(function_done(&mut pair, function), 0);
        assert_eq!(
            pair.initiator.done.remove(&first),
            Some(TaskResult::Aborted)
        );
        assert_eq!(pair.target.jobs.len(), 1);
        assert_eq!(pair.initiator.machine.abort(first), Err(Error::NoSuchTask));
        if !is_write {
            pair.target.hold = false;
            assert_eq!(pair.result(second), good(1 << 20));
        }
        // The window is back at its full width.
        let width = usize::from(TargetConfig::default().command_window);
        let left = if is_write { width - 1 } else { width };
        for _ in 0..100 {
            pair.step();
        }
        pair.target.hold = true;
        assert_eq!(std::iter::from_fn(|| pair.read(0, 1)).count(), left);
    }
}

#[test]
fn a_reset_ends_all_tasks_of_the_unit() {
    let mut pair = Pair::with(OperationalConfig::default(), 8);
    pair.target.medium = vec![0; 4096];
    pair.target.hold = true;
    pair.log_in();
    let tasks: Vec<_> = (0..5).map(|_| pair.read(0, 512).unwrap()).collect();
    pair.until("all there", |pair| pair.target.jobs.len() == 5);
    let function = pair
        .initiator
        .machine
        .task_management(5, LunField(0))
        .unwrap();
    assert_eq!(function_done(&mut pair, function), 0);
    for task in tasks {
        assert_eq!(pair.initiator.done.remove(&task), Some(TaskResult::Aborted));
    }
    assert_eq!(
        (
            pair.initiator.machine.tasks_len(),
            pair.target.machine.tasks_len()
        ),
        (0, 0)
    );
}

#[test]
fn functions_that_fill_the_table_leave_no_room_for_commands() {
    let initiator = InitiatorConfig {
        tasks_max: 4,
        ..normal()
    };
    let mut pair = Pair::new(initiator, TargetConfig::default(), 1);
    pair.log_in();
    let lun = LunField(0);
    let machine = &mut pair.initiator.machine;
    assert!(machine.can_submit());
    while machine.task_management(5, lun).is_ok() {}
    assert!(!machine.can_submit());
    assert!(pair.read(0, 512).is_none());
}

#[test]
fn pings_are_answered_in_both_directions() {
    let mut pair = Pair::with(OperationalConfig::default(), 9);
    pair.log_in();
    pair.initiator.machine.ping(pair.now, 1_000_000_000);
    pair.target.machine.ping(pair.now, 1_000_000_000);
    pair.until("both answered", |pair| {
        pair.initiator.saw(|event| *event == InitiatorEvent::Pong)
            && pair.target.saw(|event| *event == TargetEvent::Pong)
    });
    assert_eq!(pair.initiator.machine.next_timeout(), None);
    assert_eq!(pair.target.machine.next_timeout(), None);
}

#[test]
fn an_unanswered_ping_ends_the_connection() {
    let mut pair = Pair::with(OperationalConfig::default(), 9);
    pair.log_in();
    pair.deaf = true;
    pair.initiator.machine.ping(pair.now, 50_000_000);
    let before = pair.now;
    pair.until("timed out", |pair| {
        let timeout = InitiatorEvent::Closed(CloseReason::PingTimeout);
        pair.initiator.saw(|event| *event == timeout)
    });
    assert!(pair.now - before >= 50_000_000);
}

#[test]
fn a_silent_initiator_is_found_by_the_target() {
    let mut pair = Pair::with(OperationalConfig::default(), 9);
    pair.log_in();
    pair.deaf = true;
    pair.target.machine.ping(pair.now, 50_000_000);
    pair.until("timed out", |pair| {
        pair.target
            .saw(|event| *event == TargetEvent::Closed(CloseReason::PingTimeout))
    });
}

#[test]
fn async_messages_reach_the_driver() {
    let mut pair = Pair::with(OperationalConfig::default(), 10);
    pair.log_in();
    pair.target
        .machine
        .async_message(AsyncMessage::LogoutRequest { within_s: 5 });
    let message = InitiatorEvent::AsyncMessage {
        event: 1,
        parameters: [0, 0, 5],
        sense: vec![],
    };
    pair.until("asked to log out", |pair| {
        pair.initiator.saw(|event| *event == message)
    });
    let drop = AsyncMessage::SessionDrop {
        time2wait_s: 2,
        time2retain_s: 0,
    };
    pair.target.machine.async_message(drop);
    pair.until("dropped", |pair| {
        pair.initiator
            .saw(|event| *event == InitiatorEvent::Closed(CloseReason::DroppedByPeer))
    });
}
