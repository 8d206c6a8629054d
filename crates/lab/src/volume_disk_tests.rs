//! Tests on a real lane: the disk's guarantees with writes in flight, on a volume whose writes are slow,
//! complete in any order and can fail; and a database on a `ram` volume.

use std::time::Duration;

use engine::{LaneConfig, LaneFuture, random::SplitMix64, time};
use volume::{
    Error, Result, Shape, Volume, fallback,
    leaf::ram,
    member::{Order, Report},
};

use super::*;
use crate::sqlite::{DatabaseStore, Settings};

const LEN: usize = 1 << 20;

/// A memory volume whose writes take a random time and change the data only when they complete.
struct SlowVolume {
    shape: Shape,
    bytes: RefCell<Vec<u8>>,
    random: RefCell<SplitMix64>,
    in_flight: RefCell<Vec<(u64, usize)>>,
    most_in_flight_bytes: Cell<usize>,
    fail_write_at: Cell<Option<u64>>,
    fail_flush: Cell<bool>,
    flushed_after: Cell<usize>,
    written: Cell<usize>,
}

impl SlowVolume {
    fn new(seed: u64) -> Rc<Self> {
        Rc::new(Self {
            shape: Shape {
                block_size_bytes: 512,
                physical_block_bytes: 4096,
                len: volume::Len::new(LEN as u64 + 1024),
                volatile_cache: true,
                read_only: volume::ReadOnly::default(),
                discard: None,
                optimal_io_bytes: 4096,
                compare_and_write_max_bytes: 0,
            },
            bytes: RefCell::new(vec![0; LEN]),
            random: RefCell::new(SplitMix64::new(seed)),
            in_flight: RefCell::default(),
            most_in_flight_bytes: Cell::new(0),
            fail_write_at: Cell::new(None),
            fail_flush: Cell::new(false),
            flushed_after: Cell::new(0),
            written: Cell::new(0),
        })
    }

    fn pause(&self) -> Duration {
        Duration::from_micros(self.random.borrow_mut().below(300))
    }
}

impl Volume for SlowVolume {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            let pause = self.pause();
            time::sleep(pause).await;
            let at = at as usize;
            Ok(Buf::copy_of(&self.bytes.borrow()[at..at + len]).into())
        })
    }

    fn write(&self, at: u64, data: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let range = (at, data.len());
            {
                let mut flying = self.in_flight.borrow_mut();
                let clear = |(other, len): &(u64, usize)| {
                    *other >= at + data.len() as u64 || at >= *other + *len as u64
                };
                assert!(
                    flying.iter().all(clear),
                    "two writes of one block in flight"
                );
                flying.push(range);
                let bytes = flying.iter().map(|(_, len)| len).sum::<usize>();
                self.most_in_flight_bytes
                    .set(self.most_in_flight_bytes.get().max(bytes));
            }
            let pause = self.pause();
            time::sleep(pause).await;
            self.in_flight.borrow_mut().retain(|other| *other != range);
            if self.fail_write_at.get() == Some(at) {
                return Err(Error::new(ErrorKind::Medium, "the medium is broken"));
            }
            let start = at as usize;
            data.copy_to(0, &mut self.bytes.borrow_mut()[start..start + data.len()]);
            self.written.set(self.written.get() + 1);
            Ok(())
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            assert!(self.in_flight.borrow().is_empty(), "flushed under a write");
            self.flushed_after.set(self.written.get());
            if self.fail_flush.get() {
                return Err(Error::new(ErrorKind::FlushFailed, "the flush is broken"));
            }
            Ok(())
        })
    }

    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        fallback::member(self, order)
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    fn discard(&self, _: u64, _: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    volume::fall_back!();
}

fn lane() -> Rc<Lane> {
    Rc::new(Lane::new(&LaneConfig::default()).unwrap())
}

#[test]
fn reads_see_every_write_before_them_whatever_is_in_flight() {
    for seed in 0..4 {
        let volume = SlowVolume::new(seed);
        let disk = VolumeDisk::new(lane(), volume.clone(), 128 << 10).unwrap();
        assert_eq!(disk.len_bytes(), LEN as u64, "the odd tail is left out");
        let mut random = SplitMix64::new(seed);
        let mut model = vec![0; LEN];
        let mut writes = 0;
        for step in 0..1_200u64 {
            let len = 4096 * random.between(1, 9) as usize;
            let at = 4096 * random.below(((LEN - len) / 4096) as u64 / 4);
            match random.below(20) {
                0 => {
                    disk.flush().unwrap();
                    assert_eq!(volume.flushed_after.get(), writes);
                }
                1..=9 => {
                    let mut got = vec![0; len];
                    disk.read_at(at, &mut got).unwrap();
                    assert!(
                        got == model[at as usize..at as usize + len],
                        "seed {seed} step {step}"
                    );
                }
                _ => {
                    let bytes: Vec<u8> = (0..len).map(|i| (i as u64 / 512 + step) as u8).collect();
                    disk.write_at(at, &bytes).unwrap();
                    model[at as usize..at as usize + len].copy_from_slice(&bytes);
                    writes += 1;
                }
            }
        }
        disk.flush().unwrap();
        assert!(*volume.bytes.borrow() == model);
    }
}

