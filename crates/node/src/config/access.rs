//! Who may log in: initiators by name, by network, and by credentials.

use std::{path::Path, sync::Arc};

use front_iscsi::{Chap, Prefix, folded_name};
use serde::Deserialize;
use toml::Spanned;
use volume::config::{ChapAlgorithm, ChapSettings, ConfigError, Credentials};

use super::{check_name, wrong_value};

/// The `[discovery]` table: the credentials for a discovery session.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Discovery {
    chap: Option<Spanned<Credentials>>,
    old_chap: Option<Spanned<Credentials>>,
    mutual: Option<Spanned<Credentials>>,
    chap_algorithms: Option<Spanned<Vec<ChapAlgorithm>>>,
}

impl Discovery {
    /// Reads the secrets.
    pub(super) fn chap(&self, base: &Path) -> Result<Option<Arc<Chap>>, ConfigError> {
        let settings = ChapSettings {
            chap: self.chap.as_ref(),
            old: self.old_chap.as_ref(),
            mutual: self.mutual.as_ref(),
            algorithms: self.chap_algorithms.as_ref(),
        };
        settings.read(base)
    }
}

/// The names in `allow`; `None`: everyone.
pub(super) fn allow(
    allow: &Spanned<Vec<Spanned<String>>>,
) -> Result<Option<Vec<String>>, ConfigError> {
    let names = allow.get_ref();
    if names.is_empty() {
        return Err(wrong_value(
            allow.span(),
            "nobody may log in",
            "the names of initiators, or [\"*\"] for everybody",
        ));
    }
    if names.iter().any(|name| name.get_ref() == "*") {
        return Ok(None);
    }
    if let Some(name) = names.iter().find(|name| name.get_ref().contains('*')) {
        return Err(wrong_value(
            name.span(),
            format_args!(
                "\"{}\": names are compared whole, so a * within one matches only itself",
                name.get_ref()
            ),
            "each name, or [\"*\"] alone for everybody",
        ));
    }
    // Any initiator that could log in under "*" can be named here: some have names that the
    // standard does not allow, mostly with underscores.
    let may_hold = |c: char| !c.is_whitespace() && !c.is_control();
    let write = "its iSCSI name, such as \"iqn.1993-08.org.debian:01:dbhost\"";
    names
        .iter()
        .try_for_each(|name| check_name(name, "an initiator", may_hold, write))?;
    let folded = names.iter().map(|name| folded_name(name.get_ref()));
    Ok(Some(folded.collect()))
}

/// Everything that is wrong with the names in `allow`.
pub(super) fn allow_errors(names: &Spanned<Vec<Spanned<String>>>) -> Vec<ConfigError> {
    errors_of(names, |names| allow(names).err())
}

/// Everything that is wrong with the networks in `allow_from`.
pub(super) fn allow_from_errors(from: &Spanned<Vec<Spanned<String>>>) -> Vec<ConfigError> {
    errors_of(from, |from| allow_from(Some(from)).err())
}

/// The error of a whole list, and those of its entries, each alone.
fn errors_of(
    list: &Spanned<Vec<Spanned<String>>>,
    error: impl Fn(&Spanned<Vec<Spanned<String>>>) -> Option<ConfigError>,
) -> Vec<ConfigError> {
    let Some(first) = error(list) else {
        return Vec::new();
    };
    let alone = |entry: &Spanned<String>| error(&Spanned::new(list.span(), vec![entry.clone()]));
    let entries = list.get_ref().iter().filter_map(alone);
    [first].into_iter().chain(entries).collect()
}

/// The networks in `allow_from`; empty: from anywhere.
pub(super) fn allow_from(
    from: Option<&Spanned<Vec<Spanned<String>>>>,
) -> Result<Vec<Prefix>, ConfigError> {
    let Some(from) = from else {
        return Ok(Vec::new());
    };
    if from.get_ref().is_empty() {
        return Err(wrong_value(
            from.span(),
            "nobody may log in from anywhere",
            "networks such as [\"10.0.1.0/24\"], or leave it out to allow all",
        ));
    }
    let parse = |text: &Spanned<String>| {
        let parsed = text.get_ref().parse();
        parsed.map_err(|message: String| ConfigError::new(text.span(), message))
    };
    from.get_ref().iter().map(parse).collect()
}
