//! Why an I/O on a unit failed, in kinds that every front maps to its own protocol: SCSI sense data, an errno. No kind is
//! made from another protocol's answer and none is guessed back from one.

use scsi::Denied;
use volume::ErrorKind;

/// Why an I/O on a unit failed. The volume's own message is in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IoError {
    /// There is no unit at this LUN, or the nexus is leaving.
    #[error("there is no logical unit at this LUN")]
    NoUnit,
    /// The range is empty, or reaches beyond the end of the disk.
    #[error("the range is empty or reaches beyond the end of the disk")]
    OutOfRange,
    /// The range is not in whole blocks.
    #[error("the range is not in whole blocks")]
    Misaligned,
    /// A read or write is longer than [`LaneUnits::transfer_max_bytes`](crate::LaneUnits::transfer_max_bytes).
    #[error("it exceeds the maximum transfer length")]
    TooLong,
    /// Another nexus has reserved the disk, or has fenced this one off.
    #[error("another initiator has the disk reserved")]
    ReservationConflict,
    /// Another initiator has reserved the storage below the disk, and this daemon has no access to it.
    #[error("another initiator has reserved the storage below the disk")]
    ReservedBelow,
    /// Another owner has taken over the storage below the disk, which stays so until its volume is opened again.
    #[error("another owner has taken over the storage below the disk")]
    Preempted,
    /// The disk takes no writes.
    #[error("the disk is read-only")]
    WriteProtected,
    /// The disk is being sanitized.
    #[error("the disk is being sanitized")]
    Sanitizing {
        /// How much of it is done, in 65536ths.
        done_65536ths: u16,
    },
    /// A sanitize of the disk has failed, which must be repeated first.
    #[error("a sanitize of the disk has failed")]
    SanitizeFailed,
    /// The medium has been ejected.
    #[error("the disk has been ejected")]
    NoMedium,
    /// The storage below the disk cannot be reached now.
    #[error("the storage below the disk cannot be reached")]
    Unreachable,
    /// The storage below the disk has not answered in time.
    #[error("the storage below the disk has not answered in time")]
    TimedOut,
    /// It was handed to the storage below the disk, and no answer came. It has been done or never will be.
    #[error("the storage below the disk has not answered: whether it was done is unknown")]
    OutcomeUnknown,
    /// The disk has no space left.
    #[error("the disk has no space left")]
    NoSpace,
    /// The medium failed to read.
    #[error("the medium failed to read")]
    ReadFailed,
    /// The medium failed to write; part of it may have been done.
    #[error("the medium failed to write")]
    WriteFailed,
    /// The medium failed to flush: what was written since the last flush may be lost.
    #[error("the medium failed to flush")]
    FlushFailed,
    /// An earlier flush has failed: writes are lost, and there will be none until the volume is opened again.
    #[error("writes are lost, because an earlier flush has failed")]
    WritesLost,
    /// The storage below the disk failed as a whole, or answered what makes no sense.
    #[error("the storage below the disk has failed")]
    StorageFailed,
    /// The data on the medium is not what it was compared with.
    #[error("the data differs")]
    Miscompare {
        /// The first difference, from the start of the data-out, or of the range if one block is compared with all.
        offset_bytes: u64,
    },
    /// A reset or another initiator aborted it; part of it may have been done.
    #[error("it was aborted")]
    Aborted,
}

impl IoError {
    /// The error of a volume in an I/O on a range that is the unit's; `otherwise` says what a failure of the medium itself
    /// means in this I/O.
    pub(crate) fn of_volume(error: &volume::Error, otherwise: IoError) -> IoError {
        match error.kind() {
            ErrorKind::ReadOnly => IoError::WriteProtected,
            ErrorKind::NoSpace => IoError::NoSpace,
            ErrorKind::Unreachable => IoError::Unreachable,
            ErrorKind::TimedOut => IoError::TimedOut,
            ErrorKind::OutcomeUnknown => IoError::OutcomeUnknown,
            ErrorKind::ReservationConflict => IoError::ReservedBelow,
            ErrorKind::Preempted => IoError::Preempted,
            ErrorKind::FlushFailed => IoError::WritesLost,
            ErrorKind::Protocol | ErrorKind::Configuration | ErrorKind::Claimed => {
                IoError::StorageFailed
            }
            // Also a range that the volume refuses: the unit has checked it, so the storage is not what it was.
            _ => otherwise,
        }
    }
}

impl From<Denied> for IoError {
    fn from(denied: Denied) -> IoError {
        match denied {
            Denied::ReservationConflict => IoError::ReservationConflict,
            Denied::Sanitizing { done_65536ths } => IoError::Sanitizing { done_65536ths },
            Denied::SanitizeFailed => IoError::SanitizeFailed,
            Denied::NoMedium => IoError::NoMedium,
            Denied::WriteProtected => IoError::WriteProtected,
        }
    }
}
