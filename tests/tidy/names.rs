//! How many types share a name: who reads `State` must not have to ask whose.

use std::collections::BTreeMap;

use super::{File, files, none};

/// How many types of the product may have one name.
const SAME_MAX: usize = 2;

/// The name of the type that a line defines, if it is chosen there: that of an associated type is its trait's, and that of one in
/// a macro may be the macro's argument.
fn defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().peekable();
    words.next_if(|word| *word == "pub" || word.starts_with("pub("));
    // `pub(in PATH)` is two words.
    words.next_if(|word| word.ends_with(')'));
    let is_type = match words.next()? {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let name = words.next().filter(|_| is_type)?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())]).filter(|name| !name.is_empty())
}

/// Whether it is part of what ships.
fn ships(file: &File) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    file.is_rust()
        && file.path.starts_with("crates/")
        && !file.path.contains("/tests/")
        && !name.contains("test")
}

#[test]
fn at_most_two_types_have_one_name() {
    let files = files();
    let mut places = BTreeMap::<&str, Vec<&str>>::new();
    for file in files.iter().filter(|file| ships(file)) {
        for name in file.before_tests().lines().filter_map(defined) {
            places.entry(name).or_default().push(&file.path);
        }
    }
    assert!(places.contains_key("MirrorAction"), "types are found");
    let crowded = places.iter().filter(|(_, files)| files.len() > SAME_MAX);
    none(
        crowded
            .map(|(name, files)| format!("{name}: {} types: {}", files.len(), files.join(", ")))
            .collect(),
    );
}

#[test]
fn a_definition_is_told_from_other_lines() {
    for line in [
        "struct Name {",
        "pub struct Name<T>(T);",
        "pub(crate) enum Name {",
        "pub(in crate::a) trait Name: Send {",
        "pub type Name = u32;",
        "        struct Name;",
    ] {
        assert_eq!(defined(line), Some("Name"), "{line}");
    }
    for line in [
        "    type Name = u32;",
        "        pub struct $name {",
        "impl Name {",
        "pub fn name() {",
        "",
    ] {
        assert_eq!(defined(line), None, "{line}");
    }
}
