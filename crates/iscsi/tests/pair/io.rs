//! Reads and writes: data integrity at the extremes of the parameters, residual counts, the command window.

use iscsi::*;
use proptest::prelude::*;

use crate::pair::*;

const SIZES: [usize; 9] = [0, 1, 512, 4096, 8191, 65_536, 65_537, 262_144, 1_048_576];

/// Writes patterns of the given sizes next to each other, all concurrently, reads them back concurrently, and
/// compares.
fn write_and_read_back(pair: &mut Pair, sizes: &[usize]) {
    let mut at = 0;
    let mut extents = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        extents.push((at, *size, index));
        at += size;
    }
    pair.target.medium = vec![0xee; at];
    pair.log_in();
    for is_write in [true, false] {
        let mut open = Vec::new();
        for &(at, size, index) in &extents {
            loop {
                let task = match is_write {
                    true => pair.write(at, pattern(index, size)),
                    false => pair.read(at, size),
                };
                if let Some(task) = task {
                    open.push((task, size, index));
                    break;
                }
                pair.step();
            }
        }
        for (task, size, index) in open {
            assert_eq!(pair.result(task), good(size));
            assert!(
                pair.initiator.buffers[&task] == pattern(index, size),
                "data of {index}"
            );
        }
    }
    assert_eq!(pair.initiator.machine.tasks_len(), 0);
    assert_eq!(pair.target.machine.tasks_len(), 0);
    assert!(
        !pair
            .target
            .saw(|event| matches!(event, TargetEvent::Closed(_)))
    );
}

