//! The queries at opening: what the disk is, its capacity, identity and and which commands it supports up to
//! what length (SPC-4, SBC-3).

use std::sync::atomic::AtomicBool;

use engine::Payload;

use super::{
    cdb::{self, CdbBytes},
    facts::DiskFacts,
    identity::DiskIdentity,
    machine::Mode,
    mode_page,
    patience::Patience,
    session::Data,
    unit::{Capacity, RemoteUnit, untold},
};
use crate::{Discard, Error, ErrorKind, Len, ReadOnly, Result, Shape};

/// The longest READ or WRITE when the target reports no limit, in bytes.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// The longest READ or WRITE under any circumstances, in bytes.
const TRANSFER_LIMIT_BYTES: u64 = 4 << 20;
/// The longest UNMAP or WRITE SAME, whatever the target allows: they have to finish in time.
const COMMAND_MAX_BLOCKS: u64 = 1 << 20;

/// The device type of a disk (SPC-4 6.6.2).
pub(super) const DIRECT_ACCESS: u8 = 0;

/// Why a target may lock out even a registrant.
const OTHER_NAME: &str = "another initiator has reserved the disk; or this one did so with another \
                          `url` or other `sessions`, and the target is LIO, which then refuses \
                          other sessions of the same name: restore these settings, or set another \
                          `initiator` for this volume";

/// Queries everything that the shape describes.
///
/// # Errors
/// When there is no disk, or it does not answer a mandatory query.
pub(super) async fn ask(unit: &RemoteUnit) -> Result<DiskFacts> {
    match ask_as_we_are(unit).await {
        Err(error) if error.kind() == ErrorKind::ReservationConflict => {
            let asked = unit.as_registrant(async || ask_as_we_are(unit).await);
            asked.await.map_err(|error| match error.kind() {
                ErrorKind::ReservationConflict => Error::new(error.kind(), OTHER_NAME),
                _ => error,
            })
        }
        asked => asked,
    }
}

async fn ask_as_we_are(unit: &RemoteUnit) -> Result<DiskFacts> {
    let mut patience = unit.patience();
    let patience = &mut patience;
    let test = cdb::test_unit_ready();
    unit.run(&test, Data::None, patience).await?;
    let inquiry = read(unit, &cdb::inquiry(None, 96), 96, patience).await?;
    let config = unit.config();
    if inquiry.first() != Some(&DIRECT_ACCESS) {
        let message = format!("there is no disk at LUN {}", config.lun);
        return Err(Error::new(ErrorKind::Configuration, message));
    }
    let names = page(unit, 0x83, 252, patience).await?;
    let capacity = capacity(unit, patience).await?;
    let block = capacity.block_size_bytes;
    let physical = block << capacity.physical_exponent;
    let mut facts = DiskFacts {
        shape: Shape {
            block_size_bytes: block,
            physical_block_bytes: physical,
            len: Len::new(capacity.blocks * u64::from(block)),
            volatile_cache: true,
            read_only: ReadOnly::default(),
            discard: None,
            optimal_io_bytes: physical,
            compare_and_write_max_bytes: 0,
        },
        identity: DiskIdentity::parse(&config.target_name, config.lun, &names),
        transfer_max_bytes: TRANSFER_MAX_BYTES as usize,
        unmap_max_blocks: 0,
        write_same_max_blocks: 0,
        takes_fua: AtomicBool::new(false),
        unmapped_reads_zeroes: capacity.unmapped_reads_zeroes,
    };
    facts.ask_mode(unit, patience).await?;
    facts.ask_limits(unit, capacity.is_thin, patience).await?;
    Ok(facts)
}

/// The data of a command that must succeed.
pub(super) async fn read(
    unit: &RemoteUnit,
    cdb: &CdbBytes,
    len: usize,
    patience: &mut Patience,
) -> Result<Vec<u8>> {
    let reply = unit.run(cdb, Data::In(len), patience).await;
    reply.map(|reply| Payload::to_vec(&reply.data))
}

/// The data of an optional command; empty: the disk does not support it. A reservation conflict or a lost session
/// says nothing about the disk and is an error.
pub(super) async fn read_if_known(
    unit: &RemoteUnit,
    cdb: &CdbBytes,
    len: usize,
    patience: &mut Patience,
) -> Result<Vec<u8>> {
    match read(unit, cdb, len, patience).await {
        Err(error) if matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Medium) => {
            Ok(Vec::new())
        }
        read => read,
    }
}

