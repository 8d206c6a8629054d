//! Vital product data pages of INQUIRY (SPC-4 7.8, SBC-3): the disk's names, its capabilities, and its limits. To add
//! a page, add a row to [`PAGES`] and its function.

use super::extended_copy::third_party_copy;
use super::opcode_table::OpcodeTable;
use super::sanitize::can_erase;
use crate::identity::{Identity, ascii_field};
use crate::shape::DiskShape;

/// Peripheral qualifier and device type, the first byte of all INQUIRY data.
pub(super) const DIRECT_ACCESS: u8 = 0x00;

type Encode = fn(&Identity, &DiskShape, &OpcodeTable) -> Vec<u8>;

/// The pages in ascending order, as page 00h lists them.
const PAGES: [(u8, Encode); 8] = [
    (0x00, supported_pages),
    (0x80, serial_number),
    (0x83, device_identification),
    (0x86, extended_inquiry),
    (0x8F, |_, shape, table| {
        third_party_copy(shape.block_size_bytes, table)
    }),
    (0xB0, block_limits),
    (0xB1, block_device_characteristics),
    (0xB2, logical_block_provisioning),
];

/// A page with its header, or `None` if there is no such page.
pub(super) fn page(
    code: u8,
    identity: &Identity,
    shape: &DiskShape,
    table: &OpcodeTable,
) -> Option<Vec<u8>> {
    let (_, encode) = PAGES.iter().find(|(known, _)| *known == code)?;
    let body = encode(identity, shape, table);
    let mut data = vec![DIRECT_ACCESS, code];
    data.extend((body.len() as u16).to_be_bytes());
    data.extend(body);
    Some(data)
}

fn supported_pages(_: &Identity, _: &DiskShape, _: &OpcodeTable) -> Vec<u8> {
    PAGES.iter().map(|(code, _)| *code).collect()
}

fn serial_number(identity: &Identity, _: &DiskShape, _: &OpcodeTable) -> Vec<u8> {
    let serial = ascii_field::<64>(&identity.serial);
    serial[..identity.serial.len().min(serial.len())].to_vec()
}

/// Designators (SPC-4, device identification VPD page): the logical unit by its NAA name (which Linux, Windows and
/// VMware use) and by vendor and serial number, the target port by number, group and name, and the target by name.
fn device_identification(identity: &Identity, shape: &DiskShape, table: &OpcodeTable) -> Vec<u8> {
    let port = &identity.port;
    let mut t10 = ascii_field::<8>(&identity.vendor).to_vec();
    t10.extend(serial_number(identity, shape, table));
    let port_name = format!("{},t,0x{:04x}", port.target_name, port.portal_group_tag);

    let mut data = Vec::with_capacity(256);
    designator(
        &mut data,
        Association::LogicalUnit,
        CodeSet::Binary,
        NAA,
        &identity.naa(),
    );
    designator(
        &mut data,
        Association::LogicalUnit,
        CodeSet::Ascii,
        T10_VENDOR,
        &t10,
    );
    for (kind, number) in [
        (RELATIVE_TARGET_PORT, port.relative_port),
        (TARGET_PORT_GROUP, port.port_group),
    ] {
        let [high, low] = number.to_be_bytes();
        let body = [0, 0, high, low];
        designator(
            &mut data,
            Association::TargetPort,
            CodeSet::Binary,
            kind,
            &body,
        );
    }
    for (association, name) in [
        (Association::TargetPort, &port_name),
        (Association::Target, &port.target_name),
    ] {
        designator(
            &mut data,
            association,
            CodeSet::Utf8,
            SCSI_NAME,
            &scsi_name(name),
        );
    }
    data
}

#[derive(Clone, Copy)]
enum Association {
    LogicalUnit = 0,
    TargetPort = 1,
    Target = 2,
}

#[derive(Clone, Copy)]
enum CodeSet {
    Binary = 1,
    Ascii = 2,
    Utf8 = 3,
}

/// Designator types (SPC-4, device identification).
const T10_VENDOR: u8 = 1;
const NAA: u8 = 3;
const RELATIVE_TARGET_PORT: u8 = 4;
const TARGET_PORT_GROUP: u8 = 5;
const SCSI_NAME: u8 = 8;

fn designator(
    data: &mut Vec<u8>,
    association: Association,
    code_set: CodeSet,
    kind: u8,
    body: &[u8],
) {
    const PROTOCOL_ISCSI: u8 = 0x50;
    const PIV: u8 = 0x80;
    // The protocol is identified only for designators that belong to the transport.
    let (protocol, piv) = match association {
        Association::LogicalUnit => (0, 0),
        Association::TargetPort | Association::Target => (PROTOCOL_ISCSI, PIV),
    };
    debug_assert!(body.len() <= 255);
    let association = (association as u8) << 4;
    data.extend([
        protocol | code_set as u8,
        piv | association | kind,
        0,
        body.len() as u8,
    ]);
    data.extend(body);
}

