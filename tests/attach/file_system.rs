//! A file system on a volume, by a loop device.

use std::fs;

use harness::noise;

use crate::attached::{Attached, Loop, Mounted, can_attach, overwrite, ran};

const THIN: &str = "[volume.db]\nfile = { path = \"db.img\", size = \"256MiB\" }\n";

#[test]
fn ext4_keeps_its_files_over_a_stop() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let content = |number: u64| noise(number, 100_000 * (number as usize + 1));
    {
        let device = Loop::on(&attached.path, true);
        ran("mkfs.ext4", "e2fsprogs", &["-q", "-F", &device.0]).success();
        let files = Mounted::new(attached.directory.join("files"), &[&device.0]);
        for number in 0..20 {
            let path = files.0.join(number.to_string());
            fs::write(path, content(number)).expect("room");
        }
        fs::remove_file(files.0.join("0")).expect("it is there");
        ran(
            "fstrim",
            "util-linux",
            &["-v", files.0.to_str().expect("a path")],
        )
        .success();
    }
    attached.stop();
    attached.start_again(THIN);
    let device = Loop::on(&attached.path, true);
    ran("e2fsck", "e2fsprogs", &["-f", "-n", &device.0]).success();
    let files = Mounted::new(attached.directory.join("files"), &["-o", "ro", &device.0]);
    for number in 1..20 {
        let path = files.0.join(number.to_string());
        assert!(
            fs::read(path).expect("it is there") == content(number),
            "{number}"
        );
    }
}

#[test]
fn a_full_file_system_below_is_one_without_space() {
    if !can_attach() {
        return;
    }
    let directory = harness::directory::Directory::new();
    let small = Mounted::new(
        directory.join("small"),
        &["-t", "tmpfs", "-o", "size=8m", "none"],
    );
    let volume = "[volume.db]\n\
        file = { path = \"small/db.img\", size = \"64MiB\", cache = \"write-back\" }\n\
        [volume.db2]\nram = { size = \"1MiB\" }\n";
    let mut attached = Attached::start_in(directory, volume, &[]);
    let all = vec![1; 64 << 20];
    let error = overwrite(&attached.path, &all).expect_err("there is no space");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    // What is there already still takes writes.
    let file = fs::OpenOptions::new().write(true).open(&attached.path);
    let written = std::os::unix::fs::FileExt::write_at(&file.expect("a file"), b"again", 0);
    assert_eq!(written.expect("it has its space"), 5);
    attached.stop();
    drop(small);
}
