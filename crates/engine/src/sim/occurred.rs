//! Counters of rare, hard cases. They occur by chance, so a test about one of them uses its count to prove
//! that it was reached. Counting draws nothing from the seed and changes nothing.

use std::ops::AddAssign;

/// How often each hard case has occurred in one world, or in several added up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occurred {
    /// Power cuts with a write in flight to the disk.
    pub cuts_during_writes: u64,
    /// Completed file changes that a power cut lost entirely.
    pub changes_lost: u64,
    /// Completed file changes of which a power cut left a part.
    pub changes_torn: u64,
    /// Kills of a machine's software (without a power cut) with a write in flight to the disk.
    pub kills_during_writes: u64,
    /// Connections that were reset with data in flight.
    pub resets_under_data: u64,
    /// Packets held back by a partition.
    pub packets_parted: u64,
    /// Connections that one end aborted while a cut held back their data.
    pub aborts_of_held: u64,
    /// Operations failed by a disk's [`Fault`](super::Fault).
    pub faults_hit: u64,
    /// Writes that took longer ([`hang_writes`](super::Host::hang_writes)).
    pub writes_hung: u64,
    /// File reads and writes that moved less than requested.
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
        self.writes_hung += other.writes_hung;
        self.short_transfers += other.short_transfers;
    }
}
