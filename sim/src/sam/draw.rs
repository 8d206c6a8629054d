//! Draws a case from a seed: sessions that compete for a few blocks, with task management functions, resets and session
//! ends among their commands.

use std::collections::BTreeSet;

use engine::sim::Random;

use super::script::{
    ABORT_TASK, ABORT_TASK_SET, ACA, CLEAR_TASK_SET, Command, DISK_BLOCKS, Ending, Function,
    HEAD_OF_QUEUE, LOGICAL_UNIT_RESET, NOT_OFFERED, ORDERED, Op, Script, Setup, Step,
    TARGET_WARM_RESET, What,
};

/// Every READ has its own extent, so that calls of the medium can be attributed to commands.
struct Extents {
    taken: BTreeSet<(u32, u64, u16)>,
}

impl Extents {
    fn draw(&mut self, random: &mut Random, lun: u32, blocks_max: u64) -> Option<(u64, u16)> {
        (0..20).find_map(|_| {
            let blocks = 1 + random.below(blocks_max);
            let lba = random.below(DISK_BLOCKS - blocks + 1);
            let found = (lba, blocks as u16);
            self.taken.insert((lun, found.0, found.1)).then_some(found)
        })
    }
}

impl Script {
    /// The case of `seed`.
    pub fn draw(seed: u64) -> Script {
        let mut random = Random::new(seed ^ 0x5a3);
        let pick = |random: &mut Random, from: &[u32]| from[random.index(from.len())];
        let first_burst = pick(&mut random, &[512, 1024, 2048, 65536]);
        let setup = Setup {
            lanes: 1 + random.index(2),
            luns: 1 + random.below(4) as u32 / 3,
            initiators: 1 + random.index(3),
            tas: random.chance(0.5),
            qerr: [0, 0, 0, 0, 1, 3][random.index(6)],
            initial_r2t: random.chance(0.5),
            immediate_data: random.chance(0.7),
            first_burst,
            max_burst: first_burst.max(pick(&mut random, &[512, 1024, 4096, 65536])),
            r2t_max: 1 + random.below(3) as u16,
            segment_max: pick(&mut random, &[512, 1536, 8192]),
            window: pick(&mut random, &[4, 8, 16, 32]) as u16,
            reserved: random.chance(0.25),
            network_splits: random.chance(0.5),
        };
        let mut extents = Extents {
            taken: Default::default(),
        };
        let count = 2 + random.below(24) as u32;
        let mut steps: Vec<Step> = Vec::new();
        for id in 1..=count {
            let who = random.index(setup.initiators);
            let what = what(&mut random, &setup, &mut extents, &steps, who);
            steps.push(Step {
                id,
                who,
                what,
                is_glued: random.chance(0.5),
                pause_ns: duration(&mut random),
                cut: random
                    .chance(0.2)
                    .then(|| (random.index(1000), duration(&mut random))),
            });
        }
        Script { seed, setup, steps }
    }
}

/// Zero, or of any order of magnitude up to milliseconds.
fn duration(random: &mut Random) -> u64 {
    let order = [0, 0, 10_000, 100_000, 1_000_000, 5_000_000][random.index(6)];
    random.below(order + 1)
}

fn what(
    random: &mut Random,
    setup: &Setup,
    extents: &mut Extents,
    before: &[Step],
    who: usize,
) -> What {
    match random.below(100) {
        0..70 => What::Command(command(random, setup, extents, before)),
        70..76 => What::Unsolicited,
        76..95 => {
            let own: Vec<_> = before
                .iter()
                .filter(|s| s.who == who && matches!(s.what, What::Command(_)))
                .map(|step| step.id)
                .collect();
            let code = match random.below(20) {
                0..9 => ABORT_TASK,
                9..12 => ABORT_TASK_SET,
                12..15 => CLEAR_TASK_SET,
                15..17 => LOGICAL_UNIT_RESET,
                17..18 => TARGET_WARM_RESET,
                _ => NOT_OFFERED[random.index(4)],
            };
            // Mostly one of the latest commands, else any, or one that never existed.
            let referenced = match (own.len(), random.below(10)) {
                (0, _) | (_, 0) => 0,
                (len, 1..7) => own[len - 1 - random.index(len.min(3))],
                (len, _) => own[random.index(len)],
            };
            What::Function(Function {
                code,
                lun: random.below(setup.luns.into()) as u32,
                referenced,
                is_immediate: random.chance(0.7),
            })
        }
        _ => What::End(match random.below(7) {
            0..2 => Ending::Drop,
            2..4 => Ending::Logout,
            4..6 => Ending::Reinstate,
            _ => Ending::Gap,
        }),
    }
}

