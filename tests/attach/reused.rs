//! The kernel gives a mount's numbers to the next one as soon as it is gone. An `attach` whose mount somebody has taken away
//! leaves alone whatever has them now.

use std::{fs, process::Command};

use engine::mounts::{Mount, mount_at};
use harness::{directory::Directory, process::program};

use crate::attached::{Attached, LONG, Mounted, can_attach, is_mounted, overwrite, ran, text};

const THIN: &str = "[volume.db]\nfile = { path = \"db.img\", size = \"64MiB\" }\n";

/// How often to try until the kernel gives the same numbers: other tests mount, too.
const TRIES: usize = 20;

fn numbers(mount: &Mount) -> (u64, &str) {
    (mount.id, &mount.device)
}

#[test]
fn the_next_attachment_with_its_numbers_is_not_unmounted() {
    if !can_attach() {
        return;
    }
    for _ in 0..TRIES {
        let mut first = Attached::start(THIN);
        let mount = mount_at(&first.path).expect("a table").expect("it is");
        // It learns of the end of its mount only when the next one is there.
        first.daemon.signal("STOP");
        let without_a_look = ["--internal-only", "--no-canonicalize", text(&first.path)];
        ran("umount", "mount", &without_a_look).success();
        let mut second = Attached::start(THIN);
        let next = mount_at(&second.path).expect("a table").expect("it is");
        first.daemon.signal("CONT");
        let status = first.daemon.wait(LONG).expect("it ends");
        assert_eq!(status.code(), Some(0), "{}", first.daemon.log());
        assert!(is_mounted(&second.path), "{}", second.daemon.log());
        overwrite(&second.path, b"data").expect("it is served");
        second.stop();
        if numbers(&mount) == numbers(&next) {
            return;
        }
    }
    harness::skip("other mounts took the numbers each time");
}

#[test]
fn another_file_system_with_its_numbers_is_not_unmounted() {
    if !can_attach() {
        return;
    }
    for _ in 0..TRIES {
        let directory = Directory::new();
        let make = |name: &str| {
            let image = directory.sparse(name, 64 << 20);
            ran("mkfs.ext4", "e2fsprogs", &["-q", "-F", text(&image)]).success();
            image
        };
        make("db.img");
        let image = make("other.img");
        let files = directory.path().canonicalize().expect("it is there");
        let files = files.join("files");
        fs::create_dir(&files).expect("a directory");
        let elsewhere = directory.join("elsewhere");
        let mut attached = Attached::start_in(directory, THIN, &["--mount", text(&files)]);
        attached.daemon.log_with(" mounted ");
        let mount = mount_at(&files).expect("a table").expect("it is");
        ran("umount", "mount", &[text(&files)]).success();
        let other = Mounted::new(elsewhere, &["-o", "loop", text(&image)]);
        let next = mount_at(&other.0).expect("a table").expect("it is");
        attached.stop();
        assert!(is_mounted(&other.0), "{}", attached.daemon.log());
        if numbers(&mount) == numbers(&next) && mount.source == next.source {
            return;
        }
    }
    harness::skip("other mounts took the numbers each time");
}

/// Nothing but the mount's own name tells it from the next one.
#[test]
fn each_attachment_is_mounted_under_a_name_of_its_own() {
    if !can_attach() {
        return;
    }
    let sources = [(), ()].map(|()| {
        let mut attached = Attached::start(THIN);
        let mut findmnt = Command::new(program("findmnt", "util-linux"));
        findmnt.args(["--noheadings", "--output", "SOURCE", text(&attached.path)]);
        let source = findmnt.output().expect("it runs").stdout;
        attached.stop();
        source
    });
    assert!(sources[0].starts_with(b"sanstone-"), "{sources:?}");
    assert_ne!(sources[0], sources[1]);
}
