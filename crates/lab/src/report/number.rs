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
        let grouped = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(grouped, ["0", "999", "1,000", "1,234,567"]);
    }
}
