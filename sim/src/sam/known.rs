//! Bugs found earlier, each as the script that reproduced it: it must now pass under any world seed.

use super::script::{
    ABORT_TASK_SET, ACA, CLEAR_TASK_SET, Command, Ending, Function, LOGICAL_UNIT_RESET, ORDERED,
    Op, Script, Setup, Step, What,
};

const MS: u64 = 1_000_000;
const SIMPLE: u8 = 1;

/// The scripts with what they are for, under the world of `seed`.
pub fn known(seed: u64) -> Vec<(&'static str, Script)> {
    let one = setup(1);
    let two = Setup {
        tas: true,
        ..setup(2)
    };
    let all_abort = Setup {
        qerr: 1,
        ..two.clone()
    };
    let slow_write = |attribute| command(attribute, write(false), 5 * MS);
    let quick = |attribute, op| command(attribute, op, MS / 50);
    let cases = [
        (
            "a command that waited its turn is older than a function in its segment",
            one.clone(),
            vec![
                glued(0, command(ORDERED, Op::Read { lba: 4, blocks: 1 }, 5 * MS)),
                step(0, function(CLEAR_TASK_SET), 0),
            ],
        ),
        (
            "what others have aborted is not answered after an own function",
            two,
            vec![
                step(0, slow_write(SIMPLE), 3 * MS),
                step(0, function(ABORT_TASK_SET), 0),
                step(1, quick(SIMPLE, Op::TestUnitReady), 2 * MS),
                step(1, function(CLEAR_TASK_SET), 0),
            ],
        ),
        (
            "what is refused and owes data is not answered after a function",
            one.clone(),
            vec![
                step(0, quick(ACA, write(true)), MS),
                step(0, function(ABORT_TASK_SET), MS),
            ],
        ),
        (
            "nothing begins once the logout is answered",
            one,
            vec![
                glued(0, slow_write(SIMPLE)),
                glued(0, slow_write(ORDERED)),
                step(0, What::End(Ending::Logout), 0),
            ],
        ),
        (
            "a command that waits its turn and is aborted takes no unit attention with it",
            all_abort,
            vec![
                glued(0, function(LOGICAL_UNIT_RESET)),
                step(0, slow_write(SIMPLE), 2 * MS),
                step(0, quick(ORDERED, Op::TestUnitReady), 0),
                step(1, quick(SIMPLE, Op::TestUnitReady), 3 * MS),
                step(1, quick(SIMPLE, Op::Beyond), 0),
            ],
        ),
    ];
    let scripts = cases.into_iter().map(|(name, setup, mut steps)| {
        for (id, step) in (1..).zip(&mut steps) {
            step.id = id;
        }
        (name, Script { seed, setup, steps })
    });
    scripts.collect()
}

fn setup(initiators: usize) -> Setup {
    Setup {
        lanes: 2,
        luns: 1,
        initiators,
        tas: false,
        qerr: 0,
        initial_r2t: false,
        immediate_data: true,
        first_burst: 65536,
        max_burst: 65536,
        r2t_max: 1,
        segment_max: 8192,
        window: 16,
        reserved: false,
        network_splits: false,
    }
}

/// A write of four blocks, sent as immediate data or in unsolicited Data-Out PDUs.
fn write(is_unsolicited: bool) -> Op {
    Op::Write {
        lba: 0,
        blocks: 4,
        is_fua: false,
        immediate: if is_unsolicited { 0 } else { 2048 },
        is_unsolicited,
    }
}

fn command(attribute: u8, op: Op, latency_ns: u64) -> What {
    What::Command(Command {
        lun: 0,
        attribute,
        is_immediate: false,
        op,
        r2t_delay_ns: 0,
        latency_ns: [latency_ns / 2; 2],
    })
}

fn function(code: u8) -> What {
    What::Function(Function {
        code,
        lun: 0,
        referenced: 0,
        is_immediate: true,
    })
}

fn step(who: usize, what: What, pause_ns: u64) -> Step {
    Step {
        id: 0,
        who,
        what,
        is_glued: false,
        pause_ns,
        cut: None,
    }
}

/// Puts the step into one segment with the next.
fn glued(who: usize, what: What) -> Step {
    Step {
        is_glued: true,
        ..step(who, what, 0)
    }
}
