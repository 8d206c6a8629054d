//! The longest form of each command, the one that makes the target work most for one CDB.

/// A command to flood with.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    /// The command, 16 bytes or fewer.
    pub(crate) cdb: Vec<u8>,
    /// Its data-out; the first 64 KiB are sent with it, the rest on R2T.
    pub(crate) data: Vec<u8>,
    /// Expected data-in length.
    pub(crate) read_bytes: u32,
    /// How many are sent at once.
    pub(crate) count: usize,
    /// The least memory that one command moves when the lane does the work itself, in bytes.
    pub(crate) moved_bytes: u64,
    /// Sent before the flood.
    pub(crate) before: Vec<Form>,
}

/// Below the initial command window of a session.
const FLOOD: usize = 120;
/// With 4 MiB of payload each.
const FLOOD_OF_PAYLOAD: usize = 16;
const TRANSFER_BYTES: usize = 4 << 20;
const TRANSFER_BLOCKS: u32 = (TRANSFER_BYTES / 512) as u32;
const WRITE_SAME_BLOCKS: u32 = (16 << 20) / 512;

fn plain(cdb: &[u8]) -> Form {
    Form {
        cdb: cdb.to_vec(),
        data: Vec::new(),
        read_bytes: 0,
        count: FLOOD,
        moved_bytes: 0,
        before: Vec::new(),
    }
}

fn reading(cdb: &[u8], read_bytes: u32) -> Form {
    Form {
        read_bytes,
        ..plain(cdb)
    }
}

fn writing(cdb: &[u8], data: Vec<u8>) -> Form {
    Form { data, ..plain(cdb) }
}

/// A command with payload of the longest transfer.
fn transfer(cdb: &[u8], moved_bytes: usize) -> Form {
    Form {
        data: vec![0x5A; TRANSFER_BYTES],
        count: FLOOD_OF_PAYLOAD,
        moved_bytes: moved_bytes as u64,
        ..plain(cdb)
    }
}

/// A CDB for blocks from 0 on, as long as its operation code requires.
fn blocks(operation: u8, flags: u8, count: u32) -> Vec<u8> {
    let count_bytes = count.to_be_bytes();
    match operation >> 5 {
        0 => vec![operation, 0, 0, 0, count as u8, 0],
        1 | 2 => {
            let count = (count as u16).to_be_bytes();
            vec![operation, flags, 0, 0, 0, 0, 0, count[0], count[1], 0]
        }
        4 => {
            let mut cdb = vec![operation, flags];
            cdb.extend([0; 8]);
            cdb.extend(count_bytes);
            cdb.extend([0; 2]);
            cdb
        }
        _ => {
            let mut cdb = vec![operation, flags, 0, 0, 0, 0];
            cdb.extend(count_bytes);
            cdb.extend([0; 2]);
            cdb
        }
    }
}

