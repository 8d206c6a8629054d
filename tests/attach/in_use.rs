//! A block device in use is neither attached nor served, because its mounted file system would not know of our writes.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use harness::directory::Directory;
use harness::run::Ran;
use harness::sanstone::call;

use crate::attached::{Loop, Mounted, can_attach, ran, text};

/// open(2): of a block device, without O_CREAT: nobody else may use it.
const O_EXCL: i32 = 0o200;

#[track_caller]
fn refused(ran: &Ran, words: &[&str]) {
    assert_ne!(ran.code(), Some(0), "{ran}");
    for word in words {
        assert!(ran.stderr.contains(word), "no {word:?}\n{ran}");
    }
}

#[test]
fn a_block_device_that_is_mounted_or_in_use_is_refused() {
    if !can_attach() {
        return;
    }
    let directory = Directory::new();
    let image = directory.sparse("db.img", 16 << 20);
    ran("mkfs.ext4", "e2fsprogs", &["-q", "-F", text(&image)]).success();
    let device = Loop::on(&image, false);
    let volume = format!("[volume.db]\nfile = {{ path = \"{}\" }}\n", device.0);
    let config = directory.write("sanstone.toml", &volume);
    let socket = format!("unix:{}", directory.join("socket").display());
    let attach = || call(&["attach", "-c", text(&config), "db", "--nbd", &socket]);
    {
        let mounted = Mounted::new(directory.join("files"), &[&device.0]);
        let place = mounted.0.canonicalize().expect("it is mounted");
        let at = format!("is mounted at {}; unmount it", place.display());
        refused(&call(&["check", "-c", text(&config)]), &[&at]);
        refused(&attach(), &[&device.0, "it is in use: mounted", "unmount"]);
    }
    {
        let mut alone = OpenOptions::new();
        let alone = alone.read(true).custom_flags(O_EXCL).open(&device.0);
        let _alone = alone.expect("nobody uses it any more");
        refused(&attach(), &[&device.0, "it is in use"]);
    }
    call(&["check", "-c", text(&config)]).success();
    ran("e2fsck", "e2fsprogs", &["-f", "-n", &device.0]).success();
}
