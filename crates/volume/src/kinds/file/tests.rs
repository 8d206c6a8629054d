//! The file leaf on a real ring and real files.

use std::{
    cell::Cell,
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    rc::Rc,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    thread,
};

use engine::{Lane, LaneConfig, extent::Extent};

use super::{open::atomic_unit, *};
use crate::{ErrorKind, contract, graph::tests::OtherLane, kinds::file::Caching, scratch::Scratch};

const MODES: [Caching; 4] = [
    Caching::Direct,
    Caching::DirectSync,
    Caching::WriteThrough,
    Caching::WriteBack,
];

fn options(scratch: &Scratch, caching: Caching) -> FileOptions {
    FileOptions {
        path: scratch.file("disk"),
        len_bytes: Some(1 << 20),
        caching,
        block_size_bytes: 512,
        read_only: false,
    }
}

fn on_lane<T>(future: impl Future<Output = T>) -> T {
    Lane::new(&LaneConfig::default())
        .expect("a ring")
        .block_on(future)
}

fn refusal(options: &FileOptions) -> String {
    let error = on_lane(OpenFile::open(options)).expect_err("it does not open");
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    error.to_string()
}

#[test]
fn keeps_the_contract_in_every_mode() {
    for caching in MODES {
        for block_size_bytes in [512, 4096] {
            let scratch = Scratch::new();
            let options = FileOptions {
                block_size_bytes,
                ..options(&scratch, caching)
            };
            contract::run(|_| {
                LaneFuture::new(async move {
                    Ok(Rc::new(OpenFile::open(&options).await?.on_lane()) as _)
                })
            });
        }
    }
}

#[test]
fn keeps_the_contract_where_direct_io_needs_larger_units() {
    let scratch = Scratch::new();
    let options = options(&scratch, Caching::Direct);
    contract::run(|_| {
        LaneFuture::new(async move {
            let file = OpenFile::open_aligned(&options, 4096).await?;
            assert!(file.is_ordered());
            Ok(Rc::new(file.on_lane()) as _)
        })
    });
}

#[test]
fn keeps_the_contract_where_ranges_cannot_be_zeroed() {
    // tmpfs punches holes but does not support FALLOC_FL_ZERO_RANGE.
    let path = std::path::PathBuf::from(format!("/dev/shm/sanstone-{}", std::process::id()));
    let options = FileOptions {
        path: path.clone(),
        len_bytes: Some(1 << 20),
        caching: Caching::WriteBack,
        block_size_bytes: 512,
        read_only: false,
    };
    contract::run(|_| {
        LaneFuture::new(async move { Ok(Rc::new(OpenFile::open(&options).await?.on_lane()) as _) })
    });
    fs::remove_file(path).expect("it was made");
}

#[test]
fn keeps_the_contract_when_read_only() {
    let scratch = Scratch::new();
    fs::write(scratch.file("disk"), vec![7; 64 << 10]).expect("a file");
    let options = FileOptions {
        len_bytes: None,
        read_only: true,
        ..options(&scratch, Caching::Direct)
    };
    contract::run(|_| {
        LaneFuture::new(async move { Ok(Rc::new(OpenFile::open(&options).await?.on_lane()) as _) })
    });
}

#[test]
fn the_cache_that_is_reported_follows_from_the_mode() {
    for (caching, volatile) in MODES.into_iter().zip([true, false, false, true]) {
        let scratch = Scratch::new();
        let file = on_lane(OpenFile::open(&options(&scratch, caching))).expect("it opens");
        assert_eq!(file.shape().volatile_cache, volatile, "{caching:?}");
        assert_eq!(file.shape().physical_block_bytes, 4096);
        assert!(
            file.shape()
                .discard
                .is_some_and(|discard| discard.reads_zeroes)
        );
    }
}

fn set_len(path: &std::path::Path, len_bytes: u64) {
    let file = fs::File::options().write(true).open(path);
    file.and_then(|file| file.set_len(len_bytes))
        .expect("a file of ours");
}

