//! The commands that our initiator sends, as command descriptor blocks (SPC-4 6, SBC-3 5).

pub(super) use scsi::opcode::reserve_in::{
    READ_FULL_STATUS, READ_KEYS, READ_RESERVATION, REPORT_CAPABILITIES,
};
use scsi::opcode::{self, reserve_out, service_action_in_16};

/// A command descriptor block of up to 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CdbBytes {
    bytes: [u8; 16],
    len: usize,
}

impl std::ops::Deref for CdbBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl CdbBytes {
    /// Whether it changes what is stored.
    pub(super) fn changes_medium(&self) -> bool {
        matches!(
            self.bytes[0],
            opcode::WRITE_10
                | opcode::WRITE_16
                | opcode::UNMAP
                | opcode::WRITE_SAME_16
                | opcode::COMPARE_AND_WRITE
        )
    }

    /// Whether it must not be executed twice: another result of it may stand between the two.
    pub(super) fn is_once(&self) -> bool {
        self.bytes[0] == opcode::COMPARE_AND_WRITE
    }

    /// Whether it carries blocks of the medium, whose number and size give the length of its data.
    pub(super) fn moves_blocks(&self) -> bool {
        matches!(
            self.bytes[0],
            opcode::READ_10
                | opcode::READ_16
                | opcode::WRITE_10
                | opcode::WRITE_16
                | opcode::COMPARE_AND_WRITE
        )
    }

    /// Whether a pending unit attention answers it (SAM-5 5.14).
    pub(super) fn gets_attentions(&self) -> bool {
        !matches!(self.bytes[0], opcode::INQUIRY | opcode::REPORT_LUNS)
    }

    /// Whether it may be sent although the LUN may have become another disk: it leaves the disk as it is, and its answer
    /// is about the path.
    pub(super) fn suits_any_disk(&self) -> bool {
        matches!(
            self.bytes[0],
            opcode::TEST_UNIT_READY | opcode::INQUIRY | opcode::MAINTENANCE_IN
        )
    }
}

fn cdb<const N: usize>(first: [u8; N]) -> CdbBytes {
    let mut bytes = [0; 16];
    bytes[..N].copy_from_slice(&first);
    CdbBytes { bytes, len: N }
}

/// TEST UNIT READY (SPC-4 6.47).
pub(super) fn test_unit_ready() -> CdbBytes {
    cdb([opcode::TEST_UNIT_READY, 0, 0, 0, 0, 0])
}

/// REPORT LUNS (SPC-4 6.33): all but the well-known ones.
pub(super) fn report_luns(allocation_len: u32) -> CdbBytes {
    let [a, b, c, d] = allocation_len.to_be_bytes();
    cdb([opcode::REPORT_LUNS, 0, 0, 0, 0, 0, a, b, c, d, 0, 0])
}

/// INQUIRY for the standard data, or for a page of vital product data (SPC-4 6.6).
pub(super) fn inquiry(page: Option<u8>, allocation_len: u8) -> CdbBytes {
    cdb([
        opcode::INQUIRY,
        page.is_some().into(),
        page.unwrap_or(0),
        0,
        allocation_len,
        0,
    ])
}

