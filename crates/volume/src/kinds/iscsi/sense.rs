//! What to do about a failed command, judged by the sense data that the target returned.

use scsi::{Asc, SenseKey, sense::Received};

use super::{access, machine::Report};
use crate::ErrorKind;

/// The additional sense code of unit attentions for a reset, a power on, or a lost nexus, whatever the qualifier.
const RESET_CODE: u8 = Asc::POWER_ON_OR_RESET.code;

/// What to do about a failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send it again at once.
    Retry,
    /// Send it again after a pause.
    RetryLater,
    /// The target has restarted, or could not write back its cache: cached data is lost. Resend at once.
    Restarted,
    /// Give up.
    Fail(ErrorKind),
}

/// The sense data of a CHECK CONDITION, interpreted for the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sense(Received);

impl Sense {
    /// The sense `data` that came with `status`, if that is CHECK CONDITION.
    pub(super) fn of(status: u8, data: &[u8]) -> Option<Sense> {
        let is_check_condition = status == scsi::Status::CheckCondition as u8;
        is_check_condition.then(|| Sense::parse(data))
    }

    fn parse(data: &[u8]) -> Sense {
        Sense(Received::parse(data))
    }

    /// The sense code, if it is a unit attention.
    fn attention(self) -> Option<Asc> {
        (self.0.key == SenseKey::UnitAttention).then_some(self.0.asc)
    }

    /// Whether the capacity has to be read again: CAPACITY DATA HAS CHANGED, or a reset or nexus loss, which may have
    /// discarded that unit attention.
    pub(super) fn may_be_of_another_length(self) -> bool {
        self.attention()
            .is_some_and(|asc| asc.code == RESET_CODE || asc == Asc::CAPACITY_DATA_HAS_CHANGED)
    }

    /// Whether the LUN may have become another disk: REPORTED LUNS DATA HAS CHANGED, INQUIRY DATA HAS CHANGED, or a
    /// reset or nexus loss, which may have discarded such a unit attention.
    pub(super) fn may_be_another_disk(self) -> bool {
        self.attention().is_some_and(|asc| {
            let changed = [
                Asc::REPORTED_LUNS_DATA_HAS_CHANGED,
                Asc::INQUIRY_DATA_HAS_CHANGED,
            ];
            asc.code == RESET_CODE || changed.contains(&asc)
        })
    }

    /// Whether the write cache has to be looked at again: MODE PARAMETERS CHANGED, or a reset or nexus loss, which may
    /// have discarded that unit attention.
    pub(super) fn may_have_another_cache(self) -> bool {
        self.attention()
            .is_some_and(|asc| asc.code == RESET_CODE || asc == Asc::MODE_PARAMETERS_CHANGED)
    }

    /// Whether the disk may not be what it was. The target says so once for each nexus, whatever number of commands is in
    /// flight there.
    pub(super) fn casts_doubt(self) -> bool {
        self.may_be_another_disk() || self.may_have_another_cache()
    }

    /// Whether the disk refuses writes as write-protected, and not for lack of space.
    pub(super) fn tells_of_protection(self) -> bool {
        self.0.key == SenseKey::DataProtect && self.0.asc != Asc::SPACE_ALLOCATION_FAILED
    }

    /// Whether reservations may have gone: a reset, RESERVATIONS PREEMPTED or RELEASED, or REGISTRATIONS PREEMPTED.
    pub(super) fn may_have_ended_reservations(self) -> bool {
        self.attention().is_some_and(|asc| {
            let ended = [
                Asc::RESERVATIONS_PREEMPTED,
                Asc::RESERVATIONS_RELEASED,
                Asc::REGISTRATIONS_PREEMPTED,
            ];
            asc.code == RESET_CODE || ended.contains(&asc)
        })
    }

    /// Whether the data on the medium was not what it was compared with, so that nothing was written.
    pub(super) fn is_miscompare(self) -> bool {
        self.0.key == SenseKey::Miscompare && !self.0.is_deferred
    }

