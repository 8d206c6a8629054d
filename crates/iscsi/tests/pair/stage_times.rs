//! Stage times: sent with the status of every command that asks for them if both ends have agreed to that, and never
//! otherwise.

use iscsi::*;

use crate::pair::*;

fn told(result: TaskResult) -> Option<StageTimes> {
    match result {
        TaskResult::Completed { stage_times, .. } => stage_times,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_status_tells_them_that_was_asked_for_them_where_both_ends_have_agreed() {
    for (offers, agrees, asks, digests) in [
        (false, false, true, false),
        (false, true, true, false),
        (true, false, true, false),
        (true, true, false, false),
        (true, true, true, false),
        (true, true, true, true),
    ] {
        let with = |stage_times| OperationalConfig {
            stage_times,
            header_digest: digests,
            data_digest: digests,
            ..OperationalConfig::default()
        };
        let initiator = InitiatorConfig {
            operational: with(offers),
            ..normal()
        };
        let target = TargetConfig {
            operational: with(agrees),
            ..TargetConfig::default()
        };
        let mut pair = Pair::new(initiator, target, 8);
        pair.target.medium = vec![7; 1 << 20];
        pair.log_in();
        pair.asks = asks;
        let told_them = offers && agrees && asks;
        let expected = told_them.then_some(STAGE_TIMES);
        // With the status in the last of one or several Data-In, or in a separate response.
        for len in [512, 4096, 300_000] {
            for _ in 0..8 {
                let task = pair.read(0, len).unwrap();
                assert_eq!(told(pair.result(task)), expected, "a read of {len}");
            }
            let task = pair.write(0, pattern(1, len)).unwrap();
            assert_eq!(told(pair.result(task)), expected, "a write of {len}");
        }
        pair.target.refuse = Some(vec![0x70, 0, 5, 0, 0, 0, 0, 10]);
        let task = pair.read(0, 512).unwrap();
        let TaskResult::Completed {
            sense, stage_times, ..
        } = pair.result(task)
        else {
            panic!("not completed");
        };
        assert_eq!((sense.len(), stage_times), (8, expected));
        assert_eq!(pair.target.asked > 0, told_them);
    }
}
