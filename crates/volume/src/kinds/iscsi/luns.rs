//! Lists a target's logical units with REPORT LUNS, INQUIRY and READ CAPACITY. Read-only: nothing is reserved,
//! registered or written.

use std::net::SocketAddr;

use engine::Duration;

use super::{
    cdb,
    config::{IscsiConfig, Multipath, PathConfig, next_isid},
    discovery::{Asker, FoundTarget, Portal},
    identity::DiskIdentity,
    inquiry::{self, DIRECT_ACCESS},
    secrets::Secrets,
    session::Data,
    unit::RemoteUnit,
};
use crate::{Error, ErrorKind, Result};

/// The most logical units of a target that are queried; it may have more.
const LUNS_MAX: usize = 256;
/// The most portals of a target that are tried.
const PORTALS_MAX: usize = 16;
/// The allocation length for a standard INQUIRY, in bytes.
const INQUIRY_BYTES: u8 = 96;

/// A logical unit of a target.
#[derive(Clone, Debug)]
pub struct FoundUnit {
    /// Its number.
    pub lun: u16,
    /// Its description.
    pub facts: Result<LunFacts>,
}

/// What a logical unit reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunFacts {
    /// Vendor and model.
    pub product: String,
    /// Device type (SPC-4 6.6.2), with details for a disk.
    pub kind: DeviceType,
}

/// A disk, or another device type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceType {
    /// A disk.
    Disk {
        /// Length in bytes.
        len_bytes: u64,
        /// Logical block size in bytes.
        block_size_bytes: u32,
        /// A distinguishing name (VPD page 83h), if there is one.
        name: Option<String>,
    },
    /// Another device type.
    Other(u8),
}

impl Asker {
    /// The logical units of `target`, through the first of its portals that lets us in. The listed portals may be on
    /// networks that we cannot reach, so the portal that listed the target is tried last.
    ///
    /// # Errors
    /// When no portal lets us in, or the target does not report its units.
    pub async fn luns(&self, target: &FoundTarget, listed_at: &Portal) -> Result<Vec<FoundUnit>> {
        let mut config = self.config(target, listed_at).await?;
        let (reported, address) = self.ask(&config, 0, reported).await?;
        config.address = address;
        config.multipath.more.clear();
        let mut found = Vec::new();
        for lun in reported {
            config.isid = next_isid();
            let facts = self.ask(&config, lun, facts).await;
            found.push(FoundUnit { lun, facts });
        }
        Ok(found)
    }

    async fn config(&self, target: &FoundTarget, listed_at: &Portal) -> Result<IscsiConfig> {
        let (mut paths, mut unknown) = (Vec::<PathConfig>::new(), None);
        let named = target.portals.iter().map(|found| &found.portal);
        for portal in named.take(PORTALS_MAX).chain([listed_at]) {
            match self.address_of(portal).await {
                Ok(address) if paths.iter().any(|path| path.address == address) => {}
                Ok(address) => paths.push(PathConfig {
                    address,
                    source: None,
                    isid: next_isid(),
                }),
                Err(error) => unknown = Some(error),
            }
        }
        let mut paths = paths.into_iter();
        let Some(first) = paths.next() else {
            return Err(unknown.expect("a target has a portal"));
        };
        Ok(IscsiConfig {
            address: first.address,
            target_name: target.name.clone(),
            lun: 0,
            initiator_name: self.initiator_name.clone(),
            isid: first.isid,
            multipath: Multipath {
                more: paths.collect(),
                ..Multipath::default()
            },
            chap: self.chap.clone().map(Secrets::fixed),
            header_digest: false,
            data_digest: false,
            stage_times: false,
            connect_timeout: self.limit,
            request_timeout: self.limit,
            reconnect_timeout: Duration::ZERO,
        })
    }

    /// Runs `question` in a session of its own with a logical unit.
    async fn ask<T>(
        &self,
        config: &IscsiConfig,
        lun: u16,
        question: impl AsyncFnOnce(&RemoteUnit) -> Result<T>,
    ) -> Result<T> {
        let config = IscsiConfig {
            lun,
            ..config.clone()
        };
        let unit = RemoteUnit::new(config, &[]);
        let answer = match unit.open_first(0).await {
            Ok(()) => question(&unit).await,
            Err(error) => Err(error),
        };
        unit.paths.log_out().await;
        answer
    }
}