    /// Whether the command was refused before it was tried.
    pub(super) fn is_refusal(self) -> bool {
        let refuses = [
            SenseKey::UnitAttention,
            SenseKey::NotReady,
            SenseKey::IllegalRequest,
            SenseKey::DataProtect,
        ];
        self.0.is_deferred || refuses.contains(&self.0.key)
    }

    /// Whether it reports a reset of the logical unit or target, or a power on.
    pub(super) fn is_reset(self) -> bool {
        matches!(
            self.attention(),
            Some(
                Asc::POWER_ON_OR_RESET
                    | Asc::POWER_ON
                    | Asc::SCSI_BUS_RESET
                    | Asc::BUS_DEVICE_RESET
            )
        )
    }

    /// Whether commands that the target had before may have been aborted without an answer: a reset, or CLEAR TASK SET or
    /// PREEMPT AND ABORT of another initiator.
    pub(super) fn tells_of_aborts(self) -> bool {
        const CLEARED_CODE: u8 = 0x2f;
        let is_cleared = |asc: Asc| asc.code == CLEARED_CODE || asc == Asc::DEVICE_INTERNAL_RESET;
        self.is_reset() || self.attention().is_some_and(is_cleared)
    }

    /// What it means for the command (SPC-4 table 43).
    pub(super) fn verdict(self) -> Verdict {
        let Received {
            key,
            asc,
            is_deferred,
        } = self.0;
        if is_deferred {
            return Verdict::Restarted;
        }
        match (key, asc) {
            // DEVICE INTERNAL RESET may stand for a power on (SAM-5 5.14); BUS DEVICE RESET and I_T NEXUS LOSS lose
            // no data.
            (
                SenseKey::UnitAttention,
                Asc::POWER_ON_OR_RESET
                | Asc::POWER_ON
                | Asc::SCSI_BUS_RESET
                | Asc::DEVICE_INTERNAL_RESET,
            ) => Verdict::Restarted,
            (SenseKey::UnitAttention | SenseKey::AbortedCommand, _) => Verdict::Retry,
            (SenseKey::NotReady, asc) if asc.code == Asc::MEDIUM_NOT_PRESENT.code => {
                Verdict::Fail(ErrorKind::Medium)
            }
            (SenseKey::NotReady, _) => Verdict::RetryLater,
            (SenseKey::DataProtect, Asc::SPACE_ALLOCATION_FAILED) => {
                Verdict::Fail(ErrorKind::NoSpace)
            }
            (SenseKey::DataProtect, _) => Verdict::Fail(ErrorKind::ReadOnly),
            // Refused before it was tried.
            (SenseKey::IllegalRequest, _) => Verdict::Fail(ErrorKind::Protocol),
            // Tried and failed, as far as can be told.
            _ => Verdict::Fail(ErrorKind::Medium),
        }
    }

    /// What it says about more than the command.
    pub(super) fn report(self) -> Report {
        Report {
            capacity: self.may_be_of_another_length(),
            mode: self.tells_of_protection(),
            reservations: self.may_have_ended_reservations(),
            access: access::tells_of_access(self.0),
            reset: self.is_reset(),
            aborts: self.tells_of_aborts(),
            restart: self.verdict() == Verdict::Restarted,
        }
    }

