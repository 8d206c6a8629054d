//! Calendar dates as drive_stats writes them (`2017-01-31`), and the arithmetic on days and months
//! that advancing a fleet and finding its first full month need. Proleptic Gregorian calendar; the
//! conversion from and to a day number is the usual one by 400-year eras counted from 1 March.

use std::{fmt, str::FromStr};

/// A calendar date; ordered by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    year: i32,
    month: u32,
    day: u32,
}

impl Date {
    /// The date, or `None` if the calendar has no such day.
    pub fn new(year: i32, month: u32, day: u32) -> Option<Self> {
        let date = Self { year, month, day };
        ((0..=9999).contains(&year)
            && (1..=12).contains(&month)
            && day >= 1
            && day <= date.month().days())
        .then_some(date)
    }

    /// The month this date lies in.
    pub fn month(self) -> Month {
        Month {
            year: self.year,
            month: self.month,
        }
    }

    /// The date `days` later (earlier if negative).
    pub fn plus_days(self, days: i64) -> Self {
        Self::from_day_number(self.day_number() + days)
    }

    /// Days from `earlier` to this date.
    pub fn days_since(self, earlier: Self) -> i64 {
        self.day_number() - earlier.day_number()
    }

    /// Days since 0000-03-01.
    fn day_number(self) -> i64 {
        let year = i64::from(self.year) - i64::from(self.month <= 2);
        let month_from_march = i64::from((self.month + 9) % 12);
        let day_of_year = (153 * month_from_march + 2) / 5 + i64::from(self.day) - 1;
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year
    }

    fn from_day_number(days: i64) -> Self {
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = (month_from_march + 2) % 12 + 1;
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        Self {
            year: year as i32,
            month: month as u32,
            day: day as u32,
        }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl FromStr for Date {
    type Err = ();

    /// Reads exactly `YYYY-MM-DD`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let bytes = text.as_bytes();
        let digits = |range: std::ops::Range<usize>| -> Result<u32, ()> {
            bytes[range].iter().try_fold(0, |value, byte| match byte {
                b'0'..=b'9' => Ok(value * 10 + u32::from(byte - b'0')),
                _ => Err(()),
            })
        };
        if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
            return Err(());
        }
        Self::new(digits(0..4)? as i32, digits(5..7)?, digits(8..10)?).ok_or(())
    }
}

/// A calendar month, written `2017-01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month {
    year: i32,
    month: u32,
}

impl Month {
    /// Its number of days, 28 to 31.
    pub fn days(self) -> u32 {
        match self.month {
            2 if self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// Its first day.
    pub fn first_day(self) -> Date {
        Date {
            year: self.year,
            month: self.month,
            day: 1,
        }
    }

    /// Its last day.
    pub fn last_day(self) -> Date {
        Date {
            year: self.year,
            month: self.month,
            day: self.days(),
        }
    }

    /// The first month that lies wholly within `first..=last`, or `None`.
    pub fn first_full(first: Date, last: Date) -> Option<Self> {
        let month = if first.day == 1 {
            first.month()
        } else {
            first.month().last_day().plus_days(1).month()
        };
        (month.last_day() <= last).then_some(month)
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.year, self.month)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(text: &str) -> Date {
        text.parse().unwrap()
    }

    #[test]
    fn days_follow_each_other_through_leap_years_and_centuries() {
        let mut day = date("1999-12-30");
        let mut seen = 0;
        while day < date("2104-03-02") {
            let next = day.plus_days(1);
            assert!(next > day);
            assert_eq!(next.days_since(day), 1);
            assert_eq!(date(&next.to_string()), next);
            assert_eq!(Date::new(next.year, next.month, next.day), Some(next));
            day = next;
            seen += 1;
        }
        // `date -d` says so too: 2104-03-02 is 38,048 days after 1999-12-30.
        assert_eq!(seen, 38_048);
        assert_eq!(date("2100-02-28").plus_days(1), date("2100-03-01"));
        assert_eq!(date("2000-02-28").plus_days(1), date("2000-02-29"));
    }

    #[test]
    fn what_is_not_a_date_is_refused() {
        for text in [
            "",
            "2017-1-01",
            "2017-02-29",
            "2017-13-01",
            "2017-00-10",
            "2017/01/01",
            "20170-1-1",
            "2017-01-0é",
        ] {
            assert!(text.parse::<Date>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_first_full_month_needs_both_ends() {
        let full = |a: &str, b: &str| Month::first_full(date(a), date(b)).map(|m| m.to_string());
        assert_eq!(full("2017-01-01", "2017-01-31"), Some("2017-01".into()));
        assert_eq!(full("2017-01-01", "2017-01-30"), None);
        assert_eq!(full("2013-04-10", "2013-06-08"), Some("2013-05".into()));
        assert_eq!(full("2016-12-02", "2017-02-01"), Some("2017-01".into()));
    }
}
