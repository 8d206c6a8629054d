//! The text of login and text PDUs (RFC 7143 §6.1): null-terminated `key=value` pairs, which may continue over
//! several PDUs (C bit). The amount collected is bounded.

use crate::error::Error;

/// Longest key name in bytes (RFC 7143 §6.1).
const KEY_LEN_MAX: usize = 63;
/// Longest iSCSI name in bytes (RFC 7143 §4.2.7.1).
const NAME_LEN_MAX: usize = 223;
/// Longest TargetAddress in bytes (RFC 7143 §13.8): a domain name of 255, its port, a portal group tag.
const ADDRESS_LEN_MAX: usize = 255 + ":65535".len() + ",65535".len();

/// The pairs of complete text, in order.
///
/// # Errors
/// [`Error::Text`] for text that is not UTF-8, for a pair without `=`, and for a key that is empty or too long.
pub(crate) fn pairs(text: &[u8]) -> impl Iterator<Item = Pair<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (pair, len) = next_pair(rest)?;
        rest = &rest[len..];
        Some(pair)
    })
}

/// A key and its value, or what is wrong with a pair.
type Pair<'a> = Result<(&'a str, &'a str), Error>;

/// The first pair of complete text, and how many bytes of it are done with; `None` if there is none.
pub(crate) fn next_pair(text: &[u8]) -> Option<(Pair<'_>, usize)> {
    let start = text.iter().position(|byte| *byte != 0)?;
    let piece = text[start..].split(|byte| *byte == 0).next()?;
    let done = (start + piece.len() + 1).min(text.len());
    Some((pair(piece), done))
}

fn pair(piece: &[u8]) -> Pair<'_> {
    let piece = std::str::from_utf8(piece).map_err(|error| Error::Text(error.to_string()))?;
    match piece.split_once('=') {
        None => Err(Error::Text(format!("{:?} has no '='", truncated(piece)))),
        Some((key, _)) if key.is_empty() || key.len() > KEY_LEN_MAX => Err(Error::Text(format!(
            "{:?} is not a key of 1 to 63 bytes",
            truncated(key)
        ))),
        Some(pair) => Ok(pair),
    }
}

/// Whether `name` can be an iSCSI name: 1 to 223 bytes without white space or control characters (RFC 7143 §4.2.7.1,
/// RFC 3722 §6). Checked because drivers put names into logs, lists and files.
pub(crate) fn is_name(name: &str) -> bool {
    is_word(name, NAME_LEN_MAX)
}

/// Whether `address` can be a TargetAddress.
fn is_address(address: &str) -> bool {
    is_word(address, ADDRESS_LEN_MAX)
}

fn is_word(text: &str, len_max: usize) -> bool {
    let forbidden = |c: char| c.is_whitespace() || c.is_control();
    (1..=len_max).contains(&text.len()) && !text.contains(forbidden)
}

/// An iSCSI name in the form used for comparison: names are case-insensitive (RFC 7143 §4.2.7.2, RFC 3722 §3.2).
pub fn folded_name(name: &str) -> String {
    name.to_lowercase()
}

/// Text from the peer, truncated for a message.
pub(crate) fn truncated(text: &str) -> String {
    text.chars().take(64).collect()
}

/// A decimal or hexadecimal number (RFC 7143 §6.1, "numerical-value").
pub(crate) fn number(value: &str) -> Option<u32> {
    match value
        .strip_prefix("0x")
        .or_else(|| value.strip_prefix("0X"))
    {
        Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u32::from_str_radix(hex, 16).ok()
        }
        None if value.bytes().all(|b| b.is_ascii_digit()) => value.parse().ok(),
        _ => None,
    }
}

