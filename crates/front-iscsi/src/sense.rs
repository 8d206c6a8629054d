//! How a command ends whose I/O has failed: the sense data of each kind of error (SPC-4 4.5.6), chosen by what initiators do
//! about it. The only place where an error becomes sense data; commands that never reach the medium have theirs from
//! `scsi`.

use scsi::{Asc, Ending, KeySpecific, Sense, SenseKey};
use unit::IoError;

/// The ending of a command whose I/O failed with `error`.
pub(crate) fn ending(error: IoError) -> Ending {
    let (key, asc) = match error {
        IoError::ReservationConflict => return Ending::CONFLICT,
        IoError::NoUnit => (SenseKey::IllegalRequest, Asc::LOGICAL_UNIT_NOT_SUPPORTED),
        IoError::OutOfRange => (SenseKey::IllegalRequest, Asc::LBA_OUT_OF_RANGE),
        IoError::Misaligned | IoError::TooLong => {
            (SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_CDB)
        }
        // None of this unit's reservations stands in the way, so the status RESERVATION CONFLICT would mislead.
        IoError::ReservedBelow => (SenseKey::NotReady, Asc::MANUAL_INTERVENTION_REQUIRED),
        // From this an initiator learns that the path to the data is lost for good.
        IoError::Preempted => (SenseKey::HardwareError, Asc::LOGICAL_UNIT_FAILURE),
        IoError::WriteProtected => (SenseKey::DataProtect, Asc::WRITE_PROTECTED),
        IoError::Sanitizing { .. } => (SenseKey::NotReady, Asc::SANITIZE_IN_PROGRESS),
        IoError::SanitizeFailed => (SenseKey::MediumError, Asc::SANITIZE_COMMAND_FAILED),
        IoError::NoMedium => (SenseKey::NotReady, Asc::MEDIUM_NOT_PRESENT),
        IoError::Unreachable | IoError::TimedOut => (SenseKey::NotReady, Asc::CAUSE_NOT_REPORTABLE),
        IoError::NoSpace => (SenseKey::DataProtect, Asc::SPACE_ALLOCATION_FAILED),
        IoError::ReadFailed => (SenseKey::MediumError, Asc::UNRECOVERED_READ_ERROR),
        // No initiator mistakes that of a flush for an unsupported command.
        IoError::WriteFailed | IoError::FlushFailed => (SenseKey::MediumError, Asc::WRITE_ERROR),
        IoError::WritesLost | IoError::StorageFailed => {
            (SenseKey::HardwareError, Asc::INTERNAL_TARGET_FAILURE)
        }
        IoError::Miscompare { .. } => (SenseKey::Miscompare, Asc::MISCOMPARE_DURING_VERIFY),
        // What an initiator gets whose own session is lost: it does not know either.
        IoError::Aborted | IoError::OutcomeUnknown => {
            (SenseKey::AbortedCommand, Asc::NO_ADDITIONAL_SENSE)
        }
    };
    let mut sense = Sense::new(key, asc);
    match error {
        IoError::Sanitizing { done_65536ths } => {
            sense.specific = Some(KeySpecific::Progress(done_65536ths));
        }
        IoError::Miscompare { offset_bytes } => sense.information = Some(offset_bytes),
        _ => {}
    }
    Ending::check(sense)
}

#[cfg(test)]
mod tests {
    use scsi::Status;

    use super::*;

    #[test]
    fn errors_become_the_sense_that_initiators_act_on() {
        for (error, key, asc) in [
            (IoError::ReadFailed, 0x3, (0x11, 0x00)),
            (IoError::WriteFailed, 0x3, (0x0C, 0x00)),
            (IoError::FlushFailed, 0x3, (0x0C, 0x00)),
            (IoError::WritesLost, 0x4, (0x44, 0x00)),
            (IoError::StorageFailed, 0x4, (0x44, 0x00)),
            (IoError::Unreachable, 0x2, (0x04, 0x00)),
            (IoError::TimedOut, 0x2, (0x04, 0x00)),
            (IoError::ReservedBelow, 0x2, (0x04, 0x03)),
            (IoError::NoMedium, 0x2, (0x3A, 0x00)),
            (IoError::Preempted, 0x4, (0x3E, 0x01)),
            (IoError::WriteProtected, 0x7, (0x27, 0x00)),
            (IoError::NoSpace, 0x7, (0x27, 0x07)),
            (IoError::SanitizeFailed, 0x3, (0x31, 0x03)),
            (IoError::Aborted, 0xB, (0x00, 0x00)),
            (IoError::OutcomeUnknown, 0xB, (0x00, 0x00)),
        ] {
            let ending = ending(error);
            assert_eq!(ending.status, Status::CheckCondition);
            let sense = ending.sense.expect("sense data");
            let code = (sense.asc.code, sense.asc.qualifier);
            assert_eq!((sense.key as u8, code), (key, asc), "{error}");
        }
        assert_eq!(ending(IoError::ReservationConflict), Ending::CONFLICT);
    }

    #[test]
    fn a_miscompare_says_where_and_a_sanitize_how_far_it_is() {
        let miscompare = ending(IoError::Miscompare { offset_bytes: 17 }).sense;
        let miscompare = miscompare.expect("sense data");
        assert_eq!(miscompare.key, SenseKey::Miscompare);
        assert_eq!(miscompare.information, Some(17));
        let running = IoError::Sanitizing {
            done_65536ths: 0x8000,
        };
        let running = ending(running).sense.expect("sense data");
        assert_eq!(running.asc, Asc::SANITIZE_IN_PROGRESS);
        assert_eq!(running.specific, Some(KeySpecific::Progress(0x8000)));
    }
}
