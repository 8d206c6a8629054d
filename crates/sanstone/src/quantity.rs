//! Formats quantities briefly for people.

/// A number of bytes, such as `1.5 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match value.fract() == 0.0 || value >= 100.0 {
        true => format!("{value:.0} {}", UNITS[unit]),
        false => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// A duration, such as `87 µs`, `1.5 ms`, `12 s`, `3 h 20 min`.
pub(crate) fn seconds(seconds: f64) -> String {
    let short = |value: f64, unit: &str| match value < 10.0 {
        true => format!("{value:.1} {unit}"),
        false => format!("{value:.0} {unit}"),
    };
    // A value that would round up to the next unit uses that unit.
    match seconds {
        s if s < 0.000_999_5 => short(s * 1e6, "µs"),
        s if s < 0.999_5 => short(s * 1e3, "ms"),
        s if s < 119.5 => short(s, "s"),
        s => {
            let minutes = (s / 60.0) as u64;
            match (minutes / 60, minutes % 60) {
                (0, minutes) => format!("{minutes} min"),
                (hours, minutes) if hours < 48 => format!("{hours} h {minutes} min"),
                (hours, _) => format!("{} d {} h", hours / 24, hours % 24),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_short() {
        let sizes = [0, 1023, 1024, 1536, 150 << 20, 1 << 40].map(bytes);
        let expected = ["0 B", "1023 B", "1 KiB", "1.5 KiB", "150 MiB", "1 TiB"];
        assert_eq!(sizes, expected);
        let times = [0.0, 87e-6, 0.001_5, 0.999_9, 12.3, 600.0, 12_000.0, 1e6].map(seconds);
        let expected = [
            "0.0 µs",
            "87 µs",
            "1.5 ms",
            "1.0 s",
            "12 s",
            "10 min",
            "3 h 20 min",
            "11 d 13 h",
        ];
        assert_eq!(times, expected);
    }
}
