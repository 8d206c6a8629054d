//! `--mount`: a volume's file system is mounted for as long as `sanstone attach` runs, whichever lane serves it, and
//! nothing is left of it afterwards.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use harness::directory::Directory;
use harness::health::Health;
use harness::process::{Daemon, program};
use harness::run::Ran;
use harness::sanstone::call;

use crate::attached::{Attached, LONG, Loop, Mounted, can_attach, is_mounted, ran, text};

/// A single lane: no other lane could serve a request that this one waits for.
const THIN: &str = "lanes = 1\n[volume.db]\nfile = { path = \"db.img\", size = \"64MiB\" }\n";

/// A directory with an image that contains a file system, and an empty directory as mount point.
fn prepared() -> (Directory, PathBuf) {
    prepared_with(&["mkfs.ext4", "-F"], "e2fsprogs", 64)
}

/// The same with the file system that `mkfs` makes, of this size in MiB.
fn prepared_with(mkfs: &[&str], package: &str, mib: u64) -> (Directory, PathBuf) {
    let directory = Directory::new();
    let image = directory.sparse("db.img", mib << 20);
    let arguments = [&mkfs[1..], &["-q", text(&image)]].concat();
    ran(mkfs[0], package, &arguments).success();
    let files = directory
        .path()
        .canonicalize()
        .expect("it is there")
        .join("files");
    fs::create_dir(&files).expect("a directory");
    (directory, files)
}

/// Attaches the volume with its file system, and waits until that is mounted.
fn start(directory: Directory, files: &Path, more: &[&str]) -> Attached {
    let arguments = [&["--mount", text(files)], more].concat();
    let attached = Attached::start_in(directory, THIN, &arguments);
    attached.daemon.log_with("INFO mounted ");
    attached
}

/// The same once more, after its end.
fn start_again(attached: &mut Attached, files: &Path, more: &[&str]) {
    let arguments = [&["--mount", text(files)], more].concat();
    attached.start_again_with(THIN, &arguments);
    attached.daemon.log_with("INFO mounted ");
}

/// The loop devices on the file at `path`.
fn loops_on(path: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").expect("it is there").flatten();
    let devices = devices.map(|entry| entry.path());
    let is_on = |device: &PathBuf| {
        let file = fs::read_to_string(device.join("loop/backing_file"));
        file.is_ok_and(|file| file.trim_end() == text(path))
    };
    devices.filter(is_on).collect()
}

#[track_caller]
fn refused(ran: &Ran, words: &[&str]) {
    assert_eq!(ran.code(), Some(1), "{ran}");
    for word in words {
        assert!(ran.stderr.contains(word), "no {word:?}\n{ran}");
    }
}

/// Tries to attach with `--mount`, which fails.
fn attach(directory: &Directory, files: &Path, more: &[&str]) -> Ran {
    attach_volume(directory, THIN, files, more)
}

/// The same with this volume.
fn attach_volume(directory: &Directory, volume: &str, files: &Path, more: &[&str]) -> Ran {
    let config = directory.write("sanstone.toml", volume);
    let path = directory.join("disk");
    let arguments = ["attach", "-c", text(&config), "db", "--fuse", text(&path)];
    call(&[&arguments[..], &["--mount", text(files)], more].concat())
}

#[track_caller]
fn nothing_is_left(directory: &Directory, files: &Path) {
    let path = directory
        .path()
        .canonicalize()
        .expect("it is there")
        .join("disk");
    assert!(!path.exists() && !is_mounted(&path) && !is_mounted(files));
    assert_eq!(loops_on(&path), [] as [PathBuf; 0]);
}

#[test]
fn its_loop_device_follows_a_volume_that_grows() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    let image = directory.join("db.img");
    let volume = "lanes = 1\n[volume.db]\nfile = { path = \"db.img\" }\n";
    let arguments = ["--mount", text(&files)];
    let mut attached = Attached::start_in(directory, volume, &arguments);
    attached.daemon.log_with("INFO mounted ");
    let _guard = Mounted(files.clone());
    let [device] = &loops_on(&attached.path)[..] else {
        panic!("it is mounted through a loop device");
    };
    let sectors = || {
        let size = fs::read_to_string(device.join("size")).expect("it is there");
        size.trim().parse::<u64>().expect("a number")
    };
    assert_eq!(sectors() * 512, 64 << 20);
    let file = fs::File::options().write(true).open(image);
    file.and_then(|file| file.set_len(96 << 20)).expect("room");
    attached.daemon.signal("HUP");
    let log = attached
        .daemon
        .log_with("the loop device is as long as the volume");
    assert!(log.contains("resize2fs /dev/loop"), "{log}");
    assert_eq!(sectors() * 512, 96 << 20);
    attached.stop();
}

