//! Parameter lists: for each command one that would do, then changed by the input, or nothing but
//! the input.

use scsi::{LogicalUnit, ParameterList};

use super::{NEXUSES, cdb::ask};
use crate::input::Input;

/// Data-out for a command that waits for `list`; mostly as long as it has to be.
pub(super) fn make(
    input: &mut Input<'_>,
    cdb: &[u8],
    list: &ParameterList,
    unit: &mut LogicalUnit,
) -> Vec<u8> {
    let len = list.len_bytes() as usize;
    let style = input.u8();
    let mut data = match style {
        0xe0.. => input.bytes(len).to_vec(),
        _ => template(input, cdb, len, unit),
    };
    data.resize(len, 0);
    if style & 3 == 3 && !data.is_empty() {
        let near = data.len().min(256);
        input.harm(&mut data[..near]);
    }
    if style & 0x1c == 0x1c {
        data.resize(usize::from(input.u16()), 0);
    }
    data
}

fn template(input: &mut Input<'_>, cdb: &[u8], len: usize, unit: &mut LogicalUnit) -> Vec<u8> {
    match cdb[0] {
        0x15 => mode_pages(4, ask(unit, &[0x1a, 8, 0x0a, 0, 0xff, 0]), input),
        0x55 => mode_pages(
            8,
            ask(unit, &[0x5a, 8, 0x0a, 0, 0, 0, 0, 0, 0xff, 0]),
            input,
        ),
        0x42 => unmap(input, len, unit.shape().len_blocks),
        0x48 => {
            let [high, low] = input.u16().to_be_bytes();
            vec![input.u8(), 0, high & 0x1f, low, 0xaa, 0x55]
        }
        0x5f => reserve_out(input, cdb[1] & 0x1f, len),
        0x83 => extended_copy(input, unit.identity().naa()),
        // A block of data: zeroes are special.
        _ => vec![input.u8() & 1; len],
    }
}

/// What MODE SENSE gave, with a bit changed.
fn mode_pages(header_len: usize, sensed: Option<Vec<u8>>, input: &mut Input<'_>) -> Vec<u8> {
    let mut data = sensed.unwrap_or_default();
    data.resize(header_len + 12, 0);
    // MODE DATA LENGTH and the device-specific parameter are reserved.
    data[..header_len].fill(0);
    data[header_len] &= 0x7f;
    let at = header_len + input.below(12);
    data[at] ^= 1 << input.below(8);
    data
}

fn unmap(input: &mut Input<'_>, len: usize, len_blocks: u64) -> Vec<u8> {
    let mut data = vec![0; 8];
    data[..2].copy_from_slice(&(len.saturating_sub(2) as u16).to_be_bytes());
    data[2..4].copy_from_slice(&(len.saturating_sub(8) as u16).to_be_bytes());
    for _ in 0..input.below(8) {
        let (lba, blocks) = (input.u8(), input.length());
        let lba = match lba {
            back @ 0x80.. => len_blocks.saturating_sub(u64::from(back & 0x7f)),
            ahead => ahead.into(),
        };
        data.extend(lba.to_be_bytes());
        data.extend(blocks.to_be_bytes());
        data.extend([0; 4]);
    }
    data
}

/// Keys are small, so that they meet.
fn reserve_out(input: &mut Input<'_>, service_action: u8, len: usize) -> Vec<u8> {
    const REGISTER_AND_MOVE: u8 = 7;
    let mut data = vec![0; 24];
    data[7] = input.u8() & 3;
    data[15] = input.u8() & 3;
    data[20] = input.u8() & 0x0d;
    let named = input.pick(&NEXUSES).expect("there are some");
    let mut name = named.name.as_bytes().to_vec();
    if service_action == REGISTER_AND_MOVE {
        data[17] = input.u8() & 3;
        data[19] = input.u8() & 3;
        data[20] = 0;
        name.resize(len.saturating_sub(28).clamp(name.len(), 64), 0);
        data[20..24].copy_from_slice(&(name.len() as u32 + 4).to_be_bytes());
    } else {
        name.resize(len.saturating_sub(32).clamp(name.len(), 64), 0);
        data.extend((name.len() as u32 + 4).to_be_bytes());
    }
    data.extend([0x45, 0, 0, name.len() as u8]);
    data.extend(name);
    data
}

/// One or more segments from the unit to itself.
fn extended_copy(input: &mut Input<'_>, naa: [u8; 16]) -> Vec<u8> {
    let (cscds, segments) = (input.below(4), input.below(4));
    let mut data = vec![0; 16];
    data[0] = input.u8();
    data[3] = 32 * cscds as u8;
    data[11] = 28 * segments as u8;
    for _ in 0..cscds {
        let mut cscd = [0; 32];
        (cscd[0], cscd[5], cscd[7]) = (0xe4, 3, 16);
        cscd[8..24].copy_from_slice(&naa);
        data.extend(cscd);
    }
    for _ in 0..segments {
        let mut segment = [0; 28];
        (segment[0], segment[3]) = (2, 24);
        (segment[5], segment[7]) = (input.u8() & 3, input.u8() & 3);
        segment[11] = input.u8();
        segment[19] = input.u8();
        segment[27] = input.u8();
        data.extend(segment);
    }
    data
}
