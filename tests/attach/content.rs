//! What is written reads back: any byte ranges, in parallel, through a file and a loop device.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use harness::mixed::{self, BLOCK_BYTES, Device};
use rustix::fs::{FallocateFlags, fallocate};

use crate::attached::{Attached, Loop, can_attach, ran, text};

const MIB: usize = 1 << 20;
const THIN: &str = "[volume.db]\nfile = { path = \"db.img\", size = \"128MiB\" }\n";

fn open(path: &Path) -> File {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.expect("it can be opened")
}

/// Random numbers of a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

/// Changes `len` bytes at byte `at` of `file` in every possible way, and checks after each step that they read back as
/// from any file. The range is not block-aligned, and others change the same blocks at the same time.
fn change(file: &File, at: usize, len: usize, seed: u64) {
    let mut random = Random(seed * 2 + 1);
    let mut model = vec![0; len];
    for step in 0..150 {
        let from = random.below(len);
        let longest = [1, 600, 5000, 40_000, len][random.below(5)];
        let count = 1 + random.below((len - from).min(longest));
        let place = (at + from) as u64;
        match random.below(5) {
            0 => {
                let flags = match random.below(2) {
                    0 => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    _ => FallocateFlags::ZERO_RANGE,
                };
                fallocate(file, flags, place, count as u64).expect("zeroes");
                model[from..from + count].fill(0);
            }
            1..3 => {
                let data = harness::noise(seed << 32 | step, count);
                file.write_all_at(&data, place).expect("a write");
                model[from..from + count].copy_from_slice(&data);
            }
            _ => {
                let mut data = vec![0; count];
                file.read_exact_at(&mut data, place).expect("a read");
                assert!(data == model[from..from + count], "{count} at {from}");
            }
        }
    }
    let mut all = vec![0; len];
    file.read_exact_at(&mut all, at as u64).expect("a read");
    assert!(all == model, "at the end");
}

#[test]
fn any_bytes_are_as_on_a_file_whoever_writes_beside_them() {
    if !can_attach() {
        return;
    }
    for block_size in ["512", "4096"] {
        let file = format!("path = \"db.img\", size = \"8MiB\", block_size = {block_size}");
        let volume = format!("[volume.db]\nfile = {{ {file} }}\n");
        let mut attached = Attached::start(&volume);
        const LEN: usize = 200_001;
        thread::scope(|scope| {
            for index in 0..4 {
                let path = &attached.path;
                scope.spawn(move || change(&open(path), 300 + index * LEN, LEN, index as u64));
            }
        });
        attached.stop();
    }
}

#[test]
fn a_disk_has_its_length_and_ends_there() {
    if !can_attach() {
        return;
    }
    let attached = Attached::start(THIN);
    let file = open(&attached.path);
    let len = 128 * MIB as u64;
    assert_eq!(file.metadata().expect("attributes").len(), len);
    let end = file.write_at(&[1; 4096], len - 512).expect("what fits");
    assert_eq!(end, 512);
    let beyond = file.write_at(&[1; 512], len).expect_err("the end");
    assert_eq!(beyond.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(file.read_at(&mut [0; 512], len).expect("nothing"), 0);
    // Whoever appends begins there.
    let mut appending = OpenOptions::new()
        .append(true)
        .open(&attached.path)
        .expect("a file");
    let beyond = std::io::Write::write(&mut appending, &[1; 512]).expect_err("the end");
    assert_eq!(beyond.kind(), std::io::ErrorKind::StorageFull);
}

/// A file of which ranges are punched out.
struct Punched(File);

impl Device for Punched {
    fn write(&self, at: u64, data: &[u8]) {
        self.0.write_all_at(data, at).expect("a write");
    }

    fn read(&self, at: u64, data: &mut [u8]) {
        self.0.read_exact_at(data, at).expect("a read");
    }

    fn punch(&self, at: u64, len: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.0, flags, at, len).expect("a hole");
    }
}

#[test]
fn a_mixed_load_with_punched_holes_reads_what_is_there_at_any_depth() {
    if !can_attach() {
        return;
    }
    for (depth, requests) in [(1, 1000), (8, 2500), (64, 4000)] {
        let mut attached = Attached::start(&format!("lanes = 2\n{THIN}"));
        let file = Punched(open(&attached.path));
        let counts = mixed::run(&file, 24 * MIB / BLOCK_BYTES, depth, requests, depth as u64);
        assert!(counts.punches > requests / 8, "{counts:?}");
        drop(file);
        attached.stop();
    }
}

/// `fio` writes everything at this depth, in pieces of varying lengths, and verifies each.
#[track_caller]
fn verify(path: &str, kind: &str, depth: u32) {
    let depth = format!("--iodepth={depth}");
    let arguments = [
        "--name=verify",
        &format!("--filename={path}"),
        &format!("--rw={kind}"),
        &depth,
        "--ioengine=libaio",
        "--direct=1",
        "--bsrange=512-1m",
        "--size=64m",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randrepeat=0",
    ];
    ran("fio", "fio", &arguments).success();
}

#[test]
fn fio_reads_back_what_it_wrote_at_any_depth() {
    if !can_attach() {
        return;
    }
    let attached = Attached::start(THIN);
    for depth in [1, 8, 64] {
        verify(text(&attached.path), "randwrite", depth);
        verify(text(&attached.path), "randrw", depth);
    }
}

#[test]
fn fio_reads_back_what_it_wrote_by_a_loop_device_with_trims() {
    if !can_attach() {
        return;
    }
    let attached = Attached::start(THIN);
    let device = Loop::on(&attached.path, true);
    for depth in [1, 8, 64] {
        verify(&device.0, "randwrite", depth);
        verify(&device.0, "randtrimwrite", depth);
    }
}

#[test]
fn what_is_mapped_and_synced_is_there() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let arguments = [
        "--name=mapped",
        &format!("--filename={}", text(&attached.path)),
        "--rw=randwrite",
        "--ioengine=mmap",
        "--bs=4k",
        "--size=16m",
        "--fsync=64",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--verify_fatal=1",
        "--verify_state_save=0",
    ];
    ran("fio", "fio", &arguments).success();
    attached.stop();
}

#[test]
fn fsync_flushes_the_volume_and_closing_does_not() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let flushes = |times| {
        attached.daemon.signal("USR1");
        let log = attached.daemon.log_with_times("db/file", times);
        log.matches("  flush ").count()
    };
    let file = open(&attached.path);
    file.write_all_at(b"data", 0).expect("a write");
    drop(file);
    assert_eq!(flushes(1), 0, "nobody has asked for one");
    open(&attached.path).sync_all().expect("a flush");
    attached.daemon.signal("USR1");
    attached.daemon.log_with("  flush ");
    attached.stop();
}