#[test]
fn its_loop_device_follows_a_size_that_is_applied() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    let mut attached = start(directory, &files, &[]);
    let _guard = Mounted(files.clone());
    let config = attached
        .directory
        .write("sanstone.toml", THIN.replace("64MiB", "96MiB"));
    call(&["apply", "-c", text(&config)]).success();
    let log = attached
        .daemon
        .log_with("the loop device is as long as the volume");
    assert!(log.contains("resize2fs /dev/loop"), "{log}");
    attached.stop();
}

#[test]
fn a_file_system_that_shuts_down_is_seen() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared_with(&["mkfs.xfs", "-f"], "xfsprogs", 320);
    let volume = "[volume.db]\nfile = { path = \"db.img\" }\n";
    let attached = Attached::start_in(directory, volume, &["--mount", text(&files)]);
    attached.daemon.log_with("INFO mounted ");
    let _guard = Mounted(files.clone());
    let state = attached.directory.join("sanstone.state/attached/db");
    let health = Health::of(&state);
    health.is_ok();
    ran(
        "xfs_io",
        "xfsprogs",
        &["-x", "-c", "shutdown", text(&files)],
    )
    .success();
    let line = health.shows(2, "takes no writes any more");
    assert!(line.starts_with("down: db: the file system at "), "{line}");
}

#[test]
fn a_file_system_that_takes_no_writes_and_an_end_that_waits_are_seen() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    let mut attached = start(directory, &files, &[]);
    let _guard = Mounted(files.clone());
    let state = attached.directory.join("sanstone.state/attached/db");
    let health = Health::of(&state);
    health.is_ok();
    let remount = |how: &str| ran("mount", "mount", &["-o", how, text(&files)]).success();
    remount("remount,ro");
    let line = health.shows(2, "takes no writes any more");
    assert!(line.starts_with("down: db: the file system at "), "{line}");
    remount("remount,rw");
    health.is_ok();
    let mut user = Command::new("sleep");
    user.arg("600").current_dir(&files);
    let user = Daemon::start(&user, attached.directory.join("user.log"));
    attached.daemon.signal("TERM");
    let line = health.shows(1, "it is to end, and waits until nobody uses it");
    assert!(line.starts_with("degraded: db: "), "{line}");
    drop(user);
    let status = attached.daemon.wait(LONG).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", attached.daemon.log());
}

/// While something writes, the kernel takes a new length of the file from us only now and then.
#[test]
fn all_that_its_loop_device_has_can_be_read_while_it_grows_under_writes() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    let mut attached = start(directory, &files, &[]);
    let _guard = Mounted(files.clone());
    let [device] = &loops_on(&attached.path)[..] else {
        panic!("it is mounted through a loop device");
    };
    let block = Path::new("/dev").join(device.file_name().expect("its name"));
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..6 {
            let (file, is_done) = (files.join(format!("written {writer}")), &is_done);
            scope.spawn(move || {
                let file = fs::File::create(file).expect("room");
                for round in 0.. {
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                    let at = round % 256 * 4096;
                    file.write_all_at(&[7; 4096], at).expect("room");
                    file.sync_data().expect("a flush");
                }
            });
        }
        let _done = Done(&is_done);
        for mib in (68..260).step_by(4) {
            let size = format!("{mib}MiB");
            let config = attached
                .directory
                .write("sanstone.toml", THIN.replace("64MiB", &size));
            call(&["apply", "-c", text(&config)]).success();
            let sectors = (mib << 11).to_string();
            let deadline = Instant::now() + LONG;
            while fs::read_to_string(device.join("size")).is_ok_and(|size| size.trim() != sectors) {
                assert!(Instant::now() < deadline, "it does not follow");
                sleep(Duration::from_millis(1));
            }
            let last = format!("skip={}", (mib << 8) - 1);
            let input = format!("if={}", text(&block));
            let read = ["bs=4096", "count=1", "iflag=direct", "of=/dev/null"];
            ran(
                "dd",
                "coreutils",
                &[&[&input[..], &last][..], &read].concat(),
            )
            .success();
        }
    });
    attached.stop();
}

