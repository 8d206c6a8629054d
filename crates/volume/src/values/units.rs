//! Quantities as people write them: sizes ("64KiB"), rates ("2.5Gbit/s") and times ("250ms"). A number is decimal,
//! may have a fraction, and always has a unit; the result must be a whole number of bytes, bits per second or
//! nanoseconds, so that nothing is silently rounded.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de};

const SIZE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1000),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

const TIME_UNITS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1000),
    ("µs", 1000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

const RATE_UNITS: &[(&str, u64)] = &[
    ("bit/s", 1),
    ("kbit/s", 1000),
    ("Kbit/s", 1000),
    ("Mbit/s", 1_000_000),
    ("Gbit/s", 1_000_000_000),
    ("Tbit/s", 1_000_000_000_000),
];

/// How other programs write times, and how they are written here. (Their sizes do not say whether K is 1000 or 1024.)
const OTHER_UNITS: &[(&str, &str)] = &[
    ("msec", "ms"),
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("m", "min"),
    ("mins", "min"),
    ("minute", "min"),
    ("minutes", "min"),
    ("hour", "h"),
    ("hours", "h"),
];

/// A length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Size(u64);

impl Size {
    /// A size of `bytes` bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Size(bytes)
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, SIZE_UNITS, "size", "64KiB, 1.5GiB or 20GB").map(Size)
    }
}

impl fmt::Display for Size {
    /// In the largest binary or decimal unit that divides it, in configuration syntax.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_largest(f, self.0, SIZE_UNITS)
    }
}

/// A data rate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Rate {
    bits_per_s: u64,
}

impl Rate {
    /// `bits` bits per second; `None` for zero, at which nothing would ever finish.
    pub const fn from_bits_per_s(bits: u64) -> Option<Self> {
        if bits == 0 {
            None
        } else {
            Some(Rate { bits_per_s: bits })
        }
    }

    /// In bits per second; never zero.
    pub const fn bits_per_s(self) -> u64 {
        self.bits_per_s
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXAMPLES: &str = "1Gbit/s, 2.5Gbit/s or 100MiB/s";
        let bits = match text
            .trim()
            .strip_suffix("/s")
            .filter(|size| !size.ends_with("bit"))
        {
            Some(size) if size.ends_with('B') => parse(size, SIZE_UNITS, "rate", EXAMPLES)?
                .checked_mul(8)
                .ok_or_else(|| too_large(text, "rate"))?,
            // Also mention the other family of units in the message that lists them.
            _ => parse(text, RATE_UNITS, "rate", EXAMPLES).map_err(|message| {
                let more = "and those of a size with /s, such as MiB/s";
                match message.contains("the units are") {
                    true => format!("{message}, {more}"),
                    false => message,
                }
            })?,
        };
        Rate::from_bits_per_s(bits).ok_or_else(|| {
            format!("a rate of \"{text}\" would let no I/O through; write one above zero")
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_largest(f, self.bits_per_s, RATE_UNITS)
    }
}

/// A duration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Time(Duration);

impl Time {
    /// The time `duration`.
    pub const fn from_duration(duration: Duration) -> Self {
        Time(duration)
    }

    /// As a standard [`Duration`].
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, TIME_UNITS, "time", "250ms, 5s or 1.5min")
            .map(|ns| Time(Duration::from_nanos(ns)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_largest(f, self.0.as_nanos() as u64, TIME_UNITS)
    }
}

/// The number in `text` times its unit.
fn parse(text: &str, units: &[(&str, u64)], what: &str, examples: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..end], trimmed[end..].trim_start());
    let malformed =
        || format!("\"{text}\" is not a {what}; write a number with its unit, such as {examples}");
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err(malformed());
    }
    let Some(&(_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        if unit.is_empty() {
            return Err(format!(
                "\"{text}\" has no unit; write a {what} such as {examples}"
            ));
        }
        let is_meant =
            |name: &str| name.eq_ignore_ascii_case(unit) || OTHER_UNITS.contains(&(unit, name));
        if let Some((right, _)) = units.iter().find(|(name, _)| is_meant(name)) {
            return Err(format!(
                "\"{unit}\" in \"{text}\" is not a unit of a {what}; write \"{number}{right}\""
            ));
        }
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        return Err(format!(
            "\"{unit}\" in \"{text}\" is not a unit of a {what}; the units are {}",
            names.join(", ")
        ));
    };
    let too_large = || too_large(text, what);
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let mut value = whole.checked_mul(scale.into()).ok_or_else(too_large)?;
    if !fraction.is_empty() {
        let fraction = fraction.trim_end_matches('0');
        let divisor = 10u128
            .checked_pow(fraction.len() as u32)
            .filter(|_| fraction.len() <= 18)
            .ok_or_else(malformed)?;
        // At most 18 digits times at most 3.6e12: far below 2^128.
        let scaled = fraction.parse::<u128>().unwrap_or(0) * u128::from(scale);
        if scaled % divisor != 0 {
            return Err(format!(
                "\"{text}\" is not a whole number of {}; write it with a smaller unit",
                units[0].0
            ));
        }
        value = value.checked_add(scaled / divisor).ok_or_else(too_large)?;
    }
    u64::try_from(value)
        .ok()
        .filter(|&value| value <= i64::MAX as u64)
        .ok_or_else(too_large)
}

