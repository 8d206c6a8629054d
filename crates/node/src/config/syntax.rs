//! From a file's bytes to its settings: translates the errors of the TOML parser and serde into the
//! terms of the guide, with a remedy.

use toml::de::Error;
use volume::config::ConfigError;

use super::slips;

/// The keys of `[limits]`.
const LIMITS: [&str; 8] = [
    "reserved",
    "logins",
    "logins_per_peer",
    "login_time",
    "commands",
    "transfer",
    "data_segment",
    "text",
];

/// Messages of the TOML parser, and what to show instead.
const OF_THE_PARSER: [(&str, &str); 9] = [
    (
        "cannot recurse further",
        "tables and lists are nested too deeply here; write the inner volumes as tables of their own, \
         [volume.NAME], and refer to them by name",
    ),
    ("missing comma", "a comma is missing before this; add one"),
    (
        "unexpected key or value",
        "nothing else may follow on this line; begin a new line, or remove it",
    ),
    (
        "key with no value",
        "this key has no value; write KEY = VALUE",
    ),
    (
        "missing value",
        "a value is missing here; write KEY = VALUE",
    ),
    ("extra assignment", "this = is one too many; remove it"),
    (
        "invalid unquoted key",
        "this character needs quotes in a name; put the name in quotes",
    ),
    (
        "invalid key-value pair",
        "no key begins like this; write KEY = VALUE, or [volume.NAME] for a table",
    ),
    ("extra comma", "this comma is one too many; remove it"),
];

/// The text of a file from its bytes.
pub(super) fn text(bytes: Vec<u8>) -> Result<String, String> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err("1: this is UTF-16; save the file as UTF-8".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        let right = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + right.iter().filter(|byte| **byte == b'\n').count();
        let byte = error.as_bytes()[right.len()];
        format!("{line}: byte {byte:#04x} is not UTF-8; save the file as UTF-8")
    })
}

/// Why `text` is not TOML: its first slip, or else the parser's message.
pub(super) fn not_toml(text: &str, error: &Error) -> ConfigError {
    let key = error.span().and_then(|span| text.get(span));
    match (slips::find(text), key) {
        (Some(slip), _) => slip,
        (None, Some(key)) if error.message() == "duplicate key" => {
            ConfigError::new(error.span(), format!("{key} appears twice; write it once"))
        }
        _ => explain(error),
    }
}

/// The error and its remedy.
pub(super) fn explain(error: &Error) -> ConfigError {
    // The parser's position may lie between two characters; the one after it is meant.
    let span = error
        .span()
        .map(|span| span.start..span.end.max(span.start + 1));
    ConfigError::new(span, with_mend(error.message()))
}

fn with_mend(message: &str) -> String {
    if let Some(field) = quoted(message, "missing field `", '`') {
        return format!("`{field}` is missing; write {}", example(field));
    }
    if let Some((key, _)) = unknown_key(message) {
        return explain_key(key, &known_keys(message)).0;
    }
    if let Some((_, mended)) = OF_THE_PARSER
        .iter()
        .find(|(said, _)| message.starts_with(said))
    {
        return (*mended).to_owned();
    }
    if let Some((variant, others)) = message.split_once(", expected ") {
        if let Some(variant) = quoted(variant, "unknown variant `", '`') {
            let others = others.trim_start_matches("one of ").replace('`', "\"");
            return format!("\"{variant}\" is unknown; write one of {others}");
        }
    }
    if let Some((number, _)) = quoted(message, "integer `", '`').zip(message.find("` as i128")) {
        return format!("{number} is too large; write a smaller number");
    }
    // What was written there may be the secret itself.
    if message.ends_with(", expected struct Credentials") {
        return "this is no table; write it as { user = \"…\", secret_file = \"FILE\" }".to_owned();
    }
    let given = quoted(message, "string \"", '"').unwrap_or("…");
    if message == "invalid type: sequence, expected a map" {
        return "this is a list of tables; write each as [volume.NAME], in single brackets"
            .to_owned();
    }
    if message == "invalid type: map, expected a string" {
        return "this is a table, { … }, where a text is expected; where one table is expected, write \
                it without [ ] around it"
            .to_owned();
    }
    let list = format!("a list, as [\"{given}\"]");
    let file = format!("it as {{ path = \"{given}\" }}");
    let of_luns = format!("it as [\"{given}\"]");
    for (expected, said, write) in [
        (super::luns::FORMS, super::luns::FORMS, &*of_luns),
        ("a sequence", "a list", &*list),
        ("i64", "a whole number", "it without quotes, such as 4"),
        ("a boolean", "true or false", "it without quotes"),
        ("path string", "a path", "it in quotes"),
        ("a string", "a text", "it in quotes"),
        ("a map", "a table", "it as { KEY = … }"),
        ("struct File", "a table", &*file),
        ("struct Ram", "a table", "it as { size = \"1GiB\" }"),
        ("struct Iscsi", "a table", "it as { url = \"iscsi://…\" }"),
        ("struct Stripe", "a table", "it as { of = [ … ] }"),
        ("struct Concat", "a table", "it as { of = [ … ] }"),
        (
            "struct Target",
            "a table",
            "a table for each target, such as [target.\"iqn.2026-11.io.sanstone:t0\"]",
        ),
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

/// The key in an unknown-key message, and the similar known key that was probably meant, if any.
pub(super) fn unknown_key(message: &str) -> Option<(&str, Option<&str>)> {
    let key = quoted(message, "unknown field `", '`')?;
    Some((key, nearest(key, &known_keys(message))))
}

/// The known keys that such a message lists.
fn known_keys(message: &str) -> Vec<&str> {
    message.split('`').skip(3).step_by(2).collect()
}

/// The message for an unknown key, and the similar known key that was probably meant, if any.
pub(super) fn explain_key<'a>(key: &str, known: &[&'a str]) -> (String, Option<&'a str>) {
    let meant = nearest(key, known);
    let message = match meant {
        None if known.contains(&"login_time") && key == "login" => format!(
            "unknown key `{key}`; write `login_time` for how long a login may take, or `logins` for \
             how many may be in progress"
        ),
        Some(meant) => format!("unknown key `{key}`; write `{meant}`"),
        None if known.contains(&"limits") && LIMITS.contains(&key) => {
            format!("`{key}` belongs in the table [limits]; write it there")
        }
        None if known.is_empty() => format!("unknown key `{key}`; remove it"),
        None => format!(
            "unknown key `{key}`; the keys here are {}",
            known.join(", ")
        ),
    };
    (message, meant)
}

fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let known_as = |name| known.iter().find(|other| **other == name).copied();
    match key {
        // It is as close to `logins` as to `login_time`.
        "login" if known_as("login_time").is_some() => return None,
        "login_timeout" => return known_as("login_time"),
        _ => {}
    }
    let near = known.iter().map(|other| (distance(key, other), *other));
    let near = near.filter(|(distance, other)| *distance <= 2 && *distance * 2 < other.len());
    near.min().map(|(_, other)| other)
}

/// The edit distance: how many characters to insert, delete or change to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.bytes().enumerate() {
            let change = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The part of `message` between `before` and `end`.
fn quoted<'a>(message: &'a str, before: &str, end: char) -> Option<&'a str> {
    let (_, rest) = message.split_once(before)?;
    rest.split_once(end).map(|(quoted, _)| quoted)
}

fn example(field: &str) -> String {
    let example = match field {
        "allow" => "allow = [\"iqn.…\"] with the names of the initiators that may log in",
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
                "`allow` is missing; write allow = [\"iqn.…\"] with the names of the initiators that may log in",
            ),
            (
                "invalid type: string \"*\", expected a sequence",
                "invalid type: string \"*\", expected a list; write a list, as [\"*\"]",
            ),
            (
                "unknown field `login_timeout`, expected one of `logins`, `login_time`",
                "unknown key `login_timeout`; write `login_time`",
            ),
            (
                "invalid type: map, expected a string",
                "this is a table, { … }, where a text is expected; where one table is expected, write \
                 it without [ ] around it",
            ),
            (
                "invalid type: string \"4\", expected i64",
                "invalid type: string \"4\", expected a whole number; write it without quotes, such as \
                 4",
            ),
            (
                "invalid type: string \"a.img\", expected struct File",
                "invalid type: string \"a.img\", expected a table; write it as { path = \"a.img\" }",
            ),
            (
                "invalid type: string \"db:a secret\", expected struct Credentials",
                "this is no table; write it as { user = \"…\", secret_file = \"FILE\" }",
            ),
            (
                "unknown variant `turbo`, expected one of `direct`, `write-back`",
                "\"turbo\" is unknown; write one of \"direct\", \"write-back\"",
            ),
            (
                "unknown field `lun`, expected one of `portals`, `luns`",
                "unknown key `lun`; write `luns`",
            ),
            (
                "unknown field `colour`, expected `size` or `block_size`",
                "unknown key `colour`; the keys here are size, block_size",
            ),
            (
                "unknown field `commands`, expected one of `memory`, `limits`",
                "`commands` belongs in the table [limits]; write it there",
            ),
            ("unknown field `x`", "unknown key `x`; remove it"),
            (
                "missing comma between array elements, expected `,`",
                "a comma is missing before this; add one",
            ),
            (
                "invalid type: integer `99999999999999999999999` as i128, expected i64",
                "99999999999999999999999 is too large; write a smaller number",
            ),
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
