//! The file says that it is a regular file, and programs rely on what regular files do: one that was truncated is empty,
//! one that was changed has another time. A volume cannot be truncated, so that is refused; its changes are told.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use harness::process::program;
use harness::run::{Ran, run};
use rustix::fs::{FallocateFlags, fallocate};

use crate::attached::{Attached, LONG, Loop, can_attach, ran, text};

const MIB: usize = 1 << 20;
const LEN: usize = 16 * MIB;
const THIN: &str = "lanes = 2\n[volume.db]\nfile = { path = \"db.img\", size = \"16MiB\" }\n";

/// A script of the shell, with these arguments.
fn shell(script: &str, arguments: &[&Path]) -> Ran {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(arguments);
    let ran = run(&mut command, LONG);
    assert!(ran.status.is_some(), "it hangs: {ran}");
    ran
}

/// Whatever writes an image to the file writes it whole, or fails: what it leaves out as zeroes must not be old data.
#[test]
fn an_image_is_written_whole_or_refused() {
    if !can_attach() {
        return;
    }
    let attached = Attached::start(THIN);
    let image = attached.directory.sparse("new.img", LEN as u64);
    let file = OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("it is there");
    for at in [0, 9 * MIB] {
        file.write_all_at(&harness::noise(1, MIB), at as u64)
            .expect("room");
    }
    let qemu_img = program("qemu-img", "qemu-utils");
    let qemu_img = text(&qemu_img);
    let convert = format!("{qemu_img} convert -f raw -O raw \"$1\" \"$2\"");
    let in_place = format!("{qemu_img} convert -n -f raw -O raw \"$1\" \"$2\"");
    let create = format!("{qemu_img} create -f raw \"$2\" 16M");
    let scripts = [
        ("cp \"$1\" \"$2\"", false),
        ("cp --sparse=always \"$1\" \"$2\"", false),
        ("dd if=\"$1\" of=\"$2\" bs=1M", false),
        ("cat \"$1\" > \"$2\"", false),
        (convert.as_str(), false),
        (create.as_str(), false),
        ("truncate -s 0 \"$2\"", false),
        ("truncate -s 32M \"$2\"", false),
        ("fallocate -l 32M \"$2\"", false),
        ("fallocate --collapse-range -l 1M \"$2\"", false),
        ("fallocate --insert-range -l 1M \"$2\"", false),
        ("dd if=\"$1\" of=\"$2\" bs=1M conv=notrunc", true),
        (
            "dd if=\"$1\" of=\"$2\" bs=1M conv=notrunc,fsync oflag=direct",
            true,
        ),
        (in_place.as_str(), true),
    ];
    for (script, is_done) in scripts {
        let old = vec![b'O'; LEN];
        let file = OpenOptions::new()
            .write(true)
            .open(&attached.path)
            .expect("a file");
        file.write_all_at(&old, 0).expect("room");
        let ran = shell(script, &[&image, &attached.path]);
        assert_eq!(ran.code() == Some(0), is_done, "{ran}");
        let found = fs::read(&attached.path).expect("it can be read");
        let expected = if is_done {
            fs::read(&image).expect("it is there")
        } else {
            old
        };
        assert!(found == expected, "{script}");
    }
    attached.daemon.log_with("a volume keeps its length");
}

/// When the file was modified, and when it or its attributes were.
fn times(path: &Path) -> [(i64, i64); 2] {
    let found = fs::metadata(path).expect("attributes");
    [
        (found.mtime(), found.mtime_nsec()),
        (found.ctime(), found.ctime_nsec()),
    ]
}

