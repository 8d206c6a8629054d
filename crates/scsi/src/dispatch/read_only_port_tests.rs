//! A port that only reads: what an initiator there may not do to those at other ports of the disk.

use crate::fixture::*;
use crate::sense::Asc;
use crate::{Action, DiskShape, Ending, LogicalUnit, MediumOp};

/// A view through which [`NEXUS`] only reads, and one of another port through which [`OTHER`] does everything.
fn views() -> (LogicalUnit, LogicalUnit) {
    let shape = DiskShape {
        removable: true,
        ..thin()
    };
    let reading = DiskShape {
        read_only: true,
        reads_only: true,
        ..shape.clone()
    };
    let mut reads = LogicalUnit::new(identity(), reading).unwrap();
    let mut other_port = identity();
    other_port.port.relative_port = 3;
    let mut writes = LogicalUnit::sharing(other_port, shape, reads.shared().clone()).unwrap();
    for (unit, nexus, name) in [(&mut reads, NEXUS, "a"), (&mut writes, OTHER, "b")] {
        unit.establish(nexus, &format!("iqn.2026-11.test:{name},i,0x000000000001"));
        sense(unit.begin(nexus, &[0; 6]));
    }
    (reads, writes)
}

/// MODE SELECT (6) of a control page with SWP and D_SENSE, saved or not.
fn mode_select(save: u8) -> (Vec<u8>, Vec<u8>) {
    let page = [0x0A, 0x0A, 0x06, 0x10, 0x08, 0x40, 0, 0, 0xFF, 0xFF, 0, 0];
    (
        vec![0x15, 0x10 | save, 0, 0, 16, 0],
        [&[0; 4], &page[..]].concat(),
    )
}

