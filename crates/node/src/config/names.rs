//! Validation of names and numbers: of targets and initiators, and of table keys.

use std::{collections::BTreeMap, fmt::Display, ops::Range};

use front_iscsi::folded_name;
use toml::Spanned;
use volume::config::ConfigError;

use super::{LUN_MAX, NAME_BYTES_MAX};

pub(super) fn check_target_name(name: &Spanned<String>) -> Result<(), ConfigError> {
    let may_hold = |c: char| c.is_alphanumeric() && !c.is_uppercase() || "-.:".contains(c);
    let write = "an iSCSI name in lower case, such as \"iqn.2026-11.io.sanstone:t0\"";
    check_name(name, "a target", may_hold, write)
}

pub(super) fn lun_number(text: &Spanned<String>) -> Result<u32, ConfigError> {
    text.get_ref()
        .parse()
        .ok()
        .filter(|n| *n <= LUN_MAX)
        .ok_or_else(|| {
            let message = format!(
                "\"{}\" is not a LUN; write a number from 0 to {LUN_MAX}",
                text.get_ref()
            );
            ConfigError::new(text.span(), message)
        })
}

/// The entries of a table by number, in the table's order. Rejects duplicates: `1` and `01` are two
/// keys in TOML but the same number.
pub(super) fn by_number<'a, N: Copy + Display + Ord, V>(
    table: &'a BTreeMap<Spanned<String>, V>,
    what: &str,
    number: impl Fn(&Spanned<String>) -> Result<N, ConfigError>,
) -> Result<Vec<(N, &'a V)>, ConfigError> {
    let mut seen = BTreeMap::new();
    let mut numbered = Vec::new();
    for (key, value) in table {
        let number = number(key)?;
        if let Some(other) = seen.insert(number, key.get_ref()) {
            let message = format!(
                "{what} {number} appears twice, as \"{other}\" and as \"{}\"; write it once",
                key.get_ref()
            );
            return Err(ConfigError::new(key.span(), message));
        }
        numbered.push((number, value));
    }
    Ok(numbered)
}

/// Checks an iSCSI name: one of the three formats (RFC 7143 §4.2.7), with permitted characters only.
pub(super) fn check_name(
    name: &Spanned<String>,
    whose: &str,
    may_hold: impl Fn(char) -> bool,
    write: &str,
) -> Result<(), ConfigError> {
    let text = name.get_ref();
    let folded = folded_name(text);
    let why = if let Some(wrong) = text.chars().find(|c| !may_hold(*c)) {
        format!("it contains {wrong:?}")
    } else if !["iqn.", "eui.", "naa."]
        .iter()
        .any(|p| folded.starts_with(p))
    {
        "it does not begin with iqn., eui. or naa.".to_owned()
    } else if text.len() > NAME_BYTES_MAX {
        format!("it is longer than {NAME_BYTES_MAX} bytes")
    } else {
        return Ok(());
    };
    let what = format_args!("\"{text}\" cannot name {whose}: {why}");
    Err(wrong_value(name.span(), what, write))
}

pub(super) fn wrong_value(span: Range<usize>, what: impl Display, write: &str) -> ConfigError {
    ConfigError::new(span, format!("{what}; write {write}"))
}