fn extremes() -> impl Strategy<Value = OperationalConfig> {
    let length =
        || prop::sample::select(vec![512u32, 1000, 4096, 8192, 65_536, 262_144, 16_777_215]);
    (
        any::<[bool; 4]>(),
        length(),
        length(),
        length(),
        prop::sample::select(vec![1u16, 2, 16, 65_535]),
    )
        .prop_map(|(flags, segment, burst, first, r2ts)| OperationalConfig {
            header_digest: flags[0],
            data_digest: flags[1],
            initial_r2t: flags[2],
            immediate_data: flags[3],
            max_recv_data_segment_length: segment,
            max_burst_length: burst,
            first_burst_length: first,
            max_outstanding_r2t: r2ts,
            ..OperationalConfig::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn data_survives_every_mixture_of_parameters(
        initiator in extremes(),
        target in extremes(),
        sizes in prop::collection::vec(prop::sample::select(SIZES[..7].to_vec()), 1..12),
        seed in any::<u64>(),
    ) {
        let initiator = InitiatorConfig { operational: initiator, ..normal() };
        let target = TargetConfig { operational: target, command_window: 4, ..Default::default() };
        let mut pair = Pair::new(initiator, target, seed);
        write_and_read_back(&mut pair, &sizes);
    }
}

#[test]
fn every_combination_of_the_switches_moves_all_sizes() {
    for bits in 0..16u32 {
        for (segment, burst, first) in [
            (512, 512, 512),
            (8192, 16_384, 65_536),
            (262_144, 1 << 20, 512),
        ] {
            let operational = OperationalConfig {
                initial_r2t: bits & 1 != 0,
                immediate_data: bits & 2 != 0,
                header_digest: bits & 4 != 0,
                data_digest: bits & 4 != 0,
                max_outstanding_r2t: if bits & 8 != 0 { 1 } else { 8 },
                max_recv_data_segment_length: segment,
                max_burst_length: burst,
                first_burst_length: first,
                ..OperationalConfig::default()
            };
            let on = operational.header_digest;
            let mut pair = Pair::with(operational, u64::from(bits) * 77 + 5);
            write_and_read_back(&mut pair, &SIZES[..8]);
            assert_eq!(pair.target.machine.parameters().digests, digests(on));
        }
    }
}

#[test]
fn four_mebibytes_in_one_command() {
    let mut pair = Pair::with(OperationalConfig::default(), 3);
    write_and_read_back(&mut pair, &[4 << 20, 512, 4 << 20]);
}

#[test]
fn more_commands_than_the_window_wait_their_turn() {
    let target = TargetConfig {
        command_window: 3,
        ..TargetConfig::default()
    };
    let mut pair = Pair::new(normal(), target, 11);
    pair.target.medium = vec![0; 4096];
    pair.target.hold = true;
    pair.log_in();
    let open: Vec<TaskId> = std::iter::from_fn(|| pair.read(0, 512)).collect();
    assert_eq!(open.len(), 3);
    for _ in 0..100 {
        pair.step();
    }
    assert!(!pair.initiator.machine.can_submit());
    pair.target.hold = false;
    for task in open {
        assert_eq!(pair.result(task), good(512));
    }
    assert!(pair.initiator.machine.can_submit());
    for _ in 0..50 {
        let task = pair.read(0, 512).expect("the window is open again");
        assert_eq!(pair.result(task), good(512));
    }
    assert_eq!(pair.target.tasks_seen_max, 3);
}

#[test]
fn residuals_say_how_far_the_lengths_differ() {
    let mut pair = Pair::with(OperationalConfig::default(), 5);
    pair.target.medium = vec![7; 200_000];
    pair.log_in();
    for direction in [Direction::Read, Direction::Write] {
        for (expected, actual) in [(100_000, 512), (512, 100_000), (512, 512), (1024, 0)] {
            let task = pair
                .submit(direction, 0, actual, vec![1; expected])
                .unwrap();
            let residual = match expected.cmp(&actual) {
                std::cmp::Ordering::Less => Residual::Overflow((actual - expected) as u32),
                std::cmp::Ordering::Equal => Residual::None,
                std::cmp::Ordering::Greater => Residual::Underflow((expected - actual) as u32),
            };
            let TaskResult::Completed {
                status,
                residual: got,
                transferred,
                ..
            } = pair.result(task)
            else {
                panic!("not completed");
            };
            assert_eq!(
                (status, got),
                (GOOD, residual),
                "{direction:?} {expected} {actual}"
            );
            assert_eq!(transferred as usize, expected.min(actual), "{direction:?}");
        }
    }
}

#[test]
fn a_command_without_expected_length_reports_overflow() {
    let mut pair = Pair::with(OperationalConfig::default(), 5);
    pair.target.medium = vec![7; 4096];
    pair.log_in();
    let task = pair.submit(Direction::None, 0, 512, Vec::new()).unwrap();
    let TaskResult::Completed {
        residual,
        transferred,
        ..
    } = pair.result(task)
    else {
        panic!()
    };
    assert_eq!((residual, transferred), (Residual::Overflow(512), 0));
}

#[test]
fn a_refused_write_swallows_its_unsolicited_data() {
    for (initial_r2t, immediate_data) in [(false, false), (false, true), (true, true)] {
        let operational = OperationalConfig {
            initial_r2t,
            immediate_data,
            max_recv_data_segment_length: 4096,
            ..OperationalConfig::default()
        };
        let mut pair = Pair::with(operational, 21);
        pair.target.medium = vec![0; 262_144];
        pair.target.refuse = Some(vec![0x70, 0, 5, 0, 0, 0, 0, 10]);
        pair.log_in();
        let tasks: Vec<_> = (0..4)
            .map(|_| pair.write(0, pattern(1, 200_000)).unwrap())
            .collect();
        for task in tasks {
            let TaskResult::Completed { status, sense, .. } = pair.result(task) else {
                panic!()
            };
            assert_eq!((status, sense.len()), (CHECK_CONDITION, 8));
        }
        pair.target.refuse = None;
        let task = pair.write(0, pattern(2, 200_000)).unwrap();
        assert_eq!(pair.result(task), good(200_000));
        assert!(pair.target.medium[..200_000] == pattern(2, 200_000));
    }
}
