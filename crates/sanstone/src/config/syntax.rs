//! From a file to its settings: what the TOML reader and serde say of one that is wrong, in the words
//! of the guide and with what to write instead.

use toml::de::Error;
use volume::config::ConfigError;

/// The text of a file of these bytes.
pub(super) fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let right = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + right.iter().filter(|byte| **byte == b'\n').count();
        let byte = error.as_bytes()[right.len()];
        format!("{line}: there is no UTF-8 text from byte {byte:#04x} on; save the file as UTF-8")
    })
}

/// What is wrong and the mend.
pub(super) fn explain(error: &Error) -> ConfigError {
    ConfigError::new(error.span(), with_mend(error.message()))
}

fn with_mend(message: &str) -> String {
    if let Some(field) = quoted(message, "missing field `", '`') {
        return format!("missing field `{field}`; write {}", example(field));
    }
    if message == "duplicate key" {
        return "this key is there twice; write it once".to_owned();
    }
    if let Some((variant, others)) = message.split_once(", expected ") {
        if let Some(variant) = quoted(variant, "unknown variant `", '`') {
            let others = others.trim_start_matches("one of ").replace('`', "\"");
            return format!("\"{variant}\" is not offered; write one of {others}");
        }
    }
    let given = quoted(message, "string \"", '"').unwrap_or("…");
    let list = format!("a list, as [\"{given}\"]");
    let file = format!("it as {{ path = \"{given}\" }}");
    for (expected, said, write) in [
        ("a sequence", "a list", &*list),
        ("i64", "a whole number", "it without quotes, as 4"),
        ("a boolean", "yes or no", "true or false, without quotes"),
        ("path string", "a path", "it in quotes"),
        ("a string", "a text", "it in quotes"),
        ("a map", "a table", "it as { KEY = … }"),
        ("struct File", "a table", &*file),
        ("struct Ram", "a table", "it as { size = \"1GiB\" }"),
        ("struct Iscsi", "a table", "it as { url = \"iscsi://…\" }"),
        ("struct Stripe", "a table", "it as { of = [ … ] }"),
    ] {
        let Some(given) = message.strip_suffix(expected) else {
            continue;
        };
        if given.ends_with(", expected ") {
            return format!("{given}{said}; write {write}");
        }
    }
    message.to_owned()
}

/// What stands in `message` between `before` and `end`.
fn quoted<'a>(message: &'a str, before: &str, end: char) -> Option<&'a str> {
    let (_, rest) = message.split_once(before)?;
    rest.split_once(end).map(|(quoted, _)| quoted)
}

fn example(field: &str) -> String {
    let example = match field {
        "allow" => "allow = [\"*\"], or the names of the initiators that may log in",
        "of" => "of = \"NAME\", or a list of them for a stripe",
        "path" => "path = \"disk.img\"",
        "rate" => "rate = \"1Gbit/s\"",
        "size" => "size = \"1GiB\"",
        "to" => "to = \"10.0.2.1:3260\"",
        "url" => "url = \"iscsi://10.0.1.2/iqn.2026-11.io.sanstone:a/0\"",
        "user" => "user = \"NAME\"",
        "volume" => "volume = \"NAME\"",
        other => return format!("{other} = …"),
    };
    example.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serde_says_gets_its_mend() {
        for (said, mended) in [
            (
                "missing field `allow`",
                "missing field `allow`; write allow = [\"*\"], or the names of the initiators that may log in",
            ),
            (
                "invalid type: string \"*\", expected a sequence",
                "invalid type: string \"*\", expected a list; write a list, as [\"*\"]",
            ),
            (
                "invalid type: string \"4\", expected i64",
                "invalid type: string \"4\", expected a whole number; write it without quotes, as 4",
            ),
            (
                "invalid type: string \"a.img\", expected struct File",
                "invalid type: string \"a.img\", expected a table; write it as { path = \"a.img\" }",
            ),
            (
                "unknown variant `turbo`, expected one of `direct`, `write-back`",
                "\"turbo\" is not offered; write one of \"direct\", \"write-back\"",
            ),
            ("duplicate key", "this key is there twice; write it once"),
            ("unknown field `x`", "unknown field `x`"),
        ] {
            assert_eq!(with_mend(said), mended);
        }
    }

    #[test]
    fn what_is_no_text_is_told_with_its_line() {
        let error = text(b"one\ntwo \xff\n".to_vec()).expect_err("no text");
        assert!(
            error.starts_with("2: ") && error.contains("0xff"),
            "{error}"
        );
    }
}