/// Says so at its end, however that comes.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_file_system_is_mounted_with_the_volume_and_goes_before_it() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    let mut attached = start(directory, &files, &["--fs-options", "noatime,commit=60"]);
    let _guard = Mounted(files.clone());
    let content = harness::noise(1, 10 << 20);
    fs::write(files.join("file"), &content).expect("room");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("it can be read");
    let line = mounts.lines().find(|line| line.contains(text(&files)));
    assert!(
        line.is_some_and(|line| line.contains("commit=60")),
        "{line:?}"
    );
    let device = loops_on(&attached.path);
    let [device] = &device[..] else {
        panic!("one loop device: {device:?}");
    };
    let direct = fs::read_to_string(device.join("loop/dio")).expect("it is there");
    assert_eq!(direct.trim_end(), "1");
    // Nothing was synced: the page cache is written at the unmount.
    attached.stop();
    let log = attached.daemon.log();
    assert!(!log.contains("in use"), "{log}");
    nothing_is_left(&attached.directory, &files);
    let image = attached.directory.join("db.img");
    ran("e2fsck", "e2fsprogs", &["-f", "-n", text(&image)]).success();
    start_again(&mut attached, &files, &["--read-only"]);
    assert!(fs::read(files.join("file")).expect("it is there") == content);
    assert!(
        fs::write(files.join("file"), "").is_err(),
        "it is read-only"
    );
    attached.stop();
}

/// The loop device has sectors of the volume's blocks, or the log of the file system would write parts of them.
#[test]
fn a_volume_of_large_blocks_is_mounted_in_large_sectors() {
    if !can_attach() {
        return;
    }
    let volume = THIN.replace("size = \"64MiB\"", "size = \"384MiB\", block_size = 4096");
    for (mkfs, package, checker) in [
        (
            &["mkfs.ext4", "-F", "-b", "4096"][..],
            "e2fsprogs",
            &["e2fsck", "-f", "-n"][..],
        ),
        (
            &["mkfs.xfs", "-f", "-s", "size=4096"],
            "xfsprogs",
            &["xfs_repair", "-n"],
        ),
    ] {
        let (directory, files) = prepared_with(mkfs, package, 384);
        let arguments = ["--mount", text(&files)];
        let mut attached = Attached::start_in(directory, &volume, &arguments);
        attached.daemon.log_with("INFO mounted ");
        let guard = Mounted(files.clone());
        let devices = loops_on(&attached.path);
        let [device] = &devices[..] else {
            panic!("one loop device: {devices:?}");
        };
        let sector = fs::read_to_string(device.join("queue/logical_block_size"));
        assert_eq!(sector.expect("it is there").trim_end(), "4096");
        let content = harness::noise(5, 10 << 20);
        let path = files.join("file");
        fs::write(&path, &content).expect("room");
        ran("sync", "coreutils", &["-f", text(&path)]).success();
        attached.stop();
        drop(guard);
        attached.start_again_with(&volume, &arguments);
        attached.daemon.log_with("INFO mounted ");
        let _guard = Mounted(files.clone());
        assert!(fs::read(&path).expect("it is there") == content);
        attached.stop();
        let image = attached.directory.join("db.img");
        let arguments = [&checker[1..], &[text(&image)]].concat();
        ran(checker[0], package, &arguments).success();
    }
}

#[test]
fn a_file_system_of_blocks_below_the_volumes_is_refused_with_the_mend() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared_with(&["mkfs.ext4", "-F", "-b", "1024"], "e2fsprogs", 64);
    let volume = THIN.replace("64MiB\"", "64MiB\", block_size = 4096");
    refused(
        &attach_volume(&directory, &volume, &files, &[]),
        &["less than the volume's 4096 bytes", "without --mount"],
    );
    nothing_is_left(&directory, &files);
}