#[test]
fn writes_fly_together_up_to_the_bound() {
    let volume = SlowVolume::new(1);
    let disk = VolumeDisk::new(lane(), volume.clone(), 128 << 10).unwrap();
    for at in (0..LEN as u64).step_by(16 << 10) {
        disk.write_at(at, &[7; 16 << 10]).unwrap();
    }
    disk.flush().unwrap();
    let most = volume.most_in_flight_bytes.get();
    assert!(
        most > 64 << 10 && most <= 128 << 10,
        "{most} bytes were in flight"
    );
    assert!(volume.bytes.borrow().iter().all(|byte| *byte == 7));
}

#[test]
fn a_lost_write_is_told_at_the_flush_and_for_ever_after() {
    let volume = SlowVolume::new(1);
    let disk = VolumeDisk::new(lane(), volume.clone(), 1 << 20).unwrap();
    volume.fail_write_at.set(Some(8192));
    disk.write_at(4096, &[1; 4096]).unwrap();
    disk.write_at(8192, &[2; 4096]).unwrap();
    let error = disk.flush().unwrap_err().to_string();
    assert!(
        error.contains("a write was lost: the medium is broken"),
        "{error}"
    );
    volume.fail_write_at.set(None);
    let mut buffer = [0; 4096];
    assert!(disk.flush().is_err());
    assert!(disk.write_at(8192, &[2; 4096]).is_err());
    assert!(
        disk.read_at(8192, &mut buffer).is_err(),
        "it would not be what was written"
    );
}

#[test]
fn a_failed_flush_is_kept() {
    let volume = SlowVolume::new(1);
    let disk = VolumeDisk::new(lane(), volume.clone(), 1 << 20).unwrap();
    disk.write_at(0, &[1; 4096]).unwrap();
    volume.fail_flush.set(true);
    assert!(disk.flush().is_err());
    volume.fail_flush.set(false);
    assert!(
        disk.flush()
            .unwrap_err()
            .to_string()
            .contains("a flush failed")
    );
}

#[test]
fn what_is_not_aligned_or_beyond_the_end_is_refused() {
    let disk = VolumeDisk::new(lane(), SlowVolume::new(1), 1 << 20).unwrap();
    assert!(disk.read_at(512, &mut [0; 4096]).is_err());
    assert!(disk.write_at(LEN as u64, &[0; 4096]).is_err());
    let mut read_only = SlowVolume::new(1);
    Rc::get_mut(&mut read_only).unwrap().shape.read_only = volume::ReadOnly::new(true);
    assert!(VolumeDisk::new(lane(), read_only, 1 << 20).is_err());
}

#[test]
fn a_database_lives_on_a_volume() {
    let lane = lane();
    let region = ram::Region::new(64 << 20, 512).unwrap();
    let ram: SharedVolume = Rc::new(region.on_lane());
    let disk = || Rc::new(VolumeDisk::new(lane.clone(), ram.clone(), IN_FLIGHT_BYTES).unwrap());
    let settings = Settings {
        page_bytes: 65_536,
        cache_bytes: 1 << 20,
    };
    let store = DatabaseStore::format(disk()).unwrap();
    store
        .database(&settings)
        .unwrap()
        .execute(
            "CREATE TABLE t (n INTEGER, text TEXT);
             WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < 50000)
             INSERT INTO t SELECT n, printf('%0150d', n) FROM up;
             DELETE FROM t WHERE n % 2 = 0; VACUUM;",
        )
        .unwrap();
    let store = DatabaseStore::open(disk()).unwrap();
    let database = store.database(&settings).unwrap();
    let sum: i64 = database
        .run("sum", |c| {
            c.query_row("SELECT sum(n) FROM t", [], |row| row.get(0))
        })
        .unwrap();
    assert_eq!(sum, 25_000 * 25_000);
}