#[test]
fn a_file_that_grew_is_followed_when_somebody_says_so() {
    for caching in MODES {
        let scratch = Scratch::new();
        let options = FileOptions {
            len_bytes: None,
            ..options(&scratch, caching)
        };
        let path = scratch.file("disk");
        fs::write(&path, vec![7; 64 << 10]).expect("a file");
        on_lane(async {
            let file = OpenFile::open(&options).await.expect("it opens");
            let before = file.shape().clone();
            let volume = file.on_lane();
            assert!(
                file.follow_length(file.len_bytes_now())
                    .expect("no change")
                    .is_none()
            );
            set_len(&path, 128 << 10);
            let new = Payload::from(Buf::copy_of(&[9; 4096]));
            let end = (128 << 10) - 4096;
            let refused = volume.write(end, new.clone(), Durability::Fua).await;
            let refused = refused.expect_err("nobody has looked yet");
            assert_eq!(refused.kind(), ErrorKind::OutOfRange);
            let grown = file
                .follow_length(file.len_bytes_now())
                .expect("it may")
                .expect("it grew");
            assert_eq!((grown.from_bytes, grown.len.bytes()), (64 << 10, 128 << 10));
            assert_eq!((&grown.path, before.len_bytes()), (&path, 128 << 10));
            volume.write(end, new, Durability::Fua).await.expect("room");
            let all = volume.read(0, 128 << 10).await.expect("a read").to_vec();
            assert!(all[..64 << 10] == [7; 64 << 10] && all[end as usize..] == [9; 4096]);
            assert!(all[64 << 10..end as usize].iter().all(|&byte| byte == 0));
            assert!(
                file.follow_length(file.len_bytes_now())
                    .expect("no change")
                    .is_none()
            );
        });
    }
}

#[test]
fn what_cannot_be_followed_is_told_with_the_mend() {
    let refusal = |len_bytes: Option<u64>, new_len: u64| {
        let scratch = Scratch::new();
        let options = FileOptions {
            len_bytes,
            ..options(&scratch, Caching::WriteBack)
        };
        set_len_of_new(&scratch, 1 << 20);
        on_lane(async {
            let file = OpenFile::open(&options).await.expect("it opens");
            set_len(&options.path, new_len);
            let seen = file.follow_length(file.len_bytes_now());
            assert_eq!(file.shape().len_bytes(), len_bytes.unwrap_or(1 << 20));
            seen.map(|grown| assert!(grown.is_none()))
                .map_err(|error| error.to_string())
        })
    };
    let says = |told: std::result::Result<(), String>, parts: &[&str]| {
        let told = told.expect_err("it is not followed");
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    };
    let shorter = ["disk", "524288", "1048576", "truncate -s 1048576"];
    says(refusal(None, 512 << 10), &shorter);
    says(refusal(Some(1 << 20), 512 << 10), &shorter);
    let held = ["disk", "1048576 to 2097153", "size = \"2097152B\""];
    says(refusal(Some(1 << 20), (2 << 20) + 1), &held);
    let odd = ["disk", "1048576 to 1048577", "truncate -s 1049088"];
    says(refusal(None, (1 << 20) + 1), &odd);
    // A size that was smaller than the file before does not limit it, and removing it does not matter.
    assert_eq!(refusal(Some(512 << 10), 1 << 20), Ok(()));
    assert_eq!(refusal(Some(512 << 10), 600 << 10), Ok(()));
}

fn set_len_of_new(scratch: &Scratch, len_bytes: u64) {
    fs::write(scratch.file("disk"), []).expect("a file");
    set_len(&scratch.file("disk"), len_bytes);
}

#[test]
fn a_missing_file_is_made_with_its_size_and_sparse() {
    let scratch = Scratch::new();
    let options = FileOptions {
        len_bytes: Some(1 << 30),
        ..options(&scratch, Caching::Direct)
    };
    on_lane(OpenFile::open(&options)).expect("it is made");
    let made = fs::metadata(&options.path).expect("it exists");
    assert_eq!(made.len(), 1 << 30);
    assert!(made.blocks() * 512 < 1 << 20, "it is sparse");

    let larger = FileOptions {
        len_bytes: Some(1 << 20),
        ..options.clone()
    };
    let file = on_lane(OpenFile::open(&larger)).expect("a larger file will do");
    assert_eq!(file.shape().len_bytes(), 1 << 20);
    drop(file);
    let whole = FileOptions {
        len_bytes: None,
        ..options
    };
    let file = on_lane(OpenFile::open(&whole)).expect("it exists");
    assert_eq!(file.shape().len_bytes(), 1 << 30);
}