/// READ CAPACITY (10) (SBC-3 5.15).
pub(super) fn read_capacity_10() -> CdbBytes {
    cdb([opcode::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// READ CAPACITY (16) (SBC-3 5.16).
pub(super) fn read_capacity_16(allocation_len: u32) -> CdbBytes {
    let action = service_action_in_16::READ_CAPACITY;
    long(opcode::SERVICE_ACTION_IN_16, action, 0, allocation_len)
}

/// GET LBA STATUS (SBC-3 5.7).
pub(super) fn get_lba_status(lba: u64, allocation_len: u32) -> CdbBytes {
    let action = service_action_in_16::GET_LBA_STATUS;
    long(opcode::SERVICE_ACTION_IN_16, action, lba, allocation_len)
}

/// MODE SENSE (6) for a page's current values (SPC-4 6.13), without block descriptors.
pub(super) fn mode_sense_6(page: u8, allocation_len: u8) -> CdbBytes {
    const DISABLE_BLOCK_DESCRIPTORS: u8 = 0x08;
    cdb([
        opcode::MODE_SENSE_6,
        DISABLE_BLOCK_DESCRIPTORS,
        page,
        0,
        allocation_len,
        0,
    ])
}

/// READ of `blocks` (SBC-3 5.11, 5.13); prefers the 10-byte form, which every disk supports.
pub(super) fn read(lba: u64, blocks: u32) -> CdbBytes {
    medium(opcode::READ_10, opcode::READ_16, 0, lba, blocks)
}

/// WRITE of `blocks` (SBC-3 5.32, 5.34).
pub(super) fn write(lba: u64, blocks: u32, fua: bool) -> CdbBytes {
    let flags = if fua { 0x08 } else { 0 };
    medium(opcode::WRITE_10, opcode::WRITE_16, flags, lba, blocks)
}

/// COMPARE AND WRITE of `blocks` (SBC-3 5.2).
pub(super) fn compare_and_write(lba: u64, blocks: u8, fua: bool) -> CdbBytes {
    let flags = if fua { 0x08 } else { 0 };
    long(opcode::COMPARE_AND_WRITE, flags, lba, blocks.into())
}

/// SYNCHRONIZE CACHE (10) of the whole medium (SBC-3 5.18).
pub(super) fn synchronize_cache() -> CdbBytes {
    cdb([opcode::SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// WRITE SAME (16) of one block of zeroes (SBC-3 5.43), with or without UNMAP.
pub(super) fn write_same_16(lba: u64, blocks: u32, unmap: bool) -> CdbBytes {
    let flags = if unmap { 0x08 } else { 0 };
    long(opcode::WRITE_SAME_16, flags, lba, blocks)
}

/// UNMAP with a parameter list of `list_len` bytes (SBC-3 5.28).
pub(super) fn unmap(list_len: u16) -> CdbBytes {
    let [high, low] = list_len.to_be_bytes();
    cdb([opcode::UNMAP, 0, 0, 0, 0, 0, 0, high, low, 0])
}

/// The parameter list of an UNMAP of one extent (SBC-3 5.28.2).
pub(super) fn unmap_list(lba: u64, blocks: u32) -> [u8; 24] {
    let mut list = [0; 24];
    list[0..2].copy_from_slice(&22u16.to_be_bytes());
    list[2..4].copy_from_slice(&16u16.to_be_bytes());
    list[8..16].copy_from_slice(&lba.to_be_bytes());
    list[16..20].copy_from_slice(&blocks.to_be_bytes());
    list
}

/// REPORT TARGET PORT GROUPS (SPC-4 6.37).
pub(super) fn report_target_port_groups(allocation_len: u32) -> CdbBytes {
    const SERVICE_ACTION: u8 = 0x0a;
    let [a, b, c, d] = allocation_len.to_be_bytes();
    cdb([
        opcode::MAINTENANCE_IN,
        SERVICE_ACTION,
        0,
        0,
        0,
        0,
        a,
        b,
        c,
        d,
        0,
        0,
    ])
}

/// PERSISTENT RESERVE IN (SPC-4 6.15).
pub(super) fn persistent_reserve_in(service_action: u8, allocation_len: u16) -> CdbBytes {
    let [high, low] = allocation_len.to_be_bytes();
    cdb([
        opcode::PERSISTENT_RESERVE_IN,
        service_action,
        0,
        0,
        0,
        0,
        0,
        high,
        low,
        0,
    ])
}

/// PERSISTENT RESERVE OUT with its parameter list (SPC-4 6.16).
pub(super) struct ReserveOut {
    pub(super) cdb: CdbBytes,
    pub(super) list: [u8; 24],
}

impl ReserveOut {
    fn new(service_action: u8, kind: u8, key: u64, action_key: u64, aptpl: bool) -> ReserveOut {
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&action_key.to_be_bytes());
        list[20] = aptpl.into();
        ReserveOut {
            cdb: cdb([
                opcode::PERSISTENT_RESERVE_OUT,
                service_action,
                kind,
                0,
                0,
                0,
                0,
                0,
                list.len() as u8,
                0,
            ]),
            list,
        }
    }

    /// REGISTER AND IGNORE EXISTING KEY.
    pub(super) fn register_and_ignore(key: u64, aptpl: bool) -> ReserveOut {
        ReserveOut::new(
            reserve_out::REGISTER_AND_IGNORE_EXISTING_KEY,
            0,
            0,
            key,
            aptpl,
        )
    }

    /// REGISTER with a zero service action key: removes the registration of `key`, if there is one.
    pub(super) fn unregister(key: u64, aptpl: bool) -> ReserveOut {
        ReserveOut::new(reserve_out::REGISTER, 0, key, 0, aptpl)
    }

    /// RESERVE with this type.
    pub(super) fn reserve(kind: u8, key: u64) -> ReserveOut {
        ReserveOut::new(reserve_out::RESERVE, kind, key, 0, false)
    }

    /// RELEASE of the reservation of this type, if the nexus holds it.
    pub(super) fn release(kind: u8, key: u64) -> ReserveOut {
        ReserveOut::new(reserve_out::RELEASE, kind, key, 0, false)
    }

    /// PREEMPT, or PREEMPT AND ABORT, of all registrations with the key `victim`.
    pub(super) fn preempt(kind: u8, key: u64, victim: u64, aborts: bool) -> ReserveOut {
        let action = match aborts {
            true => reserve_out::PREEMPT_AND_ABORT,
            false => reserve_out::PREEMPT,
        };
        ReserveOut::new(action, kind, key, victim, false)
    }
}

fn medium(opcode_10: u8, opcode_16: u8, flags: u8, lba: u64, blocks: u32) -> CdbBytes {
    match (u32::try_from(lba), u16::try_from(blocks)) {
        (Ok(lba), Ok(blocks)) => {
            let ([a, b, c, d], [e, f]) = (lba.to_be_bytes(), blocks.to_be_bytes());
            cdb([opcode_10, flags, a, b, c, d, 0, e, f, 0])
        }
        _ => long(opcode_16, flags, lba, blocks),
    }
}

fn long(opcode: u8, flags: u8, lba: u64, blocks: u32) -> CdbBytes {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1]) = (opcode, flags);
    bytes[2..10].copy_from_slice(&lba.to_be_bytes());
    bytes[10..14].copy_from_slice(&blocks.to_be_bytes());
    CdbBytes { bytes, len: 16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_is_used_as_far_as_it_reaches() {
        assert_eq!(
            read(0x0102_0304, 0x0506)[..],
            [0x28, 0, 1, 2, 3, 4, 0, 5, 6, 0]
        );
        assert_eq!(read(0, 0x1_0000)[..2], [0x88, 0]);
        assert_eq!(
            write(1 << 32, 1, true)[..10],
            [0x8a, 8, 0, 0, 0, 1, 0, 0, 0, 0]
        );
    }

    #[test]
    fn an_unmap_names_its_own_lengths() {
        let list = unmap_list(0x1122, 0x33);
        assert_eq!(
            u16::from_be_bytes([list[0], list[1]]),
            22,
            "bytes after this field"
        );
        assert_eq!(
            u16::from_be_bytes([list[2], list[3]]),
            16,
            "bytes of descriptors"
        );
        assert_eq!((list[14], list[15], list[19]), (0x11, 0x22, 0x33));
    }
}