/// Appends one pair.
pub(crate) fn push(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// Text that arrives in several PDUs, with a limit on the total.
#[derive(Debug)]
pub(crate) struct TextBuffer {
    bytes: Vec<u8>,
    taken: usize,
    max: usize,
}

impl TextBuffer {
    pub(crate) fn new(max: usize) -> TextBuffer {
        TextBuffer {
            bytes: Vec::new(),
            taken: 0,
            max,
        }
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.taken + self.bytes.len() + bytes.len() > self.max {
            return Err(Error::Limit {
                what: "bytes of negotiation text",
                max: self.max,
            });
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Takes the text collected since the last call; it still counts against the limit.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.taken += self.bytes.len();
        std::mem::take(&mut self.bytes)
    }
}

/// One target of a discovery answer (RFC 7143 Appendix C).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRecord {
    /// TargetName, an iSCSI name.
    pub name: String,
    /// TargetAddress values: `domainname[:port][,portal-group-tag]`; IPv6 in brackets.
    pub addresses: Vec<String>,
}

/// The answer to SendTargets, as [`send_targets`](crate::TargetConnection::send_targets) takes it.
pub fn encode_targets(targets: &[TargetRecord]) -> Vec<u8> {
    let mut text = Vec::new();
    for target in targets {
        push(&mut text, "TargetName", &target.name);
        target
            .addresses
            .iter()
            .for_each(|address| push(&mut text, "TargetAddress", address));
    }
    text
}

/// Parses an answer to SendTargets. Names and addresses are validated because they go into lists, logs and
/// configurations.
pub(crate) fn decode_targets(text: &[u8]) -> Result<Vec<TargetRecord>, Error> {
    let mut targets: Vec<TargetRecord> = Vec::new();
    let refused = |key, value, why| Error::Key {
        key: truncated(key),
        value: truncated(value),
        why,
    };
    for pair in pairs(text) {
        let (key, value) = pair?;
        match (key, targets.last_mut()) {
            ("TargetName", _) if !is_name(value) => {
                let why =
                    "a name must have 1 to 223 bytes, without white space or control characters";
                return Err(refused(key, value, why));
            }
            ("TargetAddress", _) if !is_address(value) => {
                let why = "an address must have 1 to 267 bytes, without white space or control \
                           characters";
                return Err(refused(key, value, why));
            }
            ("TargetName", _) => {
                targets.push(TargetRecord {
                    name: value.to_owned(),
                    addresses: Vec::new(),
                });
            }
            ("TargetAddress", Some(target)) => target.addresses.push(value.to_owned()),
            _ => {
                let why =
                    "this response may contain only TargetName, each followed by its TargetAddress";
                return Err(refused(key, value, why));
            }
        }
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Result<Vec<(&str, &str)>, Error> {
        pairs(text).collect()
    }

    #[test]
    fn pairs_end_with_a_zero_byte() {
        assert_eq!(all(b"a=b=c\0K=\0").unwrap(), [("a", "b=c"), ("K", "")]);
        assert_eq!(all(b"").unwrap(), []);
        assert_eq!(all(b"\0\0").unwrap(), []);
        assert_eq!(all(b"a=b").unwrap(), [("a", "b")]);
        assert_eq!(all(b"\0a=b\0\0c=d").unwrap(), [("a", "b"), ("c", "d")]);
    }

    #[test]
    fn malformed_text_is_refused() {
        let long = [b'k'; 64];
        for text in [
            &b"noequals\0"[..],
            b"=x\0",
            &[&long[..], b"=1"].concat(),
            b"a=\xff\0",
        ] {
            assert!(matches!(all(text), Err(Error::Text(_))), "{text:?}");
        }
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        let cases = [
            ("512", Some(512)),
            ("0x200", Some(512)),
            ("0X1f", Some(31)),
            ("", None),
        ];
        for (text, value) in cases {
            assert_eq!(number(text), value, "{text}");
        }
        for text in ["-1", "+1", "1.0", "4294967296", "0x", "0xg", "0x+1"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn names_have_no_white_space_and_a_bounded_length() {
        let long = "n".repeat(223);
        for name in [
            "iqn.2026-11.io.sanstone:a",
            "eui.02004567A425678D",
            "é",
            &long,
        ] {
            assert!(is_name(name), "{name}");
        }
        let longer = long.clone() + "n";
        for name in [
            "",
            "a b",
            "a\nreservation 1",
            "a\t",
            "\u{a0}",
            "\u{7f}",
            &longer,
        ] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn collected_text_is_bounded_over_all_rounds() {
        let mut buffer = TextBuffer::new(8);
        buffer.append(b"a=1\0").unwrap();
        buffer.take();
        buffer.append(b"b=2\0").unwrap();
        assert!(matches!(
            buffer.append(b"x"),
            Err(Error::Limit { max: 8, .. })
        ));
    }

    #[test]
    fn targets_survive_the_wire() {
        let targets = vec![
            TargetRecord {
                name: "iqn.a".into(),
                addresses: vec!["1.2.3.4:3260,1".into()],
            },
            TargetRecord {
                name: "iqn.b".into(),
                addresses: vec!["[::1]:1,1".into(), "x".into()],
            },
        ];
        assert_eq!(decode_targets(&encode_targets(&targets)).unwrap(), targets);
        assert!(decode_targets(b"TargetAddress=x\0").is_err());
    }

    #[test]
    fn targets_with_names_or_addresses_that_are_none_are_refused() {
        let named = |name: &str| format!("TargetName={name}\0").into_bytes();
        let at =
            |address: &str| format!("TargetName=iqn.a\0TargetAddress={address}\0").into_bytes();
        decode_targets(&named(&"n".repeat(NAME_LEN_MAX))).unwrap();
        decode_targets(&at(&"a".repeat(ADDRESS_LEN_MAX))).unwrap();
        for text in [
            named(""),
            named("iqn.a b"),
            named("iqn.a\x1b[2J"),
            named(&"n".repeat(NAME_LEN_MAX + 1)),
            at(""),
            at("1.2.3.4\n,1"),
            at(&"a".repeat(ADDRESS_LEN_MAX + 1)),
            b"TargetName=iqn.\xff\0".to_vec(),
            b"TargetName\0".to_vec(),
        ] {
            let refused = decode_targets(&text);
            assert!(refused.is_err(), "{refused:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_a_target_answers_what_is_read_of_it_can_be_shown(
            text in proptest::collection::vec(
                proptest::prop_oneof![
                    proptest::strategy::Just(b"TargetName=".to_vec()),
                    proptest::strategy::Just(b"TargetAddress=".to_vec()),
                    proptest::strategy::Just(b"\0".to_vec()),
                    proptest::collection::vec(proptest::num::u8::ANY, 0..8),
                    proptest::strategy::Just(vec![b'a'; 100]),
                ],
                0..40,
            )
        ) {
            for target in decode_targets(&text.concat()).into_iter().flatten() {
                assert!(is_name(&target.name));
                assert!(target.addresses.iter().all(|address| is_address(address)));
            }
        }
    }
}
