//! Two daemons contend for one stripe, with crashes, power cuts, network partitions and restarts between and during
//! their claims. Whatever happens, only one of them owns it: no read returns data overwritten before the read began, no
//! write of the former owner lands after the other has taken over, and an owner that crashed recovers its claim by
//! itself.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use engine::{
    Buf, Instant,
    sim::{Host, Occurred, Random, seeds},
    spawn, time,
};
use sim::{
    Setup, Site, assert_occurred,
    site::{Spread, UNIT_BYTES},
    target_machine::{Networks, PORT},
    workload::random_time,
};
use uuid::Uuid;
use volume::{
    Durability, ErrorKind, IscsiConfig, IscsiDisk, Result, SetClaim, SharedVolume,
    cache::{Cache, CacheConfig, CacheHandle},
    claim::{Others, Owner},
    stripe::{Child, OpenStripe},
};

use crate::MS;

/// Sectors that are written, alternating between both children.
const PLACES: u64 = 6;
const SECTOR_BYTES: usize = 512;
/// How long a cache may keep answering, unaware that another owner has taken over: see `volume::claim`.
const CACHE_LAG: Duration = Duration::from_secs(4);

/// A write: its value is its number.
#[derive(Clone, Copy)]
struct Written {
    place: u64,
    by: usize,
    begun: Instant,
    /// When it stopped having any effect; `None`: it may still take effect.
    ended: Option<Instant>,
    /// When it was acknowledged.
    good: Option<Instant>,
}

/// Everything that happened, as an omniscient observer sees it.
#[derive(Default)]
struct History {
    writes: BTreeMap<u64, Written>,
    acquired: [usize; 2],
    /// Who owned the stripe last, and since when.
    holder: Option<(usize, Instant)>,
    refused: usize,
    preempted: usize,
    reads: usize,
    good_writes: usize,
}

impl History {
    fn begin(&mut self, place: u64, by: usize) -> u64 {
        let value = self.writes.len() as u64 + 1;
        let write = Written {
            place,
            by,
            begun: time::now(),
            ended: None,
            good: None,
        };
        self.writes.insert(value, write);
        value
    }

    fn end(&mut self, value: u64, result: &Result<()>) {
        let now = time::now();
        let write = self.writes.get_mut(&value).expect("it was begun");
        if result.is_ok() {
            let is_anothers =
                |holder: &(usize, Instant)| holder.0 != write.by && holder.1 < write.begun;
            assert!(
                !self.holder.as_ref().is_some_and(is_anothers),
                "daemon {} wrote from {:?}, when another one had it: {:?}",
                write.by,
                write.begun,
                self.holder
            );
            write.good = Some(now);
            write.ended = Some(write.ended.map_or(now, |ended| ended.min(now)));
            self.good_writes += 1;
        }
    }

    /// `by` owns the stripe: from now on no write of another owner lands, nor one of its own from before a crash.
    fn acquire(&mut self, by: usize) {
        self.acquired[by] += 1;
        let now = time::now();
        self.holder = Some((by, now));
        for write in self.writes.values_mut() {
            write.ended.get_or_insert(now);
        }
    }

    /// A read that began at `begun` returned `value`; a cache may lag behind other owners' writes by `lag`.
    fn read(&mut self, place: u64, value: u64, begun: Instant, by: usize, lag: Duration) {
        self.reads += 1;
        let of_place = || self.writes.iter().filter(|(_, write)| write.place == place);
        let ended = match value {
            0 => Some(Instant::default()),
            value => {
                let write = self.writes.get(&value).expect("somebody wrote it");
                assert_eq!(write.place, place, "{value} was written elsewhere");
                write.ended
            }
        };
        let Some(ended) = ended else { return };
        for (later, write) in of_place() {
            let lag = if write.by == by { Duration::ZERO } else { lag };
            let Some(good) = write.good else { continue };
            let is_over = write.begun > ended && good + lag < begun;
            assert!(
                !is_over,
                "daemon {by} read {value} at {place} from {begun:?}, which {later} of daemon {} had \
                 overwritten at {good:?}",
                write.by
            );
        }
    }
}