#[test]
fn what_is_unfit_is_refused_with_the_mend() {
    let scratch = Scratch::new();
    let base = options(&scratch, Caching::Direct);
    let missing = FileOptions {
        len_bytes: None,
        ..base.clone()
    };
    assert!(refusal(&missing).contains("give it a size, such as"));
    let nowhere = FileOptions {
        path: scratch.file("no/disk"),
        ..base.clone()
    };
    assert!(refusal(&nowhere).contains("its directory does not exist"));
    fs::write(&base.path, b"").expect("a file");
    assert!(refusal(&missing).contains("is empty; give it a size"));
    fs::write(&base.path, vec![0; 4096]).expect("a file");
    assert!(refusal(&base).contains("has 4096 bytes, less than its configured size of 1048576"));
    fs::write(&base.path, vec![0; 1000]).expect("a file");
    let refused = refusal(&missing);
    for said in [
        "truncate -s 1024",
        "write size = \"512B\"",
        "its last 488 bytes",
    ] {
        assert!(refused.contains(said), "{said}: {refused}");
    }
    let directory = FileOptions {
        path: scratch.path().to_owned(),
        ..base
    };
    assert!(refusal(&directory).contains("cannot be opened"));
}

#[test]
fn a_file_in_use_is_refused() {
    let scratch = Scratch::new();
    let options = options(&scratch, Caching::Direct);
    on_lane(async {
        let first = OpenFile::open(&options).await.expect("it is made");
        // flock applies between open file descriptions, so a second one here is as good as another process.
        let error = OpenFile::open(&options).await.expect_err("it is in use");
        let in_use = format!("in use by process {}", std::process::id());
        assert!(error.to_string().contains(&in_use), "{error}");
        drop(first);
        OpenFile::open(&options).await.expect("it is free again");
    });
}

#[test]
fn flushes_go_to_the_file_that_is_written_whatever_happens_to_its_path() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.file("a"), scratch.file("b"));
    for path in [&a, &b] {
        fs::write(path, vec![0; 1 << 20]).expect("room");
    }
    let mut options = options(&scratch, Caching::WriteBack);
    options.len_bytes = None;
    let path = options.path.clone();
    fs::hard_link(&a, &path).expect("one file system");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        // Replaces the file over and over.
        scope.spawn(|| {
            let new = scratch.file("new");
            while !ended.load(Relaxed) {
                for other in [&b, &a] {
                    fs::hard_link(other, &new).expect("one file system");
                    fs::rename(&new, &path).expect("one file system");
                }
            }
        });
        on_lane(async {
            for _ in 0..500 {
                let file = OpenFile::open(&options)
                    .await
                    .expect("one of them is there");
                let (io, sync) = (&file.backing.io, &file.backing.sync);
                let is_a = io.is_at(&a);
                if is_a == io.is_at(&b) || is_a != sync.is_at(&a) {
                    ended.store(true, Relaxed);
                    panic!("two files are open");
                }
            }
        });
        ended.store(true, Relaxed);
    });
}

/// A backing file that counts its syncs and fails on demand.
struct Counting {
    backing: BackingFile,
    syncs: Rc<Cell<u32>>,
    fail: Rc<Cell<bool>>,
}

impl Backing for Counting {
    async fn read(&self, at: u64, buf: Buf) -> (io::Result<()>, Buf) {
        self.backing.read(at, buf).await
    }