fn command(random: &mut Random, setup: &Setup, extents: &mut Extents, before: &[Step]) -> Command {
    let lun = random.below(setup.luns.into()) as u32;
    // Half of the commands use the first blocks.
    let op = match random.below(100) {
        0..25 => match extents.draw(random, lun, 8) {
            Some((lba, blocks)) => Op::Read { lba, blocks },
            None => Op::TestUnitReady,
        },
        25..68 => {
            let most = if random.chance(0.7) { 4 } else { 12 };
            let blocks = 1 + random.below(most);
            let room = if random.chance(0.5) {
                4
            } else {
                DISK_BLOCKS - blocks + 1
            };
            let most = (512 * blocks as u32)
                .min(setup.first_burst)
                .min(setup.segment_max);
            let immediate = match setup.immediate_data && random.chance(0.7) {
                true if random.chance(0.6) => most,
                true => 4 * random.below(u64::from(most) / 4 + 1) as u32,
                false => 0,
            };
            Op::Write {
                lba: random.below(room),
                blocks: blocks as u16,
                is_fua: random.chance(0.2),
                immediate,
                is_unsolicited: !setup.initial_r2t && random.chance(0.6),
            }
        }
        68..78 => match extents.draw(random, lun, 1) {
            Some((lba, _)) => Op::CompareAndWrite {
                lba,
                expected: guess(random, before, lun, lba),
            },
            None => Op::Nothing,
        },
        78..84 => Op::SynchronizeCache,
        84..96 if setup.reserved && setup.initiators > 1 => Op::Preempt {
            victim: random.index(setup.initiators),
        },
        84..89 => Op::Nothing,
        89..95 => Op::Beyond,
        _ => Op::TestUnitReady,
    };
    let slow = |random: &mut Random| {
        let order = [20_000, 20_000, 200_000, 2_000_000, 20_000_000][random.index(5)];
        1_000 + random.below(order)
    };
    Command {
        lun: if matches!(op, Op::Preempt { .. }) {
            0
        } else {
            lun
        },
        attribute: match random.below(20) {
            0..12 => 1,
            12..16 => ORDERED,
            16..18 => HEAD_OF_QUEUE,
            18 => 0,
            _ if random.chance(0.3) => ACA,
            _ => 1,
        },
        is_immediate: random.chance(0.1),
        op,
        r2t_delay_ns: match random.below(3) {
            0 => 0,
            _ => 4 * duration(random),
        },
        latency_ns: [slow(random), slow(random)],
    }
}

/// What block `lba` may hold: the version of an earlier write there, or none.
fn guess(random: &mut Random, before: &[Step], lun: u32, lba: u64) -> u64 {
    let versions: Vec<u64> = before
        .iter()
        .filter_map(|step| match &step.what {
            What::Command(Command {
                lun: l,
                op: Op::Write {
                    lba: at, blocks, ..
                },
                ..
            }) if *l == lun && (*at..at + u64::from(*blocks)).contains(&lba) => {
                Some(u64::from(step.id))
            }
            _ => None,
        })
        .collect();
    match versions.len() {
        0 => 0,
        _ if random.chance(0.2) => 0,
        len => versions[random.index(len)],
    }
}
