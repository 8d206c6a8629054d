//! REPORT SUPPORTED OPERATION CODES: consistent with the table used for dispatch.

use crate::fixture::*;
use crate::opcodes::TABLE;
use crate::sense::Asc;
use crate::{Action, DiskShape};

fn cdb(options: u8, opcode: u8, service_action: u16) -> Vec<u8> {
    let [high, low] = service_action.to_be_bytes();
    vec![
        0xA3, 0x0C, options, opcode, high, low, 0, 0, 0xFF, 0xFF, 0, 0,
    ]
}

fn descriptors(shape: DiskShape, options: u8, len: usize) -> Vec<Vec<u8>> {
    let reply = data(run(shape, &cdb(options, 0, 0)));
    let (header, descriptors) = reply.split_at(4);
    assert_eq!(
        u32::from_be_bytes(header.try_into().unwrap()) as usize,
        descriptors.len()
    );
    descriptors.chunks(len).map(<[u8]>::to_vec).collect()
}

#[test]
fn every_command_is_listed_and_each_can_be_asked_for() {
    let all = descriptors(thin(), 0, 8);
    assert_eq!(all.len(), TABLE.rows.len());
    for descriptor in all {
        let (opcode, service_action) = (descriptor[0], u16::from(descriptor[3]));
        let has_actions = descriptor[5] & 1 != 0;
        let (right, wrong) = if has_actions { (2, 1) } else { (1, 2) };
        let refused = run(thin(), &cdb(wrong, opcode, service_action));
        assert_eq!(sense(refused).asc, Asc::INVALID_FIELD_IN_CDB);
        for options in [right, 3] {
            let one = data(run(thin(), &cdb(options, opcode, service_action)));
            assert_eq!(one[1], 3, "{opcode:02x} is supported");
            assert_eq!(one[3], descriptor[7], "both tell the CDB's length");
            assert_eq!(one[4], opcode);
            assert_eq!(one.len(), 4 + usize::from(one[3]));
        }
    }
}

#[test]
fn what_is_not_supported_is_told_without_an_error() {
    for (options, opcode, action) in [(1, 0xC0, 0), (2, 0x9E, 0x1F), (3, 0x28, 1), (2, 0xC1, 0)] {
        assert_eq!(
            data(run(thin(), &cdb(options, opcode, action))),
            [0, 1, 0, 0]
        );
    }
    assert_eq!(data(run(thick(), &cdb(1, 0x42, 0))), [0, 1, 0, 0]);
    let supported = TABLE.rows.iter().filter(|row| (row.supported)(&thick()));
    assert_eq!(descriptors(thick(), 0, 8).len(), supported.count());
}

#[test]
fn timeouts_come_when_asked_for() {
    for descriptor in descriptors(thin(), 0x80, 20) {
        assert_eq!(descriptor[5] & 2, 2);
        assert_eq!(descriptor[8..10], [0, 10]);
    }
    let one = data(run(thin(), &cdb(0x81, 0x28, 0)));
    assert_eq!((one[1], one.len()), (0x83, 4 + 10 + 12));
}

#[test]
fn usage_data_show_the_flags_that_work() {
    let usage = |opcode| data(run(thin(), &cdb(1, opcode, 0)))[5];
    for opcode in [0x28, 0x2A, 0x88, 0x8A, 0xA8, 0xAA] {
        assert_eq!(usage(opcode), 0x18, "DPO and FUA");
    }
    for opcode in [0x2F, 0x8F, 0xAF] {
        assert_eq!(usage(opcode), 0x16, "DPO and BYTCHK");
    }
    let read_capacity = data(run(thin(), &cdb(2, 0x9E, 0x10)));
    assert_eq!(read_capacity[5], 0x10);
}

#[test]
fn unknown_options_are_refused_and_lengths_cut() {
    assert_eq!(
        sense(run(thin(), &cdb(4, 0, 0))).asc,
        Asc::INVALID_FIELD_IN_CDB
    );
    let mut cdb = cdb(0, 0, 0);
    cdb[8..10].copy_from_slice(&[0, 9]);
    cdb[6..10].copy_from_slice(&9_u32.to_be_bytes());
    let Action::Reply(reply) = run(thin(), &cdb) else {
        panic!()
    };
    assert_eq!(reply.len(), 9);
}