fn too_large(text: &str, what: &str) -> String {
    format!("a {what} of \"{text}\" is too large; write a smaller one")
}

fn write_largest(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let (name, scale) = units
        .iter()
        .filter(|(_, scale)| value % scale == 0 && value >= *scale)
        .max_by_key(|(_, scale)| *scale)
        .unwrap_or(&units[0]);
    write!(f, "{}{name}", value / scale)
}

/// Implements deserialization of a quantity from a string; for a bare number, the error says what is missing.
macro_rules! from_string {
    ($type:ty, $what:literal, $example:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct QuantityVisitor;
                impl de::Visitor<'_> for QuantityVisitor {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("a ", $what, " such as \"", $example, "\""))
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        Err(E::custom(format!(
                            concat!(
                                "a ",
                                $what,
                                " is written in quotes and with its unit, such as \"",
                                $example,
                                "\"; {} has none"
                            ),
                            number
                        )))
                    }
                }
                deserializer.deserialize_any(QuantityVisitor)
            }
        }
    };
}

from_string!(Size, "size", "64KiB");
from_string!(Rate, "rate", "1Gbit/s");
from_string!(Time, "time", "250ms");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_mean_what_they_say() {
        for (text, bytes) in [
            ("512B", 512),
            ("64KiB", 65_536),
            ("64 KiB", 65_536),
            ("1MB", 1_000_000),
            ("1.5GiB", 1_610_612_736),
            ("20GiB", 20 << 30),
            ("0.5KiB", 512),
            ("2.50kB", 2500),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for (text, bits_per_s) in [
            ("1Gbit/s", 1_000_000_000),
            ("2.5Gbit/s", 2_500_000_000),
            ("100MiB/s", 838_860_800),
            ("125MB/s", 1_000_000_000),
            ("9600bit/s", 9600),
        ] {
            assert_eq!(text.parse(), Ok(Rate { bits_per_s }), "{text}");
        }
        for (text, ns) in [
            ("250ms", 250_000_000),
            ("50µs", 50_000),
            ("1.5min", 90_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Time(Duration::from_nanos(ns))), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_the_mend() {
        for (text, part) in [
            ("", "write a number with its unit"),
            ("KiB", "write a number with its unit"),
            ("1.KiB", "write a number with its unit"),
            ("1.2.3KiB", "write a number with its unit"),
            ("-1KiB", "write a number with its unit"),
            ("64", "has no unit"),
            ("64kib", "is not a unit of a size; write \"64KiB\""),
            ("64G", "is not a unit of a size; the units are B,"),
            ("1.3B", "not a whole number of B"),
            ("99999999TiB", "write a smaller one"),
            (
                "999999999999999999999999999999999999999999B",
                "write a smaller one",
            ),
        ] {
            let error = text.parse::<Size>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        for (text, written) in [("15m", "15min"), ("30sec", "30s"), ("2 hours", "2h")] {
            let error = text.parse::<Time>().expect_err(text);
            assert!(error.ends_with(&format!("write \"{written}\"")), "{error}");
        }
        let error = "1Gbit".parse::<Rate>().expect_err("no unit");
        assert!(
            error.ends_with("Tbit/s, and those of a size with /s, such as MiB/s"),
            "{error}"
        );
        for text in ["0Gbit/s", "1Gbit", "1GiB", "fast", "9223372036854775807B/s"] {
            text.parse::<Rate>().expect_err(text);
        }
    }

    proptest! {
        #[test]
        fn a_quantity_reads_back_as_it_is_shown(value in 1..i64::MAX as u64) {
            prop_assert_eq!(Size(value).to_string().parse(), Ok(Size(value)));
            let rate = Rate { bits_per_s: value };
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            let time = Time(Duration::from_nanos(value));
            prop_assert_eq!(time.to_string().parse(), Ok(time));
        }

        #[test]
        fn fractions_are_exact(whole in 0u64..1000, thousandths in 0u64..1000) {
            let text = format!("{whole}.{thousandths:03}MB");
            prop_assert_eq!(text.parse(), Ok(Size(whole * 1_000_000 + thousandths * 1000)));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}") {
            let _ = (text.parse::<Size>(), text.parse::<Rate>(), text.parse::<Time>());
        }
    }
}
