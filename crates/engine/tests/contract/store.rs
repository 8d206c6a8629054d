//! Directories, whole files and marks: what was stored is found again, and what is missing is reported.

use std::io::ErrorKind;

use engine::{
    fs::{OpenOptions, SharedFile},
    store::{self, AccessRequest, PathKind},
};

use crate::site::{Site, pattern};

contract![
    what_was_replaced_is_read_and_listed,
    directories_are_made_with_what_leads_there,
    a_mark_stays_with_its_file,
    what_is_not_there_yet_has_a_path,
    what_is_opened_to_be_read_is_looked_at_too,
    who_asks_learns_what_it_may_do,
];

async fn what_was_replaced_is_read_and_listed(site: Site) {
    let directory = site.path("state");
    store::make_directory(&directory, false).expect("it is made");
    let file = directory.join("volumes.toml");
    let missing = store::read(&file).expect_err("not yet");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    for text in ["long enough to be cut", "short"] {
        store::replace(&file, text.as_bytes()).expect("it is replaced");
        assert_eq!(store::read(&file).expect("it is there"), text.as_bytes());
    }
    store::make_directory(&directory.join("a"), false).expect("it is made");
    let listed = store::list(&directory).expect("it is there");
    let names: Vec<_> = listed.iter().filter_map(|path| path.file_name()).collect();
    assert_eq!(names, ["a", "volumes.toml"]);
    let found = store::look(&file).expect("it is there");
    assert_eq!((found.kind, found.len_bytes), (PathKind::File, 5));
    assert_ne!(found.id, store::look(&directory).expect("it is there").id);
}

async fn directories_are_made_with_what_leads_there(site: Site) {
    let deep = site.path("a").join("b").join("c");
    let error = store::make_directory(&deep, false).expect_err("no way there");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for _ in 0..2 {
        store::make_directory(&deep, true).expect("it is made, or there");
    }
    assert_eq!(store::look(&deep).expect("there").kind, PathKind::Directory);
    store::replace(&site.path("file"), b"").expect("a file");
    store::make_directory(&site.path("file"), true).expect_err("a file is in the way");
}

async fn a_mark_stays_with_its_file(site: Site) {
    let path = site.path("disk");
    let options = OpenOptions {
        write: true,
        create_new: true,
        ..OpenOptions::default()
    };
    let file = SharedFile::open(&path, &options).expect("a new file");
    match store::mark(&path) {
        // TMPDIR may be on tmpfs, which lacks user attributes before Linux 6.6.
        Err(error) if error.kind() == ErrorKind::Unsupported => return,
        mark => assert_eq!(mark.expect("it is there"), None),
    }
    for mark in ["one", "another"] {
        store::set_mark(&path, mark.as_bytes()).expect("it is marked");
        let found = store::mark(&path).expect("it is there");
        assert_eq!(found.as_deref(), Some(mark.as_bytes()));
    }
    assert_eq!(store::opener(&path).expect("it is there"), None);
    file.remove_opener().expect("there is nothing to remove");
    store::set_opener(&path, b"another opener").expect("it is marked");
    file.remove_opener().expect("it is removed");
    assert_eq!(store::opener(&path).expect("it is there"), None);
    store::set_opener(&path, b"opener").expect("it is marked");
    let file = file.on_lane();
    let written = file.write_all_at(0, pattern(100, 1).into(), false).await;
    written.expect("a write");
    let marks = [store::mark(&path), store::opener(&path)].map(|mark| mark.expect("it is there"));
    let expected = ["another", "opener"].map(|mark| Some(mark.as_bytes().to_vec()));
    assert_eq!(marks, expected);
    let missing = store::mark(&site.path("other")).expect_err("there is none");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

async fn what_is_not_there_yet_has_a_path(site: Site) {
    store::make_directory(&site.path("a"), false).expect("it is made");
    let detour = site.path("a").join("..").join("a").join("disk");
    let resolved = store::resolve(&detour).expect("its directory is there");
    let base = store::resolve(&site.path("a")).expect("it is there");
    assert_eq!(resolved, base.join("disk"));
    store::resolve(&site.path("b").join("disk")).expect_err("there is no b");
}

async fn what_is_opened_to_be_read_is_looked_at_too(site: Site) {
    let path = site.path("disk");
    let options = OpenOptions {
        write: true,
        create: true,
        ..OpenOptions::default()
    };
    let file = SharedFile::open(&path, &options)
        .expect("a new file")
        .on_lane();
    let written = file.write_all_at(0, pattern(100, 1).into(), false).await;
    written.expect("a write");
    for len in [10, 1000] {
        let (look, bytes) = store::read_start(&path, len).expect("it is there");
        assert_eq!(look, store::look(&path).expect("it is there"));
        assert_eq!((look.kind, look.mode), (PathKind::File, 0o600));
        assert_eq!(bytes, pattern(100, 1)[..len.min(100)]);
    }
    let missing = store::read_start(&site.path("other"), 10).expect_err("there is none");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

async fn who_asks_learns_what_it_may_do(site: Site) {
    let path = site.path("disk");
    store::replace(&path, b"a file").expect("room");
    let access = AccessRequest {
        read: true,
        write: true,
        execute: false,
    };
    store::may(&path, access).expect("it is ours");
    let executed = AccessRequest {
        execute: true,
        ..access
    };
    let refused = store::may(&path, executed).expect_err("it is no program");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let missing = store::may(&site.path("other"), access).expect_err("there is none");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(store::file_system(&path).expect("it is there").block_bytes > 0);
    store::file_system(&site.path("other")).expect_err("there is none");
}