#[test]
fn the_end_waits_for_whoever_uses_the_file_system_and_names_them() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    let mut attached = start(directory, &files, &[]);
    let _guard = Mounted(files.clone());
    let content = harness::noise(2, 1 << 20);
    let mut user = Command::new(program("sleep", "coreutils"));
    user.arg("3600").current_dir(&files);
    let mut user = Daemon::start(&user, attached.directory.join("user.log"));
    attached.daemon.signal("TERM");
    let named = format!("in use by process {} (sleep)", user.pid());
    attached.daemon.log_with(&named);
    fs::write(files.join("file"), &content).expect("it is served still");
    user.signal("KILL");
    user.wait(LONG).expect("it ends");
    let status = attached.daemon.wait(LONG).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", attached.daemon.log());
    nothing_is_left(&attached.directory, &files);
    let image = attached.directory.join("db.img");
    let read = ran("debugfs", "e2fsprogs", &["-R", "stat file", text(&image)]).success();
    assert!(read.stdout.contains("Size: 1048576"), "{read}");
}

/// Kills it without warning.
fn kill(attached: &mut Attached) {
    attached.daemon.signal("KILL");
    attached.daemon.wait(LONG).expect("it is dead");
}

/// The one command from the guide.
#[test]
fn after_a_kill_the_same_command_mounts_it_again() {
    if !can_attach() {
        return;
    }
    for (mkfs, package, checker) in [
        (
            ["mkfs.ext4", "-F"],
            "e2fsprogs",
            &["e2fsck", "-f", "-n"][..],
        ),
        (["mkfs.xfs", "-f"], "xfsprogs", &["xfs_repair", "-n"]),
    ] {
        let (directory, files) = prepared_with(&mkfs, package, 384);
        let volume = THIN.replace("64MiB", "384MiB");
        let arguments = ["--mount", text(&files)];
        let mut attached = Attached::start_in(directory, &volume, &arguments);
        attached.daemon.log_with("INFO mounted ");
        let _guard = Mounted(files.clone());
        // The second time, the empty file at the path is already there.
        for kills in 0..2 {
            let path = files.join(format!("synced{kills}"));
            fs::write(&path, harness::noise(3, 1 << 20)).expect("room");
            ran("sync", "coreutils", &["-f", text(&path)]).success();
            fs::write(files.join("dirty"), harness::noise(4, 1 << 20)).expect("room");
            kill(&mut attached);
            attached.start_again_with(&volume, &arguments);
            attached.daemon.log_with("INFO mounted ");
            assert!(fs::read(&path).expect("it was synced") == harness::noise(3, 1 << 20));
            assert_eq!(loops_on(&attached.path).len(), 1);
        }
        attached.stop();
        assert!(!is_mounted(&attached.path) && !is_mounted(&files));
        assert_eq!(loops_on(&attached.path), [] as [PathBuf; 0]);
        let image = attached.directory.join("db.img");
        let arguments = [&checker[1..], &[text(&image)]].concat();
        ran(checker[0], package, &arguments).success();
    }
}

/// It may be killed before the file system is mounted.
#[test]
fn after_a_kill_a_loop_device_without_a_file_system_is_detached() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    let mut attached = Attached::start_in(directory, THIN, &[]);
    let _guard = Mounted(files.clone());
    let device = Loop::on(&attached.path, true);
    kill(&mut attached);
    start_again(&mut attached, &files, &[]);
    // Its number may be another test's by now.
    std::mem::forget(device);
    assert_eq!(loops_on(&attached.path).len(), 1, "its own");
    attached.stop();
}

#[test]
fn after_a_kill_users_of_the_file_system_are_named_until_they_end() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    let mut attached = start(directory, &files, &[]);
    let _guard = Mounted(files.clone());
    let mut user = Command::new(program("sleep", "coreutils"));
    user.arg("3600").current_dir(&files);
    let mut user = Daemon::start(&user, attached.directory.join("user.log"));
    kill(&mut attached);
    let named = format!("in use by process {} (sleep)", user.pid());
    let again = attach(&attached.directory, &files, &[]);
    refused(&again, &[&named, text(&files), "run this again"]);
    assert!(is_mounted(&files) && is_mounted(&attached.path));
    user.signal("KILL");
    start_again(&mut attached, &files, &[]);
    user.wait(LONG).expect("it ends");
    attached.stop();
}

