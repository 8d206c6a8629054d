//! SMART attributes: what a drive of each maker reports when it is new to the fleet, and how a day changes
//! it. The rules work on each attribute from whatever the row holds, so that a real drive's values (often
//! only five raw ones) continue from where they are. A drive about to fail has growing reallocated, pending
//! and uncorrectable sector counts; in other drives these hardly ever grow.

use engine::random::SplitMix64;

use super::models::Vendor;

/// The attributes that drives of `vendor` report.
pub(crate) fn reported_by(vendor: Vendor) -> &'static [u8] {
    match vendor {
        Vendor::Seagate => &[
            1, 3, 4, 5, 7, 9, 10, 12, 183, 184, 187, 188, 189, 190, 191, 192, 193, 194, 197, 198,
            199, 240, 241, 242,
        ],
        Vendor::Hitachi => &[
            1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 192, 193, 194, 196, 197, 198, 199,
        ],
        Vendor::WesternDigital => &[
            1, 3, 4, 5, 7, 9, 10, 11, 12, 192, 193, 194, 196, 197, 198, 199, 200,
        ],
        Vendor::Other => &[
            1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 191, 192, 193, 194, 196, 197, 198, 199,
        ],
    }
}

/// Normalized and raw value of `attribute` on a drive that has run for `hours`.
pub(crate) fn initial(
    attribute: u8,
    vendor: Vendor,
    hours: i64,
    random: &mut SplitMix64,
) -> (i64, i64) {
    let seagate = vendor == Vendor::Seagate;
    let starts = 1 + hours / 2_000 + random.between(0, 6);
    match attribute {
        1 if seagate => (random.between(105, 120), random.between(0, 244_000_000)),
        1 => (
            if vendor == Vendor::WesternDigital {
                200
            } else {
                100
            },
            0,
        ),
        2 => (random.between(133, 136), random.between(80, 115)),
        3 if seagate => (random.between(91, 97), 0),
        3 => (random.between(125, 175), random.between(400, 6_600)),
        4 | 12 => (100, starts),
        5 | 196 => (
            100,
            if random.one_in(14) {
                random.between(1, 400)
            } else {
                0
            },
        ),
        7 if seagate => (
            random.between(60, 88),
            random.between(1_000_000, 900_000_000),
        ),
        8 => (random.between(113, 146), random.between(20, 40)),
        9 => (hours_normalized(hours), hours),
        187 | 197 | 198 => (
            100,
            if random.one_in(50) {
                random.between(1, 16)
            } else {
                0
            },
        ),
        188 => (
            100,
            if random.one_in(30) {
                random.between(1, 9)
            } else {
                0
            },
        ),
        190 => temperature(190, vendor, random.between(20, 32)),
        192 => (100, starts + random.between(0, 90)),
        193 => (100, starts + hours * random.between(1, 40) / 100),
        194 => temperature(194, vendor, random.between(20, 32)),
        240 => (100, hours + random.between(0, 900)),
        241 | 242 => (100, hours * random.between(900_000, 2_400_000)),
        11 | 199 | 200 => (
            if vendor == Vendor::WesternDigital {
                200
            } else {
                100
            },
            0,
        ),
        _ => (100, 0),
    }
}

/// Advances `attribute` by one day; `dying` drives wear out visibly. `None` stays `None`.
pub(crate) fn age(
    attribute: u8,
    vendor: Vendor,
    dying: bool,
    normalized: &mut Option<i64>,
    raw: &mut Option<i64>,
    random: &mut SplitMix64,
) {
    let Some(value) = *raw else { return };
    // Real counters may hold anything (some drives claim 29 years of running): never overflow.
    let plus = |more: i64| value.saturating_add(more);
    *raw = Some(match attribute {
        1 if value != 0 => random.between(1, 244_000_000),
        1 if dying && random.one_in(3) => random.between(1, 60),
        4 | 12 if random.one_in(250) => plus(1),
        5 | 196 if dying => plus(random.between(0, 90)),
        5 | 196 if random.one_in(2_500) => plus(random.between(1, 8)),
        7 if vendor == Vendor::Seagate => plus(random.between(20_000, 900_000)),
        9 => plus(24),
        187 if dying && random.one_in(2) => plus(random.between(1, 12)),
        188 if dying && random.one_in(4) => plus(1),
        190 | 194 => (value.clamp(15, 45) + random.between(-1, 1)).clamp(15, 45),
        192 if random.one_in(200) => plus(1),
        193 => plus(random.between(0, 9)),
        197 | 198 if dying => plus(random.between(0, 24)),
        197 | 198 if random.one_in(9_000) => plus(8),
        240 => plus(random.between(20, 24)),
        241 | 242 => plus(random.between(4_000_000, 60_000_000)),
        _ => value,
    });
    if let (Some(normalized), Some(raw)) = (normalized, *raw) {
        match attribute {
            9 => *normalized = hours_normalized(raw),
            190 | 194 => *normalized = temperature(attribute, vendor, raw).0,
            _ => {}
        }
    }
}

fn hours_normalized(hours: i64) -> i64 {
    (100 - hours / 876).max(1)
}

/// Normalized and raw value of a temperature in °C: each maker scales it in its own way.
fn temperature(attribute: u8, vendor: Vendor, degrees: i64) -> (i64, i64) {
    let normalized = match (attribute, vendor) {
        (190, _) => 100 - degrees,
        (_, Vendor::Seagate) => degrees,
        (_, Vendor::WesternDigital) => 147 - degrees,
        _ => 6_000 / degrees,
    };
    (normalized, degrees)
}