/// The forms to send for a command; `None` if it is unknown here.
pub(crate) fn longest(operation: u8, action: u8, naa: &[u8; 16]) -> Option<Vec<Form>> {
    let all = if matches!(operation >> 5, 1 | 2) {
        0xFFFF
    } else {
        1 << 20
    };
    Some(match (operation, action) {
        (0x00 | 0x16 | 0x17 | 0x1E, _) => vec![plain(&[operation, 0, 0, 0, 0, 0])],
        (0x1B, _) => vec![plain(&[0x1B, 0, 0, 0, 1, 0])],
        (0x03, _) => vec![reading(&[0x03, 0, 0, 0, 252, 0], 252)],
        (0x12, _) => vec![reading(&[0x12, 1, 0x83, 0, 255, 0], 255)],
        (0x1A, _) => vec![reading(&[0x1A, 0, 0x3F, 0xFF, 255, 0], 255)],
        (0x5A, _) => vec![reading(&[0x5A, 0, 0x3F, 0xFF, 0, 0, 0, 4, 0, 0], 1024)],
        (0x15, _) => vec![writing(&[0x15, 0x10, 0, 0, 4, 0], vec![0; 4])],
        (0x55, _) => vec![writing(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, 8, 0], vec![0; 8])],
        (0x25, _) => vec![reading(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8)],
        (0x9E, 0x10) => vec![reading(&extended(0x9E, 0x10, 32), 32)],
        // On a disk that was never written to.
        (0x9E, 0x12) => vec![Form {
            moved_bytes: 4 << 20,
            ..reading(&extended(0x9E, 0x12, 24), 24)
        }],
        (0x08, _) => vec![reading(&blocks(operation, 0, 0), 256 * 512)],
        (0x28 | 0x88 | 0xA8, _) => vec![Form {
            count: FLOOD_OF_PAYLOAD,
            ..reading(
                &blocks(operation, 0, TRANSFER_BLOCKS),
                TRANSFER_BYTES as u32,
            )
        }],
        (0x0A, _) => vec![Form {
            moved_bytes: 256 * 512,
            ..writing(&blocks(operation, 0, 0), vec![1; 256 * 512])
        }],
        (0x2A | 0x8A | 0xAA | 0x9C, _) => {
            let cdb = match operation {
                // Its length is two bytes.
                0x9C => vec![0x9C, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0],
                _ => blocks(operation, 0, TRANSFER_BLOCKS),
            };
            vec![transfer(&cdb, TRANSFER_BYTES)]
        }
        (0x8B, _) => vec![transfer(
            &blocks(operation, 0, TRANSFER_BLOCKS),
            2 * TRANSFER_BYTES,
        )],
        (0x2E | 0x8E | 0xAE, _) => vec![transfer(
            &blocks(operation, 0x02, TRANSFER_BLOCKS),
            TRANSFER_BYTES,
        )],
        (0x2F | 0x8F | 0xAF, _) => {
            let zeroes = vec![0; 512];
            vec![
                plain(&blocks(operation, 0, TRANSFER_BLOCKS)),
                // Compares everything with one block, then with as many blocks.
                Form {
                    count: 8,
                    moved_bytes: TRANSFER_BYTES as u64,
                    ..writing(&blocks(operation, 0x06, TRANSFER_BLOCKS), zeroes)
                },
                Form {
                    data: vec![0; TRANSFER_BYTES],
                    ..transfer(&blocks(operation, 0x02, TRANSFER_BLOCKS), TRANSFER_BYTES)
                },
            ]
        }
        (0x34 | 0x90 | 0x35 | 0x91, _) => vec![plain(&blocks(operation, 0, all))],
        (0x37, _) => vec![reading(&[0x37, 0, 0x1D, 0, 0, 0, 0, 4, 0, 0], 1024)],
        (0xB7, _) => vec![reading(&[0xB7, 0x1D, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], 1024)],
        (0x41 | 0x93, _) => {
            let cdb = |flags| blocks(operation, flags, WRITE_SAME_BLOCKS);
            vec![
                Form {
                    moved_bytes: 16 << 20,
                    ..writing(&cdb(0), vec![7; 512])
                },
                writing(&cdb(0), vec![0; 512]),
                writing(&cdb(0x08), vec![0; 512]),
            ]
        }
        (0x42, _) => vec![Form {
            before: vec![writing(&blocks(0x93, 0, WRITE_SAME_BLOCKS), vec![7; 512])],
            ..unmap()
        }],
        (0x48, action) => vec![sanitize(action)],
        (0x4D, _) => vec![reading(&[0x4D, 0, 0x40, 0, 0, 0, 0, 4, 0, 0], 1024)],
        (0x5E, action) => vec![reading(&[0x5E, action, 0, 0, 0, 0, 0, 32, 0, 0], 8192)],
        (0x5F, action) => vec![reserve_out(action)],
        (0x83, action) => vec![copy(action, naa)],
        (0x84, action) => vec![reading(&extended(0x84, action, 1024), 1024)],
        (0x89, _) => {
            let mut cdb = vec![0x89];
            cdb.extend([0; 12]);
            cdb.extend([128, 0, 0]);
            vec![Form {
                moved_bytes: 64 << 10,
                ..writing(&cdb, vec![0; 2 * 128 * 512])
            }]
        }
        (0xA0, _) => vec![reading(&[0xA0, 0, 2, 0, 0, 0, 0, 0, 4, 0, 0, 0], 1024)],
        (0xA3, action) => {
            let mut cdb = vec![0xA3, action, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0];
            cdb[2] = if action == 0x0C { 0x80 } else { 0 };
            vec![reading(&cdb, 16384)]
        }
        _ => return None,
    })
}

