//! A block device in use is neither attached nor served, because its mounted file system would not know of our writes.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use harness::directory::Directory;
use harness::run::Ran;
use harness::sanstone::call;

use crate::attached::{Attached, Loop, Mounted, can_attach, ran, text};

/// open(2): of a block device, without O_CREAT: nobody else may use it.
const O_EXCL: i32 = 0o200;

#[track_caller]
fn refused(ran: &Ran, words: &[&str]) {
    assert_ne!(ran.code(), Some(0), "{ran}");
    for word in words {
        assert!(ran.stderr.contains(word), "no {word:?}\n{ran}");
    }
}

/// A directory, and a loop device on a file in it that holds a file system.
fn with_file_system() -> (Directory, Loop) {
    let directory = Directory::new();
    let image = directory.sparse("db.img", 16 << 20);
    ran("mkfs.ext4", "e2fsprogs", &["-q", "-F", text(&image)]).success();
    let device = Loop::on(&image, false);
    (directory, device)
}

/// The device mounted in the directory, and where.
fn mounted(directory: &Directory, device: &Loop) -> (Mounted, PathBuf) {
    let mounted = Mounted::new(directory.join("files"), &[&device.0]);
    let place = mounted.0.canonicalize().expect("it is mounted");
    (mounted, place)
}

#[test]
fn a_block_device_that_is_mounted_or_in_use_is_refused() {
    if !can_attach() {
        return;
    }
    let (directory, device) = with_file_system();
    let volume = format!("[volume.db]\nfile = {{ path = \"{}\" }}\n", device.0);
    let config = directory.write("sanstone.toml", &volume);
    let socket = format!("unix:{}", directory.join("socket").display());
    let attach = || call(&["attach", "-c", text(&config), "db", "--nbd", &socket]);
    {
        let (_mounted, place) = mounted(&directory, &device);
        let at = format!("is mounted at {}; unmount it", place.display());
        refused(&call(&["check", "-c", text(&config)]), &[&at]);
        refused(&attach(), &[&device.0, "it is in use: mounted", "unmount"]);
    }
    {
        let mut alone = OpenOptions::new();
        // Whoever looks at the mounts just now may hold the file system a moment longer than its unmounting.
        let tries = (0..100).find_map(|_| {
            let opened = alone.read(true).custom_flags(O_EXCL).open(&device.0);
            std::thread::sleep(std::time::Duration::from_millis(100));
            opened.ok()
        });
        let _alone = tries.expect("nobody uses it any more");
        refused(&attach(), &[&device.0, "it is in use"]);
    }
    call(&["check", "-c", text(&config)]).success();
    ran("e2fsck", "e2fsprogs", &["-f", "-n", &device.0]).success();
}

#[test]
fn a_block_device_that_nobody_uses_is_attached_in_every_caching_mode() {
    if !can_attach() {
        return;
    }
    let directory = Directory::new();
    let image = directory.sparse("db.img", 16 << 20);
    let device = Loop::on(&image, false);
    for (index, mode) in ["direct", "direct-sync", "write-through", "write-back"]
        .into_iter()
        .enumerate()
    {
        let volume = format!(
            "[volume.db]\nfile = {{ path = \"{}\", cache = \"{mode}\" }}\n",
            device.0
        );
        let mut attached = Attached::start(&volume);
        let options = || OpenOptions::new().read(true).write(true).to_owned();
        let file = options().open(&attached.path).expect("it is attached");
        let (at, data) = (index as u64 * 4096, [b'a' + index as u8; 4096]);
        file.write_all_at(&data, at).expect("a write");
        file.sync_all().expect("a flush");
        drop(file);
        attached.stop();
        let device = options().open(&device.0).expect("it is free again");
        let mut found = [0; 4096];
        device.read_exact_at(&mut found, at).expect("a read");
        assert!(found == data, "{mode}");
    }
}

#[test]
fn the_lab_measures_no_mounted_device() {
    if !can_attach() {
        return;
    }
    let (directory, device) = with_file_system();
    let (_mounted, place) = mounted(&directory, &device);
    let at = format!(
        "--on {}: this device is mounted at {}; unmount it",
        device.0,
        place.display()
    );
    // One that only reads, one that writes, and one that needs a file system of its own.
    for profile in ["queue", "commit", "sql-mariadb"] {
        let lab = [
            "lab",
            "run",
            profile,
            "--quick",
            "--overwrite",
            "--on",
            &device.0,
        ];
        let ran = call(&lab);
        assert_eq!(ran.code(), Some(2), "{ran}");
        refused(&ran, &[&at]);
    }
    let other = directory.join("other.img");
    let compare = [
        "lab",
        "compare",
        text(&other),
        &device.0,
        "--profile",
        "queue",
    ];
    refused(&call(&compare), &[&at]);
    assert!(!other.exists(), "a file was left");
}

#[test]
fn a_file_that_is_written_through_a_loop_device_is_refused() {
    if !can_attach() {
        return;
    }
    let (directory, device) = with_file_system();
    // By another name than the device knows.
    fs::hard_link(directory.join("db.img"), directory.join("other.img")).expect("a link");
    let configured = |more: &str| {
        let volume = format!("[volume.db]\nfile = {{ path = \"other.img\"{more} }}\n");
        directory.write("sanstone.toml", volume)
    };
    let check = || call(&["check", "-c", text(&configured(""))]);
    {
        let (_mounted, place) = mounted(&directory, &device);
        let at = format!("{}, mounted at {}", device.0, place.display());
        refused(&check(), &[&at, "umount"]);
        let config = configured("");
        let path = directory.join("disk");
        let attach = ["attach", "-c", text(&config), "db", "--fuse", text(&path)];
        refused(&call(&attach), &[&at, "umount"]);
        call(&["check", "-c", text(&configured(", read_only = true"))]).success();
    }
    refused(&check(), &[&device.0, "losetup -d"]);
    drop(device);
    check().success();
}

#[test]
fn the_lab_does_not_write_to_a_file_below_a_mounted_loop_device() {
    if !can_attach() {
        return;
    }
    let attached = Attached::start("[volume.db]\nram = { size = \"16MiB\" }\n");
    ran(
        "mkfs.ext4",
        "e2fsprogs",
        &["-q", "-F", text(&attached.path)],
    )
    .success();
    let device = Loop::on(&attached.path, false);
    let link = attached.directory.join("link");
    std::os::unix::fs::symlink(&attached.path, &link).expect("room");
    let run = |on| {
        let json = attached.directory.join("lab.json");
        let report = attached.directory.join("lab.html");
        let lab = ["lab", "run", "commit", "--quick", "--overwrite", "--on", on];
        let outputs = ["--json", text(&json), "--report", text(&report)];
        call(&[&lab[..], &outputs].concat())
    };
    {
        let (_mounted, place) = mounted(&attached.directory, &device);
        let at = format!("{}, which is mounted at {}", device.0, place.display());
        refused(&run(text(&attached.path)), &[&at, "umount"]);
        refused(&run(text(&link)), &[&at]);
    }
    refused(&run(text(&attached.path)), &[&device.0, "losetup -d"]);
    ran("e2fsck", "e2fsprogs", &["-f", "-n", &device.0]).success();
}
