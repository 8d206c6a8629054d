//! Bytes encoded in text (RFC 7143 §6.1, "binary-value"): hexadecimal after `0x`, base64 after `0b`. Hexadecimal is
//! written, and both are read.

/// Encodes bytes as `0x` and two digits per byte.
pub(super) fn encode(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    let digits = bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    "0x".chars().chain(digits).collect()
}

/// Decodes a value; `None` if it is malformed or longer than `len_max` bytes.
pub(super) fn decode(text: &str, len_max: usize) -> Option<Vec<u8>> {
    let (prefix, digits) = text.as_bytes().split_at_checked(2)?;
    match prefix {
        b"0x" | b"0X" if digits.len() <= 2 * len_max => hexadecimal(digits),
        b"0b" | b"0B" if digits.len() <= len_max.div_ceil(3) * 4 => {
            base64(digits).filter(|bytes| bytes.len() <= len_max)
        }
        _ => None,
    }
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    if digits.len() % 2 != 0 {
        return None;
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| Some((nibble(pair[0])? << 4 | nibble(pair[1])?) as u8);
    digits.chunks_exact(2).map(byte).collect()
}

/// Decodes base64 according to RFC 4648 §4; requires padding, and zero bits in the unused positions.
fn base64(digits: &[u8]) -> Option<Vec<u8>> {
    if digits.len() % 4 != 0 {
        return None;
    }
    let groups = digits.len() / 4;
    let mut bytes = Vec::with_capacity(groups * 3);
    for (index, group) in digits.chunks_exact(4).enumerate() {
        let padding = match group {
            [_, _, b'=', b'='] => 2,
            [.., b'='] => 1,
            _ => 0,
        };
        if padding > 0 && index + 1 < groups {
            return None;
        }
        let mut bits = 0;
        for digit in &group[..4 - padding] {
            bits = bits << 6 | u32::from(sextet(*digit)?);
        }
        bits <<= 6 * padding;
        let [_, decoded @ ..] = bits.to_be_bytes();
        let (kept, stray) = decoded.split_at(3 - padding);
        if stray.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    Some(bytes)
}

fn sextet(digit: u8) -> Option<u8> {
    Some(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}
