//! Disks of other targets, told by what they report or by where they are.

use super::*;

#[test]
fn a_remote_disk_is_told_by_its_place_where_it_does_not_say_what_it_is() {
    let remote = |place: &str| Asked {
        place: Some(place.to_owned()),
        ..carrying("db", ISCSI)
    };
    let judge = |case: &Case<'_>, place: &str, carried| {
        let judged =
            case.with(|known| known.judge_carried(&remote(place), carried, &BTreeSet::new()));
        judged.map(|(identity, _)| identity)
    };
    let nameless = Record {
        kind: Some(ISCSI.word()),
        place: Some("iqn.a/0".to_owned()),
        ..old_record("other")
    };
    let named = Record {
        carried: Some(B),
        ..nameless.clone()
    };
    // Another daemon may show it too.
    for carried in [Some(B), None] {
        let judged = judge(&NOTHING, "iqn.a/0", carried);
        assert_eq!(judged, Ok(Identity::New), "{carried:?}");
    }
    for (record, place, carried, expected) in [
        (&nameless, "iqn.a/0", None, A),
        (&nameless, "iqn.a/0", Some(B), A),
        (&named, "iqn.a/0", None, A),
        (&named, "iqn.b/7", Some(B), A),
    ] {
        let case = Case {
            records: &[(A, record.clone())],
            ..NOTHING
        };
        assert_eq!(
            judge(&case, place, carried),
            Ok(Identity::Known(expected)),
            "{place} {carried:?}"
        );
    }
    let case = Case {
        records: &[(A, named.clone())],
        ..NOTHING
    };
    let other = judge(&case, "iqn.a/0", Some(Uuid::from_u128(9)));
    assert_eq!(other, Ok(Identity::New), "another disk in its place");
}

#[test]
fn what_tells_itself_by_its_place_alone_is_not_taken_for_what_is_at_another_one() {
    let device = (DiskKind::Device, "/dev/a", "/dev/b");
    for (kind, old, new) in [(ISCSI, "iqn.a/0", "iqn.b/7"), device] {
        for (recorded, carried) in [(None, None), (None, Some(B)), (Some(B), None)] {
            let record = Record {
                kind: Some(kind.word()),
                place: Some(old.to_owned()),
                carried: recorded,
                ..old_record("db")
            };
            let judge = |record: &Record, taken: &[Uuid]| {
                let asked = Asked {
                    place: Some(new.to_owned()),
                    ..carrying("db", kind)
                };
                let case = Case {
                    records: &[(A, record.clone())],
                    ..NOTHING
                };
                let taken = taken.iter().copied().collect();
                let judged = case.with(|known| known.judge_carried(&asked, carried, &taken));
                judged.map(|(identity, _)| identity)
            };
            let error = judge(&record, &[]).expect_err("it may be another disk");
            let mend = format!("place = \"{new}\"");
            for part in [old, new, "[disk.", &mend] {
                assert!(error.message().contains(part), "no {part:?} in {error}");
            }
            let mended = Record {
                place: Some(new.to_owned()),
                ..record.clone()
            };
            assert_eq!(judge(&mended, &[]), Ok(Identity::Known(A)), "{mend}");
            let other = judge(&record, &[A]).expect("that disk is served under another name");
            assert_ne!(other, Identity::Known(A));
        }
    }
}
