//! An in-memory disk that is slow, sector by sector, fails now and then, and logs when every write began, landed and
//! ended. What landed can be recognised by its [`content`]: each version identifies its writer.

use std::{
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use engine::{Buf, LaneFuture, Payload, sim::Random, time};
use volume::{
    Allocation, AtomicWrites, CompareOutcome, Discard, Durability, Error, ErrorKind, Len, Result,
    Shape, SharedVolume, Volume, fallback,
    member::{Order, Report},
};

use crate::content::{self, SECTOR_BYTES};

/// Sectors at first.
pub const SECTORS: u64 = 256;
/// Sectors after it has grown.
pub const SECTORS_GROWN: u64 = 2 * SECTORS;

/// A moment in the disk's log: later ones are greater, and no two are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(u64);

/// One write, zeroing or discard.
#[derive(Clone, Debug)]
pub struct Logged {
    /// The version in its first sector; [`content::ZEROES`] if it is not a version.
    pub version: u64,
    /// Its sectors.
    pub sectors: std::ops::Range<u64>,
    /// When the disk received the request.
    pub began: Moment,
    /// When its last sector landed.
    pub landed: Option<Moment>,
    /// When it was answered.
    pub ended: Option<Moment>,
}

/// The disk, for all lanes.
pub struct SlowDisk {
    state: Mutex<State>,
    has_grown: AtomicBool,
}

struct State {
    random: Random,
    sectors: Vec<u8>,
    moment: u64,
    writes: Vec<Logged>,
    /// What landed in each sector, in order.
    history: Vec<Vec<u64>>,
    reading: usize,
    pause_max: Duration,
    fail_chance: f64,
    failed: u64,
}

impl SlowDisk {
    /// A disk of zeroes that draws its random choices from `random`.
    pub fn new(random: Random) -> Arc<SlowDisk> {
        Arc::new(SlowDisk {
            state: Mutex::new(State {
                random,
                sectors: vec![0; SECTORS_GROWN as usize * SECTOR_BYTES],
                moment: 0,
                writes: Vec::new(),
                history: vec![Vec::new(); SECTORS_GROWN as usize],
                reading: 0,
                pause_max: Duration::from_micros(200),
                fail_chance: 0.0,
                failed: 0,
            }),
            has_grown: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the longest time for each sector from now on.
    pub fn set_pause_max(&self, pause_max: Duration) {
        self.lock().pause_max = pause_max;
    }

    /// Sets the probability that a write fails from now on, after some of its sectors have landed.
    pub fn set_fail_chance(&self, chance: f64) {
        self.lock().fail_chance = chance;
    }

    /// How many writes have failed.
    pub fn failed(&self) -> u64 {
        self.lock().failed
    }

    /// Grows the disk to [`SECTORS_GROWN`].
    pub fn grow(&self) {
        self.has_grown.store(true, Ordering::Relaxed);
    }

    /// The present.
    pub fn now(&self) -> Moment {
        self.lock().tick()
    }

    /// All writes so far.
    pub fn writes(&self) -> Vec<Logged> {
        self.lock().writes.clone()
    }

    /// How many writes for which `chosen(version)` holds are in flight.
    pub fn writing(&self, chosen: impl Fn(u64) -> bool) -> usize {
        let state = self.lock();
        let running = state.writes.iter().filter(|write| write.ended.is_none());
        running.filter(|write| chosen(write.version)).count()
    }

    /// How many reads are in flight.
    pub fn reading(&self) -> usize {
        self.lock().reading
    }

    /// The versions that a sector has had since it was zeroes, in order.
    pub fn history(&self, sector: u64) -> Vec<u64> {
        self.lock().history[sector as usize].clone()
    }

    /// The disk as a volume of the current lane.
    pub fn on_lane(self: &Arc<Self>) -> SharedVolume {
        let shape = |sectors: u64| Shape {
            block_size_bytes: SECTOR_BYTES as u32,
            physical_block_bytes: SECTOR_BYTES as u32,
            len: Len::new(sectors * SECTOR_BYTES as u64),
            volatile_cache: true,
            read_only: volume::ReadOnly::default(),
            discard: Some(Discard {
                granularity_bytes: SECTOR_BYTES as u32,
                reads_zeroes: true,
            }),
            optimal_io_bytes: SECTOR_BYTES as u32,
            compare_and_write_max_bytes: 0,
        };
        Rc::new(OnLane {
            disk: self.clone(),
            shape: shape(SECTORS),
            shape_grown: shape(SECTORS_GROWN),
        })
    }

    async fn pause(&self) {
        let pause = {
            let state = &mut *self.lock();
            let pause_max = state.pause_max.as_nanos() as u64;
            Duration::from_nanos(state.random.below(pause_max + 1))
        };
        time::sleep(pause).await;
    }

    async fn read(&self, at: u64, len: usize) -> Payload {
        self.lock().reading += 1;
        let mut data = Buf::new(len);
        for (index, sector) in data.chunks_mut(SECTOR_BYTES).enumerate() {
            self.pause().await;
            let from = at as usize + index * SECTOR_BYTES;
            sector.copy_from_slice(&self.lock().sectors[from..from + SECTOR_BYTES]);
        }
        self.lock().reading -= 1;
        data.into()
    }

    async fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let first = at / SECTOR_BYTES as u64;
        let version_of = |sector, bytes| content::version_of(sector, bytes);
        let (index, fails) = {
            let state = &mut *self.lock();
            let logged = Logged {
                version: version_of(first, &bytes[..SECTOR_BYTES]).unwrap_or(content::ZEROES),
                sectors: first..first + (bytes.len() / SECTOR_BYTES) as u64,
                began: state.tick(),
                landed: None,
                ended: None,
            };
            state.writes.push(logged);
            let chance = state.fail_chance;
            (state.writes.len() - 1, state.random.chance(chance))
        };
        let sectors = bytes.len() / SECTOR_BYTES;
        let lands = if fails { sectors / 2 } else { sectors };
        for (sector, data) in (first..).zip(bytes.chunks(SECTOR_BYTES).take(lands)) {
            self.pause().await;
            let state = &mut *self.lock();
            let place = sector as usize * SECTOR_BYTES;
            state.sectors[place..place + data.len()].copy_from_slice(data);
            let version = version_of(sector, data).unwrap_or(content::ZEROES);
            state.history[sector as usize].push(version);
            let now = state.tick();
            state.writes[index].landed = Some(now);
        }
        self.pause().await;
        let state = &mut *self.lock();
        let now = state.tick();
        state.writes[index].ended = Some(now);
        match fails {
            true => {
                state.failed += 1;
                Err(Error::new(
                    ErrorKind::Medium,
                    "this disk fails now and then",
                ))
            }
            false => Ok(()),
        }
    }
}

impl State {
    fn tick(&mut self) -> Moment {
        self.moment += 1;
        Moment(self.moment)
    }
}

struct OnLane {
    disk: Arc<SlowDisk>,
    shape: Shape,
    shape_grown: Shape,
}

impl Volume for OnLane {
    fn shape(&self) -> &Shape {
        match self.disk.has_grown.load(Ordering::Relaxed) {
            true => &self.shape_grown,
            false => &self.shape,
        }
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move {
            self.shape().check(at, len as u64)?;
            Ok(self.disk.read(at, len).await)
        })
    }

    fn write(&self, at: u64, data: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.shape().check_write(at, data.len() as u64)?;
            self.disk.write(at, &data.to_vec()).await
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.disk.pause().await;
            Ok(())
        })
    }

    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        fallback::member(self, order)
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        self.write(at, Payload::zeroes(len as usize), Durability::Cached)
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        fallback::allocation(self, at, len)
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        Some(AtomicWrites {
            unit_bytes: SECTOR_BYTES as u32,
            max_bytes: None,
        })
    }

    fn write_atomic(&self, at: u64, data: Payload, how: Durability) -> LaneFuture<'_, Result<()>> {
        self.write(at, data, how)
    }

    fn compare_and_write(
        &self,
        _: u64,
        _: Payload,
        _: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        fallback::compare_and_write()
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        _: bool,
        how: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        self.write(at, Payload::zeroes(len as usize), how)
    }
}
