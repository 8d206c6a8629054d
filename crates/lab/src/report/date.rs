//! Moments as people write them.

use crate::drive_stats::Date;

/// A moment, given in seconds since 1970, in UTC: 2026-11-26 01:44 UTC.
pub(super) fn utc(seconds: u64) -> String {
    const DAY: u64 = 86_400;
    let minutes = seconds % DAY / 60;
    format!(
        "{} {:02}:{:02} UTC",
        day(seconds / DAY),
        minutes / 60,
        minutes % 60
    )
}

/// A day, given by its number since 1970-01-01: 2026-11-26.
fn day(days_since_1970: u64) -> String {
    let epoch = Date::new(1970, 1, 1).expect("a day of the calendar");
    epoch.plus_days(days_since_1970 as i64).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(
            utc(20_779 * 86_400 + 3600 * 13 + 65),
            "2026-11-22 13:01 UTC"
        );
        assert_eq!(day(20_779), "2026-11-22");
    }
}
