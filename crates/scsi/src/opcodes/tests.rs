//! The table of commands: sorted, indexed, and strict about CDBs.

use super::*;
use crate::fixture::*;
use crate::{Action, Asc, sense::KeySpecific};

#[test]
fn the_table_is_sorted_and_the_index_finds_each_row() {
    let keys: Vec<_> = TABLE
        .rows
        .iter()
        .map(|row| (row.opcode, row.service_action))
        .collect();
    assert!(keys.is_sorted() && keys.windows(2).all(|pair| pair[0] != pair[1]));
    for row in TABLE.rows {
        assert!(
            TABLE
                .of(row.opcode)
                .iter()
                .any(|found| std::ptr::eq(found, row))
        );
    }
}

#[test]
fn every_cdb_has_the_length_of_its_group() {
    for row in TABLE.rows {
        // SPC-4: the group code, the opcode's upper three bits.
        let len = [6, 10, 10, 0, 16, 12][usize::from(row.opcode >> 5)];
        assert_eq!(row.usage.len() + 1, len, "{:02x}", row.opcode);
    }
}

#[test]
fn unknown_opcodes_and_service_actions_are_told_apart() {
    let unknown = sense(run(thick(), &[0xFF; 16]));
    assert_eq!(unknown.asc, Asc::INVALID_COMMAND_OPERATION_CODE);
    let action = sense(run(thick(), &cdb_16(0x9E, 0x1F, 0, 0)));
    assert_eq!(action.asc, Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn naca_is_refused_for_every_command() {
    for row in TABLE.rows {
        let mut cdb = [0; 16];
        cdb[0] = row.opcode;
        cdb[1] = row.service_action.unwrap_or(0);
        cdb[row.usage.len()] = 0x04;
        let sense = sense(run(thin(), &cdb));
        assert_eq!(sense.asc, Asc::INVALID_FIELD_IN_CDB);
        let byte = row.usage.len() as u16;
        let pointer = KeySpecific::FieldPointer {
            in_cdb: true,
            byte,
            bit: Some(2),
        };
        assert_eq!(sense.specific, Some(pointer));
    }
}

#[test]
fn padding_after_the_cdb_is_ignored_and_a_short_one_refused() {
    let mut cdb = cdb_10(0x28, 0, 0, 1);
    cdb.extend([0xFF; 6]);
    assert!(matches!(run(thick(), &cdb), Action::Medium(_)));
    assert_eq!(
        sense(run(thick(), &cdb[..9])).asc,
        Asc::INVALID_FIELD_IN_CDB
    );
    assert_eq!(sense(run(thick(), &[])).asc, Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn every_command_and_page_stands_in_the_conformance_tables() {
    let tables = include_str!("../../../../docs/internals/conformance.md");
    let stands = |code: &str| tables.contains(&format!("| {code} | "));
    for row in TABLE.rows {
        let code = match row.service_action {
            None => format!("{:02X}h", row.opcode),
            Some(action) => format!("{:02X}h/{action:02X}h", row.opcode),
        };
        assert!(stands(&code), "{code} has no row");
    }
    for page in &data(run(thin(), &[0x12, 1, 0, 1, 0, 0]))[4..] {
        assert!(
            stands(&format!("{page:02X}h")),
            "page {page:02x}h has no row"
        );
    }
}
