//! The client's load: concurrent workers that read, write, zero, discard and flush random places of one volume and
//! check every answer against the model.

use std::{cell::RefCell, ops::Range, rc::Rc, time::Duration};

use engine::{
    Buf,
    sim::{Random, World},
    spawn, task, time,
};
use volume::{Durability, Error, ErrorKind, SharedVolume};

use crate::{
    content::SECTOR_BYTES,
    model::{Ending, Model},
};

/// The parameters of a load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Workers, each with one request at a time.
    pub workers: usize,
    /// Requests per worker.
    pub requests: usize,
    /// The longest pause of a worker between two requests.
    pub pause_max: Duration,
    /// Whether requests may fail. If not, an error fails the test.
    pub errors: bool,
    /// Whether workers read. Must be false where a failed write may still take effect later, because the model does not
    /// permit that after a read that has not found the write.
    pub reads: bool,
}

impl Default for Load {
    fn default() -> Self {
        Load {
            workers: 6,
            requests: 50,
            pause_max: Duration::from_millis(2),
            errors: false,
            reads: true,
        }
    }
}

/// What a load encountered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Requests that ended well.
    pub good: u64,
    /// Errors of reads and writes.
    pub failed: Vec<ErrorKind>,
    /// Errors of flushes.
    pub flush_failed: Vec<ErrorKind>,
    /// The longest time a request took.
    pub longest: Duration,
}

/// A world with a client whose volume is checked against a model.
pub trait Watched {
    /// The world.
    fn world(&self) -> &World;
    /// What the client may see.
    fn model(&self) -> &RefCell<Model>;
}

struct Client<S> {
    site: Rc<S>,
    volume: SharedVolume,
    load: Load,
    tally: RefCell<Tally>,
}

/// Runs `load` on `volume` and returns what it encountered.
pub async fn run<S: Watched + 'static>(site: &Rc<S>, volume: &SharedVolume, load: Load) -> Tally {
    let client = Rc::new(Client {
        site: site.clone(),
        volume: volume.clone(),
        load,
        tally: RefCell::default(),
    });
    let workers = (0..load.workers).map(|_| {
        let (client, random) = (client.clone(), site.world().random());
        spawn(async move { client.work(random).await })
    });
    let workers: Vec<_> = workers.collect();
    task::join_all(workers).await;
    client.tally.take()
}

/// Reads all of `volume` and checks it against the model.
pub async fn check_all(site: &Rc<impl Watched>, volume: &SharedVolume) {
    let all = site.model().borrow().sectors_len();
    for start in (0..all).step_by(128) {
        let sectors = start..(start + 128).min(all);
        let read = site.model().borrow_mut().begin_read(sectors.clone());
        let len = sectors.len() * SECTOR_BYTES;
        let data = volume.read((start * SECTOR_BYTES) as u64, len).await;
        let data = data.unwrap_or_else(|error| panic!("a read of a healthy site: {error}"));
        hold(site.model().borrow_mut().end_read(read, &data.to_vec()));
    }
}

/// Flushes `volume`, recording the outcome in the model.
pub async fn flush(site: &Rc<impl Watched>, volume: &SharedVolume) -> Result<(), Error> {
    let flush = site.model().borrow_mut().begin_flush();
    let result = volume.flush().await;
    hold(site.model().borrow_mut().end_flush(&flush, result.is_ok()));
    result
}

#[track_caller]
fn hold(result: Result<(), String>) {
    if let Err(violation) = result {
        panic!("{violation}");
    }
}

impl<S: Watched> Client<S> {
    async fn work(&self, mut random: Random) {
        for _ in 0..self.load.requests {
            time::sleep(random_time(&mut random, self.load.pause_max)).await;
            let began = time::now();
            let sectors = self.choose(&mut random);
            let result = match random.below(20) {
                0..=7 if self.load.reads => self.read(sectors).await,
                0..=15 => self.write(sectors, durability(&mut random)).await,
                16 => self.zero(sectors, &mut random).await,
                17 => self.discard(sectors).await,
                _ => {
                    let result = flush(&self.site, &self.volume).await;
                    self.note(result, true);
                    continue;
                }
            };
            self.note(result, false);
            let mut tally = self.tally.borrow_mut();
            tally.longest = tally.longest.max(time::now() - began);
        }
    }