    async fn write(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        if self.fail.get() && durable {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.backing.write(at, data, durable).await
    }

    async fn write_atomic(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        self.backing.write_atomic(at, data, durable).await
    }

    async fn extent(&self, at: u64) -> io::Result<Extent> {
        self.backing.extent(at).await
    }

    async fn sync(&self) -> io::Result<()> {
        self.syncs.set(self.syncs.get() + 1);
        if self.fail.get() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.backing.sync().await
    }

    async fn allocate(&self, mode: AllocateMode, at: u64, len: u64) -> io::Result<()> {
        self.backing.allocate(mode, at, len).await
    }
}

async fn write(volume: &dyn Volume, durability: Durability) -> Result<()> {
    volume.write(0, Payload::zeroes(512), durability).await
}

#[test]
fn a_flush_syncs_when_something_volatile_was_written() {
    let scratch = Scratch::new();
    on_lane(async {
        let file = OpenFile::open(&options(&scratch, Caching::Direct))
            .await
            .expect("it is made");
        let (syncs, fail) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let open = || {
            file.on_lane_over(|backing| Counting {
                backing,
                syncs: syncs.clone(),
                fail: fail.clone(),
            })
        };
        let (a, b) = (open(), open());
        a.flush().await.expect("it flushes");
        assert_eq!(syncs.replace(0), 1, "what was written before it was opened");
        write(&a, Durability::Fua).await.expect("it writes");
        a.flush().await.expect("it flushes");
        assert_eq!(syncs.get(), 0, "nothing volatile was written");
        write(&a, Durability::Cached).await.expect("it writes");
        b.flush().await.expect("it flushes");
        assert_eq!(syncs.get(), 1, "on another lane");
        a.flush().await.expect("it flushes");
        assert_eq!(syncs.get(), 1, "covered by the other lane's");
        a.write_zeroes(0, 512, false, Durability::Fua)
            .await
            .expect("it zeroes");
        assert_eq!(syncs.get(), 2, "an allocation has no FUA of its own");
        a.discard(0, 512).await.expect("it discards");
        b.flush().await.expect("it flushes");
        assert_eq!(syncs.get(), 3, "a discard counts");
    });
}

#[test]
fn a_failed_flush_stays_until_the_file_is_opened_again() {
    for durability in [Durability::Cached, Durability::Fua] {
        let scratch = Scratch::new();
        on_lane(async {
            let options = options(&scratch, Caching::Direct);
            let file = OpenFile::open(&options).await.expect("it is made");
            let (syncs, fail) = (Rc::default(), Rc::new(Cell::new(false)));
            let healthy = file.on_lane();
            let failing = file.on_lane_over(|backing| Counting {
                backing,
                syncs,
                fail: fail.clone(),
            });
            write(&healthy, Durability::Cached)
                .await
                .expect("it writes");
            fail.set(true);
            let result = match durability {
                Durability::Cached => failing.flush().await,
                // Its error may be the only report that the volatile write was lost.
                Durability::Fua => write(&failing, durability).await,
            };
            result.expect_err("the sync failed");
            fail.set(false);
            for error in [
                healthy.flush().await.expect_err("it stays failed"),
                failing.flush().await.expect_err("it stays failed"),
                write(&healthy, Durability::Cached)
                    .await
                    .expect_err("refused"),
                healthy.discard(0, 512).await.expect_err("refused"),
            ] {
                assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
            }
            healthy.read(0, 512).await.expect("reads go on");
            drop((healthy, failing, file));
            let file = OpenFile::open(&options).await.expect("it opens again");
            write(&file.on_lane(), Durability::Fua)
                .await
                .expect("it writes");
        });
    }
}

#[test]
fn a_full_file_system_is_told_apart() {
    let scratch = Scratch::new();
    on_lane(async {
        struct Full(BackingFile);
        impl Backing for Full {
            async fn read(&self, at: u64, buf: Buf) -> (io::Result<()>, Buf) {
                self.0.read(at, buf).await
            }
            async fn write(&self, _: u64, _: Payload, _: bool) -> io::Result<()> {
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            }
            async fn write_atomic(&self, _: u64, _: Payload, _: bool) -> io::Result<()> {
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            }
            async fn extent(&self, at: u64) -> io::Result<Extent> {
                self.0.extent(at).await
            }
            async fn sync(&self) -> io::Result<()> {
                self.0.sync().await
            }
            async fn allocate(&self, mode: AllocateMode, at: u64, len: u64) -> io::Result<()> {
                self.0.allocate(mode, at, len).await
            }
        }
        let file = OpenFile::open(&options(&scratch, Caching::WriteBack))
            .await
            .expect("it is made");
        let full = file.on_lane_over(Full);
        for durability in [Durability::Cached, Durability::Fua] {
            let error = write(&full, durability).await.expect_err("it is full");
            assert_eq!(error.kind(), ErrorKind::NoSpace);
        }
        full.flush().await.expect("what was written before is safe");
    });
}

#[test]
fn blocks_written_together_into_one_unit_all_stay() {
    let scratch = Scratch::new();
    on_lane(async {
        let file = OpenFile::open_aligned(&options(&scratch, Caching::Direct), 4096)
            .await
            .expect("it is made");
        let volume = Rc::new(file.on_lane());
        for round in 1..20u8 {
            let writes = (0..16u64).map(|block| {
                let volume = volume.clone();
                engine::spawn(async move {
                    let mut buf = Buf::new(512);
                    buf.fill(round.wrapping_mul(block as u8 + 1));
                    volume
                        .write(block * 512, buf.into(), Durability::Cached)
                        .await
                        .expect("it writes");
                })
            });
            engine::task::join_all(writes.collect::<Vec<_>>()).await;
            let seen = volume.read(0, 8192).await.expect("it reads").to_vec();
            for (block, bytes) in seen.chunks(512).enumerate() {
                assert_eq!(bytes, [round.wrapping_mul(block as u8 + 1); 512]);
            }
        }
    });
}

/// A backing file whose reads and writes are slow: a write in progress is half visible.
struct Slow(BackingFile);

const SLOW: engine::Duration = engine::Duration::from_millis(2);

impl Backing for Slow {
    async fn read(&self, at: u64, buf: Buf) -> (io::Result<()>, Buf) {
        let read = self.0.read(at, buf).await;
        engine::time::sleep(SLOW).await;
        read
    }

