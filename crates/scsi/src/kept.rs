//! What must survive a restart of a logical unit, as lines of text: registrations made with APTPL with their
//! reservation, saved mode pages, an unfinished sanitize, where a floor was found. Text that this release would not have written is refused as
//! a whole: a line that was lost or passed over could be the one that fences an initiator off.

use std::str::FromStr;

use crate::key_floor::SavedFloor;
use crate::mode::ModeParameters;
use crate::reservations::Reservations;
use crate::sanitize_state::SanitizeState;

/// What [`SharedUnit::save`](crate::SharedUnit::save) and [`KeyFloor::save`](crate::KeyFloor::save) returned before a
/// restart; parsed from their text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    pub(crate) reservations: Reservations,
    pub(crate) mode: ModeParameters,
    pub(crate) sanitize: Option<SanitizeState>,
    /// The floor under the unit's keys, and where it was found.
    pub floor: Option<SavedFloor>,
}

/// Why text is not what a logical unit saves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its line {line}, \"{text}\", {why}")]
pub struct KeptError {
    /// The number of the line; the first is 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// What is wrong with it, to follow the line in a sentence.
    pub why: &'static str,
}

impl FromStr for Kept {
    type Err = KeptError;

    fn from_str(text: &str) -> Result<Kept, KeptError> {
        let mut kept = Kept::default();
        let mut has_mode = false;
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split(' ').collect();
            let read = match words[..] {
                ["registration", ..] | ["reservation", ..] => kept.reservations.restore(&words),
                ["control", ..] if std::mem::replace(&mut has_mode, true) => {
                    Err("is there for the second time")
                }
                ["control", ref values @ ..] => kept.mode.restore(values),
                ["sanitize", ..] if kept.sanitize.is_some() => Err("is there for the second time"),
                ["sanitize", ref values @ ..] => {
                    let restored = SanitizeState::restore(values);
                    restored.map(|progress| kept.sanitize = Some(progress))
                }
                ["floor", ..] if kept.floor.is_some() => Err("is there for the second time"),
                ["floor", ref values @ ..] => {
                    let restored = SavedFloor::restore(values);
                    restored.map(|floor| kept.floor = Some(floor))
                }
                _ => Err("is of no kind that this release knows"),
            };
            read.map_err(|why| KeptError {
                line: index + 1,
                text: line.to_owned(),
                why,
            })?;
        }
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyFloor;

    const FENCE: &str = "registration 000000000000000a 1 0 iqn.a,i,0x1\n\
                         registration 000000000000000b 2 1 iqn.b,i,0x1\n\
                         reservation 5 1 iqn.a,i,0x1\n\
                         control 0 1 3 1\n\
                         sanitize 1\n\
                         floor a500000005000000 8388608\n";

    #[test]
    fn what_was_saved_is_read_and_is_saved_the_same_again() {
        let kept: Kept = FENCE.parse().expect("as saved");
        let SavedFloor { lowest, kept_at } = kept.floor.expect("as saved");
        let floor = KeyFloor {
            family: 0..=u64::MAX,
            lowest,
            kept_at,
        };
        let again = kept.reservations.save()
            + &kept.mode.save()
            + &SanitizeState::save(kept.sanitize)
            + &floor.save();
        assert_eq!(again, FENCE);
        assert_eq!("".parse(), Ok(Kept::default()));
    }

    #[test]
    fn a_damaged_line_is_refused_and_named_whatever_it_has_been() {
        let damaged = [
            ("000000000000000a 1", "00000000000000zz 1", 1),
            ("registration 000000000000000a", "registration +a", 1),
            ("registration 000000000000000a", "registration 0", 1),
            ("a 1 0 iqn.a", "a 1 2 iqn.a", 1),
            ("a 1 0 iqn.a", "a 65536 0 iqn.a", 1),
            ("a 1 0 iqn.a,i,0x1", "a 1 0 ", 1),
            ("a 1 0 iqn.a,i,0x1", "a 1 0", 1),
            ("b 2 1 iqn.b", "b 1 1 iqn.a", 2),
            (
                "registration 000000000000000b",
                "registratio 000000000000000b",
                2,
            ),
            ("reservation 5", "reservation 2", 3),
            ("reservation 5 1", "reservation 5", 3),
            ("reservation 5 1 iqn.a", "reservation 5 1 iqn.c", 3),
            ("control 0 1 3 1", "reservation 5 2 iqn.b,i,0x1", 4),
            ("control 0 1 3 1", "control 0 1 2 1", 4),
            ("control 0 1 3 1", "control 0 1 3 1 1", 4),
            ("control 0 1 3 1", "", 4),
            ("sanitize 1", "sanitize", 5),
            ("sanitize 1", "control 0 1 3 1", 5),
            ("floor a5", "floor zz", 6),
            (" 8388608", "", 6),
            ("sanitize 1", "floor 1 1", 6),
        ];
        for (from, to, line) in damaged {
            let text = FENCE.replacen(from, to, 1);
            assert_ne!(text, FENCE, "{from}");
            let error = text.parse::<Kept>().expect_err(to);
            assert_eq!(error.line, line, "{to}: {error}");
            let shown = text.lines().nth(line - 1).expect("it is there");
            assert!(error.to_string().contains(shown), "{error}");
        }
    }
}
