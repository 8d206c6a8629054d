//! Validation of the daemon's own settings, above the first table.

use std::{path::Path, time::Duration};

use volume::config::ConfigError;

use super::{ConfigFile, MEMORY_MIN_BYTES};

/// Bounds on how long a peer may be silent.
const TIME_MIN: Duration = Duration::from_secs(1);
const TIME_MAX: Duration = Duration::from_secs(3600);

/// Checks the settings of `file`, which was read from `path` with the content `text`.
pub(super) fn check(file: &ConfigFile, path: &Path, text: &str) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    if let Some(state) = &file.state {
        let given = state.get_ref().to_string_lossy();
        let why = match &*given {
            "" => "is empty",
            given if given.contains('\0') => "contains a NUL character",
            _ => "",
        };
        if !why.is_empty() {
            let own = path.with_extension("state");
            let message = format!(
                "the path of the state directory {why}; write one such as \"/var/lib/sanstone\", or \
                 remove the line to use {}",
                own.display()
            );
            errors.push(ConfigError::new(state.span(), message));
        }
    }
    if let Some(memory) = &file.memory {
        if memory.get_ref().bytes() < MEMORY_MIN_BYTES {
            let size = &text[memory.span()];
            let message = format!("memory = {size} is too little; write \"32MiB\" or more");
            errors.push(ConfigError::new(memory.span(), message));
        }
    }
    for (name, value) in [
        ("ping_interval", &file.ping_interval),
        ("peer_timeout", &file.peer_timeout),
    ] {
        let Some(value) = value else { continue };
        if !(TIME_MIN..=TIME_MAX).contains(&value.get_ref().duration()) {
            let given = &text[value.span()];
            let message = format!("{name} = {given} is not allowed; write \"1s\" to \"60min\"");
            errors.push(ConfigError::new(value.span(), message));
        }
    }
    for (name, value, most) in [
        ("connections", &file.connections, 65_536),
        ("lanes", &file.lanes, 1024),
    ] {
        if let Some(value) = value {
            if !(1..=most).contains(value.get_ref()) {
                let given = value.get_ref();
                let message = format!("{name} = {given} is not allowed; write 1 to {most}");
                errors.push(ConfigError::new(value.span(), message));
            }
        }
    }
    errors
}
