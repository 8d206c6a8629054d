//! The address of an iSCSI disk: `iscsi://HOST[:PORT]/TARGET/LUN`, as libiscsi and QEMU write it.

use std::{fmt, str::FromStr};

use engine::zone;
use serde::{Deserialize, Deserializer, de};

/// The port that IANA assigned to iSCSI targets (RFC 7143 §4.2.7.1).
const PORT: u16 = 3260;
/// The longest iSCSI name, in bytes (RFC 7143 §4.2.7.1).
pub(super) const ISCSI_NAME_BYTES_MAX: usize = 223;

/// Whether `name` has one of the three formats (RFC 7143 §4.2.7). Also accepts underscores and the like, which the
/// standard does not allow but many names contain.
pub(super) fn is_iscsi_name(name: &str) -> bool {
    ["iqn.", "eui.", "naa."]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        && name.len() <= ISCSI_NAME_BYTES_MAX
        && !name.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// A portal, a target behind it and one of its LUNs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IscsiUrl {
    /// Host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The target's iSCSI name.
    pub target: String,
    /// The logical unit number.
    pub lun: u16,
}

impl FromStr for IscsiUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write iscsi://HOST[:PORT]/TARGET/LUN, such as \
                            iscsi://10.0.1.2/iqn.2026-11.io.sanstone:a/0";
        // The part before an @ may be a secret, so no message repeats it.
        let shown = match text.rsplit_once('@') {
            Some((_, rest)) => format!("…@{rest}"),
            None => text.to_owned(),
        };
        let wrong = |what: &str| format!("\"{shown}\" {what}; {FORM}");
        if text.contains('@') {
            return Err(wrong(
                "contains a user; write chap = { user = \"…\", secret_file = \"…\" } next to it",
            ));
        }
        let rest = text
            .strip_prefix("iscsi://")
            .ok_or_else(|| wrong("is not an iSCSI address"))?;
        let (portal, path) = rest
            .split_once('/')
            .ok_or_else(|| wrong("names no target"))?;
        let (target, lun) = path.split_once('/').ok_or_else(|| wrong("names no LUN"))?;
        let (host, port) = split_portal(portal).ok_or_else(|| match is_bare_ipv6(portal) {
            true => wrong("has an IPv6 address without brackets, as in iscsi://[fd00::1]:3260/…"),
            false => wrong("has no valid host and port"),
        })?;
        let host = unescaped(host);
        if !is_iscsi_name(target) && is_iscsi_name(&target.to_ascii_lowercase()) {
            return Err(wrong(
                "has a target name that begins in upper case; iqn., eui. and naa. must be lower \
                 case",
            ));
        }
        if !is_iscsi_name(target) {
            return Err(wrong(
                "has a target name that does not begin with iqn., eui. or naa., contains a space \
                 or is longer than 223 bytes",
            ));
        }
        let lun = lun
            .parse()
            .ok()
            .filter(|&lun| lun < 1 << 14)
            .ok_or_else(|| wrong("has no LUN from 0 to 16383"))?;
        Ok(IscsiUrl {
            host,
            port,
            target: target.to_owned(),
            lun,
        })
    }
}

/// Whether this is an IPv6 address without its brackets, perhaps with a port.
fn is_bare_ipv6(portal: &str) -> bool {
    let is_v6 = |text: &str| zone::split(text).0.parse::<std::net::Ipv6Addr>().is_ok();
    let host = portal.rsplit_once(':').map(|(host, _)| host);
    is_v6(portal) || host.is_some_and(is_v6)
}

/// Writes the zone of an address plainly that has it as RFC 6874 wants it in a URL: `%25eth0` for `%eth0`.
fn unescaped(host: String) -> String {
    match host.split_once("%25") {
        Some((address, zone)) if zone.starts_with(|c: char| !c.is_ascii_digit()) => {
            format!("{address}%{zone}")
        }
        _ => host,
    }
}

/// Whether this host is a link-local address without its interface.
pub(super) fn lacks_zone(host: &str) -> bool {
    host.parse().is_ok_and(zone::is_needed)
}

/// Splits a portal into host and port, which may be omitted. An IPv6 address may have a zone.
pub(super) fn split_portal(portal: &str) -> Option<(String, u16)> {
    let (host, port) = if let Some(rest) = portal.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let (address, zone) = zone::split(host);
        address.parse::<std::net::Ipv6Addr>().ok()?;
        if zone.is_some_and(|zone| zone.is_empty() || zone.contains(['%', '/'])) {
            return None;
        }
        (
            host,
            if port.is_empty() {
                None
            } else {
                Some(port.strip_prefix(':')?)
            },
        )
    } else {
        match portal.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (portal, None),
        }
    };
    // Only a bracketed address has a zone.
    if host.contains('%') && !portal.starts_with('[') {
        return None;
    }
    let port = match port {
        Some(port) => port.parse().ok().filter(|&port| port != 0)?,
        None => PORT,
    };
    (!host.is_empty() && !host.contains(char::is_whitespace)).then(|| (host.to_owned(), port))
}

impl fmt::Display for IscsiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IscsiUrl {
            host,
            port,
            target,
            lun,
        } = self;
        if host.contains(':') {
            write!(f, "iscsi://[{host}]:{port}/{target}/{lun}")
        } else {
            write!(f, "iscsi://{host}:{port}/{target}/{lun}")
        }
    }
}

impl<'de> Deserialize<'de> for IscsiUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_form_are_read_and_shown() {
        for (text, shown) in [
            ("iscsi://h/iqn.a:b/0", "iscsi://h:3260/iqn.a:b/0"),
            (
                "iscsi://10.0.0.1:860/eui.0123/7",
                "iscsi://10.0.0.1:860/eui.0123/7",
            ),
            (
                "iscsi://[::1]/naa.5/16383",
                "iscsi://[::1]:3260/naa.5/16383",
            ),
            (
                "iscsi://[fe80::1%eth0]/iqn.a:b/0",
                "iscsi://[fe80::1%eth0]:3260/iqn.a:b/0",
            ),
            (
                "iscsi://[fe80::1%25eth0]/iqn.a:b/0",
                "iscsi://[fe80::1%eth0]:3260/iqn.a:b/0",
            ),
            (
                "iscsi://[fe80::1%25]/iqn.a:b/0",
                "iscsi://[fe80::1%25]:3260/iqn.a:b/0",
            ),
        ] {
            let url: IscsiUrl = text.parse().expect(text);
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse(), Ok(url));
        }
        for text in [
            "iscsi:///iqn.a/0",
            "iscsi://h:0/iqn.a/0",
            "iscsi://[::1/iqn.a/0",
            "iscsi://[fe80::1%]/iqn.a/0",
            "iscsi://[fe80::1%%eth0]/iqn.a/0",
            "iscsi://fe80::1%eth0/iqn.a/0",
            "iscsi://10.0.0.1%eth0/iqn.a/0",
            "iscsi://[::1]x/iqn.a/0",
            "iscsi://u%p@h/iqn.a/0",
            "iscsi://h/foo/0",
            "iscsi://h/iqn.a",
        ] {
            text.parse::<IscsiUrl>().expect_err(text);
        }
    }
}
