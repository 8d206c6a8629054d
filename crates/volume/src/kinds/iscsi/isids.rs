//! The ISIDs of a disk's sessions, the same ones after a restart: a target keeps registrations, also through a loss of
//! its power, for an initiator port, which is a name and an ISID (RFC 7143 §4.4.3), and ends a session that was left behind when its
//! port logs in again. LIO lets in nobody else of the name that has reserved the disk.
//!
//! They are made of who has the disk, which no two processes are at once, and of the disk. A disk that the same process opens
//! again may still have sessions, so that the next ones are other ports.

use std::collections::HashMap;

use iscsi::Isid;
use uuid::Uuid;

use super::url::IscsiUrl;

/// How often each disk was opened, by its URL.
#[derive(Debug, Default)]
pub(super) struct Openings(HashMap<String, u8>);

/// The ISIDs of one disk, opened once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Isids {
    disk: u32,
    opening: u8,
}

impl Openings {
    /// The ISIDs for the disk at `url`, which `owner` opens now.
    pub(super) fn next(&mut self, owner: Uuid, url: &IscsiUrl) -> Isids {
        let url = url.to_string();
        let disk = crc32c::crc32c_append(crc32c::crc32c(owner.as_bytes()), url.as_bytes());
        let count = self.0.entry(url).or_default();
        let opening = *count;
        *count = count.wrapping_add(1);
        Isids { disk, opening }
    }
}

impl Isids {
    /// That of the session with this number, of at most 16.
    pub(super) fn of(self, session: usize) -> Isid {
        let [a, b, c, high] = self.disk.to_be_bytes();
        let low = self.opening << 4 | session as u8 & 0xf;
        Isid::random([a, b, c], u16::from_be_bytes([high, low]))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn they_are_the_same_after_a_restart_and_nobody_elses() {
        let urls = [
            "iscsi://10.0.1.2/iqn.2026-11.example:a/0",
            "iscsi://10.0.1.2/iqn.2026-11.example:a/1",
        ];
        let [one, other] = urls.map(|url| url.parse::<IscsiUrl>().expect("a URL"));
        let owner = Uuid::from_u128(1);
        let of = |owner, url| Openings::default().next(owner, url);
        assert_eq!(of(owner, &one), of(owner, &one));
        let mut again = Openings::default();
        let all = [
            again.next(owner, &one),
            again.next(owner, &one),
            of(owner, &other),
            of(Uuid::from_u128(2), &one),
        ];
        let ports = all
            .iter()
            .flat_map(|isids| (0..16).map(|session| isids.of(session)));
        let ports: HashSet<_> = ports.map(|isid| format!("{isid:?}")).collect();
        assert_eq!(ports.len(), 4 * 16);
    }
}