    /// A readable description for this logical unit.
    pub(super) fn describe(self, target_name: &str, lun: u16) -> String {
        let Sense(received) = self;
        let no_such_unit = Asc::LOGICAL_UNIT_NOT_SUPPORTED.code;
        if received.key == SenseKey::IllegalRequest && received.asc.code == no_such_unit {
            return format!(
                "the target {target_name} has no LUN {lun}, or none for this initiator; check the \
                 number at the end of the url, and the target's LUNs (it reports {received})"
            );
        }
        format!("the target reports {received}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sense(key: SenseKey, code: u8, qualifier: u8) -> Sense {
        Sense::parse(&[0x72, key as u8, code, qualifier])
    }

    #[test]
    fn a_verdict_is_by_key_and_code() {
        let attention = |qualifier| sense(SenseKey::UnitAttention, 0x29, qualifier).verdict();
        for qualifier in [0, 1, 2, 4] {
            assert_eq!(attention(qualifier), Verdict::Restarted, "{qualifier}");
        }
        for qualifier in [3, 5, 6, 7, 8] {
            assert_eq!(attention(qualifier), Verdict::Retry, "{qualifier}");
        }
        for (said, verdict) in [
            ((SenseKey::AbortedCommand, 0, 0), Verdict::Retry),
            ((SenseKey::NotReady, 0x04, 0x1b), Verdict::RetryLater),
            (
                (SenseKey::NotReady, 0x3a, 1),
                Verdict::Fail(ErrorKind::Medium),
            ),
            (
                (SenseKey::DataProtect, 0x27, 7),
                Verdict::Fail(ErrorKind::NoSpace),
            ),
            (
                (SenseKey::DataProtect, 0x27, 0),
                Verdict::Fail(ErrorKind::ReadOnly),
            ),
            (
                (SenseKey::MediumError, 0x11, 0),
                Verdict::Fail(ErrorKind::Medium),
            ),
            (
                (SenseKey::HardwareError, 0x44, 0),
                Verdict::Fail(ErrorKind::Medium),
            ),
            (
                (SenseKey::IllegalRequest, 0x20, 0),
                Verdict::Fail(ErrorKind::Protocol),
            ),
            ((SenseKey::NoSense, 0, 0), Verdict::Fail(ErrorKind::Medium)),
        ] {
            let (key, code, qualifier) = said;
            assert_eq!(sense(key, code, qualifier).verdict(), verdict, "{said:?}");
        }
    }

    #[test]
    fn write_protection_is_told_from_a_lack_of_space() {
        for (key, code, qualifier, tells) in [
            (SenseKey::DataProtect, 0x27, 0, true),
            (SenseKey::DataProtect, 0x27, 2, true),
            (SenseKey::DataProtect, 0x27, 7, false),
            (SenseKey::MediumError, 0x27, 0, false),
        ] {
            let sense = sense(key, code, qualifier);
            assert_eq!(sense.tells_of_protection(), tells, "{qualifier}");
        }
    }

    #[test]
    fn a_deferred_error_is_a_loss() {
        let deferred = [0x73, SenseKey::MediumError as u8, 0x0c, 0];
        assert_eq!(Sense::parse(&deferred).verdict(), Verdict::Restarted);
    }

    #[test]
    fn unit_attentions_tell_what_to_look_at_again() {
        let of = |code, qualifier| {
            let sense = sense(SenseKey::UnitAttention, code, qualifier);
            (
                sense.may_be_of_another_length(),
                sense.may_have_ended_reservations(),
                sense.is_reset(),
            )
        };
        assert_eq!(of(0x29, 3), (true, true, true));
        assert_eq!(of(0x29, 7), (true, true, false));
        assert_eq!(of(0x2a, 9), (true, false, false));
        for qualifier in 3..=5 {
            assert_eq!(of(0x2a, qualifier), (false, true, false), "{qualifier}");
        }
        assert_eq!(of(0x2a, 1), (false, false, false));
    }

    #[test]
    fn a_missing_logical_unit_is_named() {
        let missing = sense(SenseKey::IllegalRequest, 0x25, 0).describe("iqn.a:b", 3);
        assert!(
            missing
                .starts_with("the target iqn.a:b has no LUN 3, or none for this initiator; check "),
            "{missing}"
        );
        assert_eq!(
            sense(SenseKey::MediumError, 0x11, 0).describe("iqn.a:b", 3),
            "the target reports MEDIUM ERROR, unrecovered read error (sense 3h/11h/00h)"
        );
    }
}
