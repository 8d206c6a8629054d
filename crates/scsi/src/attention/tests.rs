//! Unit attentions: which nexus is told what, how often, and in which order.

use super::*;

const A: NexusId = NexusId(1);
const B: NexusId = NexusId(2);

fn two_who_know() -> Attentions {
    let mut attentions = Attentions::default();
    for nexus in [A, B] {
        attentions.know(nexus).unwrap();
        assert_eq!(attentions.take(nexus), Some(Attention::PowerOnOrReset));
        assert_eq!(attentions.take(nexus), None);
    }
    attentions
}

#[test]
fn a_condition_is_told_once_to_each_but_its_cause() {
    let mut attentions = two_who_know();
    attentions.post(Attention::CapacityChanged, Some(A));
    attentions.post(Attention::CapacityChanged, Some(A));
    assert_eq!(attentions.take(A), None);
    assert_eq!(attentions.take(B), Some(Attention::CapacityChanged));
    assert_eq!(attentions.take(B), None);
}

#[test]
fn a_reset_is_told_before_what_it_outranks() {
    let mut attentions = two_who_know();
    attentions.post(Attention::ReportedLunsChanged, None);
    attentions.post(Attention::BusDeviceReset, None);
    assert_eq!(attentions.take(A), Some(Attention::BusDeviceReset));
    assert_eq!(attentions.take(A), Some(Attention::ReportedLunsChanged));
}

#[test]
fn the_table_of_nexuses_is_bounded_and_forgetting_makes_room() {
    let mut attentions = Attentions::default();
    for nexus in 0..Attentions::NEXUSES_MAX as u64 {
        attentions.know(NexusId(nexus)).unwrap();
    }
    let late = NexusId(u64::MAX);
    assert_eq!(attentions.know(late), Err(TooManyNexuses));
    assert_eq!(attentions.know(A), Ok(()));
    attentions.forget(A);
    assert_eq!(attentions.know(late), Ok(()));
    // A nexus that comes back counts as new.
    attentions.forget(late);
    attentions.know(late).unwrap();
    assert_eq!(attentions.take(late), Some(Attention::PowerOnOrReset));
}
