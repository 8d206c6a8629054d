//! Every combination of what is found and what is recorded.

mod moved;
mod remote;

use std::{collections::BTreeSet, path::PathBuf};

use super::*;

const A: Uuid = Uuid::from_u128(0xa);
const B: Uuid = Uuid::from_u128(0xb);
const LEN: u64 = 1 << 20;
const STRIPE: DiskKind = DiskKind::Superblocks("stripe");
const ISCSI: DiskKind = DiskKind::Remote("iscsi");

fn file(mark: SurveyMark) -> FoundAtPath {
    FoundAtPath::File {
        len_bytes: LEN,
        id: (0, 0),
        is_blank: false,
        mark,
    }
}

fn blank(mark: SurveyMark) -> FoundAtPath {
    FoundAtPath::File {
        len_bytes: LEN,
        id: (0, 0),
        is_blank: true,
        mark,
    }
}

/// A different file from the one [`file`] returns.
fn other_file(mark: SurveyMark) -> FoundAtPath {
    FoundAtPath::File {
        len_bytes: LEN,
        id: (0, 1),
        is_blank: false,
        mark,
    }
}

/// A volume backed by the file at `path`, with its configuration in `/etc`.
fn asked(volume: &str, path: &str, found: FoundAtPath) -> Asked {
    let path = PathBuf::from(path);
    Asked {
        volume: volume.to_owned(),
        span: 0..0,
        kind: DiskKind::File,
        carried: None,
        place: None,
        root: 0..0,
        leaves: vec![Leaf {
            span: 0..0,
            relative: path.strip_prefix("/etc").ok().map(Path::to_owned),
            path,
            read_only: false,
            found,
        }],
    }
}

fn carrying(volume: &str, kind: DiskKind) -> Asked {
    Asked {
        kind,
        leaves: Vec::new(),
        ..asked(volume, "/gone", FoundAtPath::Nothing)
    }
}

/// The record of a file at `path` that was served by a configuration in `/etc`.
fn record(volume: &str, path: &str) -> Record {
    let relative = Path::new(path)
        .strip_prefix("/etc")
        .unwrap_or(Path::new(""));
    Record {
        volume: volume.to_owned(),
        kind: Some(DiskKind::File.word()),
        carried: None,
        place: None,
        marked: true,
        bytes: Some(LEN),
        paths: vec![path.to_owned()],
        relative_paths: vec![relative.display().to_string()],
    }
}

/// A record as version 1 wrote it.
fn old_record(volume: &str) -> Record {
    Record {
        kind: None,
        marked: false,
        bytes: None,
        paths: Vec::new(),
        relative_paths: Vec::new(),
        ..record(volume, "")
    }
}

fn records(disks: &[(Uuid, Record)]) -> Records {
    let directory = std::env::temp_dir().join("sanstone-no-such-directory");
    let mut records = Records::read(&directory).expect("there is none");
    records.is_new = disks.is_empty();
    records.disks = disks.iter().cloned().collect();
    records
}

struct Case<'a> {
    records: &'a [(Uuid, Record)],
    sibling: &'a [(Uuid, Record)],
    orphan: bool,
    there: &'a [(&'a str, FoundAtPath)],
    sharer: Option<&'a str>,
}

const NOTHING: Case<'_> = Case {
    records: &[],
    sibling: &[],
    orphan: false,
    there: &[],
    sharer: None,
};

