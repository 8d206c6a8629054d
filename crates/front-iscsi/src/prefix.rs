//! Networks from which initiators may log in.

use std::{fmt, net::IpAddr, str::FromStr};

/// An address prefix such as `10.0.1.0/24`, or a single address such as `10.0.1.2`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    address: IpAddr,
    bits: u32,
}

impl Prefix {
    /// Whether `address` is in the network. An IPv4-mapped IPv6 address counts as its IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, own_len) = number(self.address);
        let (other, other_len) = number(address.to_canonical());
        own_len == other_len && (own ^ other) & mask(own_len, self.bits) == 0
    }
}

/// An address as a number, with its length in bits.
fn number(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u32::from(address).into(), 32),
        IpAddr::V6(address) => (address.into(), 128),
    }
}

/// A mask of the first `bits` of the lowest `len` bits.
fn mask(len: u32, bits: u32) -> u128 {
    let all = u128::MAX >> (128 - len);
    all & !all.checked_shr(bits).unwrap_or(0)
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Prefix, String> {
        const FORM: &str =
            "write an address or a network, such as \"10.0.1.0/24\" or \"2001:db8::/32\"";
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("\"{text}\" is not a network; {FORM}"))?;
        let (value, len) = number(address);
        let bits = match bits {
            None => Some(len),
            Some(bits) if bits.bytes().all(|b| b.is_ascii_digit()) => bits.parse().ok(),
            Some(_) => None,
        };
        let bits = bits
            .filter(|bits| *bits <= len)
            .ok_or_else(|| format!("\"{text}\" has no prefix length from 0 to {len}; {FORM}"))?;
        if value & !mask(len, bits) != 0 {
            return Err(format!(
                "\"{text}\" has bits set beyond its first {bits}, so it could be one host or its \
                 whole network; {FORM}"
            ));
        }
        // The prefix of an IPv4-mapped IPv6 address is 96 bits long.
        match (address.to_canonical(), bits.checked_sub(96)) {
            (IpAddr::V4(v4), Some(bits)) if address.is_ipv6() => Ok(Prefix {
                address: v4.into(),
                bits,
            }),
            _ => Ok(Prefix { address, bits }),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses_and_no_others() {
        for (prefix, inside, outside) in [
            ("10.0.1.0/24", "10.0.1.255", "10.0.2.0"),
            ("10.0.1.2", "10.0.1.2", "10.0.1.3"),
            ("10.0.1.2", "::ffff:10.0.1.2", "::a00:102"),
            ("::ffff:10.0.1.2", "10.0.1.2", "10.0.1.3"),
            ("::ffff:10.0.1.0/120", "10.0.1.2", "10.0.2.2"),
            ("0.0.0.0/0", "255.1.2.3", "2001:db8::1"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
        ] {
            let parsed: Prefix = prefix.parse().unwrap();
            assert!(
                parsed.contains(inside.parse().unwrap()),
                "{inside} in {prefix}"
            );
            assert!(
                !parsed.contains(outside.parse().unwrap()),
                "{outside} in {prefix}"
            );
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in [
            "",
            "host",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "::/129",
            "10.0.1.1/24",
            "10.0.0.0/",
        ] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }
}
