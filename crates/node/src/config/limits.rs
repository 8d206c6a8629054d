//! The `[limits]` table: limits on what initiators, known or not, can make the daemon do.

use std::{fmt, time::Duration};

use front_iscsi::Limits;
use serde::Deserialize;
use toml::Spanned;
use volume::config::{ConfigError, Size, Time};

use super::ConfigFile;

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

/// The limits from `file`, and the errors in them. `text` is the source, from which errors quote
/// values as the user wrote them.
pub(super) fn read(
    file: &ConfigFile,
    text: &str,
) -> (Limits, unit::MemoryLimits, Vec<ConfigError>) {
    let mut limits = Limits::default();
    if let Some(connections) = &file.connections {
        limits.connections_max = *connections.get_ref() as usize;
    }
    if let Some(time) = &file.ping_interval {
        limits.ping_interval = time.get_ref().duration();
    }
    if let Some(time) = &file.peer_timeout {
        limits.peer_timeout = time.get_ref().duration();
    }
    let mut units = unit::MemoryLimits::default();
    if let Some(memory) = &file.memory {
        units.memory_bytes = memory.get_ref().bytes() as usize;
    }
    let mut reader = Reader {
        text,
        errors: Vec::new(),
    };
    file.limits.apply(&mut limits, &mut units, &mut reader);
    (limits, units, reader.errors)
}

impl LimitsTable {
    /// Applies the table to `limits`, whose `connections_max` is already final, and to `units`.
    fn apply(&self, limits: &mut Limits, units: &mut unit::MemoryLimits, reader: &mut Reader<'_>) {
        let connections = limits.connections_max as u32;
        let reserved = reader.count("reserved", &self.reserved, 0, connections);
        limits.reserved = reserved.map_or(limits.connections_max / 4, |n| n as usize);
        if let Some(logins) = reader.count("logins", &self.logins, 1, 65_536) {
            limits.logins_max = logins as usize;
        }
        let logins = limits.logins_max as u32;
        limits.logins_per_peer_max = limits.logins_per_peer_max.min(limits.logins_max);
        if let Some(logins) = reader.count("logins_per_peer", &self.logins_per_peer, 1, logins) {
            limits.logins_per_peer_max = logins as usize;
        }
        if let Some(time) = reader.time("login_time", &self.login_time) {
            limits.login_timeout = time;
        }
        if let Some(commands) = reader.count("commands", &self.commands, 1, 4096) {
            limits.command_window = commands as u16;
        }
        let to_1_mib = (("8KiB", 8 << 10), ("1MiB", 1 << 20));
        if let Some(bytes) = reader.size("data_segment", &self.data_segment, to_1_mib) {
            limits.data_segment_max_bytes = bytes;
        }
        if let Some(bytes) = reader.size("text", &self.text, to_1_mib) {
            limits.text_max_bytes = bytes as usize;
        }
        let to_16_mib = (("64KiB", 64 << 10), ("16MiB", 16 << 20));
        if let Some(bytes) = reader.size("transfer", &self.transfer, to_16_mib) {
            units.transfer_max_bytes = bytes;
        }
    }
}

/// Reads values with bounds, and collects the errors.
struct Reader<'a> {
    text: &'a str,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    fn count(
        &mut self,
        name: &str,
        value: &Option<Spanned<i64>>,
        least: u32,
        most: u32,
    ) -> Option<u32> {
        let value = value.as_ref()?;
        if (least.into()..=most.into()).contains(value.get_ref()) {
            return Some(*value.get_ref() as u32);
        }
        self.refuse(name, value, format_args!("{least} to {most}"))
    }

    fn time(&mut self, name: &str, value: &Option<Spanned<Time>>) -> Option<Duration> {
        let value = value.as_ref()?;
        let given = value.get_ref().duration();
        if (Duration::from_secs(1)..=Duration::from_secs(300)).contains(&given) {
            return Some(given);
        }
        self.refuse(name, value, format_args!("\"1s\" to \"300s\""))
    }

    /// Reads a size in whole pages, the unit in which memory is allocated.
    fn size(
        &mut self,
        name: &str,
        value: &Option<Spanned<Size>>,
        ((least, least_bytes), (most, most_bytes)): ((&str, u64), (&str, u64)),
    ) -> Option<u32> {
        let value = value.as_ref()?;
        let bytes = value.get_ref().bytes();
        if (least_bytes..=most_bytes).contains(&bytes) && bytes % 4096 == 0 {
            return Some(bytes as u32);
        }
        let write = format_args!("\"{least}\" to \"{most}\", in steps of 4KiB");
        self.refuse(name, value, write)
    }

    fn refuse<T, U>(
        &mut self,
        name: &str,
        value: &Spanned<T>,
        write: fmt::Arguments<'_>,
    ) -> Option<U> {
        let given = &self.text[value.span()];
        let message = format!("{name} = {given} is not allowed; write {write}");
        self.errors.push(ConfigError::new(value.span(), message));
        None
    }
}
