//! The identity of a peer that has not proved who it is.

use std::net::{IpAddr, Ipv6Addr};

/// A host, of which only the address is known, or a user of this machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Peer {
    /// An IPv4 address, or the /64 network from which an IPv6 host chooses its addresses.
    Host(IpAddr),
    /// The user at the other end of a Unix socket; `None` if the system does not know.
    User(Option<u32>),
}

impl Peer {
    /// The host behind `address`.
    pub fn of(address: IpAddr) -> Peer {
        Peer::Host(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            v4 => v4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_is_one_peer_whatever_address_it_takes() {
        for (first, second, same) in [
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
        ] {
            let [first, second] = [first, second].map(|a| Peer::of(a.parse().expect("an address")));
            assert_eq!(first == second, same, "{first:?} {second:?}");
        }
    }
}