impl Case<'_> {
    fn with<T>(&self, f: impl FnOnce(&IdentityContext<'_>) -> T) -> T {
        let records = records(self.records);
        let sibling = Sibling {
            directory: "/etc/app.state".into(),
            records: super::tests::records(self.sibling),
            is_orphan: self.orphan,
        };
        let at = |path: &Path| {
            let found = self
                .there
                .iter()
                .find(|(there, _)| Path::new(there) == path);
            found.map_or(FoundAtPath::Nothing, |(_, found)| found.clone())
        };
        f(&IdentityContext {
            records: &records,
            siblings: &[sibling],
            state: Path::new("/etc/new.state"),
            state_exists: false,
            sharer: self.sharer.map(Path::new),
            volumes: &toml::from_str("defined.ram = { size = \"1MiB\" }").expect("it parses"),
            at: &at,
            holder: &|_| None,
            may_grow: false,
        })
    }

    /// The identities, and the notes that are warnings.
    #[track_caller]
    fn served(&self, all: &[Asked]) -> (Vec<Identity>, Vec<String>) {
        let judged = self.with(|known| known.judge(all));
        let (identities, notes) = judged.expect("nothing is wrong");
        let warnings = notes.iter().filter(|note| note.level == Level::Warn);
        let warnings = warnings.map(|note| note.text.message().to_owned());
        (identities, warnings.collect())
    }

    #[track_caller]
    fn refused(&self, all: &[Asked], parts: &[&str]) {
        let judged = self.with(|known| known.judge(all));
        let errors = judged.expect_err("it is refused");
        let message = errors[0].message();
        for part in parts {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
    }
}

#[test]
fn a_mark_is_found_again_under_another_name_and_path() {
    let case = Case {
        records: &[
            (A, record("db", "/etc/db.img")),
            (B, record("log", "/etc/log.img")),
        ],
        there: &[("/etc/log.img", other_file(SurveyMark::Disk(B)))],
        ..NOTHING
    };
    let marked = |uuid| file(SurveyMark::Disk(uuid));
    for all in [
        vec![asked("db", "/etc/db.img", marked(A))],
        vec![asked("new", "/etc/db.img", marked(A))],
        vec![asked("db", "/srv/moved.img", marked(A))],
        // Two disks whose names, or paths, have been swapped.
        vec![
            asked("log", "/etc/db.img", marked(A)),
            asked("db", "/etc/log.img", other_file(SurveyMark::Disk(B))),
        ],
        vec![
            asked("db", "/etc/log.img", marked(A)),
            asked("log", "/etc/db.img", other_file(SurveyMark::Disk(B))),
        ],
        // A name, and a path, that are free now.
        vec![
            asked("old", "/etc/db.img", marked(A)),
            asked("db", "/etc/new.img", FoundAtPath::Nothing),
        ],
        vec![
            asked("db", "/etc/old.img", marked(A)),
            asked("new", "/etc/db.img", FoundAtPath::Nothing),
        ],
    ] {
        let (identities, warnings) = case.served(&all);
        assert_eq!(identities[0], Identity::Known(A), "{all:?}");
        let second = identities.get(1).copied();
        let is_new = all
            .get(1)
            .is_some_and(|asked| asked.leaves[0].found == FoundAtPath::Nothing);
        let expected = if is_new {
            Identity::New
        } else {
            Identity::Known(B)
        };
        assert_eq!(second.unwrap_or(expected), expected, "{all:?}");
        assert_eq!(warnings, [""; 0]);
    }
}

#[test]
fn another_disk_in_a_place_or_under_a_name_is_refused() {
    let case = Case {
        records: &[(A, record("db", "/etc/db.img"))],
        there: &[("/etc/db.img", file(SurveyMark::Disk(A)))],
        ..NOTHING
    };
    let other = || other_file(SurveyMark::Disk(B));
    case.refused(
        &[asked("x", "/etc/db.img", other())],
        &["marked as disk", "[disk."],
    );
    case.refused(
        &[asked("db", "/etc/x.img", other())],
        &["/etc/db.img", "[disk."],
    );
    // Without a mark: the disk that is meant is still at its old path.
    case.refused(
        &[asked("db", "/etc/x.img", other_file(SurveyMark::None))],
        &["still exists", "[disk."],
    );
    let unreadable = file(SurveyMark::Unreadable("broken medium".to_owned()));
    case.refused(&[asked("x", "/etc/x.img", unreadable)], &["broken medium"]);
    let damaged = file(SurveyMark::Other("zebra".to_owned()));
    case.refused(
        &[asked("x", "/etc/x.img", damaged)],
        &["zebra", "setfattr -x"],
    );
}

#[test]
fn a_read_only_copy_beside_its_original_is_a_disk_of_its_own() {
    let copy = |read_only| {
        let mut copy = asked("s", "/snap/db.img", other_file(SurveyMark::Disk(A)));
        copy.leaves[0].read_only = read_only;
        copy
    };
    let original = || asked("db", "/etc/db.img", file(SurveyMark::Disk(A)));
    let case = Case {
        records: &[(A, record("db", "/etc/db.img"))],
        there: &[("/etc/db.img", file(SurveyMark::Disk(A)))],
        ..NOTHING
    };
    let (identities, warnings) = case.served(&[original(), copy(true)]);
    let [Identity::Known(A), Identity::Known(own)] = identities[..] else {
        panic!("{identities:?}");
    };
    assert!(own != A && warnings.is_empty(), "{warnings:?}");
    // Whichever comes first, when both are new, and when the original is not served now.
    for (case, all) in [
        (&case, vec![copy(true), original()]),
        (&NOTHING, vec![copy(true), original()]),
        (&case, vec![copy(true)]),
    ] {
        let (identities, _) = case.served(&all);
        assert_eq!(identities[0], Identity::Known(own), "{all:?}");
    }
    // As before, with or without the original.
    let recorded = [(own, record("s", "/snap/db.img"))];
    let alone = Case {
        records: &recorded,
        ..NOTHING
    };
    let (identities, _) = alone.served(&[copy(true)]);
    assert_eq!(identities, [Identity::Known(own)]);
    let (identities, _) = alone.served(&[original(), copy(true)]);
    assert_eq!(identities, [Identity::Known(A), Identity::Known(own)]);
    // Its mark can be removed from one that may be written.
    case.refused(&[original(), copy(false)], &["setfattr -x"]);
}

#[test]
fn a_copy_is_refused_beside_its_original_and_keeps_its_identity_elsewhere() {
    let case = Case {
        records: &[(A, record("db", "/etc/db.img"))],
        there: &[("/etc/db.img", file(SurveyMark::Disk(A)))],
        ..NOTHING
    };
    let copy = || other_file(SurveyMark::Disk(A));
    let both = [
        asked("db", "/etc/db.img", file(SurveyMark::Disk(A))),
        asked("x", "/etc/x.img", copy()),
    ];
    case.refused(&both, &["/etc/db.img", "/etc/x.img", "setfattr -x"]);
    case.refused(
        &[asked("db", "/etc/x.img", copy())],
        &["/etc/db.img", "/etc/x.img", "setfattr -x"],
    );
    // A second name of the same file is not a copy.
    let (identities, _) = case.served(&[asked("db", "/etc/x.img", file(SurveyMark::Disk(A)))]);
    assert_eq!(identities, [Identity::Known(A)]);
    // Everything was copied: configuration, state and files.
    let moved = Case {
        records: &[(
            A,
            Record {
                paths: vec!["/old/db.img".to_owned()],
                ..record("db", "/etc/db.img")
            },
        )],
        there: &[("/old/db.img", file(SurveyMark::Disk(A)))],
        ..NOTHING
    };
    let (identities, warnings) =
        moved.served(&[asked("db", "/etc/db.img", other_file(SurveyMark::Disk(A)))]);
    assert_eq!(identities, [Identity::Known(A)]);
    assert!(
        warnings.iter().any(|text| text.contains("/old/db.img")),
        "{warnings:?}"
    );
    // Without a mark, nothing indicates a copy: another configuration may share the state.
    for mark in [SurveyMark::None, SurveyMark::Unsupported] {
        moved.refused(
            &[asked("db", "/etc/db.img", other_file(mark.clone()))],
            &["/old/db.img, which still exists", "setfattr -n"],
        );
        let (identities, _) = moved.served(&[asked("x", "/etc/db.img", other_file(mark))]);
        assert_eq!(identities, [Identity::New], "a disk of its own");
    }
    let gone = Case {
        there: &[],
        ..moved
    };
    let (identities, _) = gone.served(&[asked("x", "/etc/db.img", other_file(SurveyMark::None))]);
    assert_eq!(identities, [Identity::Known(A)], "all of it was moved");
}

#[test]
fn what_lost_its_mark_is_adopted_unless_it_is_new() {
    let case = Case {
        records: &[(A, record("db", "/srv/db.img"))],
        ..NOTHING
    };
    for all in [
        [asked("db", "/srv/db.img", file(SurveyMark::None))],
        [asked("x", "/srv/db.img", file(SurveyMark::None))],
        [asked("db", "/srv/x.img", file(SurveyMark::None))],
    ] {
        let (identities, warnings) = case.served(&all);
        assert_eq!(identities, [Identity::Known(A)]);
        assert!(warnings[0].contains("lost its mark"), "{warnings:?}");
    }
    let short = FoundAtPath::File {
        len_bytes: 512,
        id: (0, 0),
        is_blank: false,
        mark: SurveyMark::None,
    };
    for (found, keep) in [
        (blank(SurveyMark::None), "setfattr -n"),
        (blank(SurveyMark::Unsupported), "setfattr -n"),
        (short, "remove `bytes = 1048576` from the table [disk."),
    ] {
        case.refused(
            &[asked("db", "/srv/db.img", found)],
            &["served before", "[disk.", keep],
        );
    }
    case.refused(
        &[asked("db", "/srv/db.img", FoundAtPath::Nothing)],
        &["served before", "[disk."],
    );
    case.refused(
        &[asked("db", "/srv/x.img", FoundAtPath::Nothing)],
        &["served before", "[disk."],
    );
    case.refused(
        &[asked("x", "/srv/db.img", FoundAtPath::Nothing)],
        &["served before", "[disk."],
    );
    // A disk that was never served may be blank, or be created.
    for found in [
        blank(SurveyMark::None),
        file(SurveyMark::None),
        FoundAtPath::Nothing,
    ] {
        let (identities, _) = case.served(&[asked("x", "/srv/x.img", found)]);
        assert_eq!(identities, [Identity::New]);
    }
}

#[test]
fn what_the_directory_of_an_older_release_knows_by_name_is_taken_over() {
    let case = Case {
        records: &[(A, old_record("db"))],
        ..NOTHING
    };
    for found in [
        file(SurveyMark::None),
        blank(SurveyMark::None),
        file(SurveyMark::Unsupported),
    ] {
        let (identities, _) = case.served(&[asked("db", "/srv/db.img", found)]);
        assert_eq!(identities, [Identity::Known(A)]);
    }
    case.refused(
        &[asked("db", "/srv/db.img", FoundAtPath::Nothing)],
        &["served before"],
    );
    for kind in [DiskKind::Named, STRIPE, ISCSI, DiskKind::Device] {
        let carried = (kind != DiskKind::Named).then_some(B);
        let judged = case
            .with(|known| known.judge_carried(&carrying("db", kind), carried, &BTreeSet::new()));
        assert_eq!(
            judged.expect("taken over").0,
            Identity::Known(A),
            "{kind:?}"
        );
    }
}

#[test]
fn what_a_directory_beside_this_one_knows_is_refused_with_its_name() {
    let case = Case {
        sibling: &[(A, record("db", "/etc/db.img"))],
        ..NOTHING
    };
    for found in [
        FoundAtPath::Nothing,
        file(SurveyMark::None),
        file(SurveyMark::Disk(A)),
    ] {
        let parts = [
            "mv /etc/app.state /etc/new.state",
            "state = \"app.state\"",
            "[disk.",
        ];
        case.refused(&[asked("x", "/etc/db.img", found)], &parts);
    }
    let (identities, _) = case.served(&[asked("db", "/srv/other.img", FoundAtPath::Nothing)]);
    assert_eq!(identities, [Identity::New], "another file under that name");
    // A second name while the first still exists: nothing was renamed.
    let linked = Case {
        there: &[("/etc/db.img", file(SurveyMark::Disk(A)))],
        ..case
    };
    let all = [asked("x", "/srv/link.img", file(SurveyMark::Disk(A)))];
    linked.refused(&all, &["/etc/db.img", "a hard link", "copy the file"]);
    // A copy, with the mark, of a disk that is still there: the state directory is not to be moved.
    let all = [asked("x", "/srv/copy.img", other_file(SurveyMark::Disk(A)))];
    let parts = [
        "/srv/copy.img is a copy of /etc/db.img",
        "/etc/app.state",
        "`setfattr -x user.sanstone.disk /srv/copy.img`",
    ];
    linked.refused(&all, &parts);
    let errors = linked.with(|known| known.judge(&all));
    let message = errors.expect_err("a copy")[0].message().to_owned();
    assert!(
        !message.contains("mv ") && !message.contains("remove"),
        "{message}"
    );
    // A state directory in use is not replaced by another one, so what carries its identity is served.
    let used = Case {
        records: &[(B, record("log", "/etc/log.img"))],
        ..case
    };
    let (identities, warnings) =
        used.served(&[asked("x", "/etc/db.img", file(SurveyMark::Disk(A)))]);
    assert_eq!(identities, [Identity::Known(A)]);
    assert!(warnings[0].contains("app.state"), "{warnings:?}");
    used.refused(
        &[asked("x", "/etc/db.img", FoundAtPath::Nothing)],
        &["app.state"],
    );
    // But not a copy of what is still there.
    let used = Case {
        records: used.records,
        ..linked
    };
    let all = [asked("x", "/srv/copy.img", other_file(SurveyMark::Disk(A)))];
    used.refused(&all, &parts);
    // A version 1 directory counts only if its configuration is gone.
    for orphan in [true, false] {
        let old = Case {
            sibling: &[(A, old_record("db"))],
            orphan,
            ..NOTHING
        };
        let all = [asked("db", "/etc/db.img", FoundAtPath::Nothing)];
        match orphan {
            true => old.refused(&all, &["mv /etc/app.state"]),
            false => assert_eq!(old.served(&all).0, [Identity::New]),
        }
    }
}

#[test]
fn a_mark_that_nobody_knows_is_served_with_a_warning() {
    let (identities, warnings) =
        NOTHING.served(&[asked("db", "/srv/db.img", file(SurveyMark::Disk(A)))]);
    assert_eq!(identities, [Identity::Known(A)]);
    assert!(warnings[0].contains("reservations"), "{warnings:?}");
}

#[test]
fn files_that_cannot_be_marked_are_told_once() {
    let unmarked = |name: &str| asked(name, &format!("/srv/{name}"), file(SurveyMark::Unsupported));
    let (_, warnings) = NOTHING.served(&[unmarked("a"), unmarked("b")]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("/srv/a, /srv/b"), "{warnings:?}");
}

#[test]
fn a_lost_child_of_what_carries_a_name_is_refused() {
    let stripe = |volume: &str, found| Asked {
        kind: STRIPE,
        ..asked(volume, "/etc/child.img", found)
    };
    let served = Record {
        kind: Some(STRIPE.word()),
        ..record("db", "/etc/child.img")
    };
    let case = Case {
        records: &[(A, served)],
        ..NOTHING
    };
    for volume in ["db", "x"] {
        case.refused(
            &[stripe(volume, FoundAtPath::Nothing)],
            &["served before", "[disk."],
        );
        let (identities, _) = case.served(&[stripe(volume, file(SurveyMark::None))]);
        assert_eq!(identities, [Identity::Carried]);
    }
}

#[test]
fn what_carries_a_name_is_found_by_it() {
    let carried = Uuid::from_u128(0xc);
    let known = Record {
        kind: Some(STRIPE.word()),
        carried: Some(carried),
        ..old_record("db")
    };
    let case = Case {
        records: &[(A, known.clone())],
        ..NOTHING
    };
    let judge = |case: &Case<'_>, volume: &str, kind, carried, taken: &[Uuid]| {
        let taken = taken.iter().copied().collect();
        let judged =
            case.with(|known| known.judge_carried(&carrying(volume, kind), carried, &taken));
        judged.map(|(identity, _)| identity)
    };
    assert_eq!(
        judge(&case, "x", STRIPE, Some(carried), &[A]),
        Ok(Identity::Known(A))
    );
    assert_eq!(
        judge(&case, "x", STRIPE, Some(B), &[]),
        Ok(Identity::Known(B))
    );
    // The old name for another disk: only if the disk that had it is served under a new name.
    assert_eq!(
        judge(&case, "db", STRIPE, Some(B), &[A]),
        Ok(Identity::Known(B))
    );
    let error = judge(&case, "db", STRIPE, Some(B), &[]).expect_err("another disk");
    assert!(error.message().contains("write carried ="), "{error}");
    let error = judge(&case, "db", ISCSI, Some(B), &[]).expect_err("another kind");
    assert!(error.message().contains("another kind"), "{error}");
    // Memory is recognised by its name, among recorded memory disks.
    assert_eq!(
        judge(&case, "db", DiskKind::Named, None, &[]),
        Ok(Identity::New)
    );
    let beside = Case {
        sibling: &[(A, known)],
        ..NOTHING
    };
    let error = judge(&beside, "db", STRIPE, Some(carried), &[]).expect_err("it is known there");
    assert!(error.message().contains("mv /etc/app.state"), "{error}");
}

