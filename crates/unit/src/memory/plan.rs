//! How a server's memory is divided: what each lane has for itself, and what all have in common for requests that no
//! lane's part can hold. The parts add up to the configured total, whatever the number of lanes.

use engine::buf::capacity_for;

use super::{RESERVE_BYTES, WINDOW_STEP};

/// The memory of one multi-step command, in bytes: what it has read and what it makes of it.
pub(crate) const STEPS_BYTES: usize = 2 * crate::medium::PIECE_BYTES as usize;
/// The most multi-step commands at a time on a lane.
const IN_STEPS_MAX: usize = 8;
/// A lane may have one open command per this many bytes of memory. A command's state takes some
/// KiB, a tenth of that.
const BYTES_A_COMMAND: usize = 32 << 10;

/// The most unsolicited data of a command where memory is plentiful: a write of this size then takes one trip. What
/// databases and file systems write at once is rarely longer, and a stripe of four divides 1 MiB into such parts.
const UNSOLICITED_MAX_BYTES: usize = 256 << 10;

/// The parts into which the memory is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// Per lane, for unsolicited data, in bytes.
    pub(crate) unsolicited: usize,
    /// The most unsolicited data of a command, in bytes: a window of such commands finds room.
    pub(crate) unsolicited_max: usize,
    /// Per lane, for solicited data, in bytes.
    pub(crate) transfers: usize,
    /// For all lanes together, for transfers larger than a lane's own part, in bytes.
    pub(crate) common: usize,
    /// Per lane, the number of multi-step commands at a time.
    pub(crate) in_steps: usize,
    /// Per lane, free buffers kept for reuse, in bytes.
    pub(crate) kept: usize,
    /// Per lane, the commands that nexuses may have open in addition to their initial windows.
    pub(crate) commands: usize,
    /// The memory of the longest transfer, in bytes.
    pub(crate) transfer_max: usize,
}

impl Plan {
    /// Divides `memory` bytes among `lanes` if the longest transfer has `largest` bytes.
    pub(crate) fn new(memory: usize, lanes: usize, largest: usize) -> Plan {
        let (lanes, largest) = (lanes.max(1), capacity_for(largest));
        let share = memory / lanes;
        // A quarter is for unsolicited data, half for solicited data.
        let own = share / 2;
        let common = match own >= largest {
            true => 0,
            false => largest.max(memory / 8),
        };
        let transfers = (memory / 2).saturating_sub(common) / lanes;
        let transfers = if common == 0 { own } else { transfers };
        let unsolicited = share / 4;
        let unsolicited_max = 1 << (unsolicited / usize::from(WINDOW_STEP)).max(1).ilog2();
        // The last quarter is for multi-step commands and for free buffers. Without a bound on the
        // latter, memory would grow to the sum of what each buffer size ever needed at once.
        let in_steps = (share / 4 / STEPS_BYTES).clamp(1, IN_STEPS_MAX);
        Plan {
            unsolicited,
            unsolicited_max: unsolicited_max.clamp(RESERVE_BYTES, UNSOLICITED_MAX_BYTES),
            transfers,
            common,
            in_steps,
            kept: (share / 4).saturating_sub(in_steps * STEPS_BYTES),
            commands: share / BYTES_A_COMMAND,
            transfer_max: largest,
        }
    }

    /// The least memory that can be divided so that each lane can serve, in bytes.
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
    }

    #[test]
    fn unsolicited_data_is_longer_where_a_whole_window_of_it_finds_room() {
        for (memory_mib, lanes, max_kib) in [
            (32, 1, 64),
            (32, 64, 64),
            (256, 2, 256),
            (255, 2, 128),
            (256, 4, 128),
            (256, 8, 64),
            (4096, 2, 256),
        ] {
            let plan = Plan::new(memory_mib * MIB, lanes, 4 * MIB);
            assert_eq!(plan.unsolicited_max, max_kib << 10, "{memory_mib} {lanes}");
            let window = usize::from(WINDOW_STEP) * plan.unsolicited_max;
            let is_least = plan.unsolicited_max == RESERVE_BYTES;
            assert!(window <= plan.unsolicited || is_least, "{plan:?}");
        }
    }
}