/// A SCSI name string: null-terminated, zero-padded to a multiple of four bytes (SPC-4). An iSCSI name has at most
/// 223 bytes (RFC 7143 §4.2.7.1); longer names are truncated.
fn scsi_name(name: &str) -> Vec<u8> {
    const LEN_MAX: usize = 251;
    let mut body = name.as_bytes()[..name.len().min(LEN_MAX)].to_vec();
    body.resize((body.len() + 1).next_multiple_of(4), 0);
    body
}

/// Extended INQUIRY data (SPC-4 7.8.7): all three task attributes possible without ACA, and whether there is a
/// volatile cache. No protection information, grouping, priorities, self-tests or microcode.
fn extended_inquiry(_: &Identity, shape: &DiskShape, _: &OpcodeTable) -> Vec<u8> {
    const HEADSUP: u8 = 0x04;
    const ORDSUP: u8 = 0x02;
    const SIMPSUP: u8 = 0x01;
    const V_SUP: u8 = 0x01;
    let mut body = vec![0; 60];
    body[1] = HEADSUP | ORDSUP | SIMPSUP;
    body[2] = if shape.write_cache { V_SUP } else { 0 };
    body
}

/// Block limits (SBC-3), 60 bytes, as Linux and libiscsi expect of an SBC-3 disk.
fn block_limits(_: &Identity, shape: &DiskShape, _: &OpcodeTable) -> Vec<u8> {
    const WSNZ: u8 = 0x01;
    let mut body = vec![0; 60];
    body[0] = WSNZ;
    body[1] = shape.compare_write_blocks_max;
    body[2..4].copy_from_slice(&shape.transfer_blocks_granularity.to_be_bytes());
    body[4..8].copy_from_slice(&shape.transfer_blocks_max.to_be_bytes());
    body[8..12].copy_from_slice(&shape.transfer_blocks_optimal.to_be_bytes());
    if let Some(discard) = &shape.discard {
        const UGAVALID: u32 = 1 << 31;
        let ranges_max = u32::from(discard.unmap_ranges_max);
        body[16..20].copy_from_slice(&discard.unmap_blocks_max.to_be_bytes());
        body[20..24].copy_from_slice(&ranges_max.to_be_bytes());
        body[24..28].copy_from_slice(&discard.granularity_blocks.to_be_bytes());
        body[28..32].copy_from_slice(&(UGAVALID | discard.alignment_blocks).to_be_bytes());
    }
    body[32..40].copy_from_slice(&shape.write_same_blocks_max.to_be_bytes());
    if shape.atomic_blocks_max > 0 {
        // MAXIMUM ATOMIC TRANSFER LENGTH, ATOMIC ALIGNMENT, ATOMIC TRANSFER LENGTH GRANULARITY. In the last two, a
        // single block is encoded as zero.
        let unit = match shape.atomic_blocks_unit {
            1 => 0,
            unit => unit,
        };
        body[40..44].copy_from_slice(&shape.atomic_blocks_max.to_be_bytes());
        body[44..48].copy_from_slice(&unit.to_be_bytes());
        body[48..52].copy_from_slice(&unit.to_be_bytes());
    }
    body
}

/// Block device characteristics (SBC-3): non-rotating, so that initiators do not schedule for a moving head.
fn block_device_characteristics(_: &Identity, shape: &DiskShape, _: &OpcodeTable) -> Vec<u8> {
    const NON_ROTATING: u8 = 0x01;
    let mut body = vec![0; 60];
    body[1] = NON_ROTATING;
    if can_erase(shape) {
        // WABEREQ: reads after a block erase complete without error.
        body[3] = 0x40;
    }
    body
}

/// Logical block provisioning (SBC-3): thin if discard is supported, and which commands unmap.
fn logical_block_provisioning(_: &Identity, shape: &DiskShape, _: &OpcodeTable) -> Vec<u8> {
    const LBPU: u8 = 0x80;
    const LBPWS: u8 = 0x40;
    const LBPWS10: u8 = 0x20;
    const LBPRZ: u8 = 0x04;
    const THIN: u8 = 0x02;
    match &shape.discard {
        None => vec![0; 4],
        Some(discard) => {
            let zeroes = if discard.zeroes_after_discard {
                LBPRZ
            } else {
                0
            };
            vec![0, LBPU | LBPWS | LBPWS10 | zeroes, THIN, 0]
        }
    }
}

#[cfg(test)]
mod tests;
