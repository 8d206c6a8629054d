//! The end in good order: by SIGTERM, idle and under load, and by an unmount.

use std::fs;
use std::os::unix::fs::FileExt;

use harness::directory::Directory;

use crate::attached::{Attached, LONG, can_attach, is_mounted, overwrite, ran, text};
use crate::death::while_writing;

const THIN: &str = "[volume.db]\nfile = { path = \"db.img\", size = \"128MiB\" }\n";

#[test]
fn a_file_that_was_made_goes_and_one_that_was_there_stays() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    attached.stop();
    assert!(!attached.path.exists() && !is_mounted(&attached.path));
    fs::write(&attached.path, "").expect("an empty file");
    attached.start_again(THIN);
    overwrite(&attached.path, b"data").expect("a write");
    attached.stop();
    assert_eq!(fs::read(&attached.path).expect("it is there"), b"");
    assert_eq!(
        &fs::read(attached.directory.join("db.img")).expect("it is there")[..4],
        b"data"
    );
}

#[test]
fn sigterm_under_load_serves_the_load_to_its_end() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let writes = while_writing(&mut attached, "--runtime=8", |attached| {
        attached.daemon.signal("TERM");
    });
    assert_eq!(writes.code(), Some(0), "{writes}");
    let status = attached.daemon.wait(LONG).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", attached.daemon.log());
    assert!(!is_mounted(&attached.path));
    attached.start_again(THIN);
    attached.stop();
}

#[test]
fn whoever_unmounts_the_file_ends_it() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    ran("umount", "mount", &[text(&attached.path)]).success();
    let status = attached.daemon.wait(LONG).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", attached.daemon.log());
}

#[test]
fn what_is_read_only_is_read() {
    if !can_attach() {
        return;
    }
    let attached = Attached::start_in(Directory::new(), THIN, &["--read-only"]);
    let file = fs::File::open(&attached.path).expect("it can be read");
    let mut bytes = [1; 4096];
    file.read_exact_at(&mut bytes, 4096).expect("a read");
    assert_eq!(bytes, [0; 4096]);
    let writing = fs::OpenOptions::new().write(true).open(&attached.path);
    let error = writing.expect_err("it is read-only");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn a_volume_that_grows_is_longer_after_a_sighup() {
    if !can_attach() {
        return;
    }
    let directory = Directory::new();
    directory.sparse("db.img", 1 << 20);
    let volume = "[volume.db]\nfile = { path = \"db.img\" }\n";
    let attached = Attached::start_in(directory, volume, &[]);
    let image = attached.directory.join("db.img");
    let longer = fs::OpenOptions::new().write(true).open(image);
    longer.expect("it is there").set_len(2 << 20).expect("room");
    attached.daemon.signal("HUP");
    attached.daemon.log_with("a disk has grown");
    assert_eq!(
        fs::metadata(&attached.path).expect("attributes").len(),
        2 << 20
    );
    let file = fs::OpenOptions::new().write(true).open(&attached.path);
    file.expect("a file")
        .write_all_at(b"new", 3 << 19)
        .expect("it is there");
}
