//! Stage times: where a target spent its time on a command. The target sends the durations along with the command's
//! status, provided that both ends have agreed on this with a private key (RFC 7143 §13.22). The initiator asks per
//! command, with a bit of the SCSI Command that is otherwise reserved. Only durations are sent, never clock values,
//! so the clocks need not agree.
//!
//! The durations are in bytes 8 to 15 of the PDU that carries the status, a SCSI Response (§11.4) or a Data-In with
//! the S bit (§11.7); these bytes are otherwise reserved. They are four 16-bit words, in the order of [`StageTimes`].
//! The upper five bits of a word are an exponent, by which the lower eleven bits, a number of nanoseconds, are
//! shifted left: exact below 2 µs, and accurate to one part in a thousand up to more than an hour. Every bit pattern
//! is a valid duration, whatever a peer sends.

use crate::pdu::{BHS_LEN, Bhs, STATUS, opcode};

/// The position of the words in a header.
const PLACE: std::ops::Range<usize> = 8..16;
/// Number of mantissa bits in a word.
const NUMBER_BITS: u32 = 11;
/// The word for a duration that was not measured.
const UNKNOWN: u16 = u16::MAX;
/// The word for the longest duration, which also stands for all longer ones.
const LONGEST: u16 = UNKNOWN - 1;

/// How long a target spent on a command, in nanoseconds. The time spent waiting for the command's data is not
/// included: it belongs to the network and the initiator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Time spent waiting for memory and for earlier commands.
    pub queue_ns: u64,
    /// Time the volume worked on it.
    pub volume_ns: u64,
    /// The part of `volume_ns` in which a medium worked on it; `None` if not measured.
    pub medium_ns: Option<u64>,
    /// Time its answer waited to be sent.
    pub reply_ns: u64,
}

impl StageTimes {
    /// The total time at the target, in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        let behind = self.volume_ns.saturating_add(self.reply_ns);
        self.queue_ns.saturating_add(behind)
    }

    /// Reads the stage times from a header that carries a command's status.
    pub(crate) fn of_header(header: &[u8; BHS_LEN]) -> StageTimes {
        let [queue, volume, medium, reply] = [0, 1, 2, 3].map(|index| {
            let at = PLACE.start + 2 * index;
            u16::from_be_bytes([header[at], header[at + 1]])
        });
        StageTimes {
            queue_ns: ns_of(queue),
            volume_ns: ns_of(volume),
            medium_ns: (medium != UNKNOWN).then(|| ns_of(medium)),
            reply_ns: ns_of(reply),
        }
    }

    /// Writes the stage times into a header, if it carries a command's status.
    pub(crate) fn put(&self, header: &mut [u8; BHS_LEN]) {
        let bhs = Bhs::of(header);
        let carries_status = match bhs.opcode() {
            opcode::SCSI_RESPONSE => true,
            opcode::SCSI_DATA_IN => bhs.flags & STATUS != 0,
            _ => false,
        };
        if !carries_status {
            return;
        }
        let words = [
            word_of(self.queue_ns),
            word_of(self.volume_ns),
            self.medium_ns.map_or(UNKNOWN, word_of),
            word_of(self.reply_ns),
        ];
        let [queue, volume, medium, reply] = words.map(u64::from);
        let all = queue << 48 | volume << 32 | medium << 16 | reply;
        header[PLACE].copy_from_slice(&all.to_be_bytes());
    }
}

/// The word for the longest representable duration that is not longer than `ns`.
fn word_of(ns: u64) -> u16 {
    let bits = u64::BITS - ns.leading_zeros();
    let exponent = bits.saturating_sub(NUMBER_BITS);
    match u16::try_from(u64::from(exponent) << NUMBER_BITS | ns >> exponent) {
        Ok(word) => word.min(LONGEST),
        Err(_) => LONGEST,
    }
}

fn ns_of(word: u16) -> u64 {
    let number = u64::from(word & ((1 << NUMBER_BITS) - 1));
    number << (word >> NUMBER_BITS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pdu::{DataIn, ScsiResponse};

    fn response() -> [u8; BHS_LEN] {
        ScsiResponse {
            opcode: opcode::SCSI_RESPONSE,
            ..Default::default()
        }
        .to_bytes()
    }

    #[test]
    fn words_are_those_that_the_layout_says() {
        for (ns, word) in [
            (0, 0),
            (1, 1),
            (2047, 2047),
            (2048, 1 << 11 | 1024),
            (2049, 1 << 11 | 1024),
            (1_000_000, 9 << 11 | 1953),
            (2046 << 31, 0xfffe),
            (2047 << 31, 0xfffe),
            (u64::MAX, 0xfffe),
        ] {
            assert_eq!(word_of(ns), word, "{ns}");
        }
    }

    #[test]
    fn only_what_carries_a_status_carries_them() {
        let times = StageTimes {
            queue_ns: 1,
            volume_ns: 2,
            medium_ns: None,
            reply_ns: 3,
        };
        let mut header = response();
        times.put(&mut header);
        assert_eq!(header[PLACE], [0, 1, 0, 2, 0xff, 0xff, 0, 3]);
        for (flags, carries) in [(0, false), (STATUS, true)] {
            let plain = DataIn {
                opcode: opcode::SCSI_DATA_IN,
                flags,
                ..Default::default()
            };
            let mut header = plain.to_bytes();
            times.put(&mut header);
            assert_eq!(header != plain.to_bytes(), carries);
            assert!(!carries || StageTimes::of_header(&header) == times);
        }
    }

    proptest! {
        #[test]
        fn what_is_said_is_what_was_measured_to_one_part_in_a_thousand(
            (ns, more) in (any::<u64>(), 0..64u32).prop_map(|(ns, shift)| (ns >> shift, shift)),
        ) {
            let longest = ns_of(LONGEST);
            let said = ns_of(word_of(ns));
            prop_assert!(said <= ns);
            prop_assert!(said >= ns.min(longest) - ns.min(longest) / 1024);
            // Encoding is monotonic: a longer duration never decodes to a shorter one.
            prop_assert!(ns_of(word_of(ns.saturating_add(u64::from(more)))) >= said);
        }

        #[test]
        fn whatever_a_peer_sends_means_durations(words in any::<[u8; 8]>()) {
            let mut header = response();
            header[PLACE].copy_from_slice(&words);
            let times = StageTimes::of_header(&header);
            prop_assert!(times.total_ns() <= 3 * ns_of(u16::MAX));
            times.put(&mut header);
            prop_assert_eq!(StageTimes::of_header(&header).medium_ns, times.medium_ns.map(|ns| ns.min(ns_of(LONGEST))));
        }
    }
}
