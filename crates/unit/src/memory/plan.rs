//! How a server's memory is divided: what each lane has for itself, and what all have in common for
//! requests that no lane's part can hold. The parts add up to the whole, however many lanes there are.

use engine::buf::capacity_for;

use super::RESERVE_BYTES;

/// What several steps need at a time for one command, in bytes: what was read, and what is made of it.
pub(crate) const STEPS_BYTES: usize = 2 * crate::medium::PIECE_BYTES as usize;
/// The most commands in several steps at a time on a lane.
const IN_STEPS_MAX: usize = 8;
/// For each of so many bytes of memory a lane has a command to give: some KiB for its state, which
/// is a tenth of that.
const BYTES_A_COMMAND: usize = 32 << 10;

/// The parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// Of each lane, for data that come unasked, in bytes.
    pub(crate) unsolicited: usize,
    /// Of each lane, for data that are asked for, in bytes.
    pub(crate) transfers: usize,
    /// Of all lanes together, for transfers that are longer than that, in bytes.
    pub(crate) common: usize,
    /// Of each lane, commands in several steps at a time.
    pub(crate) in_steps: usize,
    /// Of each lane, free buffers that are kept for the next ones, in bytes.
    pub(crate) kept: usize,
    /// Of each lane, commands that nexuses may have open beyond what each begins with.
    pub(crate) commands: usize,
    /// The most of the transfers that one nexus may hold, in bytes.
    pub(crate) nexus_max: usize,
}

impl Plan {
    /// Divides `memory` bytes among `lanes`, where the longest transfer has `largest` bytes.
    pub(crate) fn new(memory: usize, lanes: usize, largest: usize) -> Plan {
        let (lanes, largest) = (lanes.max(1), capacity_for(largest));
        let share = memory / lanes;
        // A quarter comes unasked, half of it is asked for.
        let own = share / 2;
        let common = match own >= largest {
            true => 0,
            false => largest.max(memory / 8),
        };
        let transfers = (memory / 2).saturating_sub(common) / lanes;
        let transfers = if common == 0 { own } else { transfers };
        // The last quarter is for steps and for buffers that are free, or memory would be the sum of
        // all that each size of buffer ever needed at once.
        let in_steps = (share / 4 / STEPS_BYTES).clamp(1, IN_STEPS_MAX);
        Plan {
            unsolicited: share / 4,
            transfers,
            common,
            in_steps,
            kept: (share / 4).saturating_sub(in_steps * STEPS_BYTES),
            commands: share / BYTES_A_COMMAND,
            nexus_max: (transfers / 4).max(largest),
        }
    }

    /// The least memory with which that is possible and each lane can serve, in bytes.
    pub(crate) fn least(lanes: usize, largest: usize) -> usize {
        let lanes = lanes.max(1);
        let steps_and_unsolicited = lanes * 4 * STEPS_BYTES.max(RESERVE_BYTES);
        let transfers = 2 * (capacity_for(largest) + lanes * RESERVE_BYTES);
        steps_and_unsolicited.max(transfers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_parts_of_any_number_of_lanes_add_up_to_the_whole() {
        for (memory_mib, lanes, largest_mib) in [
            (32, 1, 4),
            (32, 2, 4),
            (32, 64, 4),
            (40, 2, 16),
            (256, 2, 4),
            (256, 64, 4),
            (256, 512, 16),
            (512, 1024, 4),
            (4096, 1024, 16),
        ] {
            let (memory, largest) = (memory_mib * MIB, largest_mib * MIB);
            assert!(
                memory >= Plan::least(lanes, largest),
                "{memory_mib} {lanes}"
            );
            let plan = Plan::new(memory, lanes, largest);
            let of_lane =
                plan.unsolicited + plan.transfers + plan.in_steps * STEPS_BYTES + plan.kept;
            let all = lanes * of_lane + plan.common;
            assert!(all <= memory, "{plan:?}: {all} of {memory}");
            assert!(plan.transfers.max(plan.common) >= largest, "{plan:?}");
            assert!(plan.unsolicited >= RESERVE_BYTES && plan.transfers >= RESERVE_BYTES);
        }
    }

    #[test]
    fn a_lane_that_holds_the_longest_transfer_shares_nothing() {
        let plan = Plan::new(256 * MIB, 2, 4 * MIB);
        assert_eq!((plan.common, plan.transfers), (0, 64 * MIB));
        assert_eq!(plan.nexus_max, 16 * MIB);
    }
}
