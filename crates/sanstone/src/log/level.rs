//! Which lines are logged: a level for all parts of the program, or for some of them, from the start on or changed while it
//! runs.

use std::{
    str::FromStr,
    sync::{Mutex, OnceLock, PoisonError},
};

use tracing_subscriber::{EnvFilter, filter::LevelFilter, reload::Handle};

/// The parts that can have a level of their own: our crates.
const PARTS: [&str; 16] = [
    "engine",
    "front",
    "front_fuse",
    "front_iscsi",
    "front_nbd",
    "iscsi",
    "iscsi_stream",
    "lab",
    "mirror",
    "nbd",
    "node",
    "sanstone",
    "scsi",
    "set",
    "unit",
    "volume",
];

/// Puts another filter into effect.
type Replace = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

static LEVEL: OnceLock<(Mutex<String>, Replace)> = OnceLock::new();

/// Parses what `--log` and `log-level` take: a level, or `PART=LEVEL`, or several of them.
pub(super) fn filter(text: &str) -> Result<EnvFilter, String> {
    for directive in text.split(',') {
        let (part, level) = match directive.split_once('=') {
            Some((part, level)) => (Some(part), level),
            None => (None, directive),
        };
        // EnvFilter would read an empty level as `error`.
        if level.is_empty() || LevelFilter::from_str(level).is_err() {
            return Err(format!(
                "\"{text}\": \"{level}\" is not a level; write off, error, warn, info, debug or \
                 trace, as in info"
            ));
        }
        let known = |part: &str| PARTS.contains(&part.split("::").next().unwrap_or_default());
        if let Some(part) = part.filter(|part| !known(part)) {
            return Err(format!(
                "\"{text}\": there is no part \"{part}\"; write one of {}, as in front_iscsi=debug",
                PARTS.join(", ")
            ));
        }
    }
    // The parts that are not named go on as by default.
    let whole = match text.split(',').all(|directive| directive.contains('=')) {
        true => format!("info,{text}"),
        false => text.to_owned(),
    };
    EnvFilter::try_new(whole).map_err(|error| format!("\"{text}\": {error}; write info"))
}

/// Remembers the filter that the log begins with, and how to replace it.
pub(super) fn may_change<S: 'static>(wanted: &str, handle: Handle<EnvFilter, S>) {
    let replace = move |filter| handle.reload(filter).map_err(|error| error.to_string());
    // A process starts its log once.
    let _ = LEVEL.set((Mutex::new(wanted.to_owned()), Box::new(replace)));
}

/// From here on, logs what the filter `wanted` says, if there is one. Returns the filter that was in effect before.
///
/// # Errors
/// It is no filter; the message says how to write one.
pub(crate) fn change(wanted: Option<&str>) -> Result<String, String> {
    let (now, replace) = LEVEL.get().ok_or("the log has not begun")?;
    let mut now = now.lock().unwrap_or_else(PoisonError::into_inner);
    let before = now.clone();
    if let Some(wanted) = wanted {
        let filter = filter(wanted).map_err(|error| format!("log-level {error}"))?;
        replace(filter)?;
        wanted.clone_into(&mut now);
        super::say(format_args!(
            "sanstone: what is logged changes from {before} to {wanted}"
        ));
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate without a level could not be looked into.
    #[test]
    fn every_crate_is_a_part() {
        let crates = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("crates");
        let mut names: Vec<String> = crates
            .map(|entry| {
                entry
                    .expect("a crate")
                    .file_name()
                    .to_string_lossy()
                    .replace('-', "_")
            })
            .collect();
        names.sort();
        assert_eq!(names, PARTS);
    }

    #[test]
    fn a_filter_is_levels_for_our_parts() {
        for right in [
            "info",
            "DEBUG",
            "off",
            "front_iscsi=debug,volume=warn",
            "info,front_iscsi::login=trace",
        ] {
            assert!(filter(right).is_ok(), "{right}");
        }
        let some = filter("front_iscsi=debug").expect("it is one").to_string();
        assert!(
            some.contains("info") && some.contains("front_iscsi=debug"),
            "{some}"
        );
        for (wrong, said) in [
            (
                "debg",
                "\"debg\": \"debg\" is not a level; write off, error, warn, info",
            ),
            ("", "\"\": \"\" is not a level; write off"),
            ("info,", "\"\" is not a level"),
            ("front_iscsi=", "\"\" is not a level"),
            (
                "tagret=debug",
                "there is no part \"tagret\"; write one of engine, ",
            ),
        ] {
            let message = filter(wrong).expect_err(wrong);
            assert!(message.contains(said), "{message}");
        }
    }
}
