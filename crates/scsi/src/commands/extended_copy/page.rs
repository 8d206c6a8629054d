//! The third-party copy VPD page, 8Fh (SPC-4 7.8.17): the supported copy commands and their limits.

use super::super::opcode_table::OpcodeTable;
use super::{
    BLOCK_TO_BLOCK, CSCDS_MAX, DESCRIPTORS_LEN_MAX, IDENTIFICATION, SEGMENT_BLOCKS_MAX,
    SEGMENTS_MAX, THIS_UNIT,
};
use crate::opcode::{THIRD_PARTY_COPY_IN, THIRD_PARTY_COPY_OUT};

/// The descriptors of the page.
pub(crate) fn third_party_copy(block_size_bytes: u32, table: &OpcodeTable) -> Vec<u8> {
    let mut page = Vec::with_capacity(128);
    descriptor(&mut page, 0x0001, &supported_commands(table));
    descriptor(&mut page, 0x0004, &parameter_data());
    descriptor(&mut page, 0x0008, &[2, BLOCK_TO_BLOCK, IDENTIFICATION]);
    let [high, low] = THIS_UNIT.to_be_bytes();
    descriptor(&mut page, 0x000C, &[0, 2, high, low]);
    descriptor(
        &mut page,
        0x8001,
        &general_copy_operations(block_size_bytes),
    );
    page
}

/// Appends a descriptor; its length is that of its body, rounded up to four bytes.
fn descriptor(page: &mut Vec<u8>, kind: u16, body: &[u8]) {
    let len = body.len().next_multiple_of(4);
    page.extend(kind.to_be_bytes());
    page.extend((len as u16).to_be_bytes());
    page.extend(body);
    page.resize(page.len() + len - body.len(), 0);
}

/// The opcodes of third-party copy commands with their service actions, taken from the command table.
fn supported_commands(table: &OpcodeTable) -> Vec<u8> {
    let mut list = Vec::new();
    for opcode in [THIRD_PARTY_COPY_OUT, THIRD_PARTY_COPY_IN] {
        let actions: Vec<u8> = table
            .of(opcode)
            .iter()
            .filter_map(|row| row.service_action)
            .collect();
        list.extend([opcode, actions.len() as u8]);
        list.extend(actions);
    }
    list.insert(0, list.len() as u8);
    list
}

fn parameter_data() -> [u8; 28] {
    let mut body = [0; 28];
    body[4..6].copy_from_slice(&(CSCDS_MAX as u16).to_be_bytes());
    body[6..8].copy_from_slice(&(SEGMENTS_MAX as u16).to_be_bytes());
    body[8..12].copy_from_slice(&(DESCRIPTORS_LEN_MAX as u32).to_be_bytes());
    // No inline data.
    body
}

fn general_copy_operations(block_size_bytes: u32) -> [u8; 32] {
    /// Maximum concurrent copies, in total and with list identifiers; a nominal value, since the transport limits
    /// commands as a whole.
    const COPIES: u32 = 64;
    let mut body = [0; 32];
    body[0..4].copy_from_slice(&COPIES.to_be_bytes());
    body[4..8].copy_from_slice(&COPIES.to_be_bytes());
    body[8..12].copy_from_slice(&(SEGMENT_BLOCKS_MAX * block_size_bytes).to_be_bytes());
    // log2 of the segment granularity; there is no inline data, so its granularity stays zero.
    body[12] = block_size_bytes.trailing_zeros() as u8;
    body
}
