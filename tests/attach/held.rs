//! Told to stop while somebody has the volume, `sanstone attach` goes on serving it until nobody has it any more, and
//! names them: whoever they are, and wherever they are.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::directory::Directory;
use harness::process::{Daemon, program};

use crate::attached::{Attached, LONG, Loop, Mounted, can_attach, is_mounted, ran, text};

const THIN: &str = "lanes = 2\n[volume.db]\nfile = { path = \"db.img\", size = \"64MiB\" }\n";

/// A volume that holds a file system.
fn with_file_system() -> (Directory, PathBuf) {
    let directory = Directory::new();
    let image = directory.sparse("db.img", 64 << 20);
    ran("mkfs.ext4", "e2fsprogs", &["-q", "-F", text(&image)]).success();
    let files = directory.path().canonicalize().expect("it is there");
    let files = files.join("files");
    fs::create_dir(&files).expect("a directory");
    (directory, files)
}

/// Attaches it with `--mount`.
fn start_mounted(directory: Directory, files: &Path) -> Attached {
    let attached = Attached::start_in(directory, THIN, &["--mount", text(files)]);
    attached.daemon.log_with("INFO mounted ");
    attached
}

/// The loop device below what is mounted on `directory`.
fn device_of(directory: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("it can be read");
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(1) == directory.to_str());
    let device = line.and_then(|line| line.split(' ').next());
    device.expect("it is mounted").to_owned()
}

/// Tells it to stop, and waits until it names who has the volume. It still runs then.
fn told_to_stop(attached: &mut Attached, named: &[&str]) {
    attached.daemon.signal("TERM");
    for name in named {
        attached.daemon.log_with(name);
    }
    assert!(
        attached.daemon.ended().is_none(),
        "{}",
        attached.daemon.log()
    );
}

/// It ends now, in order, and leaves nothing.
fn ends(attached: &mut Attached) {
    let status = attached.daemon.wait(LONG).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", attached.daemon.log());
    assert!(!is_mounted(&attached.path) && !attached.path.exists());
}

/// Runs a script of the shell until it is killed, and waits until it says `ready`.
fn run_in_shell(attached: &Attached, arguments: &[&str], script: &str) -> Daemon {
    let mut command = Command::new(program("unshare", "util-linux"));
    command.args(arguments).args([
        "sh",
        "-c",
        &format!("{script}; echo ready; exec sleep 3600"),
    ]);
    command.arg(&attached.path);
    let user = Daemon::start(&command, attached.directory.join("user.log"));
    user.log_with("ready");
    user
}

fn end(mut user: Daemon) {
    user.signal("KILL");
    user.wait(LONG).expect("it is dead");
}

#[test]
fn a_program_that_has_the_file_open_or_mapped_has_it_to_its_end() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let user = run_in_shell(&attached, &[], "exec 5<>$0");
    let named = format!("the file is in use by process {} (sleep)", user.pid());
    told_to_stop(&mut attached, &[&named]);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&attached.path);
    let file = file.expect("it is there still");
    file.write_all_at(b"later", 5).expect("it is served still");
    file.sync_all().expect("a flush");
    drop(file);
    end(user);
    ends(&mut attached);
    let image = fs::read(attached.directory.join("db.img")).expect("it is there");
    assert_eq!(&image[5..10], b"later");
}

#[test]
fn a_loop_device_and_what_is_mounted_from_it_have_the_file_to_their_end() {
    if !can_attach() {
        return;
    }
    let (directory, files) = with_file_system();
    let mut attached = Attached::start_in(directory, THIN, &[]);
    let device = Loop::on(&attached.path, true);
    let mounted = Mounted::new(files.clone(), &[&device.0]);
    let named = format!(
        "the loop device {}, which is in use by a mount on {}",
        device.0,
        text(&files)
    );
    told_to_stop(&mut attached, &[&named]);
    let content = harness::noise(1, 1 << 20);
    fs::write(files.join("file"), &content).expect("it is served still");
    drop(mounted);
    drop(device);
    ends(&mut attached);
    let image = attached.directory.join("db.img");
    ran("e2fsck", "e2fsprogs", &["-f", "-n", text(&image)]).success();
}

#[test]
fn another_mount_namespace_has_the_file_to_its_end() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    // As a container has what was mounted when it began.
    let user = run_in_shell(&attached, &["--mount", "--propagation", "private"], ":");
    let named = format!("in the mount namespace of process {} (sleep)", user.pid());
    told_to_stop(&mut attached, &[&named]);
    assert!(!is_mounted(&attached.path), "here it is gone");
    let inside = PathBuf::from(format!("/proc/{}/root{}", user.pid(), text(&attached.path)));
    let file = OpenOptions::new()
        .write(true)
        .open(&inside)
        .expect("there it is");
    file.write_all_at(b"later", 0).expect("it is served there");
    drop(file);
    end(user);
    ends(&mut attached);
}

#[test]
fn a_file_that_was_unmounted_lazily_is_served_to_whoever_has_it_open() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&attached.path);
    let file = file.expect("it is there");
    ran("umount", "mount", &["-l", text(&attached.path)]).success();
    told_to_stop(
        &mut attached,
        &[&format!("process {} (", std::process::id())],
    );
    file.write_all_at(b"later", 0).expect("it is served still");
    file.sync_all().expect("a flush");
    drop(file);
    ends(&mut attached);
}

