//! The `[limits]` table: what initiators, known or not, can make the daemon do.

use std::time::Duration;

use front_iscsi::Limits;
use serde::Deserialize;
use toml::Spanned;
use volume::config::{ConfigError, Size, Time};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsTable {
    reserved: Option<Spanned<i64>>,
    logins: Option<Spanned<i64>>,
    logins_per_peer: Option<Spanned<i64>>,
    login_time: Option<Spanned<Time>>,
    commands: Option<Spanned<i64>>,
    transfer: Option<Spanned<Size>>,
    data_segment: Option<Spanned<Size>>,
    text: Option<Spanned<Size>>,
}

impl LimitsTable {
    /// Writes what the table says into `limits`, whose `connections_max` is what it will be. The table
    /// is from `text`, where its values are as the user has written them.
    pub(super) fn apply(&self, limits: &mut Limits, text: &str) -> Result<(), ConfigError> {
        let connections = limits.connections_max as u32;
        limits.reserved = match count("reserved", &self.reserved, 0, connections)? {
            Some(reserved) => reserved as usize,
            None => limits.connections_max / 4,
        };
        if let Some(logins) = count("logins", &self.logins, 1, 65_536)? {
            limits.logins_max = logins as usize;
        }
        let logins = limits.logins_max as u32;
        limits.logins_per_peer_max = limits.logins_per_peer_max.min(limits.logins_max);
        if let Some(logins) = count("logins_per_peer", &self.logins_per_peer, 1, logins)? {
            limits.logins_per_peer_max = logins as usize;
        }
        if let Some(time) = &self.login_time {
            let (least, most) = (Duration::from_secs(1), Duration::from_secs(300));
            let given = time.get_ref().duration();
            if !(least..=most).contains(&given) {
                let given = &text[time.span()];
                let message =
                    format!("login_time = {given} is not possible; write \"1s\" to \"300s\"");
                return Err(ConfigError::new(time.span(), message));
            }
            limits.login_timeout = given;
        }
        if let Some(commands) = count("commands", &self.commands, 1, 4096)? {
            limits.command_window = commands as u16;
        }
        if let Some(bytes) = size(
            text,
            "data_segment",
            &self.data_segment,
            ("8KiB", 8 << 10),
            ("1MiB", 1 << 20),
        )? {
            limits.data_segment_max_bytes = bytes;
        }
        if let Some(bytes) = size(
            text,
            "text",
            &self.text,
            ("8KiB", 8 << 10),
            ("1MiB", 1 << 20),
        )? {
            limits.text_max_bytes = bytes as usize;
        }
        Ok(())
    }

    /// Writes what the table says about units into `limits`.
    pub(super) fn apply_to_units(
        &self,
        limits: &mut unit::Limits,
        text: &str,
    ) -> Result<(), ConfigError> {
        let range = (("64KiB", 64 << 10), ("16MiB", 16 << 20));
        if let Some(bytes) = size(text, "transfer", &self.transfer, range.0, range.1)? {
            limits.transfer_max_bytes = bytes;
        }
        Ok(())
    }
}

fn count(
    name: &str,
    value: &Option<Spanned<i64>>,
    least: u32,
    most: u32,
) -> Result<Option<u32>, ConfigError> {
    let Some(value) = value else {
        return Ok(None);
    };
    let given = *value.get_ref();
    if (least.into()..=most.into()).contains(&given) {
        return Ok(Some(given as u32));
    }
    let message = format!("{name} = {given} is not possible; write {least} to {most}");
    Err(ConfigError::new(value.span(), message))
}

/// Sizes in whole pages, which is what memory is handed out in.
fn size(
    text: &str,
    name: &str,
    value: &Option<Spanned<Size>>,
    (least, least_bytes): (&str, u64),
    (most, most_bytes): (&str, u64),
) -> Result<Option<u32>, ConfigError> {
    let Some(value) = value else {
        return Ok(None);
    };
    let bytes = value.get_ref().bytes();
    if (least_bytes..=most_bytes).contains(&bytes) && bytes % 4096 == 0 {
        return Ok(Some(bytes as u32));
    }
    let size = &text[value.span()];
    let message = format!(
        "{name} = {size} is not possible; write \"{least}\" to \"{most}\", in steps of 4KiB"
    );
    Err(ConfigError::new(value.span(), message))
}
