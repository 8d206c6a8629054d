//! Hard cases, counted. Chance brings them about, so a test that is about one of them shows with its count
//! that it met it. Counting draws nothing from the seed and changes nothing.

use std::ops::AddAssign;

/// How often each hard case has occurred in a world, or in several added up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occurred {
    /// Power cuts while a write was on its way to the disk.
    pub cuts_during_writes: u64,
    /// Completed changes of files of which a power cut left nothing.
    pub changes_lost: u64,
    /// Completed changes of files of which a power cut left a part.
    pub changes_torn: u64,
    /// Ends of a machine's software, without a power cut, while a write was on its way to the disk.
    pub kills_during_writes: u64,
    /// Connections that were reset while data was on its way in them.
    pub resets_under_data: u64,
    /// Packets that a partition held back.
    pub packets_parted: u64,
    /// Connections that an end threw away while what it had sent met a cut.
    pub aborts_of_held: u64,
    /// Operations that a disk's [`Fault`](super::Fault) failed.
    pub faults_hit: u64,
    /// Reads and writes of files that moved less than was asked for.
    pub short_transfers: u64,
}

impl AddAssign for Occurred {
    fn add_assign(&mut self, other: Occurred) {
        self.cuts_during_writes += other.cuts_during_writes;
        self.changes_lost += other.changes_lost;
        self.changes_torn += other.changes_torn;
        self.kills_during_writes += other.kills_during_writes;
        self.resets_under_data += other.resets_under_data;
        self.packets_parted += other.packets_parted;
        self.aborts_of_held += other.aborts_of_held;
        self.faults_hit += other.faults_hit;
        self.short_transfers += other.short_transfers;
    }
}
