//! A running `sanstone attach`, loop devices and mounts, all removed when the test ends, however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use harness::directory::Directory;
use harness::process::{Daemon, program};
use harness::run::{Ran, run};
use harness::sanstone::binary;

/// For programs that end by themselves, unless something hangs.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// Whether a volume can be attached here; if not, the test is skipped with the reason.
pub(crate) fn can_attach() -> bool {
    let why = if !rustix::process::geteuid().is_root() {
        "it needs root"
    } else if !Path::new("/dev/fuse").exists() {
        "there is no /dev/fuse"
    } else if !Path::new("/dev/loop-control").exists() {
        "there is no /dev/loop-control"
    } else {
        return true;
    };
    harness::skip(why);
    false
}

/// Runs a program to its end; it must not hang.
#[track_caller]
pub(crate) fn ran(name: &str, package: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new(program(name, package));
    let ran = run(command.args(arguments), LONG);
    assert!(ran.status.is_some(), "it hangs: {ran}");
    ran
}

/// A path as programs take it.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("our paths are plain text")
}

/// Writes to the beginning of a file that cannot be truncated.
pub(crate) fn overwrite(path: &Path, data: &[u8]) -> std::io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path)?;
    std::os::unix::fs::FileExt::write_all_at(&file, data, 0)
}

/// What is mounted on `path`, as the kernel says.
pub(crate) fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
    let point = path.to_str();
    mounts.lines().any(|line| line.split(' ').nth(4) == point)
}

/// A `sanstone attach` of a test's own.
pub(crate) struct Attached {
    /// Goes before the directory, where its log is: a test that fails shows it.
    pub(crate) daemon: Daemon,
    pub(crate) directory: Directory,
    /// Where the volume is.
    pub(crate) path: PathBuf,
}

impl Attached {
    /// Attaches the volume `db`, whose table is `volume`, at a path that does not exist yet.
    pub(crate) fn start(volume: &str) -> Attached {
        Attached::start_in(Directory::new(), volume, &[])
    }

    /// The same in this directory, with more arguments.
    pub(crate) fn start_in(directory: Directory, volume: &str, arguments: &[&str]) -> Attached {
        Attached::start_by(Command::new(binary()), directory, volume, arguments)
    }

    /// The same by a command that runs the binary.
    pub(crate) fn start_by(
        command: Command,
        directory: Directory,
        volume: &str,
        arguments: &[&str],
    ) -> Attached {
        let path = directory.path().canonicalize().expect("it is there");
        let path = path.join("disk");
        let daemon = start(command, &directory, volume, &path, arguments);
        Attached {
            daemon,
            directory,
            path,
        }
    }

    /// Starts it once more, after its end.
    pub(crate) fn start_again(&mut self, volume: &str) {
        self.start_again_with(volume, &[]);
    }

    /// The same with more arguments.
    pub(crate) fn start_again_with(&mut self, volume: &str, arguments: &[&str]) {
        self.start_again_by(Command::new(binary()), volume, arguments);
    }

    /// The same by a command that runs the binary.
    pub(crate) fn start_again_by(&mut self, command: Command, volume: &str, arguments: &[&str]) {
        self.daemon = start(command, &self.directory, volume, &self.path, arguments);
    }

    /// Shuts it down in an orderly way.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        self.daemon.signal("TERM");
        let status = self.daemon.wait(LONG).expect("it ends");
        assert_eq!(status.code(), Some(0), "{}", self.daemon.log());
    }
}

fn start(
    mut command: Command,
    directory: &Directory,
    volume: &str,
    path: &Path,
    arguments: &[&str],
) -> Daemon {
    let configuration = directory.write("sanstone.toml", volume);
    command.arg("attach").arg("-c").arg(configuration);
    command.args(["db", "--fuse"]).arg(path).args(arguments);
    let mut daemon = Daemon::start(&command, directory.join("attach.log"));
    let log = directory.join("attach.log");
    daemon.wait_until(|| fs::read_to_string(&log).is_ok_and(|log| log.contains(" attached ")));
    daemon
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.daemon.signal("KILL");
        let _ = self.daemon.wait(LONG);
        while is_mounted(&self.path) && unmounted(&self.path) {}
    }
}

fn unmounted(path: &Path) -> bool {
    let ran = Command::new(program("umount", "mount"))
        .arg("-l")
        .arg(path)
        .status();
    ran.is_ok_and(|status| status.success())
}

/// A loop device on a file.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    /// With direct I/O, or through the page cache.
    #[track_caller]
    pub(crate) fn on(path: &Path, is_direct: bool) -> Loop {
        let direct = if is_direct {
            "--direct-io=on"
        } else {
            "--direct-io=off"
        };
        let found = ran("losetup", "mount", &["-f", "--show", direct, text(path)]).success();
        Loop(found.stdout.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let losetup = program("losetup", "mount");
        let _ = Command::new(losetup).args(["-d", &self.0]).status();
    }
}

/// A file system that is mounted on a directory of the test.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Mounted {
    /// Mounts with these arguments of `mount`, on a new directory.
    #[track_caller]
    pub(crate) fn new(directory: PathBuf, arguments: &[&str]) -> Mounted {
        fs::create_dir_all(&directory).expect("a directory");
        let all = [arguments, &[text(&directory)]].concat();
        ran("mount", "mount", &all).success();
        Mounted(directory)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            unmounted(&self.0);
        }
    }
}
