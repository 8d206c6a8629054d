//! A time that may have no end, as people write it: `"120s"`, or `"forever"`.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de};

use super::Time;

/// Stands for no end where a [`Duration`] is needed: longer than any machine runs, and far from where sums of times overflow.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How long to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// For at most this long.
    For(Time),
    /// Without an end.
    Forever,
}

impl Wait {
    /// As a limit for a timer: a hundred years if it has no end.
    pub const fn limit(self) -> Duration {
        match self {
            Wait::For(time) => time.duration(),
            Wait::Forever => FOREVER,
        }
    }
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "forever" {
            return Ok(Wait::Forever);
        }
        let time: Time = text
            .parse()
            .map_err(|message| format!("{message}; or \"forever\""))?;
        match time.duration() > FOREVER {
            true => Err(format!(
                "\"{text}\" is more than a hundred years; write \"forever\""
            )),
            false => Ok(Wait::For(time)),
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::For(time) => time.fmt(f),
            Wait::Forever => f.write_str("forever"),
        }
    }
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WaitVisitor;
        impl de::Visitor<'_> for WaitVisitor {
            type Value = Wait;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"120s\", or \"forever\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Wait, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Wait, E> {
                Err(E::custom(format!(
                    "a time is written in quotes and with its unit, such as \"120s\"; {number} has none"
                )))
            }
        }
        deserializer.deserialize_any(WaitVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_has_an_end_or_is_written_as_one_that_has_none() {
        let wait = |text: &str| text.parse::<Wait>();
        assert_eq!(wait("forever"), Ok(Wait::Forever));
        let two_minutes = wait("2min").expect("a time");
        assert_eq!(two_minutes.limit(), Duration::from_secs(120));
        assert!(Wait::Forever.limit() > Duration::from_secs(1 << 31));
        for (text, part) in [
            ("never", "or \"forever\""),
            ("120", "has no unit"),
            ("900000h", "write \"forever\""),
        ] {
            let error = wait(text).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
        for text in ["forever", "2min"] {
            assert_eq!(wait(text).expect(text).to_string(), text);
        }
    }
}
