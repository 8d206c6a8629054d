//! Which portal a connection came in on, and how portals are reported to initiators: in TargetAddress, as
//! `10.0.1.1:3260,1` or `[fd00::1]:3260,2` (RFC 7143 §13.8).

use std::net::{IpAddr, SocketAddr};

use crate::config::PortalGroup;

/// Strips an address of its scope ID, which only this machine understands, and converts an IPv4-mapped IPv6 address,
/// as a dual-stack socket reports it, back to IPv4.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl PortalGroup {
    /// Whether a connection whose local address is `local` came in on one of these portals.
    pub(crate) fn contains(&self, local: SocketAddr) -> bool {
        let mut portals = self.portals.iter();
        portals.any(|portal| address(plain(*portal), local) == Some(local))
    }

    /// The portals in TargetAddress form, for an initiator that reached this machine at `local`.
    pub(crate) fn addresses(&self, local: SocketAddr) -> Vec<String> {
        let mut addresses: Vec<String> = Vec::new();
        for portal in &self.portals {
            let Some(address) = address(plain(*portal), local) else {
                continue;
            };
            let address = format!("{address},{}", self.tag);
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }
}

/// The address at which a portal can be reached by an initiator that reached this machine at `local`; a wildcard
/// portal can be reached at `local` itself. `None` for a wildcard portal of the other address family, none of whose
/// addresses is known to be reachable.
fn address(portal: SocketAddr, local: SocketAddr) -> Option<SocketAddr> {
    let ip = match portal.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Some(local.ip()).filter(IpAddr::is_ipv4)?,
        // An IPv6 wildcard socket also accepts IPv4.
        IpAddr::V6(ip) if ip.is_unspecified() => local.ip(),
        ip => ip,
    };
    Some(SocketAddr::new(ip, portal.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(tag: u16, portals: &[&str]) -> PortalGroup {
        let portals = portals.iter().map(|portal| portal.parse().unwrap());
        PortalGroup {
            tag,
            ..PortalGroup::only(portals.collect())
        }
    }

    #[test]
    fn portals_are_told_as_the_peer_can_reach_them() {
        for (portals, local, told) in [
            (
                &["10.0.1.1:3260", "10.0.2.1:3261"][..],
                "10.0.1.1:3260",
                &["10.0.1.1:3260,7", "10.0.2.1:3261,7"][..],
            ),
            (&["0.0.0.0:3260"], "10.0.1.1:3260", &["10.0.1.1:3260,7"]),
            (&["[::]:3260"], "[fd00::1]:3260", &["[fd00::1]:3260,7"]),
            (
                &["[::]:3260"],
                "[::ffff:10.0.1.1]:3260",
                &["10.0.1.1:3260,7"],
            ),
            // There is no telling which IPv4 address that peer could use.
            (
                &["0.0.0.0:3260", "[fd00::1]:3261"],
                "[fd00::1]:3261",
                &["[fd00::1]:3261,7"],
            ),
            (
                &["0.0.0.0:3260", "10.0.1.1:3260"],
                "10.0.1.1:3260",
                &["10.0.1.1:3260,7"],
            ),
            (
                &["[fe80::1%2]:3260"],
                "[fe80::1%2]:3260",
                &["[fe80::1]:3260,7"],
            ),
        ] {
            let local = plain(local.parse().unwrap());
            assert_eq!(
                group(7, portals).addresses(local),
                told,
                "{portals:?} at {local}"
            );
        }
    }

    #[test]
    fn a_connection_belongs_to_the_group_whose_portal_it_came_in_on() {
        for (portal, local, inside) in [
            ("10.0.1.1:3260", "10.0.1.1:3260", true),
            ("10.0.1.1:3260", "10.0.1.1:3261", false),
            ("10.0.1.1:3260", "10.0.1.2:3260", false),
            ("0.0.0.0:3260", "10.0.1.2:3260", true),
            ("0.0.0.0:3260", "[::1]:3260", false),
            ("[::]:3260", "[::1]:3260", true),
            ("[::]:3260", "[::ffff:10.0.1.1]:3260", true),
            ("[::ffff:10.0.1.1]:3260", "10.0.1.1:3260", true),
            ("[fe80::1%2]:3260", "[fe80::1%2]:3260", true),
        ] {
            let local = plain(local.parse().unwrap());
            assert_eq!(
                group(1, &[portal]).contains(local),
                inside,
                "{portal} {local}"
            );
        }
    }
}