    fn note(&self, result: Result<(), Error>, is_flush: bool) {
        let mut tally = self.tally.borrow_mut();
        match result {
            Ok(()) => tally.good += 1,
            Err(error) if !self.load.errors => panic!("an I/O failed: {error}"),
            Err(error) if is_flush => tally.flush_failed.push(error.kind()),
            Err(error) => tally.failed.push(error.kind()),
        }
    }

    fn model(&self) -> std::cell::RefMut<'_, Model> {
        self.site.model().borrow_mut()
    }

    /// Whole blocks: mostly a few, mostly where other workers are active as well.
    fn choose(&self, random: &mut Random) -> Range<usize> {
        let block = self.volume.shape().block_size_bytes as usize / SECTOR_BYTES;
        let blocks = self.model().sectors_len() / block;
        let longest = match random.below(8) {
            0..=3 => 4,
            4..=6 => 40,
            _ => 300,
        };
        let hot = blocks / 8;
        let within = if random.chance(0.6) { hot } else { blocks };
        let len = (1 + random.index(longest.min(within))).min(within);
        let start = random.index(within - len + 1);
        start * block..(start + len) * block
    }

    async fn read(&self, sectors: Range<usize>) -> Result<(), Error> {
        let (at, len) = bytes(&sectors);
        let read = self.model().begin_read(sectors);
        match self.volume.read(at, len as usize).await {
            Ok(data) => hold(self.model().end_read(read, &data.to_vec())),
            Err(error) => {
                self.model().failed_read(&read);
                return Err(error);
            }
        }
        Ok(())
    }

    async fn write(&self, sectors: Range<usize>, durability: Durability) -> Result<(), Error> {
        let (at, _) = bytes(&sectors);
        let (write, data) = self.model().begin_write(sectors, false);
        let data = Buf::copy_of(&data).into();
        let result = self.volume.write(at, data, durability).await;
        self.end_write(write, &result, durability);
        result
    }

    async fn zero(&self, sectors: Range<usize>, random: &mut Random) -> Result<(), Error> {
        let (at, len) = bytes(&sectors);
        let durability = durability(random);
        let (write, _) = self.model().begin_write(sectors, true);
        let may_discard = random.chance(0.5);
        let result = self
            .volume
            .write_zeroes(at, len, may_discard, durability)
            .await;
        self.end_write(write, &result, durability);
        result
    }

    async fn discard(&self, sectors: Range<usize>) -> Result<(), Error> {
        let (at, len) = bytes(&sectors);
        let reads_zeroes = self.volume.shape().discard.is_some_and(|d| d.reads_zeroes);
        let (write, _) = self.model().begin_write(sectors, true);
        let result = self.volume.discard(at, len).await;
        match reads_zeroes {
            true => self.end_write(write, &result, Durability::Cached),
            // A discarded sector may read as zeroes or keep its content.
            false => self.model().end_write(write, Ending::Failed),
        }
        result
    }

    fn end_write(
        &self,
        write: crate::model::Write,
        result: &Result<(), Error>,
        durability: Durability,
    ) {
        let durable = durability == Durability::Fua || !self.volume.shape().volatile_cache;
        let ending = match result {
            Ok(()) if durable => Ending::Durable,
            Ok(()) => Ending::Acknowledged,
            Err(_) => Ending::Failed,
        };
        self.model().end_write(write, ending);
    }
}

fn bytes(sectors: &Range<usize>) -> (u64, u64) {
    let len = sectors.len() * SECTOR_BYTES;
    ((sectors.start * SECTOR_BYTES) as u64, len as u64)
}

fn durability(random: &mut Random) -> Durability {
    match random.chance(0.25) {
        true => Durability::Fua,
        false => Durability::Cached,
    }
}

/// A time up to `max`.
pub fn random_time(random: &mut Random, max: Duration) -> Duration {
    Duration::from_nanos(random.below(max.as_nanos() as u64 + 1))
}
