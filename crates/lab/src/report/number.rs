//! Numbers as texts.

/// Formats a number briefly: 1,234 or 12.3 or 0.123.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 999.5 => grouped(value.round() as u64),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => trimmed(format!("{value:.1}")),
        size if size >= 0.1 => trimmed(format!("{value:.2}")),
        _ => trimmed(format!("{value:.4}")),
    }
}

/// Formats a time given in microseconds, in the unit that suits it: 185 µs, 7.45 ms, 2.1 s.
pub(crate) fn time_us(us: f64) -> String {
    match us.abs() {
        ..999.5 => format!("{} µs", short(us)),
        ..999_500.0 => format!("{} ms", digits(us / 1e3)),
        _ => format!("{} s", digits(us / 1e6)),
    }
}

/// Three digits.
fn digits(value: f64) -> String {
    match value.abs() {
        ..9.995 => trimmed(format!("{value:.2}")),
        ..99.95 => trimmed(format!("{value:.1}")),
        _ => format!("{value:.0}"),
    }
}

fn trimmed(text: String) -> String {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Formats a number with thousands separators: "1,250,000".
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a link's rate: "2.5 Gbit/s".
pub(crate) fn link_text(bits_per_s: u64) -> String {
    let giga = bits_per_s as f64 / 1e9;
    if giga >= 1.0 {
        format!("{giga} Gbit/s")
    } else {
        format!("{} Mbit/s", giga * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_short_as_they_may_be() {
        let numbers = [0.0, 0.01234, 0.5, 1.0, 12.34, 150.6, 999.7, 1234.5, 1e6];
        let shown = [
            "0",
            "0.0123",
            "0.5",
            "1",
            "12.3",
            "151",
            "1,000",
            "1,235",
            "1,000,000",
        ];
        assert_eq!(numbers.map(short), shown);
        let times = [0.5, 185.2, 999.9, 7453.0, 48_793.8, 360_000.0, 2.1e6];
        let shown = [
            "0.5 µs", "185 µs", "1 ms", "7.45 ms", "48.8 ms", "360 ms", "2.1 s",
        ];
        assert_eq!(times.map(time_us), shown);
        let grouped = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(grouped, ["0", "999", "1,000", "1,234,567"]);
    }
}