#[test]
fn a_frozen_file_system_has_the_file_until_it_is_thawed() {
    if !can_attach() {
        return;
    }
    let (directory, files) = with_file_system();
    let mut attached = start_mounted(directory, &files);
    let device = device_of(&files);
    fs::write(files.join("file"), harness::noise(1, 1 << 20)).expect("room");
    ran("fsfreeze", "util-linux", &["-f", text(&files)]).success();
    let named = format!("the loop device {device}, which is in use by its ext4 file system");
    told_to_stop(&mut attached, &[&named, "fsfreeze -u"]);
    assert!(!is_mounted(&files));
    // Mounted again, it is the same one.
    let again = Mounted::new(attached.directory.join("again"), &[&device]);
    ran("fsfreeze", "util-linux", &["-u", text(&again.0)]).success();
    fs::write(again.0.join("later"), harness::noise(2, 1 << 20)).expect("it is served still");
    drop(again);
    ends(&mut attached);
    let image = attached.directory.join("db.img");
    ran("e2fsck", "e2fsprogs", &["-f", "-n", text(&image)]).success();
}

#[test]
fn other_mounts_of_the_file_system_have_it_to_their_end() {
    if !can_attach() {
        return;
    }
    let (directory, files) = with_file_system();
    let mut attached = start_mounted(directory, &files);
    let device = device_of(&files);
    let elsewhere = attached.directory.join("elsewhere");
    let bound = Mounted::new(
        elsewhere.canonicalize().unwrap_or(elsewhere),
        &["--bind", text(&files)],
    );
    let container = run_in_shell(&attached, &["--mount", "--propagation", "private"], ":");
    let named = format!("the loop device {device}, which is in use by a mount on ");
    let other = format!("in the mount namespace of process {}", container.pid());
    told_to_stop(&mut attached, &[&named, &other]);
    assert!(!is_mounted(&files));
    let content = harness::noise(1, 1 << 20);
    fs::write(bound.0.join("file"), &content).expect("it is served still");
    drop(bound);
    assert!(
        attached.daemon.ended().is_none(),
        "the container has it still"
    );
    end(container);
    ends(&mut attached);
    let image = attached.directory.join("db.img");
    ran("e2fsck", "e2fsprogs", &["-f", "-n", text(&image)]).success();
}

#[test]
fn what_is_mounted_over_the_file_stays_and_is_named() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let other = attached.directory.write("other", "precious");
    ran(
        "mount",
        "mount",
        &["--bind", text(&other), text(&attached.path)],
    )
    .success();
    told_to_stop(&mut attached, &["is mounted over it"]);
    assert_eq!(fs::read(&attached.path).expect("it is there"), b"precious");
    ran("umount", "mount", &[text(&attached.path)]).success();
    ends(&mut attached);
    assert_eq!(fs::read(&other).expect("it is there"), b"precious");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let file = File::open(&attached.path).expect("it is there");
    // By then a second has passed.
    told_to_stop(&mut attached, &["in use by process"]);
    attached.daemon.signal("TERM");
    let status = attached.daemon.wait(LONG).expect("it ends");
    assert_eq!(status.code(), Some(1), "{}", attached.daemon.log());
    file.read_at(&mut [0; 512], 0).expect_err("nobody is there");
}

/// Unmounting writes back what is dirty, so it may wait for a volume that stands still.
#[test]
fn a_second_signal_ends_it_at_once_even_while_unmounting_waits_for_the_volume() {
    if !can_attach() {
        return;
    }
    let (directory, files) = with_file_system();
    // The first are those of mounting it.
    let volume = "[volume.db]\nfault = { rules = [{ on = \"write\", skip = 12, hang = true }], \
                  of = { file = { path = \"db.img\", size = \"64MiB\" } } }\n";
    let mut attached = Attached::start_in(directory, volume, &["--mount", text(&files)]);
    attached.daemon.log_with("INFO mounted ");
    let _guard = Mounted(files.clone());
    fs::write(files.join("file"), harness::noise(1, 16 << 20)).expect("room");
    told_to_stop(&mut attached, &["is being written to the volume"]);
    attached.daemon.signal("TERM");
    let status = attached.daemon.wait(LONG).expect("it ends");
    assert_eq!(status.code(), Some(1), "{}", attached.daemon.log());
}

/// Here nobody can be served any more, so nothing is waited for.
#[test]
fn an_aborted_connection_is_a_failure_and_ends_it_whoever_has_the_file() {
    if !can_attach() {
        return;
    }
    let (directory, files) = with_file_system();
    let mut attached = start_mounted(directory, &files);
    let file = File::open(&attached.path).expect("it is there");
    let number = rustix::fs::minor(file.metadata().expect("attributes").dev());
    let control = Mounted::new(
        attached.directory.join("control"),
        &["-t", "fusectl", "none"],
    );
    let mut user = Command::new(program("sleep", "coreutils"));
    user.arg("3600").current_dir(&files);
    let user = Daemon::start(&user, attached.directory.join("user.log"));
    fs::write(control.0.join(format!("{number}/abort")), "1").expect("root may");
    let status = attached.daemon.wait(LONG).expect("it ends");
    let log = attached.daemon.log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(
        log.contains("somebody has aborted the FUSE connection"),
        "{log}"
    );
    assert!(!is_mounted(&attached.path) && !is_mounted(&files));
    drop(file);
    end(user);
}