/// A page of vital product data; empty: the disk does not have it.
pub(super) async fn page(
    unit: &RemoteUnit,
    code: u8,
    len: u8,
    patience: &mut Patience,
) -> Result<Vec<u8>> {
    let inquiry = cdb::inquiry(Some(code), len);
    let mut page = read_if_known(unit, &inquiry, len.into(), patience).await?;
    if page.get(1) != Some(&code) {
        page.clear();
    }
    Ok(page)
}

pub(super) async fn capacity(unit: &RemoteUnit, patience: &mut Patience) -> Result<Capacity> {
    let long = read_if_known(unit, &cdb::read_capacity_16(32), 32, patience).await?;
    if let Some(capacity) = Capacity::parse_16(&long) {
        return capacity;
    }
    let short = read(unit, &cdb::read_capacity_10(), 8, patience).await?;
    Capacity::parse_10(&short).ok_or_else(untold)?
}

impl DiskFacts {
    /// Queries write protection, write cache and FUA.
    async fn ask_mode(&mut self, unit: &RemoteUnit, patience: &mut Patience) -> Result<()> {
        let mut mode = None;
        for query in mode_page::queries() {
            let data = read_if_known(unit, &query, mode_page::LEN.into(), patience).await?;
            mode = Mode::parse(&data);
            if mode.is_some() {
                break;
            }
        }
        let mode = mode.unwrap_or(Mode::UNTOLD);
        self.shape.read_only = ReadOnly::new(mode.is_protected);
        self.shape.volatile_cache = mode.is_volatile;
        self.takes_fua = AtomicBool::new(mode.takes_fua);
        Ok(())
    }

    /// Queries block limits (SBC-3 6.5.3) and logical block provisioning (6.5.4).
    async fn ask_limits(
        &mut self,
        unit: &RemoteUnit,
        is_thin: bool,
        patience: &mut Patience,
    ) -> Result<()> {
        let block = u64::from(self.shape.block_size_bytes);
        let limits = page(unit, 0xb0, 64, patience).await?;
        let word = |at: usize| {
            let bytes = limits.get(at..at + 4).unwrap_or(&[0; 4]);
            u64::from(u32::from_be_bytes(bytes.try_into().expect("four bytes")))
        };
        let (longest, optimal, granularity) = (word(8) * block, word(12) * block, word(28) * block);
        self.shape.compare_and_write_max_bytes =
            u32::from(limits.get(5).copied().unwrap_or(0)) * self.shape.block_size_bytes;
        if longest > 0 {
            self.transfer_max_bytes = longest.min(TRANSFER_LIMIT_BYTES) as usize;
        }
        if optimal > 0 {
            self.shape.optimal_io_bytes = optimal.min(self.transfer_max_bytes as u64) as u32;
        }
        if !is_thin {
            return Ok(());
        }
        let provisioning = page(unit, 0xb2, 64, patience).await?;
        let flags = provisioning.get(5).copied().unwrap_or(0);
        const LBPU: u8 = 0x80;
        const LBPWS: u8 = 0x40;
        // Counts of 0 mean that there is no UNMAP after all.
        let (unmap_max_blocks, unmap_max_descriptors) = (word(20), word(24));
        if flags & LBPU != 0 && unmap_max_descriptors > 0 {
            self.unmap_max_blocks = unmap_max_blocks.min(COMMAND_MAX_BLOCKS);
        }
        if flags & LBPWS != 0 {
            let limit = limits.get(36..44).unwrap_or(&[0; 8]);
            let limit = u64::from_be_bytes(limit.try_into().expect("eight bytes"));
            self.write_same_max_blocks = if limit == 0 {
                0x8000
            } else {
                limit.min(COMMAND_MAX_BLOCKS)
            };
        }
        if self.unmap_max_blocks > 0 {
            self.shape.discard = Some(Discard {
                granularity_bytes: granularity.clamp(block, 1 << 30) as u32,
                // LBPRZ says what an unmapped block reads as, but a target need not unmap the blocks that an UNMAP
                // names (SBC-3 4.7.3.4).
                reads_zeroes: false,
            });
        }
        Ok(())
    }
}