fn reserve_out(action: u8, kind: u8, key: u8, new_key: u8) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![0; 24];
    (list[7], list[15]) = (key, new_key);
    (vec![0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

/// What changes more than its own nexus and the medium.
fn changes() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = vec![mode_select(0), mode_select(1)];
    all.extend((0..8).map(|action| reserve_out(action, 3, 0, 1)));
    let eject = [0x02, 0x06, 0x03].map(|how| vec![0x1B, 0, 0, 0, how, 0]);
    all.extend(eject.map(|cdb| (cdb, Vec::new())));
    all
}

/// What changes the medium.
fn writes() -> Vec<Vec<u8>> {
    vec![
        cdb_10(0x2A, 0, 0, 1),
        cdb_10(0x2E, 0, 0, 1),
        cdb_16(0x89, 0, 0, 1),
        cdb_16(0x8B, 0, 0, 1),
        cdb_16(0x9C, 0, 0, 8),
        cdb_16(0x93, 1, 0, 8),
        cdb_10(0x41, 0, 0, 1),
        vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0],
        vec![0x48, 1, 0, 0, 0, 0, 0, 0, 8, 0],
        vec![0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0],
        vec![0x48, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
}

#[test]
fn nothing_lasting_is_done_to_others_through_a_port_that_only_reads() {
    let write = cdb_10(0x2A, 0, 0, 1);
    for (cdb, list) in changes() {
        let (mut reads, mut others) = views();
        let ending = settle(&mut reads, NEXUS, &cdb, &list);
        assert!(write_protected(Action::End(ending)), "{cdb:02x?}");
        assert_eq!(reads.shared().save(), None, "{cdb:02x?}");
        medium(others.begin(OTHER, &write));
        assert_eq!(others.begin(OTHER, &[0; 6]), Action::End(Ending::GOOD));
    }
    for cdb in writes() {
        let (mut reads, _) = views();
        assert!(write_protected(reads.begin(NEXUS, &cdb)), "{cdb:02x?}");
    }
}

#[test]
fn who_only_reads_keeps_nobody_else_from_ejecting() {
    const PREVENT: [u8; 6] = [0x1E, 0, 0, 0, 1, 0];
    const EJECT: [u8; 6] = [0x1B, 0, 0, 0, 0x06, 0];
    const LOAD: [u8; 6] = [0x1B, 0, 0, 0, 0x03, 0];
    let (mut reads, mut others) = views();
    assert_eq!(reads.begin(NEXUS, &PREVENT), good());
    assert_eq!(others.begin(OTHER, &EJECT), good());
    assert_eq!(others.begin(OTHER, &LOAD), good());
    // Those who write prevent it as ever.
    let third = crate::NexusId(9);
    sense(others.begin(third, &[0; 6]));
    assert_eq!(others.begin(third, &PREVENT), good());
    let refused = sense(others.begin(OTHER, &EJECT));
    assert_eq!(refused.asc, Asc::MEDIUM_REMOVAL_PREVENTED);
}

#[test]
fn it_says_that_no_mode_parameter_can_be_changed() {
    let (mut reads, mut others) = views();
    let page = |unit: &mut LogicalUnit, nexus, values: u8| {
        data(unit.begin(nexus, &[0x1A, 0x08, values << 6 | 0x0A, 0, 255, 0]))[4..].to_vec()
    };
    assert_eq!(page(&mut reads, NEXUS, 1)[..6], [0x0A, 0x0A, 0, 0, 0, 0]);
    assert_eq!(
        page(&mut others, OTHER, 1)[..6],
        [0x8A, 0x0A, 4, 6, 8, 0x40]
    );
    // A list that is not there changes nothing.
    assert_eq!(reads.begin(NEXUS, &[0x15, 0x10, 0, 0, 0, 0]), good());
}

#[test]
fn a_reserve_6_there_keeps_out_readers_only() {
    const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
    const RELEASE: [u8; 6] = [0x17, 0, 0, 0, 0, 0];
    let third = crate::NexusId(9);
    let conflict = Action::End(Ending::CONFLICT);
    let (mut reads, mut others) = views();
    reads.begin(third, &[0; 6]);
    assert_eq!(reads.begin(NEXUS, &RESERVE), good());
    assert_eq!(reads.begin(third, &[0; 6]), conflict);
    assert_eq!(reads.begin(third, &RESERVE), conflict);
    medium(others.begin(OTHER, &cdb_10(0x2A, 0, 0, 1)));
    // One of those who write keeps out all the same.
    assert_eq!(others.begin(OTHER, &RESERVE), good());
    assert_eq!(reads.begin(NEXUS, &[0; 6]), conflict);
    assert_eq!(others.begin(OTHER, &RELEASE), good());
    assert_eq!(reads.begin(third, &[0; 6]), conflict);
    assert_eq!(reads.begin(NEXUS, &RELEASE), good());
    assert_eq!(reads.begin(third, &[0; 6]), good());
}

#[test]
fn what_only_concerns_the_reader_and_what_keeps_data_safe_is_done() {
    let (mut reads, mut others) = views();
    medium(reads.begin(NEXUS, &cdb_10(0x28, 0, 0, 1)));
    let flush = medium(reads.begin(NEXUS, &cdb_10(0x35, 0, 0, 0)));
    assert!(matches!(flush, MediumOp::Flush { .. }));
    medium(reads.begin(NEXUS, &[0x1B, 0, 0, 0, 0, 0]));
    for prevent in [1, 0] {
        assert_eq!(reads.begin(NEXUS, &[0x1E, 0, 0, 0, prevent, 0]), good());
    }
    assert_eq!(reads.begin(NEXUS, &[0x17, 0, 0, 0, 0, 0]), good());
    // Others change what they share with it as ever, also while its own sanitize would wait for a list.
    let list = sanitize_list(&mut others);
    let (cdb, swp) = mode_select(0);
    assert_eq!(settle(&mut others, OTHER, &cdb, &swp), Ending::GOOD);
    assert!(write_protected(
        others.resume(list, &[1, 0, 0, 4, 0, 0, 0, 0])
    ));
}

/// A SANITIZE (OVERWRITE) that waits for its list.
fn sanitize_list(unit: &mut LogicalUnit) -> crate::ParameterList {
    match unit.begin(OTHER, &[0x48, 1, 0, 0, 0, 0, 0, 0, 8, 0]) {
        Action::Parameters(list) => list,
        other => panic!("{other:?}"),
    }
}
