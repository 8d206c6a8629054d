//! Chooses the ISIDs of a disk's sessions so that they survive our restarts. A target keeps registrations, even
//! across its own power loss, per initiator port, which is a name and an ISID (RFC 7143 §4.4.3). It also ends a stale
//! session when its port logs in again. LIO lets in no other port of the initiator name that has reserved the disk.
//!
//! An ISID is derived from the owner of the disk and the disk. While a process already has the disk open, further openings get
//! different ports. Another process that has the owner's identity is refused: the two would end each other's sessions.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, OnceLock, Weak},
};

use iscsi::Isid;
use uuid::Uuid;

use super::{disks::normalised, url::IscsiUrl};
use crate::{Error, ErrorKind, Result, claim::StandingFile};

/// How many concurrent openings of a disk an ISID can tell apart.
const OPENINGS_MAX: u8 = 8;
/// How many ISIDs an opening has: twice as many as it may have sessions, so that all of these can be replaced while they
/// are still in use.
pub(super) const ISIDS_MAX: usize = 32;

/// The live openings of each disk, by its URL.
#[derive(Debug, Default)]
pub(super) struct Openings(HashMap<String, Vec<(u8, Weak<Lease>)>>);

/// Keeps the ISIDs of one opening. All openings of a disk share the file that shows other processes that this one has it.
#[derive(Debug)]
pub struct Lease(Arc<OnceLock<StandingFile>>);

/// The ISIDs of one opening of a disk.
#[derive(Clone, Debug)]
pub(super) struct Isids {
    disk: u32,
    opening: u8,
    lease: Arc<Lease>,
}

impl Openings {
    /// Allocates ISIDs for the disk at `url`, which `owner` opens now.
    ///
    /// # Errors
    /// When the disk has more openings than ISIDs can tell apart.
    pub(super) fn next(&mut self, owner: Uuid, url: &IscsiUrl) -> Result<Isids> {
        let url = normalised(url).to_string();
        let disk = crc32c::crc32c_append(crc32c::crc32c(owner.as_bytes()), url.as_bytes());
        let open = self.0.entry(url.clone()).or_default();
        open.retain(|(_, lease)| lease.strong_count() > 0);
        let is_free = |number: &u8| open.iter().all(|(it, _)| it != number);
        let Some(opening) = (0..OPENINGS_MAX).find(is_free) else {
            let message =
                format!("{url}: this process has it open {OPENINGS_MAX} times; restart it");
            return Err(Error::new(ErrorKind::Configuration, message));
        };
        let mut leases = open.iter().filter_map(|(_, lease)| lease.upgrade());
        let file = leases.next().map_or_else(Arc::default, |it| it.0.clone());
        let lease = Arc::new(Lease(file));
        open.push((opening, Arc::downgrade(&lease)));
        Ok(Isids {
            disk,
            opening,
            lease,
        })
    }
}

impl Isids {
    /// While this lives, no other opening of the disk gets the same ISIDs.
    pub(super) fn lease(&self) -> Arc<Lease> {
        self.lease.clone()
    }

    /// Shows in `claims` to other processes that have the owner's identity that this one has the disk.
    ///
    /// # Errors
    /// Another one has it.
    pub(super) async fn show(&self, claims: &Path) -> Result<()> {
        if self.lease.0.get().is_none() {
            let file = StandingFile::alone_aside(claims, self.disk.into()).await?;
            let _ = self.lease.0.set(file);
        }
        Ok(())
    }

    /// The ISID with this number, below [`ISIDS_MAX`].
    pub(super) fn of(&self, session: usize) -> Isid {
        let [a, b, c, high] = self.disk.to_be_bytes();
        let low = self.opening << 5 | session as u8 & 0x1f;
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
        let ports_of = |isids: &Isids| -> Vec<_> {
            let ports = (0..ISIDS_MAX).map(|session| format!("{:?}", isids.of(session)));
            ports.collect()
        };
        let of = |owner, url| Openings::default().next(owner, url).expect("it is free");
        assert_eq!(ports_of(&of(owner, &one)), ports_of(&of(owner, &one)));
        let mut again = Openings::default();
        let mut open: Vec<_> = (0..OPENINGS_MAX)
            .map(|_| again.next(owner, &one).expect("one is free"))
            .collect();
        let error = again.next(owner, &one).expect_err("all are in use");
        assert!(error.to_string().contains("10.0.1.2"), "{error}");
        // An opening that has ended is reused.
        let ended = ports_of(&open.remove(0));
        open.push(again.next(owner, &one).expect("the first is free"));
        assert_eq!(ports_of(&open[7]), ended);
        open.extend([of(owner, &other), of(Uuid::from_u128(2), &one)]);
        let ports = open.iter().flat_map(ports_of);
        let ports: HashSet<_> = ports.collect();
        assert_eq!(ports.len(), 10 * ISIDS_MAX);
    }
}
