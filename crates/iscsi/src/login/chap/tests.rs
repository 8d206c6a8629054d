//! The digests against known answers, the encodings, and the validation of accounts.

use super::*;
use proptest::prelude::*;

/// Computed with another implementation (Python's hashlib).
#[test]
fn answers_are_those_of_the_standard_digests() {
    let challenge: Vec<u8> = (0..16).collect();
    for (algorithm, expected) in [
        (ChapAlgorithm::Md5, "0x8932cabbad7c42bb3333a152d9788f08"),
        (
            ChapAlgorithm::Sha1,
            "0x81a18461b50d21082ca558caba48c5b4e84832e0",
        ),
        (
            ChapAlgorithm::Sha256,
            "0x2d181eac18fb1d54a5a1e39e891eb1aba7a971f8974808a7549b834b912dbb3b",
        ),
        (
            ChapAlgorithm::Sha3_256,
            "0x2d50da028db8adfeff0497c77b461f7b1646ef0851a699e3ba48f56857697720",
        ),
    ] {
        let answer = algorithm.respond(0x27, b"correct horse battery", &challenge);
        assert_eq!(value::encode(&answer), expected, "{algorithm:?}");
        assert_eq!(answer.len(), algorithm.digest_len());
    }
}

#[test]
fn bytes_are_read_in_hexadecimal_and_base64() {
    for (text, bytes) in [
        ("0x00ff", &[0, 255][..]),
        ("0XaBcD", &[0xab, 0xcd]),
        ("0bAP8=", &[0, 255]),
        ("0BAA==", &[0]),
        ("0b+/+/", &[0xfb, 0xff, 0xbf]),
        ("0x", &[]),
    ] {
        assert_eq!(value::decode(text, 3).as_deref(), Some(bytes), "{text}");
    }
    for text in [
        "",
        "0",
        "00ff",
        "0x0",
        "0x0g",
        "0xé0",
        "0b=",
        "0bA===",
        "0bAA=A",
        "0bAA==AAAA",
        "0bAB==",
        "0bA",
        "0b====",
        "0x00112233",
        "0bAAAAAA==",
        "0y00",
    ] {
        assert_eq!(value::decode(text, 3), None, "{text}");
    }
}

#[test]
fn secrets_have_their_length_and_are_not_shown() {
    for len in [0, 11, 256] {
        assert!(ChapSecret::new(&vec![b'x'; len]).is_err(), "{len}");
    }
    let secret = ChapSecret::new(b"not for logs").unwrap();
    let account = ChapAccount::new("user", secret.clone()).unwrap();
    let chap = Chap::new(account.clone(), None).unwrap();
    let authentication = Authentication::new(Arc::new(chap), [9; Authentication::RANDOM_LEN]);
    let shown = format!("{authentication:?}");
    assert!(
        shown.contains("user") && !shown.contains("not for logs"),
        "{shown}"
    );
    assert!(
        !shown.contains("110, 111, 116") && !shown.contains("9, 9"),
        "{shown}"
    );
    for user in ["", "a\0b", &"u".repeat(256)] {
        assert!(ChapAccount::new(user, secret.clone()).is_err());
    }
    assert!(matches!(
        Chap::new(account.clone(), Some(account)),
        Err(Error::Authentication(_))
    ));
}

proptest! {
    #[test]
    fn what_is_encoded_is_read_again(bytes in proptest::collection::vec(any::<u8>(), 0..1024)) {
        prop_assert_eq!(value::decode(&value::encode(&bytes), 1024), Some(bytes));
    }

    #[test]
    fn no_value_is_longer_than_allowed(text in "0[xXbB][0-9a-fA-F+/=]{0,64}", max in 0usize..40) {
        prop_assert!(value::decode(&text, max).is_none_or(|bytes| bytes.len() <= max));
    }
}
