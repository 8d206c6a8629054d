//! The validity period of a certificate, read from its DER encoding (RFC 5280 4.1.2.5).

use std::fmt;

use engine::time;

/// The DER tags needed here.
const VERSION: u8 = 0xA0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SECONDS_OF_A_DAY: u64 = 24 * 60 * 60;

/// A UTC time to the second, as the decimal number YYYYMMDDhhmmss.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Date(u64);

impl Date {
    pub(crate) fn now() -> Date {
        Date::from_unix(time::since_unix_epoch().as_secs())
    }

    pub(crate) fn from_unix(unix_s: u64) -> Date {
        let second = unix_s % SECONDS_OF_A_DAY;
        let mut day = unix_s / SECONDS_OF_A_DAY;
        // The Gregorian calendar repeats every 400 years.
        let mut year = 1970 + day / 146_097 * 400;
        day %= 146_097;
        while day >= days_of(year) {
            day -= days_of(year);
            year += 1;
        }
        let mut month = 1;
        while day >= days_of_month(year, month) {
            day -= days_of_month(year, month);
            month += 1;
        }
        let date = [month, day + 1, second / 3600, second / 60 % 60, second % 60];
        let digits = |number: u64, part: u64| number.saturating_mul(100).saturating_add(part);
        Date(date.into_iter().fold(year, digits))
    }

    fn from_der(tag: u8, text: &[u8]) -> Option<Date> {
        let digits = text.strip_suffix(b"Z")?;
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        match (tag, digits.len()) {
            (UTC_TIME, 12) if digits[0] >= b'5' => Some(Date(19_000_000_000_000 + number)),
            (UTC_TIME, 12) => Some(Date(20_000_000_000_000 + number)),
            (GENERALIZED_TIME, 14) => Some(Date(number)),
            _ => None,
        }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |place: u32| self.0 / 100_u64.pow(place) % 100;
        write!(
            f,
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC",
            self.0 / 100_u64.pow(5),
            part(4),
            part(3),
            part(2),
            part(1),
            part(0)
        )
    }
}

fn is_leap(year: u64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The first and the last valid second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Validity {
    from: Date,
    until: Date,
}

impl Validity {
    /// The validity period of a DER-encoded certificate, if it can be parsed.
    pub(crate) fn of(certificate: &[u8]) -> Option<Validity> {
        let signed = element(certificate)?.content;
        let mut rest = element(signed)?.content;
        if rest.first() == Some(&VERSION) {
            rest = element(rest)?.rest;
        }
        // Skips the serial number, the signature algorithm and the issuer.
        for _ in 0..3 {
            rest = element(rest)?.rest;
        }
        let from = element(element(rest)?.content)?;
        let until = element(from.rest)?;
        Some(Validity {
            from: Date::from_der(from.tag, from.content)?,
            until: Date::from_der(until.tag, until.content)?,
        })
    }

    /// Why the certificate is not valid at `now`; `None` if it is.
    pub(crate) fn doubt(&self, now: Date) -> Option<String> {
        let Validity { from, until } = self;
        let is_valid = (*from..=*until).contains(&now);
        (!is_valid)
            .then(|| format!("it is valid from {from} until {until}, and the time is now {now}"))
    }
}

/// The first element of a DER sequence, and the rest after it.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    rest: &'a [u8],
}

fn element(der: &[u8]) -> Option<Element<'_>> {
    let (&[tag, len], rest) = der.split_first_chunk::<2>()?;
    let (len, rest) = match len {
        0..=0x7F => (usize::from(len), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(len - 0x80))?;
            let place = |len: usize, digit: &u8| len << 8 | usize::from(*digit);
            (digits.iter().fold(0, place), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some(Element { tag, content, rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = content.len() as u16;
        [&[tag, 0x82][..], &len.to_be_bytes(), content].concat()
    }

    fn certificate(from: &[u8], until: &[u8]) -> Vec<u8> {
        let validity = der(0x30, &[from, until].concat());
        let head = [
            der(VERSION, &[2, 1, 2]),
            der(2, &[7; 200]),
            der(0x30, b""),
            der(0x30, b"issuer"),
        ];
        let signed = der(0x30, &[&head.concat()[..], &validity, b"more"].concat());
        der(0x30, &[&signed[..], b"signature"].concat())
    }

    #[test]
    fn seconds_become_dates() {
        for (unix_s, date) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_795_429_398, "2026-11-23 10:23:18 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(Date::from_unix(unix_s).to_string(), date);
        }
        // An absurd date must not panic.
        let _ = Date::from_unix(u64::MAX).to_string();
    }

    #[test]
    fn a_certificate_is_doubted_before_and_after_its_time() {
        let (from, until) = (
            der(UTC_TIME, b"260101000000Z"),
            der(GENERALIZED_TIME, b"20500101000000Z"),
        );
        let whole = certificate(&from, &until);
        let validity = Validity::of(&whole).expect("it can be read");
        for (now, is_doubted) in [
            (20_251_231_235_959, true),
            (20_260_101_000_000, false),
            (20_500_101_000_000, false),
            (20_500_101_000_001, true),
        ] {
            let doubt = validity.doubt(Date(now));
            assert_eq!(doubt.is_some(), is_doubted, "{now}");
            if let Some(doubt) = doubt {
                let dates = "from 2026-01-01 00:00:00 UTC until 2050-01-01 00:00:00 UTC";
                assert!(doubt.contains(dates), "{doubt}");
            }
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_validity() {
        let (good, bad) = (
            der(UTC_TIME, b"500101000000Z"),
            der(UTC_TIME, b"5001010000Z"),
        );
        let whole = certificate(&good, &good);
        assert!(Validity::of(&whole).is_some());
        for len in 0..whole.len() {
            assert_eq!(Validity::of(&whole[..len]), None);
        }
        assert_eq!(Validity::of(&certificate(&good, &bad)), None);
        assert_eq!(Validity::of(&certificate(&bad, &good)), None);
    }
}
