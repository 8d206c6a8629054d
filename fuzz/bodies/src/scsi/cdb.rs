//! CDBs: the disk is asked which commands it has and which of their bits mean something (REPORT
//! SUPPORTED OPERATION CODES, SPC-4 6.35), so that a command which is new is tried from the first
//! day on. The input chooses one and its fields.

use scsi::{Action, DiskShape, LogicalUnit};

use super::OBSERVER;
use crate::input::Input;

/// A command of the disk: its CDB with the opcode and service action set, and the bits that mean
/// something.
struct Known {
    cdb: Vec<u8>,
    usage: Vec<u8>,
}

pub(super) struct Commands(Vec<Known>);

/// The reply to a command of the observer; `None` if it gets none.
pub(super) fn ask(unit: &mut LogicalUnit, cdb: &[u8]) -> Option<Vec<u8>> {
    // Unit attentions come first, each once.
    for _ in 0..16 {
        match unit.begin(OBSERVER, cdb) {
            Action::Reply(data) => return Some(data),
            Action::End(ending) if ending.sense.is_some_and(|s| s.key as u8 == 6) => {}
            _ => return None,
        }
    }
    None
}

/// REPORT SUPPORTED OPERATION CODES.
fn report(options: u8, opcode: u8, service_action: u8) -> [u8; 12] {
    [
        0xA3,
        0x0C,
        options,
        opcode,
        0,
        service_action,
        0,
        0,
        0x40,
        0,
        0,
        0,
    ]
}

impl Commands {
    pub(super) fn of(unit: &mut LogicalUnit) -> Commands {
        let all = ask(unit, &report(0, 0, 0)).expect("every disk has this command");
        let known = all[4..].chunks_exact(8).map(|descriptor| {
            let (opcode, service_action) = (descriptor[0], descriptor[3]);
            let has_action = descriptor[5] & 1 != 0;
            let options = if has_action { 2 } else { 1 };
            let one = ask(unit, &report(options, opcode, service_action));
            let usage = one.expect("it was named just now")[4..].to_vec();
            assert_eq!(usage.len(), usize::from(descriptor[7]), "the CDB's length");
            let mut cdb = vec![0; usage.len()];
            cdb[0] = opcode;
            if has_action {
                cdb[1] = service_action;
            }
            Known { cdb, usage }
        });
        Commands(known.collect())
    }

    /// A CDB: sparse, dense, with an extent that may fit, or anything.
    pub(super) fn make(&self, input: &mut Input<'_>, shape: &DiskShape) -> Vec<u8> {
        let known = input.pick(&self.0).expect("there are some");
        let mut cdb = known.cdb.clone();
        let has_action = cdb[1] != 0;
        let style = input.u8();
        match style & 3 {
            0 => {
                for _ in 0..input.below(5) {
                    let at = input.below(cdb.len());
                    cdb[at] |= input.u8() & known.usage[at];
                }
            }
            1 => {
                for (at, byte) in cdb.iter_mut().enumerate().skip(1) {
                    *byte |= input.u8() & known.usage[at];
                }
            }
            2 => {
                cdb[1] |= input.u8() & if has_action { 0xe0 } else { known.usage[1] };
                size(input, &mut cdb, shape);
            }
            _ => {
                let given = input.bytes(cdb.len() - 1);
                cdb[1..=given.len()].copy_from_slice(given);
            }
        }
        // iSCSI always carries 16 bytes; others might not.
        match style >> 5 {
            0 => cdb.truncate(input.below(17)),
            1 => cdb[0] = input.u8(),
            _ => cdb.resize(16, 0),
        }
        cdb
    }
}

/// Sets the fields where a CDB of this length has its LBA and its length: near the disk's
/// beginning or end, and short.
fn size(input: &mut Input<'_>, cdb: &mut [u8], shape: &DiskShape) {
    let lba = match input.u8() {
        back @ 0x80.. => shape.len_blocks.saturating_sub(u64::from(back & 0x7f)),
        ahead => ahead.into(),
    };
    let len = input.length();
    let (at, lba_len, len_at, len_len) = match cdb.len() {
        6 => (2, 2, 4, 1),
        10 => (2, 4, 7, 2),
        12 => (2, 4, 6, 4),
        _ => (2, 8, 10, 4),
    };
    let has_lba = !matches!(
        cdb[0],
        0x12 | 0x15 | 0x1a | 0x48 | 0x55 | 0x5a | 0x5e | 0x5f | 0x83 | 0x84 | 0xa3
    );
    if has_lba {
        cdb[at..at + lba_len].copy_from_slice(&lba.to_be_bytes()[8 - lba_len..]);
    } else {
        cdb[2] |= lba as u8;
    }
    cdb[len_at..len_at + len_len].copy_from_slice(&len.to_be_bytes()[4 - len_len..]);
    match cdb[0] {
        // PERSISTENT RESERVE OUT has four bytes from the fifth on; COMPARE AND WRITE has one.
        0x5f => cdb[5..9].copy_from_slice(&(len & 0xffff).to_be_bytes()),
        0x89 => cdb[10..14].copy_from_slice(&(len & 0xff).to_be_bytes()),
        _ => {}
    }
}