/// The LUNs that a target reports, and the address that reported them.
async fn reported(unit: &RemoteUnit) -> Result<(Vec<u16>, SocketAddr)> {
    let len = 8 + 8 * LUNS_MAX;
    let command = cdb::report_luns(len as u32);
    let mut patience = unit.patience();
    let reply = unit.run(&command, Data::In(len), &mut patience).await?;
    let nexus = unit.nexus(&mut patience).await?;
    let list = reply.data.to_vec();
    let (luns, others) = parse(&list).ok_or_else(|| {
        let message = format!("the target's list of LUNs has only {} bytes", list.len());
        Error::new(ErrorKind::Protocol, message)
    })?;
    if others > 0 {
        let target_name = &unit.config().target_name;
        tracing::warn!(
            target_name,
            others,
            "some logical units are ignored: their numbers are not supported, or there are too \
             many"
        );
    }
    Ok((luns, nexus.port().address()))
}

/// Parses a REPORT LUNS list (SPC-4 6.33): the LUNs, and the number of entries left out, either beyond the allocation
/// length or in an addressing method that the configuration cannot express.
fn parse(list: &[u8]) -> Option<(Vec<u16>, usize)> {
    let (head, entries) = list.split_first_chunk::<8>()?;
    let [a, b, c, d, ..] = *head;
    let count = u32::from_be_bytes([a, b, c, d]) as usize / 8;
    let numbers = entries.chunks_exact(8).take(count).filter_map(|entry| {
        let lun = scsi::Lun::decode(*entry.first_chunk()?).ok()?;
        let number = u16::try_from(lun.number()).ok()?;
        (number < 1 << 14).then_some(number)
    });
    let mut numbers: Vec<u16> = numbers.take(LUNS_MAX).collect();
    let others = count.saturating_sub(numbers.len());
    numbers.sort_unstable();
    numbers.dedup();
    Some((numbers, others))
}

async fn facts(unit: &RemoteUnit) -> Result<LunFacts> {
    let mut patience = unit.patience();
    let patience = &mut patience;
    let standard = cdb::inquiry(None, INQUIRY_BYTES);
    let inquiry = inquiry::read(unit, &standard, INQUIRY_BYTES.into(), patience).await?;
    // Untrusted text, made printable.
    let text = |range| {
        let bytes: &[u8] = inquiry
            .get::<std::ops::Range<usize>>(range)
            .unwrap_or_default();
        bytes.trim_ascii().escape_ascii().to_string()
    };
    let product = format!("{} {}", text(8..16), text(16..32));
    let product = product.trim().to_owned();
    let kind = inquiry.first().copied().unwrap_or(0x7f);
    if kind != DIRECT_ACCESS {
        let kind = DeviceType::Other(kind & 0x1f);
        return Ok(LunFacts { product, kind });
    }
    let config = unit.config();
    let names = inquiry::page(unit, 0x83, 252, patience).await?;
    let identity = DiskIdentity::parse(&config.target_name, config.lun, &names);
    let capacity = inquiry::capacity(unit, patience).await?;
    let kind = DeviceType::Disk {
        len_bytes: capacity.blocks * u64::from(capacity.block_size_bytes),
        block_size_bytes: capacity.block_size_bytes,
        name: identity.is_named().then(|| identity.to_string()),
    };
    Ok(LunFacts { product, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(announced_bytes: u32, entries: &[[u8; 8]]) -> Vec<u8> {
        let mut list = announced_bytes.to_be_bytes().to_vec();
        list.extend([0; 4]);
        list.extend(entries.as_flattened());
        list
    }

    #[test]
    fn a_list_of_luns_is_read_as_far_as_it_goes() {
        let [zero, seven] = [0, 7].map(|n| [0, n, 0, 0, 0, 0, 0, 0]);
        let flat = [0x41, 0, 0, 0, 0, 0, 0, 0];
        let well_known = [0xc1, 1, 0, 0, 0, 0, 0, 0];
        for (announced, entries, expected) in [
            (24, &[seven, zero, flat][..], Some((vec![0, 7, 256], 0))),
            (16, &[zero, well_known], Some((vec![0], 1))),
            (8, &[zero, seven], Some((vec![0], 0))),
            (u32::MAX, &[zero, zero], Some((vec![0], (1 << 29) - 1 - 2))),
            (0, &[], Some((vec![], 0))),
        ] {
            assert_eq!(parse(&list(announced, entries)), expected);
        }
        assert_eq!(parse(&[0; 7]), None);
        let whole = list(16, &[zero, seven]);
        assert_eq!(parse(&whole[..20]), Some((vec![0], 1)), "cut");
    }
}
