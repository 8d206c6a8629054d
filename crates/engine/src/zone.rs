//! The zone of an IPv6 link-local address (RFC 4007): the network interface whose link it is on, as in `fe80::1%eth0`.
//! Every interface has the same link-local network, so such an address says nothing without its zone. And the zone says
//! something only on this machine: it never goes to a peer.

use std::{
    borrow::Cow,
    ffi::CString,
    net::{IpAddr, SocketAddr, SocketAddrV6},
};

/// Splits `[fe80::1%eth0]:3260` or `fe80::1%eth0` into the same without a zone, and the zone.
pub fn split(text: &str) -> (Cow<'_, str>, Option<&str>) {
    let Some((before, after)) = text.split_once('%') else {
        return (text.into(), None);
    };
    let end = after.find(']').unwrap_or(after.len());
    let (zone, rest) = after.split_at(end);
    (format!("{before}{rest}").into(), Some(zone))
}

/// Whether `ip` can be connected to, or listened at, only with a zone.
pub fn is_needed(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The number of an interface of this machine by its name or number; `None`: there is no such interface.
pub fn index(zone: &str) -> Option<u32> {
    if zone.bytes().all(|byte| byte.is_ascii_digit()) {
        return zone.parse().ok().filter(|index| *index != 0);
    }
    let name = CString::new(zone).ok()?;
    // SAFETY: a NUL-terminated text that lives through the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// The number of the interface that `address` is on; `None`: it has no zone.
pub fn of(address: SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(address) => Some(address.scope_id()).filter(|index| *index != 0),
        SocketAddr::V4(_) => None,
    }
}

/// `address` on the interface `index`, if it needs a zone.
pub fn with(address: SocketAddr, index: Option<u32>) -> SocketAddr {
    match (address, index) {
        (SocketAddr::V6(v6), Some(index)) if is_needed(address.ip()) => {
            SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), index).into()
        }
        _ => address,
    }
}

/// Parses an address with a port, such as `10.0.1.2:3260` or `[fe80::1%eth0]:3260`.
pub fn parse(text: &str) -> Option<SocketAddr> {
    let (plain, zone) = split(text);
    let address: SocketAddr = plain.parse().ok()?;
    match zone {
        None => Some(address),
        Some(_) if address.is_ipv4() => None,
        Some(zone) => Some(with(address, Some(index(zone)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_on_the_interface_that_its_zone_names() {
        let lo = index("lo").expect("every machine has it");
        let named = parse("[fe80::1%lo]:3260").expect("an address");
        assert_eq!(named.to_string(), format!("[fe80::1%{lo}]:3260"));
        assert_eq!(of(named), Some(lo));
        assert_eq!(parse(&format!("[fe80::1%{lo}]:3260")), Some(named));
        let bare = parse("[fe80::1]:3260").expect("an address");
        assert_eq!((of(bare), with(bare, Some(lo))), (None, named));
        assert!(is_needed(bare.ip()));
        for other in ["10.0.1.2:3260", "[fd00::1]:3260"] {
            let other = parse(other).expect("an address");
            assert!(!is_needed(other.ip()));
            assert_eq!(with(other, Some(lo)), other);
        }
        for wrong in [
            "[fe80::1%no-such-thing]:3260",
            "[fe80::1%]:3260",
            "[fe80::1%0]:3260",
            "10.0.1.2%lo:3260",
            "10.0.1.2:3260%lo",
            "[fe80::1%lo]",
            "%",
            "",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_text_is_split_at_its_zone() {
        for (text, plain, zone) in [
            ("[fe80::1%eth0]:3260", "[fe80::1]:3260", Some("eth0")),
            ("fe80::1%2", "fe80::1", Some("2")),
            ("10.0.1.2", "10.0.1.2", None),
            ("[fe80::1%", "[fe80::1", Some("")),
        ] {
            assert_eq!(split(text), (plain.into(), zone), "{text}");
        }
    }
}
