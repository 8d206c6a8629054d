//! An unprivileged user attaches a volume: `fusermount3` mounts and unmounts for that user, and nobody else, root
//! included, opens the file.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use harness::directory::Directory;
use harness::process::program;
use harness::run::{Ran, run};
use harness::sanstone::binary;

use crate::attached::{Attached, LONG, can_attach, is_mounted, text};

/// The unprivileged user.
const NOBODY: u32 = 65534;
const THIN: &str = "[volume.db]\nfile = { path = \"db.img\", size = \"16MiB\" }\n";

/// Runs a program as nobody.
fn setpriv() -> String {
    format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --pdeathsig KILL --")
}

/// The binary may be in a directory that `nobody` cannot read, so root opens it and it is run through its descriptor.
fn sanstone() -> Command {
    let mut command = Command::new("sh");
    let script = format!("exec {} /proc/self/fd/0 \"$@\" < \"$0\"", setpriv());
    command.arg("-c").arg(script).arg(binary());
    command
}

/// Makes `/dev/fuse` accessible to everybody, as udev does (without udev only root may open it), and restores its mode
/// afterwards.
struct OpenDevice(fs::Permissions);

impl OpenDevice {
    const PATH: &str = "/dev/fuse";

    fn new() -> OpenDevice {
        let before = fs::metadata(Self::PATH).expect("it is there").permissions();
        let everybody = fs::Permissions::from_mode(before.mode() | 0o666);
        fs::set_permissions(Self::PATH, everybody).expect("root may");
        OpenDevice(before)
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        let _ = fs::set_permissions(Self::PATH, self.0.clone());
    }
}

#[track_caller]
fn as_nobody(script: &str, path: &Path) -> Ran {
    let all = format!("exec {} sh -c '{script}' sh \"$0\"", setpriv());
    let ran = run(Command::new("sh").arg("-c").arg(all).arg(path), LONG);
    assert!(ran.status.is_some(), "it hangs: {ran}");
    ran
}

#[test]
fn a_user_without_rights_attaches_a_volume_by_fusermount3() {
    if !can_attach() {
        return;
    }
    let helper = program("fusermount3", "fuse3");
    let helper = fs::metadata(helper).expect("it is there");
    if helper.uid() != 0 || helper.mode() & 0o4000 == 0 {
        return harness::skip("fusermount3 is not set-user-ID root here");
    }
    let _device = OpenDevice::new();
    let directory = Directory::new();
    chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(directory.path(), private).expect("root may");
    let mut attached = Attached::start_by(sanstone(), directory, THIN, &[]);
    let process = fs::metadata(format!("/proc/{}", attached.daemon.pid())).expect("it runs");
    assert_eq!(process.uid(), NOBODY);
    let written = as_nobody(
        "printf data | dd of=\"$1\" conv=notrunc,fsync",
        &attached.path,
    );
    written.success();
    assert_eq!(
        as_nobody("head -c 4 \"$1\"", &attached.path)
            .success()
            .stdout,
        "data"
    );
    let error = fs::read(&attached.path).expect_err("it is not for root");
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    attached.stop();
    assert!(!attached.path.exists() && !is_mounted(&attached.path));
    let image = fs::read(attached.directory.join("db.img")).expect("it is there");
    assert_eq!(&image[..4], b"data");

    // The next `attach` removes what a killed one left, and the user who mounted it may unmount it.
    attached.start_again_by(sanstone(), THIN, &[]);
    attached.daemon.signal("KILL");
    attached.daemon.wait(LONG).expect("it is dead");
    assert!(is_mounted(&attached.path), "{}", text(&attached.path));
    attached.start_again_by(sanstone(), THIN, &[]);
    as_nobody("fusermount3 -u \"$1\"", &attached.path).success();
    let status = attached.daemon.wait(LONG).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", attached.daemon.log());
    assert!(!is_mounted(&attached.path));
}

#[test]
fn without_fusermount3_it_says_what_to_install() {
    if !can_attach() {
        return;
    }
    let directory = Directory::new();
    chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
    let config = directory.write("sanstone.toml", THIN);
    let path = directory.join("disk");
    let mut command = sanstone();
    command.args(["attach", "-c", text(&config), "db", "--fuse", text(&path)]);
    // A PATH with setpriv and no more.
    let tools = directory.join("tools");
    fs::create_dir(&tools).expect("a directory");
    for name in ["sh", "setpriv"] {
        let link = std::os::unix::fs::symlink(program(name, "util-linux"), tools.join(name));
        link.expect("a link");
    }
    let ran = run(command.env("PATH", &tools), LONG);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(
        ran.stderr.contains("install it (Debian's package fuse3)"),
        "{ran}"
    );
    assert!(!path.exists());
}
