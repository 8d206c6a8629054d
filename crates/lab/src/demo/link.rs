//! Chooses the link speed of each share. A link is worth measuring only if the machine can move clearly more
//! than all links together. Otherwise the figures reflect its CPU, and the report says so.

use crate::report::link_text;

/// The links that shares may have, in bits a second: the Ethernets of small servers.
pub const LINKS_BITS_PER_S: [u64; 3] = [1_000_000_000, 2_500_000_000, 10_000_000_000];

/// The links together may need at most this part of what the machine can move.
const PART_MAX: f64 = 0.5;
/// If even the slowest links need more than this part, the figures do not reflect the links alone.
const PART_TOO_MUCH: f64 = 0.8;

/// What limits a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareLimit {
    /// The fastest link that this machine can fill, found by measuring.
    Measured,
    /// A limit in each direction.
    Limited {
        /// The rate in bits a second.
        bits_per_s: u64,
    },
    /// No limit.
    Unlimited,
}

/// What a machine moves through a stripe without any limit.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Machine {
    /// For each statement, the bytes per second it moved in its busier direction.
    pub(super) bytes_per_s: Vec<(String, f64)>,
}

impl Machine {
    /// The statement that moved least, and its rate.
    fn slowest(&self) -> (String, f64) {
        let all = self.bytes_per_s.iter().cloned();
        all.reduce(|a, b| if b.1 < a.1 { b } else { a })
            .unwrap_or(("nothing".into(), 0.0))
    }
}

/// The chosen link, and why.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Choice {
    pub(super) bits_per_s: Option<u64>,
    /// The measurement it is based on, if there was one.
    measured: Option<(String, f64)>,
    too_much: bool,
}

/// The fastest link at which `shares` links need well below what `machine` can move, or else the slowest.
pub(super) fn choose(machine: &Machine, shares: usize) -> Choice {
    let slowest = machine.slowest();
    let all_bytes_per_s = |link: u64| link as f64 / 8.0 * shares as f64;
    let fits = |link: &u64| all_bytes_per_s(*link) <= PART_MAX * slowest.1;
    let fitting = LINKS_BITS_PER_S.into_iter().filter(fits).max();
    let chosen = fitting.unwrap_or(LINKS_BITS_PER_S[0]);
    Choice {
        bits_per_s: Some(chosen),
        too_much: all_bytes_per_s(chosen) > PART_TOO_MUCH * slowest.1,
        measured: Some(slowest),
    }
}

impl Choice {
    /// A link that the user asked for.
    pub(super) fn given(bits_per_s: u64) -> Choice {
        Choice {
            bits_per_s: Some(bits_per_s),
            ..Choice::default()
        }
    }

    /// The choice in a few words.
    pub(super) fn link(&self) -> String {
        self.bits_per_s.map_or("no limit".into(), link_text)
    }

    /// What was chosen, and the measurement behind it, in one line.
    pub(super) fn reason(&self) -> String {
        let link = self.link();
        match &self.measured {
            None => format!("{link}, as requested"),
            Some((statement, bytes_per_s)) => format!(
                "{link}, chosen: without a limit this machine moves {:.0} MB/s in the slowest \
                 statement ({statement})",
                bytes_per_s / 1e6,
            ),
        }
    }

    /// Caveats that a reader must know before the figures.
    pub(super) fn note(&self, shares: usize) -> Option<String> {
        let (_, bytes_per_s) = self.measured.as_ref().filter(|_| self.too_much)?;
        let links = shares as f64 * LINKS_BITS_PER_S[0] as f64 / 8e6;
        Some(format!(
            "TOO MUCH FOR THIS MACHINE: {shares} links of {} carry {links:.0} MB/s, but without a \
             limit it moves {:.0} MB/s: the figures measure its CPU as much as the links",
            link_text(LINKS_BITS_PER_S[0]),
            bytes_per_s / 1e6,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(megabytes_per_s: f64) -> Machine {
        let bytes_per_s = megabytes_per_s * 1e6;
        Machine {
            bytes_per_s: vec![
                ("scan".into(), 2.0 * bytes_per_s),
                ("vacuum".into(), bytes_per_s),
            ],
        }
    }

    #[test]
    fn the_largest_link_well_below_the_slowest_statement_is_chosen() {
        let chosen = |megabytes_per_s, shares| {
            let choice = choose(&machine(megabytes_per_s), shares);
            (choice.bits_per_s.unwrap() / 100_000_000, choice.too_much)
        };
        // Two links of 2.5 Gbit/s carry 625 MB/s: half of 1,250.
        assert_eq!(chosen(1249.0, 2), (10, false));
        assert_eq!(chosen(1250.0, 2), (25, false));
        assert_eq!(chosen(1250.0, 3), (10, false));
        assert_eq!(chosen(5000.0, 2), (100, false));
        // Two of 1 Gbit/s carry 250 MB/s: 80 % of 312.5.
        assert_eq!(chosen(313.0, 2), (10, false));
        assert_eq!(chosen(312.0, 2), (10, true));
        assert_eq!(chosen(500.0, 4), (10, true));
    }

    #[test]
    fn what_was_measured_is_said_and_what_is_too_much_first_of_all() {
        let choice = choose(&machine(517.0), 2);
        assert_eq!(choice.note(2), None);
        let reason = choice.reason();
        assert!(
            reason.contains("1 Gbit/s, chosen") && reason.contains("517 MB/s"),
            "{reason}"
        );
        assert!(reason.contains("(vacuum)"), "{reason}");
        let note = choose(&machine(300.0), 2).note(2).unwrap();
        assert!(
            note.contains("300 MB/s") && note.contains("carry 250"),
            "{note}"
        );
        let given = Choice::given(2_500_000_000);
        assert_eq!(given.reason(), "2.5 Gbit/s, as requested");
        assert_eq!((given.note(2), Choice::default().note(2)), (None, None));
        assert_eq!(Choice::default().link(), "no limit");
    }
}
