//! From an `iscsi` node to what the initiator needs: an address, a name, time limits.

use std::path::Path;

use engine::blocking::look_up;

use super::{IscsiConfig, next_isid, settings::Iscsi};
use crate::{Error, ErrorKind, Result};

/// The configuration of the session; secrets' files are relative to `base`. Looks the host's name up,
/// for as long as a connection may take.
pub(super) async fn resolve(iscsi: &Iscsi, base: &Path) -> Result<IscsiConfig> {
    let url = iscsi.url.get_ref();
    let refused = |why: String| {
        Error::new(
            ErrorKind::Configuration,
            format!("{url}: {why}; write its address instead"),
        )
    };
    let limit = iscsi.connect_timeout.get_ref().duration();
    let address = look_up(&url.host, url.port, limit)
        .await
        .map_err(|error| refused(format!("\"{}\" cannot be looked up: {error}", url.host)))?;
    let chap = iscsi
        .chap()
        .read(base)
        .map_err(|error| Error::new(ErrorKind::Configuration, format!("{url}: {error}")))?;
    Ok(IscsiConfig {
        chap,
        header_digest: iscsi.header_digest,
        data_digest: iscsi.data_digest,
        address,
        target_name: url.target.clone(),
        lun: url.lun,
        initiator_name: match &iscsi.initiator {
            Some(name) => name.get_ref().clone(),
            None => own_name(),
        },
        isid: next_isid(),
        connect_timeout: iscsi.connect_timeout.get_ref().duration(),
        request_timeout: iscsi.request_timeout.get_ref().duration(),
        reconnect_timeout: iscsi.reconnect_timeout.get_ref().duration(),
    })
}

/// This host's initiator name: the one that open-iscsi uses if there is one, else one made from
/// the host's own name.
fn own_name() -> String {
    let configured = std::fs::read_to_string("/etc/iscsi/initiatorname.iscsi").unwrap_or_default();
    let mut lines = configured.lines().map(str::trim);
    if let Some(name) = lines.find_map(|line| line.strip_prefix("InitiatorName=")) {
        return name.trim().to_owned();
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host
        .trim()
        .to_lowercase()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' || c == '.' {
                c
            } else {
                '-'
            }
        })
        .collect();
    format!(
        "iqn.2026-11.io.sanstone:{}",
        if host.is_empty() { "host" } else { &host }
    )
}
