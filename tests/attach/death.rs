//! `kill -9`: what is in flight fails, nothing hangs, and the same command attaches the volume again.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use harness::process::program;
use harness::run::{Ran, run};

use crate::attached::{Attached, LONG, Loop, Mounted, can_attach, ran, text};

const THIN: &str = "[volume.db]\nfile = { path = \"db.img\", size = \"128MiB\" }\n";

/// Writes at depth 32 until a write fails or fio's option `until` says so; runs `then` meanwhile, once many have been
/// written.
pub(crate) fn while_writing(
    attached: &mut Attached,
    until: &str,
    then: impl FnOnce(&mut Attached),
) -> Ran {
    let mut command = Command::new(program("fio", "fio"));
    command.args([
        "--name=writes",
        &format!("--filename={}", text(&attached.path)),
        "--rw=randwrite",
        "--ioengine=libaio",
        "--direct=1",
        "--bs=4k",
        "--iodepth=32",
        "--size=128m",
        "--time_based",
        "--runtime=3600",
        until,
    ]);
    let image = attached.directory.join("db.img");
    let space = || fs::metadata(&image).map_or(0, |found| found.blocks());
    let before = space();
    thread::scope(|scope| {
        let writer = scope.spawn(move || run(&mut command, LONG));
        let deadline = Instant::now() + LONG;
        while space() < before + 2000 && Instant::now() < deadline && !writer.is_finished() {
            thread::sleep(Duration::from_millis(5));
        }
        then(attached);
        writer.join().expect("it runs")
    })
}

#[test]
fn whoever_writes_gets_errors_and_the_next_attach_serves_again() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&attached.path);
    let file = file.expect("it can be opened");
    let kept = harness::noise(1, 10_000);
    // Behind what is overwritten: in the file's last bytes there is nothing of fio's, which is 4K of each.
    let writes = while_writing(&mut attached, "--loops=1", |attached| {
        attached.daemon.signal("KILL");
        attached.daemon.wait(LONG).expect("it is dead");
    });
    assert!(writes.status.is_some(), "it hangs: {writes}");
    assert_ne!(writes.code(), Some(0), "{writes}");
    let error = file.read_at(&mut [0; 512], 0).expect_err("nobody is there");
    assert!(
        matches!(
            error.kind(),
            ErrorKind::NotConnected | ErrorKind::ConnectionAborted
        ),
        "{error}"
    );
    let error = fs::metadata(&attached.path).expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    drop(file);

    attached.start_again(THIN);
    assert!(
        attached.daemon.log().contains("that died"),
        "{}",
        attached.daemon.log()
    );
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&attached.path);
    let file = file.expect("it can be opened");
    file.write_all_at(&kept, 1).expect("a write");
    let mut back = vec![0; kept.len()];
    file.read_exact_at(&mut back, 1).expect("a read");
    assert!(back == kept);
    drop(file);
    attached.stop();
    assert!(
        attached.path.is_file(),
        "it was there when the second one began"
    );
}

#[test]
fn a_file_system_on_it_fails_and_can_be_unmounted() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let device = Loop::on(&attached.path, true);
    ran("mkfs.ext4", "e2fsprogs", &["-q", "-F", &device.0]).success();
    let files = Mounted::new(attached.directory.join("files"), &[&device.0]);
    let path = files.0.join("file");
    fs::write(&path, harness::noise(1, 1 << 20)).expect("room");
    ran("sync", "coreutils", &["-f", text(&path)]).success();
    attached.daemon.signal("KILL");
    attached.daemon.wait(LONG).expect("it is dead");
    let _ = fs::write(&path, harness::noise(2, 1 << 20));
    let synced = ran("sync", "coreutils", &[text(&path)]);
    assert_ne!(synced.code(), Some(0), "{synced}");
    ran("umount", "mount", &[text(&files.0)]).success();
    drop(device);

    attached.start_again(THIN);
    let device = Loop::on(&attached.path, true);
    let files = Mounted::new(attached.directory.join("files"), &[&device.0]);
    let file = fs::read(files.0.join("file")).expect("it was synced");
    assert_eq!(file.len(), 1 << 20);
}
