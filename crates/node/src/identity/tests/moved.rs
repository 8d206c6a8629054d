//! Files that have become shorter or changed places while nobody served them.

use super::*;

#[test]
fn marked_files_that_have_exchanged_their_places_are_refused_once() {
    const C: Uuid = Uuid::from_u128(0xc);
    let case = Case {
        records: &[
            (A, record("a", "/etc/a.img")),
            (B, record("b", "/etc/b.img")),
            (C, record("c", "/etc/c.img")),
        ],
        ..NOTHING
    };
    let named = |volume: &str, path: &str, uuid: Uuid| Asked {
        leaves: vec![Leaf {
            found: FoundAtPath::File {
                len_bytes: LEN,
                id: (0, uuid.as_u128() as u64),
                is_blank: false,
                mark: SurveyMark::Disk(uuid),
            },
            ..asked(volume, path, FoundAtPath::Nothing).leaves.remove(0)
        }],
        ..asked(volume, path, FoundAtPath::Nothing)
    };
    let at = |volume: &str, uuid| named(volume, &format!("/etc/{volume}.img"), uuid);
    let third = [at("a", B), at("b", C), at("c", A)];
    for all in [&[at("a", B), at("b", A), at("c", C)], &third] {
        let errors = case.with(|known| known.judge(all));
        let errors = errors.expect_err("they have changed places");
        assert_eq!(errors.len(), 1, "{errors:?}");
        case.refused(
            all,
            &[
                "the files of volumes \"a\", \"",
                "/etc/a.img",
                "move the files back",
                "`path`",
            ],
        );
    }
    // The configuration has followed, or gives one of the disks a new place.
    for all in [
        [at("a", A), at("b", B), at("c", C)],
        [
            named("a", "/etc/b.img", A),
            named("b", "/etc/a.img", B),
            at("c", C),
        ],
        [
            named("a", "/etc/a.img", B),
            named("new", "/etc/new.img", A),
            at("c", C),
        ],
    ] {
        case.served(&all);
    }
}

#[test]
fn a_marked_file_shorter_than_its_record_is_refused() {
    let case = Case {
        records: &[(A, record("db", "/srv/db.img"))],
        ..NOTHING
    };
    let of_length = |len_bytes| FoundAtPath::File {
        len_bytes,
        id: (0, 0),
        is_blank: false,
        mark: SurveyMark::Disk(A),
    };
    for path in ["/srv/db.img", "/srv/moved.img"] {
        case.refused(
            &[asked("db", path, of_length(LEN - 512))],
            &[
                path,
                "1048064 bytes",
                "1048576",
                "restore the file from a copy",
                "remove `bytes = 1048576` from the table [disk.",
                "volumes.toml",
            ],
        );
        let (identities, _) = case.served(&[asked("db", path, of_length(LEN + 512))]);
        assert_eq!(identities, [Identity::Known(A)], "a longer file is fine");
    }
    let unknown = Case {
        records: &[(
            A,
            Record {
                bytes: None,
                ..record("db", "/srv/db.img")
            },
        )],
        ..NOTHING
    };
    let (identities, _) = unknown.served(&[asked("db", "/srv/db.img", of_length(512))]);
    assert_eq!(identities, [Identity::Known(A)]);
}
