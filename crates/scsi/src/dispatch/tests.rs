//! A whole logical unit: commands of several nexuses, and what each is told.

use super::*;
use crate::attention::Attentions;
use crate::fixture::{self, *};
use crate::{DiskShape, DiskShapeError, Lun, MediumOp, SenseFormat, SharedUnit, Status, absent};

mod properties;

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
const REQUEST_SENSE: [u8; 6] = [0x03, 0, 0, 0, 252, 0];
const REPORT_LUNS: [u8; 12] = [0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

fn new_unit() -> LogicalUnit {
    LogicalUnit::new(identity(), thick()).unwrap()
}

#[test]
fn each_new_nexus_hears_of_the_power_on_once() {
    let mut unit = new_unit();
    for nexus in [NexusId(1), NexusId(2)] {
        let sense = fixture::sense(unit.begin(nexus, &TEST_UNIT_READY));
        assert_eq!(
            (sense.key, sense.asc),
            (SenseKey::UnitAttention, Asc::POWER_ON_OR_RESET)
        );
        assert_eq!(unit.begin(nexus, &TEST_UNIT_READY), good());
    }
    unit.forget(NexusId(1));
    assert_ne!(unit.begin(NexusId(1), &TEST_UNIT_READY), good());
    assert_eq!(unit.begin(NexusId(2), &TEST_UNIT_READY), good());
}

#[test]
fn a_port_that_was_met_hears_of_its_loss_and_the_others_of_the_power_on() {
    const PORT: &str = "iqn.2026-11.test:a,i,0x000000000001";
    let mut unit = new_unit();
    let hears = |unit: &mut LogicalUnit, nexus: u64, meet: bool| {
        let nexus = NexusId(nexus);
        unit.establish(nexus, PORT);
        let asc = fixture::sense(unit.begin(nexus, &TEST_UNIT_READY)).asc;
        assert_eq!(unit.begin(nexus, &TEST_UNIT_READY), good());
        if meet {
            unit.acknowledged(nexus, Attention::PowerOnOrReset);
        }
        unit.forget(nexus);
        asc
    };
    assert_eq!(hears(&mut unit, 1, false), Asc::POWER_ON_OR_RESET);
    assert_eq!(hears(&mut unit, 2, true), Asc::POWER_ON_OR_RESET);
    assert_eq!(hears(&mut unit, 3, false), Asc::NEXUS_LOSS);
    unit.post(Attention::PowerOnOrReset, None);
    assert_eq!(hears(&mut unit, 4, false), Asc::POWER_ON_OR_RESET);
}

#[test]
fn a_restart_of_the_software_alone_is_a_reset_for_those_who_know_of_the_power_on() {
    let port = |number: u64| format!("iqn.2026-11.test:{number},i,0x0");
    let mut before = new_unit();
    let told: Vec<String> = (0..2)
        .filter_map(|number| {
            let nexus = NexusId(number);
            before.establish(nexus, &port(number));
            before.begin(nexus, &TEST_UNIT_READY);
            let received = number == 0;
            received.then(|| before.acknowledged(nexus, Attention::PowerOnOrReset))?
        })
        .collect();
    assert_eq!(told.len(), 1);
    let after = new_unit();
    after
        .shared()
        .resume(&[told[0].clone(), "of another kind".to_owned()]);
    for _ in 0..2 {
        assert_eq!(
            after.establish(NexusId(10), &port(0)),
            [Attention::BusDeviceReset]
        );
        assert_eq!(
            after.take_attention(NexusId(10)),
            Some(Attention::BusDeviceReset)
        );
        assert_eq!(after.take_attention(NexusId(10)), None);
    }
    assert_eq!(
        after.establish(NexusId(11), &port(1)),
        [Attention::PowerOnOrReset]
    );
    let again = after.acknowledged(NexusId(10), Attention::BusDeviceReset);
    assert_eq!(again, None, "it is noted already");
    assert_eq!(after.establish(NexusId(12), &port(0)), []);
    assert_eq!(
        after.take_attention(NexusId(12)),
        Some(Attention::NexusLoss)
    );
}

#[test]
fn those_who_were_met_are_remembered_within_a_bound() {
    let power_on = [Attention::PowerOnOrReset];
    let mut unit = new_unit();
    for number in 0..5000 {
        let nexus = NexusId(number);
        let port = format!("iqn.2026-11.test:{number},i,0x0");
        assert_eq!(unit.establish(nexus, &port), power_on);
        unit.begin(nexus, &TEST_UNIT_READY);
        unit.acknowledged(nexus, Attention::PowerOnOrReset);
        unit.forget(nexus);
    }
    let forgotten = unit.establish(NexusId(6000), "iqn.2026-11.test:0,i,0x0");
    assert_eq!(forgotten, power_on);
    let remembered = unit.establish(NexusId(6001), "iqn.2026-11.test:4999,i,0x0");
    assert_eq!(remembered, []);
}

#[test]
fn inquiry_and_report_luns_leave_the_attention_waiting() {
    let mut unit = new_unit();
    assert!(matches!(unit.begin(NEXUS, &INQUIRY), Action::Reply(_)));
    assert!(matches!(
        unit.begin(NEXUS, &REPORT_LUNS),
        Action::ReportLuns(_)
    ));
    assert_eq!(
        fixture::sense(unit.begin(NEXUS, &[0xFF; 6])).asc,
        Asc::POWER_ON_OR_RESET
    );
    assert_eq!(unit.begin(NEXUS, &TEST_UNIT_READY), good());
}

#[test]
fn request_sense_takes_the_attention_as_data() {
    let mut unit = new_unit();
    let told = data(unit.begin(NEXUS, &REQUEST_SENSE));
    assert_eq!((told[2], told[12], told[13]), (6, 0x29, 0));
    let calm = data(unit.begin(NEXUS, &REQUEST_SENSE));
    assert_eq!((calm.len(), calm[0], calm[2]), (18, 0x70, 0));
    let descriptor = data(unit.begin(NEXUS, &[0x03, 1, 0, 0, 252, 0]));
    assert_eq!(descriptor, [0x72, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(unit.begin(NEXUS, &TEST_UNIT_READY), good());
}

#[test]
fn report_luns_is_how_a_changed_list_is_learnt() {
    let mut unit = unit(thick());
    unit.post(Attention::ReportedLunsChanged, None);
    unit.begin(NEXUS, &REPORT_LUNS);
    assert_eq!(unit.begin(NEXUS, &TEST_UNIT_READY), good());
    unit.post(Attention::ReportedLunsChanged, None);
    let sense = fixture::sense(unit.begin(NEXUS, &TEST_UNIT_READY));
    assert_eq!(sense.asc, Asc::REPORTED_LUNS_DATA_HAS_CHANGED);
}

#[test]
fn a_port_that_knew_another_disk_is_told_in_each_session_until_it_has_acknowledged_that() {
    let mut unit = new_unit();
    unit.has_replaced("iqn.2026-11.test:A,i,0x00");
    let told = |unit: &mut LogicalUnit, number, port: &str| {
        let nexus = NexusId(number);
        unit.establish(nexus, port);
        let told = std::iter::from_fn(|| unit.take_attention(nexus));
        told.collect::<Vec<_>>()
    };
    let power_on = Attention::PowerOnOrReset;
    assert_eq!(told(&mut unit, 1, "iqn.2026-11.test:b,i,0x00"), [power_on]);
    let changed = [
        power_on,
        Attention::InquiryChanged,
        Attention::ReportedLunsChanged,
    ];
    for number in [2, 3] {
        assert_eq!(
            told(&mut unit, number, "iqn.2026-11.test:a,i,0x00"),
            changed
        );
        unit.forget(NexusId(number));
    }
    assert_eq!(told(&mut unit, 4, "iqn.2026-11.test:a,i,0x00"), changed);
    unit.acknowledged(NexusId(4), Attention::InquiryChanged);
    let rest = [power_on, Attention::ReportedLunsChanged];
    assert_eq!(told(&mut unit, 5, "iqn.2026-11.test:a,i,0x00"), rest);
    unit.acknowledged(NexusId(5), Attention::ReportedLunsChanged);
    assert_eq!(told(&mut unit, 6, "iqn.2026-11.test:a,i,0x00"), [power_on]);
    unit.has_replaced("iqn.2026-11.test:a,i,0x00");
    assert_eq!(told(&mut unit, 7, "iqn.2026-11.test:a,i,0x00"), changed);
}

#[test]
fn a_resized_disk_tells_everyone_and_serves_its_new_blocks() {
    let mut unit = unit(thick());
    let read_new = cdb_10(0x28, 0, LEN_BLOCKS as u32, 1);
    assert!(out_of_range(unit.begin(NEXUS, &read_new)));
    assert_eq!(unit.resize(2 * LEN_BLOCKS), Ok(Some(LEN_BLOCKS)));
    let sense = fixture::sense(unit.begin(NEXUS, &read_new));
    assert_eq!(sense.asc, Asc::CAPACITY_DATA_HAS_CHANGED);
    assert!(matches!(unit.begin(NEXUS, &read_new), Action::Medium(_)));
    // Resizing to the same length changes nothing.
    assert_eq!(unit.resize(2 * LEN_BLOCKS), Ok(None));
    assert_eq!(unit.begin(NEXUS, &TEST_UNIT_READY), good());
    assert_eq!(unit.resize(0), Err(DiskShapeError::Length(0)));
    assert_eq!(unit.shape().len_blocks, 2 * LEN_BLOCKS);
}

#[test]
fn each_nexus_hears_of_a_resize_once_and_then_no_copy_knows_the_old_capacity() {
    let shared = SharedUnit::new();
    let read_only = DiskShape {
        read_only: true,
        ..thick()
    };
    // One port on two lanes, and another port that presents the disk as read-only.
    let mut copies = [(1, thick()), (1, thick()), (2, read_only)].map(|(port, shape)| {
        let mut identity = identity();
        identity.port.relative_port = port;
        LogicalUnit::sharing(identity, shape, shared.clone()).unwrap()
    });
    let nexuses = |copy: usize| [10, 11].map(|number| NexusId(number + 100 * copy as u64));
    for (index, copy) in copies.iter_mut().enumerate() {
        for nexus in nexuses(index) {
            copy.begin(nexus, &TEST_UNIT_READY);
            assert_eq!(copy.begin(nexus, &TEST_UNIT_READY), good());
        }
    }
    let capacity = |copy: &mut LogicalUnit, nexus| {
        let reply = data(copy.begin(nexus, &cdb_10(0x25, 0, 0, 0)));
        u64::from(u32::from_be_bytes(reply[..4].try_into().unwrap())) + 1
    };
    for (index, copy) in copies.iter_mut().enumerate() {
        assert_eq!(capacity(copy, nexuses(index)[0]), LEN_BLOCKS);
    }
    assert_eq!(copies[0].resize(3 * LEN_BLOCKS), Ok(Some(LEN_BLOCKS)));
    // The other views of the disk have already changed.
    assert_eq!(copies[1].resize(3 * LEN_BLOCKS), Ok(None));
    assert_eq!(copies[2].resize(3 * LEN_BLOCKS), Ok(None));
    for (index, copy) in copies.iter_mut().enumerate().rev() {
        for nexus in nexuses(index) {
            let told = fixture::sense(copy.begin(nexus, &TEST_UNIT_READY)).asc;
            assert_eq!(told, Asc::CAPACITY_DATA_HAS_CHANGED, "{nexus:?}");
            assert_eq!(capacity(copy, nexus), 3 * LEN_BLOCKS);
            assert_eq!(copy.begin(nexus, &TEST_UNIT_READY), good());
        }
    }
    assert!(copies[2].shape().read_only && !copies[1].shape().read_only);
    // A new nexus is told of the power-on only, and a new view sees the current state.
    let mut late = LogicalUnit::sharing(identity(), thick(), shared).unwrap();
    let told = fixture::sense(late.begin(NEXUS, &TEST_UNIT_READY)).asc;
    assert_eq!(told, Asc::POWER_ON_OR_RESET);
    assert_eq!(capacity(&mut late, NEXUS), 3 * LEN_BLOCKS);
}

#[test]
fn too_many_nexuses_find_the_disk_busy() {
    let mut unit = new_unit();
    for nexus in 0..Attentions::NEXUSES_MAX as u64 {
        unit.begin(NexusId(nexus), &TEST_UNIT_READY);
    }
    let late = NexusId(1 << 40);
    assert_eq!(
        unit.begin(late, &TEST_UNIT_READY),
        Action::End(Ending::BUSY)
    );
    unit.forget(NexusId(3));
    assert_ne!(
        unit.begin(late, &TEST_UNIT_READY),
        Action::End(Ending::BUSY)
    );
}

#[test]
fn synchronize_cache_flushes_the_blocks_it_names() {
    for cdb in [cdb_10(0x35, 0, 8, 4), cdb_16(0x91, 2, 8, 4)] {
        let op = medium(run(thick(), &cdb));
        let MediumOp::Flush { extent } = op else {
            panic!("{op:?}")
        };
        assert_eq!((extent.lba, extent.blocks), (8, 4));
    }
    for cdb in [cdb_10(0x35, 0, 8, 0), cdb_16(0x91, 0, 8, 0)] {
        let op = medium(run(thick(), &cdb));
        let MediumOp::Flush { extent } = op else {
            panic!("{op:?}")
        };
        assert_eq!((extent.lba, extent.blocks), (8, LEN_BLOCKS - 8));
    }
    assert!(out_of_range(run(thick(), &cdb_16(0x91, 0, LEN_BLOCKS, 1))));
}

#[test]
fn a_lun_without_a_unit_answers_only_what_discovery_asks() {
    let begin = |cdb: &[u8]| absent::begin(&identity(), cdb);
    let inquiry = data(begin(&INQUIRY));
    assert_eq!((inquiry[0], inquiry.len()), (0x7F, 96));
    assert_eq!(
        fixture::sense(begin(&[0x12, 1, 0x83, 1, 0, 0])).asc,
        Asc::INVALID_FIELD_IN_CDB
    );
    let Action::ReportLuns(request) = begin(&REPORT_LUNS) else {
        panic!()
    };
    assert_eq!(data(request.reply(&[Lun::new(1).unwrap()]))[3], 8);
    let sense = data(begin(&REQUEST_SENSE));
    assert_eq!((sense[2], sense[12], sense[13]), (5, 0x25, 0));
    for cdb in [
        &TEST_UNIT_READY[..],
        &cdb_10(0x2A, 0, 0, 1),
        &[0xFF; 16],
        &[],
    ] {
        assert_eq!(
            fixture::sense(begin(cdb)).asc,
            Asc::LOGICAL_UNIT_NOT_SUPPORTED
        );
    }
}

#[test]
fn every_view_follows_the_protection_of_the_volume_below() {
    let shared = SharedUnit::new();
    let [mut one, mut other] = [1, 2].map(|port| {
        let mut identity = identity();
        identity.port.relative_port = port;
        LogicalUnit::sharing(identity, thick(), shared.clone()).unwrap()
    });
    assert!(!one.protect(false), "that is what it is");
    let nexuses = [NexusId(1), NexusId(2)];
    for nexus in nexuses {
        one.begin(nexus, &TEST_UNIT_READY);
        assert_eq!(one.begin(nexus, &TEST_UNIT_READY), good());
    }
    for is_protected in [true, false] {
        assert!(other.protect(is_protected) && !one.protect(is_protected));
        for nexus in nexuses {
            let told = fixture::sense(one.begin(nexus, &TEST_UNIT_READY)).asc;
            assert_eq!(told, Asc::MODE_PARAMETERS_CHANGED, "{nexus:?}");
            assert_eq!(one.begin(nexus, &TEST_UNIT_READY), good());
        }
        assert_eq!(one.shape().is_protected, is_protected);
        let header = data(one.begin(nexuses[0], &[0x1a, 0, 0x3f, 0, 192, 0]));
        assert_eq!(header[2] & 0x80 != 0, is_protected);
        // The volume can ask whether that is still so.
        let write = one.begin(nexuses[0], &cdb_10(0x2a, 0, 0, 1));
        assert!(matches!(write, Action::Medium(_)));
    }
}