/// What looks like the dead one's, but is not: a file system from another loop device, one that only names the loop
/// device, and a loop device on the file of the same path that a mount hides.
#[test]
fn after_a_kill_nothing_of_others_is_removed() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    let hidden = directory.path().canonicalize().expect("it is there");
    let hidden = hidden.join("disk");
    fs::write(&hidden, [0; 4096]).expect("room");
    let on_hidden = Loop::on(&hidden, false);
    fs::write(&hidden, "").expect("it is there");
    let mut attached = Attached::start_in(directory, THIN, &[]);
    let on_ours = Loop::on(&attached.path, true);
    let other = attached.directory.sparse("other.img", 64 << 20);
    ran("mkfs.ext4", "e2fsprogs", &["-q", "-F", text(&other)]).success();
    let on_other = Loop::on(&other, true);
    kill(&mut attached);
    let in_the_way = |attached: &Attached| {
        let run = format!("run: umount {}", text(&files));
        refused(&attach(&attached.directory, &files, &[]), &[&run]);
        assert!(is_mounted(&files));
    };
    {
        let _named = Mounted::new(files.clone(), &["-t", "tmpfs", &on_ours.0]);
        in_the_way(&attached);
        assert_eq!(loops_on(&hidden).len(), 1, "only the hidden file's");
    }
    attached.start_again(THIN);
    kill(&mut attached);
    {
        let _other = Mounted::new(files.clone(), &[&on_other.0]);
        in_the_way(&attached);
        assert_eq!(loops_on(&other).len(), 1);
    }
    start_again(&mut attached, &files, &[]);
    let devices = loops_on(&hidden);
    let name = Path::new(&on_hidden.0).file_name();
    assert!(
        devices.iter().any(|device| device.file_name() == name),
        "{devices:?}"
    );
    attached.stop();
}

#[test]
fn what_is_no_file_system_is_left_as_it_is() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    let image = directory.join("db.img");
    fs::remove_file(&image).expect("it is there");
    directory.sparse("db.img", 64 << 20);
    let mend = [
        "there is no file system on the volume",
        "mkfs.ext4",
        "without --mount",
    ];
    refused(&attach(&directory, &files, &[]), &mend);
    nothing_is_left(&directory, &files);
    let is_zero = |image: &Path| {
        fs::read(image)
            .expect("it is there")
            .iter()
            .all(|&byte| byte == 0)
    };
    assert!(is_zero(&image), "nothing was made");

    // A partition of 2048 sectors that starts at sector 2048.
    let mut table = vec![0; 512];
    table[446..462].copy_from_slice(&[0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0]);
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("it is there");
    std::os::unix::fs::FileExt::write_all_at(&file, &table, 0).expect("room");
    refused(
        &attach(&directory, &files, &[]),
        &["a partition table (dos)", "--partscan"],
    );
    nothing_is_left(&directory, &files);

    ran("mkswap", "util-linux", &[text(&image)]).success();
    refused(
        &attach(&directory, &files, &[]),
        &["holds swap, which is not a file system"],
    );
    nothing_is_left(&directory, &files);
}

#[test]
fn what_is_in_the_way_is_said() {
    if !can_attach() {
        return;
    }
    let (directory, files) = prepared();
    fs::write(files.join("precious"), "").expect("a file");
    let words = ["is not empty", "precious", "name an empty directory"];
    refused(&attach(&directory, &files, &[]), &words);
    {
        let _other = Mounted::new(files.clone(), &["-t", "tmpfs", "scratch"]);
        let run = format!("run: umount {}", text(&files));
        refused(
            &attach(&directory, &files, &[]),
            &["scratch", "(tmpfs)", &run],
        );
    }
    let image = directory.join("db.img");
    refused(&attach(&directory, &image, &[]), &["is not a directory"]);
    let nowhere = directory.join("nowhere");
    refused(
        &attach(&directory, &nowhere, &[]),
        &["make the directory first"],
    );
    assert!(
        !directory.join("sanstone.state").exists(),
        "nothing was opened"
    );
    fs::remove_file(files.join("precious")).expect("it is there");
    let ran = attach(&directory, &files, &["--fs-options", "no-such-option"]);
    refused(&ran, &["mount: "]);
    nothing_is_left(&directory, &files);
}