#[test]
fn whatever_changes_the_content_moves_the_times_whoever_does_it() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let path = attached.path.clone();
    let open = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("a file")
    };
    let (file, other) = (open(), open());
    let device = Loop::on(&path, true);
    let by_loop = OpenOptions::new()
        .write(true)
        .open(&device.0)
        .expect("a device");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let changes: [(&str, &dyn Fn()); 7] = [
        ("a write", &|| file.write_all_at(b"data", 3).expect("room")),
        ("another's", &|| {
            other.write_all_at(&[1; 4096], 8192).expect("room")
        }),
        ("a hole", &|| {
            fallocate(&file, punch, 0, 4096).expect("it takes discards")
        }),
        ("zeroes", &|| {
            fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 512).expect("zeroes")
        }),
        ("a loop device's", &|| {
            by_loop.write_all_at(&[2; 4096], 4096).expect("room");
            by_loop.sync_all().expect("a flush");
        }),
        ("its length again", &|| {
            file.set_len(LEN as u64).expect("it has it")
        }),
        ("a mapped page", &|| write_mapped(&path)),
    ];
    let mut last = times(&path);
    for (what, change) in changes {
        assert_eq!(
            times(&path),
            last,
            "nothing has changed since, before {what}"
        );
        change();
        let now = times(&path);
        assert!(
            now[0] > last[0] && now[1] > last[1],
            "{what}: {now:?} after {last:?}"
        );
        last = now;
    }
    fs::read(&path).expect("it can be read");
    file.sync_all().expect("a flush");
    assert_eq!(times(&path), last, "reads and flushes change nothing");
    drop((file, other, by_loop, device));
    attached.stop();
    // What has happened in between is not known.
    attached.start_again(THIN);
    assert!(times(&path)[0] > last[0], "{last:?}");
    attached.stop();
}

/// Changes a page through memory, and has that written.
fn write_mapped(path: &Path) {
    let job = format!("--filename={}", text(path));
    let options = [
        "--name=m",
        "--rw=write",
        "--ioengine=mmap",
        "--bs=4k",
        "--size=4k",
        "--end_fsync=1",
    ];
    ran(
        "fio",
        "fio",
        &[&options[..], &[&job, "--overwrite=1"]].concat(),
    )
    .success();
}

#[test]
fn backups_find_what_has_changed() {
    if !can_attach() {
        return;
    }
    let attached = Attached::start(THIN);
    let backup = attached.directory.join("backup");
    fs::create_dir(&backup).expect("a directory");
    let rsync = program("rsync", "rsync");
    let tar = "tar -C \"$1\" --listed-incremental=\"$1/list\" -cf \"$1/$3.tar\" disk";
    let file = OpenOptions::new()
        .write(true)
        .open(&attached.path)
        .expect("a file");
    for round in 1..=2 {
        file.write_all_at(&vec![round; LEN], 0).expect("room");
        let mut command = Command::new(&rsync);
        run(command.arg("-t").arg(&attached.path).arg(&backup), LONG).success();
        let kept = fs::read(backup.join("disk")).expect("it is there");
        assert!(kept == vec![round; LEN], "rsync, round {round}");
        let name = round.to_string();
        shell(tar, &[attached.directory.path(), &backup, Path::new(&name)]).success();
        let archive = fs::metadata(attached.directory.join(&format!("{round}.tar")));
        assert!(
            archive.expect("it is there").len() > LEN as u64,
            "tar, round {round}"
        );
        // Many programs compare whole seconds.
        let second = times(&attached.path)[0].0;
        while std::time::UNIX_EPOCH
            .elapsed()
            .expect("after 1970")
            .as_secs() as i64
            <= second + 1
        {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

#[test]
fn what_is_told_of_owner_mode_and_times_is_done_or_refused() {
    if !can_attach() {
        return;
    }
    let attached = Attached::start(THIN);
    let path = &attached.path;
    let before = fs::metadata(path).expect("attributes");
    let denied = |result: std::io::Result<()>| {
        let error = result.expect_err("it keeps it");
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    };
    denied(chown(path, Some(before.uid() + 1), None));
    denied(chown(path, None, Some(before.gid() + 1)));
    denied(fs::set_permissions(path, fs::Permissions::from_mode(0o666)));
    chown(path, Some(before.uid()), Some(before.gid())).expect("it has it");
    fs::set_permissions(path, before.permissions()).expect("it has them");
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 5);
    let file = OpenOptions::new().write(true).open(path).expect("a file");
    let set = fs::FileTimes::new().set_modified(old).set_accessed(old);
    file.set_times(set).expect("it takes them");
    let given = fs::metadata(path).expect("attributes");
    assert_eq!(
        (given.modified().ok(), given.accessed().ok()),
        (Some(old), Some(old))
    );
    assert!((given.ctime(), given.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    file.write_all_at(b"data", 0).expect("room");
    let written = fs::metadata(path).expect("attributes");
    assert!(written.mtime() >= before.mtime(), "a write is now");
}