    async fn write(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        let half = data.len() / 2;
        if half % 512 == 0 {
            return self.0.write(at, data, durable).await;
        }
        self.0.write(at, data.slice(0..half), durable).await?;
        engine::time::sleep(SLOW).await;
        let rest = data.slice(half..data.len());
        self.0.write(at + half as u64, rest, durable).await
    }

    async fn write_atomic(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        self.0.write_atomic(at, data, durable).await
    }

    async fn extent(&self, at: u64) -> io::Result<Extent> {
        self.0.extent(at).await
    }

    async fn sync(&self) -> io::Result<()> {
        self.0.sync().await
    }

    async fn allocate(&self, mode: AllocateMode, at: u64, len: u64) -> io::Result<()> {
        self.0.allocate(mode, at, len).await
    }
}

fn filled(len: usize, byte: u8) -> Payload {
    let mut buf = Buf::new(len);
    buf.fill(byte);
    buf.into()
}

#[test]
fn in_the_page_cache_a_read_sees_no_half_of_a_write() {
    let scratch = Scratch::new();
    on_lane(async {
        for caching in [Caching::WriteThrough, Caching::WriteBack] {
            let file = OpenFile::open(&options(&scratch, caching))
                .await
                .expect("it opens");
            let volume = Rc::new(file.on_lane_over(Slow));
            let writing = volume.clone();
            let writer = engine::spawn(async move {
                for byte in 1..20 {
                    let data = filled(512, byte);
                    let write = writing.write(0, data, Durability::Cached);
                    write.await.expect("it writes");
                }
            });
            while !writer.is_finished() {
                let seen = volume.read(0, 512).await.expect("it reads").to_vec();
                assert_eq!(seen, [seen[0]; 512], "half of a write");
            }
        }
    });
}

#[test]
fn a_part_of_a_unit_brings_back_nothing_that_a_whole_one_replaced() {
    let scratch = Scratch::new();
    on_lane(async {
        let file = OpenFile::open_aligned(&options(&scratch, Caching::Direct), 4096)
            .await
            .expect("it is made");
        let volume = Rc::new(file.on_lane_over(Slow));
        let writing = volume.clone();
        let part = engine::spawn(async move {
            let data = filled(512, 1);
            let write = writing.write(512, data, Durability::Cached);
            write.await.expect("it writes");
        });
        engine::task::yield_now().await;
        let whole = volume.write(0, filled(4096, 2), Durability::Cached);
        whole.await.expect("it writes");
        part.await;
        let seen = volume.read(0, 512).await.expect("it reads").to_vec();
        assert_eq!(seen, [2; 512], "only the whole write touched this block");
    });
}

#[test]
fn a_hole_is_told_from_data_to_the_block() {
    for caching in MODES {
        let scratch = Scratch::new();
        on_lane(async {
            let file = OpenFile::open(&options(&scratch, caching)).await;
            let volume = file.expect("it is made").on_lane();
            let len = volume.shape().len_bytes();
            let at = async |at| {
                let found = volume.allocation(at, len - at).await.expect("it looks");
                (found.is_mapped, found.len_bytes)
            };
            // Created by writing its last page alone.
            assert_eq!(at(0).await, (false, len - 4096));
            assert_eq!(at(len - 512).await, (true, 512));
            let data = Payload::from(Buf::copy_of(&[7; 8192]));
            let written = volume.write(64 << 10, data, Durability::Cached).await;
            written.expect("it writes");
            assert_eq!(at(512).await, (false, (64 << 10) - 512));
            assert_eq!(at(64 << 10).await, (true, 8192));
            assert_eq!(at((64 << 10) + 4096).await, (true, 4096));
            volume.discard(64 << 10, 4096).await.expect("it discards");
            assert_eq!(at(0).await, (false, (64 << 10) + 4096));
        });
    }
}

#[test]
fn an_atomic_write_has_the_one_length_that_is_promised() {
    let unit = |lengths| atomic_unit(&lengths, 512).map(|atomic| atomic.unit_bytes);
    assert_eq!(unit(4096..=1 << 20), Some(16 << 10));
    assert_eq!(unit(4096..=4096), Some(4096));
    assert_eq!(unit(1 << 16..=1 << 20), Some(1 << 16));
    assert_eq!(unit(512..=3 << 10), None, "no power of two");
    assert_eq!(
        atomic_unit(&(512..=2048), 4096),
        None,
        "less than one block"
    );
}

/// ext4 copies to the page cache without excluding readers.
#[test]
fn a_block_in_the_page_cache_is_seen_whole_from_another_lane() {
    const LEN: usize = 64 << 10;
    const READS: u32 = 3000;
    let writing = OtherLane::start();
    let scratch = Scratch::new();
    let options = options(&scratch, Caching::WriteBack);
    let seen = on_lane(async {
        let file = OpenFile::open(&options).await.expect("it opens");
        let written = Arc::new(AtomicU32::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let (its_file, its_written, its_end) = (file.clone(), written.clone(), is_over.clone());
        writing.handle.spawn(move || async move {
            let volume = its_file.on_lane();
            while !its_end.load(Relaxed) {
                let value = its_written.load(Relaxed) as u8;
                let data = Buf::copy_of(&[value; LEN]).into();
                let done = volume.write(0, data, Durability::Cached).await;
                done.expect("it is written");
                its_written.fetch_add(1, Relaxed);
            }
        });
        let volume = file.on_lane();
        let mut seen = BTreeSet::new();
        let mut reads = 0;
        // However slow the other lane is, it writes many times while this one reads.
        while reads < READS || written.load(Relaxed) < READS / 10 {
            let data = volume.read(0, LEN).await.expect("it is read").to_vec();
            assert!(data.iter().all(|byte| *byte == data[0]), "half of a write");
            seen.insert(data[0]);
            reads += 1;
        }
        is_over.store(true, Relaxed);
        seen
    });
    assert!(seen.len() > 2, "{seen:?}");
}