/// A command with a service action and an allocation length in the 16 bytes' usual places.
fn extended(operation: u8, action: u8, len: u16) -> Vec<u8> {
    let len = len.to_be_bytes();
    let mut cdb = vec![operation, action];
    cdb.extend([0; 10]);
    cdb.extend([len[0], len[1], 0, 0]);
    cdb
}

/// 512 MiB from block 0 on, in one range.
fn unmap() -> Form {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(0_u64.to_be_bytes());
    list.extend(((512_u32 << 20) / 512).to_be_bytes());
    list.extend([0; 4]);
    Form {
        moved_bytes: 4 << 20,
        ..writing(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], list)
    }
}

/// Answered when it begins (IMMED): it runs on while the other session reads.
fn sanitize(action: u8) -> Form {
    const IMMEDIATE: u8 = 0x80;
    let cdb = |len| vec![0x48, IMMEDIATE | action, 0, 0, 0, 0, 0, 0, len, 0];
    match action {
        // One pass of a block of zeroes.
        0x01 => {
            let mut list = vec![1, 0, 2, 0];
            list.extend([0; 512]);
            let mut cdb = cdb(4);
            cdb[7] = 2;
            writing(&cdb, list)
        }
        _ => plain(&cdb(0)),
    }
}

fn reserve_out(action: u8) -> Form {
    let mut list = vec![0; 24];
    // A key to register, for the service actions that register.
    list[15] = u8::from(matches!(action, 0 | 6));
    writing(&[0x5F, action, 5, 0, 0, 0, 0, 0, 24, 0], list)
}

/// A copy with the maximum number of segments, 4 MiB each.
fn copy(action: u8, naa: &[u8; 16]) -> Form {
    const SEGMENTS: u16 = 16;
    let mut list = match action {
        0x00 => vec![0; 16],
        _ => vec![0; 48],
    };
    let segments = SEGMENTS * 28;
    match action {
        0x00 => {
            (list[0], list[3]) = (5, 32);
            list[10..12].copy_from_slice(&segments.to_be_bytes());
        }
        _ => {
            (list[0], list[3], list[16]) = (1, 0x20, 0xFF);
            list[43] = 32;
            list[44..46].copy_from_slice(&segments.to_be_bytes());
        }
    }
    list.extend([0xE4, 0, 0, 0, 1, 3, 0, 16]);
    list.extend(naa);
    list.extend([0, 0, 0, 0, 0, 0, 2, 0]); // blocks of 512 bytes
    for segment in 0..u64::from(SEGMENTS) {
        list.extend([0x02, 0, 0, 24, 0, 0, 0, 0, 0, 0]);
        list.extend((TRANSFER_BLOCKS as u16).to_be_bytes());
        list.extend((segment * 16384).to_be_bytes());
        list.extend((1 << 20 | segment << 14).to_be_bytes());
    }
    let mut cdb = vec![0x83, action];
    cdb.extend([0; 10]);
    cdb.extend((list.len() as u16).to_be_bytes());
    cdb.extend([0, 0]);
    Form {
        count: 8,
        moved_bytes: u64::from(SEGMENTS) * TRANSFER_BYTES as u64,
        ..writing(&cdb, list)
    }
}