#[test]
fn a_device_without_a_name_is_found_through_a_link_to_where_it_was() {
    let device = |place: &str| Asked {
        kind: DiskKind::Device,
        place: Some(place.to_owned()),
        ..asked("db", "/dev/b", FoundAtPath::Other)
    };
    let judge = |recorded: &str, asked: &Asked| {
        let record = Record {
            kind: Some(DiskKind::Device.word()),
            place: Some(recorded.to_owned()),
            ..old_record("db")
        };
        let case = Case {
            records: &[(A, record)],
            ..NOTHING
        };
        let judged = case.with(|known| known.judge_carried(asked, None, &BTreeSet::new()));
        judged.ok().map(|(identity, _)| identity)
    };
    let link = "/dev/disk/by-path/x";
    for (recorded, is_it) in [(link, true), ("/dev/b", true), ("/dev/a", false)] {
        let expected = is_it.then_some(Identity::Known(A));
        assert_eq!(judge(recorded, &device(link)), expected, "{recorded}");
    }
}

#[test]
fn a_new_disk_while_a_recorded_one_is_gone_is_told_with_both() {
    let gone = Case {
        records: &[(A, record("db", "/srv/db.img"))],
        ..NOTHING
    };
    // A volume and its file, both renamed: the old file is gone, or was copied without its mark.
    for found in [FoundAtPath::Nothing, file(SurveyMark::None)] {
        let (identities, warnings) = gone.served(&[asked("new", "/srv/new.img", found)]);
        assert_eq!(identities, [Identity::New]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let serial = A.simple().to_string();
        for part in [
            "\"new\"",
            "\"db\"",
            "/srv/db.img",
            "/srv/new.img",
            "`path`",
            &serial,
        ] {
            assert!(warnings[0].contains(part), "no {part} in {warnings:?}");
        }
    }
    // No warning if it is found under another name or at its old path, or if nothing new is created.
    let moved = asked("old", "/srv/moved.img", file(SurveyMark::Disk(A)));
    let new = asked("new", "/srv/new.img", FoundAtPath::Nothing);
    assert_eq!(gone.served(&[moved.clone(), new.clone()]).1, [""; 0]);
    assert_eq!(gone.served(&[moved]).1, [""; 0]);
    let there = Case {
        there: &[("/srv/db.img", file(SurveyMark::Disk(A)))],
        ..gone
    };
    assert_eq!(there.served(&[new]).1, [""; 0]);
}

#[test]
fn a_directory_that_another_configuration_uses_forgets_none_of_its_disks() {
    let shared = Case {
        records: &[(A, record("db", "/etc/db.img"))],
        there: &[("/etc/db.img", file(SurveyMark::Disk(A)))],
        sharer: Some("/etc/other.toml"),
        ..NOTHING
    };
    let missing = asked("db", "/srv/db.img", FoundAtPath::Nothing);
    shared.refused(&[missing], &["another state = ", "/etc/other.toml"]);
    let judged =
        shared.with(|known| known.judge(&[asked("db", "/srv/db.img", FoundAtPath::Nothing)]));
    let errors = judged.expect_err("it is recorded");
    assert!(!errors[0].message().contains("remove the"), "{errors:?}");
    let (_, warnings) = shared.served(&[asked("db", "/etc/db.img", file(SurveyMark::Disk(A)))]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in ["/etc/new.state", "/etc/other.toml", "another state = "] {
        assert!(warnings[0].contains(part), "no {part} in {warnings:?}");
    }
}

#[test]
fn a_blank_file_in_a_disks_place_is_one_error() {
    let case = Case {
        records: &[(A, record("db", "/srv/db.img"))],
        there: &[("/srv/db.img", blank(SurveyMark::None))],
        ..NOTHING
    };
    let all = [asked("db", "/srv/db.img", blank(SurveyMark::None))];
    let errors = case.with(|known| known.judge(&all));
    let errors = errors.expect_err("another file");
    assert_eq!(errors.len(), 1, "{errors:?}");
}