/// One daemon and its behaviour.
#[derive(Clone)]
struct Daemon {
    site: Rc<Site>,
    history: Rc<RefCell<History>>,
    index: usize,
    host: Host,
    /// Lanes of the machine; each uses each disk.
    lanes: usize,
    cached: bool,
    takes_over: f64,
    ends_well: f64,
}

impl Daemon {
    fn iscsi(&self, target: usize, isid: u16) -> IscsiConfig {
        let mut config = self.site.iscsi(target);
        for (path, n) in config.multipath.more.iter_mut().zip(1..) {
            path.isid = iscsi::Isid::random([n; 3], isid);
        }
        IscsiConfig {
            address: self.site.targets[target].host.addr(PORT),
            initiator_name: format!("iqn.2026-11.io.sanstone:daemon-{}", self.index),
            isid: iscsi::Isid::random([0; 3], isid),
            reconnect_timeout: Duration::from_secs(4),
            ..config
        }
    }

    /// Runs the daemon for as long as the machine runs: it opens the stripe, uses it for a while, ends in an orderly
    /// way or not, and starts again.
    async fn run(self, boot: u64, mut random: Random) {
        // After a crash only the state directory is the same.
        let uuid = Uuid::from_u128(100 + self.index as u128);
        let boot = Uuid::from_u128((u128::from(boot) << 8) + self.index as u128 + 1);
        // Both start at once, later at random times.
        let mut pause = 3 * MS;
        loop {
            // Each start is a new process.
            let owner = Owner::new(uuid, boot, format!("daemon {}", self.index));
            time::sleep(random_time(&mut random, pause)).await;
            pause = 300 * MS;
            let others = match random.chance(self.takes_over) {
                true => Others::Fence,
                false => Others::Refuse,
            };
            let isid = random.below(1 << 16) as u16;
            let mut disks = Vec::new();
            match self.open(&owner, others, isid, &mut disks).await {
                Ok(volume) => {
                    self.history.borrow_mut().acquire(self.index);
                    let ends = time::now() + random_time(&mut random, 6_000 * MS);
                    let users: Vec<_> = (0..2)
                        .map(|_| spawn(self.clone().use_it(volume.clone(), ends, random.fork())))
                        .collect();
                    for user in users {
                        user.await;
                    }
                    if random.chance(self.ends_well) {
                        let _ = volume.close().await;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Claimed => {
                    self.history.borrow_mut().refused += 1;
                }
                // A target is down, or another daemon took over during the attempt.
                Err(error) => assert_ne!(error.kind(), ErrorKind::Configuration, "{error}"),
            }
        }
    }

    async fn open(
        &self,
        owner: &Owner,
        others: Others,
        isid: u16,
        disks: &mut Vec<Rc<IscsiDisk>>,
    ) -> Result<SharedVolume> {
        let mut children = Vec::new();
        for target in 0..self.site.targets.len() {
            let lanes: Vec<_> = (0..self.lanes).map(|lane| self.host.lane(lane)).collect();
            let disk = IscsiDisk::open_on(self.iscsi(target, isid), &lanes).await?;
            disks.push(disk.clone());
            let name = self.site.targets[target].iqn.clone();
            let volume = Spread::over(disk).await;
            children.push(Child { name, volume });
        }
        let claim = SetClaim::new(owner, children.len(), others, 0)?;
        let opened = OpenStripe::claimed(&children, Some(UNIT_BYTES), &claim).await?;
        let volumes: Vec<_> = children.into_iter().map(|child| child.volume).collect();
        let stripe: SharedVolume = Rc::new(opened.on_lane(&volumes)?);
        if !self.cached {
            return Ok(stripe);
        }
        let config = CacheConfig {
            size_bytes: 256 << 10,
            block_bytes: 4096,
            read_ahead_max_bytes: 0,
        };
        let counters = CacheHandle::default();
        let cache = Cache::counted(stripe, &config, &counters, vec![claim])?;
        Ok(Rc::new(cache))
    }

    /// Reads and writes until it is time to end, or another daemon owns the stripe.
    async fn use_it(self, volume: SharedVolume, ends: Instant, mut random: Random) {
        let lag = if self.cached {
            CACHE_LAG
        } else {
            Duration::ZERO
        };
        while time::now() < ends {
            time::sleep(random_time(&mut random, 120 * MS)).await;
            let place = random.below(PLACES);
            let at = place * u64::from(UNIT_BYTES);
            let ended = match random.chance(0.4) {
                true => {
                    let value = self.history.borrow_mut().begin(place, self.index);
                    let mut sector = [0; SECTOR_BYTES];
                    sector[..8].copy_from_slice(&value.to_le_bytes());
                    let data = Buf::copy_of(&sector).into();
                    let written = volume.write(at, data, Durability::Cached).await;
                    self.history.borrow_mut().end(value, &written);
                    written
                }
                false => {
                    let begun = time::now();
                    let read = volume.read(at, SECTOR_BYTES).await;
                    read.map(|data| {
                        let bytes = data.to_vec();
                        let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
                        let mut history = self.history.borrow_mut();
                        history.read(place, value, begun, self.index, lag);
                    })
                }
            };
            match ended.map_err(|error| error.kind()) {
                Err(ErrorKind::Preempted) => {
                    self.history.borrow_mut().preempted += 1;
                    return;
                }
                // After losing writes the volume must be reopened.
                Err(ErrorKind::FlushFailed) => return,
                _ => {}
            }
        }
    }
}

/// What may happen to a machine.
#[derive(Clone, Copy)]
enum Blow {
    DaemonCrashes,
    TargetLosesPower,
    TargetRestarts,
    Parted,
    Resets,
}

const ALL: [Blow; 5] = [
    Blow::DaemonCrashes,
    Blow::TargetLosesPower,
    Blow::TargetRestarts,
    Blow::Parted,
    Blow::Resets,
];

fn setup(seed: u64) -> Setup {
    let networks = [Networks::One, Networks::TwoOfOneGroup, Networks::TwoGroups];
    let mut setup = Setup::draw(seed).on(networks[seed as usize / 2 % 3]);
    // Acknowledged writes are durable, so only a wrong owner can lose them.
    setup.served.caching = ["write-through", "direct-sync"][seed as usize % 2];
    setup.served.block_size_bytes = 512;
    setup.served.behind_faults = false;
    setup
}

struct Plan {
    blows: &'static [Blow],
    takes_over: f64,
    ends_well: f64,
    /// The longest time between two blows.
    pause: Duration,
    rounds: usize,
}

/// The daemon with this number, to which nothing happens.
fn daemon(site: &Rc<Site>, index: usize) -> Daemon {
    let lanes = site.client_lanes();
    Daemon {
        site: site.clone(),
        history: Rc::default(),
        index,
        host: site
            .world
            .host_with_lanes(["daemon-0", "daemon-1"][index], lanes),
        lanes,
        cached: false,
        takes_over: 0.0,
        ends_well: 0.0,
    }
}

/// Two daemons that start at the same moment, and blows; then a quiet time in which both find the stripe.
fn contend(seed: u64, plan: &Plan) -> (Rc<RefCell<History>>, Rc<Site>) {
    let setup = setup(seed);
    let site = Site::new(seed, setup);
    let history: Rc<RefCell<History>> = Rc::default();
    let daemons = [0, 1].map(|index| Daemon {
        history: history.clone(),
        cached: seed % 3 == index as u64,
        takes_over: plan.takes_over,
        ends_well: plan.ends_well,
        ..daemon(&site, index)
    });
    let mut boots = 0;
    let mut start = |daemon: &Daemon, random: &mut Random| {
        boots += 1;
        let running = daemon.clone().run(boots, random.fork());
        drop(daemon.host.spawn(running));
    };
    site.run(async {
        let mut random = site.world.random();
        for target in &site.targets {
            target.ready().await;
        }
        for daemon in &daemons {
            start(daemon, &mut random);
        }
        for _ in 0..plan.rounds {
            time::sleep(random_time(&mut random, plan.pause)).await;
            if plan.blows.is_empty() {
                continue;
            }
            let daemon = &daemons[random.index(2)];
            let target = &site.targets[random.index(site.targets.len())];
            match plan.blows[random.index(plan.blows.len())] {
                Blow::DaemonCrashes => {
                    daemon.host.power_cut();
                    time::sleep(random_time(&mut random, 500 * MS)).await;
                    daemon.host.restart();
                    start(daemon, &mut random);
                }
                Blow::TargetLosesPower => {
                    target.power_cut();
                    time::sleep(random_time(&mut random, 500 * MS)).await;
                    target.restart();
                    target.ready().await;
                }
                Blow::TargetRestarts => {
                    target.kill();
                    time::sleep(random_time(&mut random, 100 * MS)).await;
                    target.restart();
                    target.ready().await;
                }
                Blow::Parted => {
                    // Everything else goes on in the meantime.
                    let (daemon, target) = (daemon.host.clone(), target.host.clone());
                    let parted = random_time(&mut random, 6_000 * MS);
                    drop(spawn(async move {
                        daemon.partition(&target);
                        time::sleep(parted).await;
                        daemon.heal(&target);
                    }));
                }
                Blow::Resets => daemon.host.reset_connections(&target.host),
            }
        }
        time::sleep(Duration::from_secs(10)).await;
        let before = history.borrow().good_writes;
        time::sleep(Duration::from_secs(10)).await;
        let after = history.borrow().good_writes;
        assert!(after > before, "nobody has the stripe in the end");
    });
    drop(daemons);
    assert_eq!(Rc::strong_count(&site), 1, "nothing is left of the world");
    (history, site)
}

#[test]
fn of_two_who_begin_at_once_one_has_the_stripe() {
    let plan = Plan {
        blows: &[],
        takes_over: 0.0,
        ends_well: 1.0,
        pause: 4_000 * MS,
        rounds: 10,
    };
    let mut both = 0;
    seeds(60, |seed| {
        let (history, _) = contend(seed, &plan);
        let history = history.borrow();
        assert_eq!(history.preempted, 0, "nobody was allowed to take over");
        both += u64::from(history.acquired.iter().all(|&times| times > 0));
    });
    assert_occurred([("seeds in which both had it", both)]);
}

#[test]
fn who_crashed_comes_back_and_the_other_one_waits() {
    let plan = Plan {
        blows: &ALL,
        takes_over: 0.0,
        ends_well: 0.5,
        pause: 1_500 * MS,
        rounds: 20,
    };
    let (mut refused, mut met) = (0, Occurred::default());
    seeds(120, |seed| {
        let (history, site) = contend(seed, &plan);
        let history = history.borrow();
        assert!(history.reads > 0);
        refused += history.refused as u64;
        met += site.world.occurred();
    });
    assert_occurred([
        ("refused claims", refused),
        ("packets parted", met.packets_parted),
        ("resets under data", met.resets_under_data),
    ]);
}

#[test]
fn who_was_taken_over_answers_nothing_from_its_past() {
    let plan = Plan {
        blows: &ALL,
        takes_over: 0.3,
        ends_well: 0.3,
        pause: 1_000 * MS,
        rounds: 30,
    };
    let (mut preempted, mut met) = (0, Occurred::default());
    seeds(160, |seed| {
        let (history, site) = contend(seed, &plan);
        preempted += history.borrow().preempted as u64;
        met += site.world.occurred();
    });
    assert_occurred([
        ("take-overs", preempted),
        ("packets parted", met.packets_parted),
    ]);
}

/// Has `daemon` open the stripe on its machine, without contention.
async fn open(daemon: &Daemon, others: Others) -> SharedVolume {
    let running = daemon.clone();
    let opened = daemon.host.spawn(async move {
        let owner = Owner::passing(format!("daemon {}", running.index));
        let opened = running.open(&owner, others, 1, &mut Vec::new()).await;
        opened.expect("nobody is in the way")
    });
    opened.await
}

/// Has `daemon` fill the first sector of its open volume.
async fn write(daemon: &Daemon, volume: &SharedVolume, value: u8) -> Result<()> {
    let volume = volume.clone();
    let written = daemon.host.spawn(async move {
        let data = Buf::copy_of(&[value; SECTOR_BYTES]).into();
        volume.write(0, data, Durability::Cached).await
    });
    written.await
}

/// One daemon is partitioned from its targets while another takes over. Then a target loses power, and with it the
/// reservation, and the first daemon is back before the second: only the mark tells it that it has lost the stripe.
#[test]
fn who_could_not_see_a_take_over_finds_it_before_it_writes() {
    seeds(100, |seed| {
        let site = Site::new(seed, setup(seed));
        let [old, new] = [0, 1].map(|index| daemon(&site, index));
        site.run(async {
            for target in &site.targets {
                target.ready().await;
            }
            let olds = open(&old, Others::Refuse).await;
            write(&old, &olds, 1).await.expect("it has the stripe");
            for target in &site.targets {
                old.host.partition(&target.host);
            }
            let news = open(&new, Others::Fence).await;
            write(&new, &news, 2).await.expect("it has the stripe");
            let first = &site.targets[0];
            new.host.partition(&first.host);
            first.power_cut();
            first.restart();
            first.ready().await;
            for target in &site.targets {
                old.host.heal(&target.host);
            }
            let written = write(&old, &olds, 3).await;
            written.expect_err("it was taken over");
            new.host.heal(&first.host);
            let read = new
                .host
                .spawn(async move { news.read(0, SECTOR_BYTES).await });
            let read = read.await.expect("it has the stripe");
            assert_eq!(read.to_vec(), [2; SECTOR_BYTES]);
            let written = write(&old, &olds, 4).await.map_err(|error| error.kind());
            assert_eq!(written, Err(ErrorKind::Preempted));
        });
    });
}

/// How reads ended through a cache whose volume another owner had overwritten.
#[derive(Default)]
pub(crate) struct Stale {
    from_memory: u64,
    in_doubt: u64,
    told: u64,
}

/// One daemon has everything it reads in its cache when another takes over and writes to the disks. The first may be
/// partitioned from its targets at the time, so that nothing can tell it.
pub(crate) fn overwrite_what_is_cached(seed: u64, stale: &mut Stale) {
    let site = Site::new(seed, setup(seed));
    let [mut old, new] = [0, 1].map(|index| daemon(&site, index));
    old.cached = true;
    let read = |daemon: &Daemon, volume: &SharedVolume| {
        let volume = volume.clone();
        daemon.host.spawn(async move {
            let read = volume.read(0, SECTOR_BYTES).await;
            read.map(|data| data.to_vec()[0])
        })
    };
    site.run(async {
        let mut random = site.world.random();
        for target in &site.targets {
            target.ready().await;
        }
        let olds = open(&old, Others::Refuse).await;
        write(&old, &olds, 1).await.expect("it has the stripe");
        assert_eq!(read(&old, &olds).await.ok(), Some(1));
        let is_parted = random.chance(0.5);
        for target in site.targets.iter().filter(|_| is_parted) {
            old.host.partition(&target.host);
        }
        let news = open(&new, Others::Fence).await;
        write(&new, &news, 2).await.expect("it has the stripe");
        let overwritten = time::now();
        let ends = overwritten + 3 * CACHE_LAG;
        while time::now() < ends {
            time::sleep(random_time(&mut random, 1_000 * MS)).await;
            let begun = time::now();
            match read(&old, &olds).await {
                Ok(value) => {
                    assert_eq!(value, 1, "it is fenced off");
                    let lag = begun.since(overwritten);
                    assert!(lag <= CACHE_LAG, "what was overwritten {lag:?} ago");
                    stale.from_memory += 1;
                }
                Err(error) if error.kind() == ErrorKind::Preempted => stale.told += 1,
                Err(_) => stale.in_doubt += 1,
            }
            if !is_parted && random.chance(0.3) {
                write(&old, &olds, 3).await.expect_err("it is fenced off");
                read(&old, &olds).await.expect_err("it knows that it is");
            }
        }
        for target in &site.targets {
            old.host.heal(&target.host);
        }
        time::sleep(CACHE_LAG).await;
        let error = read(&old, &olds).await.expect_err("it was taken over");
        assert_eq!(error.kind(), ErrorKind::Preempted);
        assert_eq!(read(&new, &news).await.ok(), Some(2));
    });
}

#[test]
fn a_cache_is_not_kept_over_the_writes_of_another_owner() {
    let mut stale = Stale::default();
    seeds(100, |seed| overwrite_what_is_cached(seed, &mut stale));
    assert_occurred([
        ("reads from memory after the take-over", stale.from_memory),
        ("reads without an answer", stale.in_doubt),
        ("reads that were refused", stale.told),
    ]);
}
