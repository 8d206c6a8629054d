//! Trees of every kind of layer, as the seed draws them, over leaves that fail, delay and tear requests. Whatever is
//! above, a write that ended well is read back, also after the tree was closed and opened again, and what a successful
//! flush covered survives a power cut. Leaves on another machine lose their connections under the load, and that machine
//! restarts.

use std::{
    cell::{Cell, RefCell},
    path::Path,
    rc::Rc,
    time::Duration,
};

use engine::{
    sim::{Host, Occurred, Random, World, seeds},
    spawn, time,
};
use sim::{
    assert_occurred,
    content::SECTOR_BYTES,
    daemon_machine::DaemonMachine,
    drawn_tree::{DrawnTree, FAR, Kinds, Leaves, draw_rule},
    machine::End,
    model::Model,
    windows::{self, Encountered, WINDOW_BYTES, Windows},
    workload::{self, Load, Watched, flush, random_time},
};
use uuid::Uuid;
use volume::{
    ErrorKind, SharedVolume,
    claim::Owner,
    config::Volumes,
    graph::{Graph, NewStripe, Tree},
    layer::fault::FaultHandle,
};

use crate::MS;

const SEEDS: u64 = 300;

/// How often the hard cases occurred, over all seeds.
#[derive(Default)]
struct Met {
    kinds: Kinds,
    occurred: Occurred,
    failed: u64,
    flushes_failed: u64,
    flushes_failed_for_good: u64,
    rules_acted: u64,
    torn: u64,
    across_gaps: u64,
    opened_again: u64,
    power_cuts_in_use: u64,
    far: FarMet,
}

/// The same for what happened to the other machine while its disks were in use.
#[derive(Default)]
struct FarMet {
    resets: u64,
    partitions: u64,
    kills: u64,
    power_cuts: u64,
    power_cuts_unflushed: u64,
}

/// A machine with a tree.
struct Site {
    world: World,
    machine: Host,
    /// The machine that serves the remote leaves, if there are any.
    far: Option<DaemonMachine>,
    lanes: usize,
    drawn: DrawnTree,
    /// Where the windows are; empty until the tree was open.
    starts: RefCell<Vec<u64>>,
    model: RefCell<Model>,
    encountered: Encountered,
    boots: Cell<u128>,
    is_in_use: Cell<bool>,
    met: Rc<RefCell<Met>>,
}

impl Watched for Site {
    fn world(&self) -> &World {
        &self.world
    }

    fn model(&self) -> &RefCell<Model> {
        &self.model
    }
}

impl Site {
    fn new(seed: u64, met: &Rc<RefCell<Met>>) -> Rc<Site> {
        let world = World::new(seed);
        let mut random = world.random();
        let lanes = 1 + random.index(2);
        let leaves = match seed % 4 {
            0 => Leaves::Memory,
            1 => Leaves::Remote,
            _ => Leaves::Files,
        };
        let drawn = DrawnTree::draw(&mut random, leaves);
        let far = drawn.far.as_ref();
        Rc::new(Site {
            machine: world.host_with_lanes("machine", lanes),
            far: far.map(|text| DaemonMachine::new(world.host(FAR), text)),
            lanes,
            drawn,
            starts: RefCell::default(),
            model: RefCell::new(Model::new(0, false)),
            encountered: Encountered::default(),
            boots: Cell::new(0),
            is_in_use: Cell::new(false),
            met: met.clone(),
            world,
        })
    }

    /// The volumes as a process finds them that has just started.
    fn graph(&self) -> Graph {
        let volumes: Volumes = toml::from_str(&self.drawn.text)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.drawn.text));
        let mut graph = Graph::new(volumes, Path::new("/"))
            .unwrap_or_else(|error| panic!("{error}\n{}", self.drawn.text));
        let lanes: Vec<_> = (0..self.lanes)
            .map(|lane| self.machine.lane(lane))
            .collect();
        graph.set_lanes(&lanes);
        let boot = Uuid::from_u128(1 + self.boots.get());
        graph.set_owner(Owner::new(Uuid::from_u128(1), boot, "the machine"));
        graph
    }

    async fn open(&self, graph: &mut Graph, name: &str) -> Tree {
        let opened = graph.open(name, &self.machine.lane(0)).await;
        opened.unwrap_or_else(|error| panic!("{error}\n{}", self.drawn.text))
    }

    /// Makes the stripes and concats of a new tree, and says what is in its windows: zeroes.
    async fn create(&self, graph: &mut Graph) {
        for (number, name) in (2..).zip(&self.drawn.families) {
            let new = NewStripe {
                uuid: Uuid::from_u128(number),
                created_unix_s: 0,
                force: false,
                from: None,
            };
            let created = graph.create_stripe(name, &self.machine.lane(0), &new).await;
            created.unwrap_or_else(|error| panic!("{error}\n{}", self.drawn.text));
        }
        let tree = self.open(graph, "tree").await;
        let len = tree.shape().len_bytes();
        let starts = windows::draw(&mut self.world.random(), len, &self.drawn.units);
        let has_cache = self.drawn.kinds.caches > 0;
        let mut model = Model::new(starts.len() as u64 * WINDOW_BYTES, has_cache);
        // Whatever fails a flush here, a rule or the disk, a stripe or a leaf remembers it.
        if self.far.is_some() && self.drawn.families.is_empty() {
            model.flushes_may_fail_once();
        }
        self.model.replace(model);
        self.starts.replace(starts);
        drop(tree);
        self.close(graph).await;
    }

    /// Closes all but what is in memory.
    async fn close(&self, graph: &mut Graph) {
        let kept = self.drawn.in_memory.iter().cloned().collect();
        for volume in graph.take_all_but(&kept) {
            // A rule may keep a claim from being released.
            let _ = volume.close().await;
        }
    }
}

/// What a process does with the tree: a few rounds of load, after each of which it is closed and opened again.
async fn process(site: Rc<Site>, mut random: Random) {
    let mut graph = site.graph();
    let mut in_memory = Vec::new();
    for name in &site.drawn.in_memory {
        in_memory.push(site.open(&mut graph, name).await);
    }
    if site.starts.borrow().is_empty() {
        site.create(&mut graph).await;
    }
    for round in 0..2 {
        let tree = site.open(&mut graph, "tree").await;
        if round > 0 {
            site.met.borrow_mut().opened_again += 1;
        }
        let volume = on_lane(&site, &tree).await;
        check(&site, &volume).await;
        let faults = graph.handles().all::<FaultHandle>();
        for handle in faults.values() {
            (0..random.below(4)).for_each(|_| handle.add(draw_rule(&mut random)));
        }
        load(&site, &tree, &mut random).await;
        if random.chance(0.5) {
            let _ = flush(&site, &volume).await;
        }
        check(&site, &volume).await;
        site.met.borrow_mut().rules_acted += faults.values().map(FaultHandle::acted).sum::<u64>();
        drop((volume, tree));
        site.close(&mut graph).await;
        site.model.borrow_mut().reopened();
    }
}

/// What happens to the other machine while its disks are in use.
async fn trouble(site: Rc<Site>, mut random: Random) {
    const DOWN_MAX: Duration = Duration::from_secs(4);
    let Some(far) = &site.far else { return };
    loop {
        time::sleep(random_time(&mut random, 100 * MS)).await;
        while !site.is_in_use.get() {
            time::sleep(MS).await;
        }
        let down = random_time(&mut random, DOWN_MAX);
        let kind = random.below(4);
        {
            let met = &mut site.met.borrow_mut().far;
            let is_unflushed = site.model.borrow().unflushed() > 0;
            met.power_cuts_unflushed += u64::from(kind == 3 && is_unflushed);
            *[
                &mut met.resets,
                &mut met.partitions,
                &mut met.kills,
                &mut met.power_cuts,
            ][kind as usize] += 1;
        }
        match kind {
            0 => far.host().reset_connections(&site.machine),
            1 => {
                far.host().partition(&site.machine);
                time::sleep(down).await;
                far.host().heal(&site.machine);
            }
            2 => {
                far.end(End::Killed).await;
                time::sleep(down).await;
                far.restart();
            }
            _ => {
                far.end(End::PowerCut).await;
                site.model.borrow_mut().crashed(|_| true);
                time::sleep(down).await;
                far.restart();
            }
        }
    }
}

async fn on_lane(site: &Site, tree: &Tree) -> SharedVolume {
    let volume = tree.on_lane().await.expect("it is open");
    Rc::new(Windows::new(
        volume,
        &site.starts.borrow(),
        &site.encountered,
    ))
}

/// A load on every lane of the machine at once.
async fn load(site: &Rc<Site>, tree: &Tree, random: &mut Random) {
    let load = Load {
        workers: 1 + random.index(3),
        requests: 10 + random.index(15),
        errors: true,
        ..Load::default()
    };
    site.is_in_use.set(true);
    let lanes = (0..site.lanes).map(|lane| {
        let (site, tree) = (site.clone(), tree.clone());
        site.machine.clone().spawn_on(lane, async move {
            let volume = on_lane(&site, &tree).await;
            workload::run(&site, &volume, load).await
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        let tally = lane.await;
        let mut met = site.met.borrow_mut();
        met.failed += tally.failed.len() as u64;
        met.flushes_failed += tally.flush_failed.len() as u64;
        let for_good = |kind: &&ErrorKind| **kind == ErrorKind::FlushFailed;
        met.flushes_failed_for_good += tally.flush_failed.iter().filter(for_good).count() as u64;
    }
    site.is_in_use.set(false);
}

/// Compares all of the windows with the model. What a rule fails is read again.
async fn check(site: &Rc<Site>, volume: &SharedVolume) {
    const STEP: usize = 128;
    const ATTEMPTS_MAX: usize = 100;
    let all = site.model.borrow().sectors_len();
    for start in (0..all).step_by(STEP) {
        let mut attempts = 0;
        loop {
            let sectors = start..(start + STEP).min(all);
            let (at, len) = (start * SECTOR_BYTES, sectors.len() * SECTOR_BYTES);
            let read = site.model.borrow_mut().begin_read(sectors);
            match volume.read(at as u64, len).await {
                Ok(data) => {
                    let held = site.model.borrow_mut().end_read(read, &data.to_vec());
                    held.unwrap_or_else(|why| panic!("{why}\n{}", site.drawn.text));
                    break;
                }
                Err(error) => {
                    site.model.borrow_mut().failed_read(&read);
                    assert!(attempts < ATTEMPTS_MAX, "{error}\n{}", site.drawn.text);
                    attempts += 1;
                }
            }
        }
    }
}

fn run(seed: u64, met: &Rc<RefCell<Met>>) {
    let site = Site::new(seed, met);
    let bench = site.world.host("bench");
    let mut random = site.world.random();
    site.world.block_on(&bench, async {
        if let Some(far) = &site.far {
            far.start();
            far.ready().await;
            drop(spawn(trouble(site.clone(), random.fork())));
        }
        let boots = if site.drawn.in_memory.is_empty() {
            3
        } else {
            1
        };
        for boot in 0..boots {
            let process = site.machine.spawn(process(site.clone(), random.fork()));
            if boot == boots - 1 {
                process.await;
                break;
            }
            while site.starts.borrow().is_empty() {
                time::sleep(MS).await;
            }
            time::timeout(random_time(&mut random, 150 * MS), process).await;
            site.met.borrow_mut().power_cuts_in_use += u64::from(site.is_in_use.get());
            site.machine.power_cut();
            site.is_in_use.set(false);
            site.encountered.stopped();
            {
                let mut model = site.model.borrow_mut();
                model.client_stopped();
                model.crashed(|_| true);
                model.reopened();
            }
            site.boots.set(site.boots.get() + 1);
            site.machine.restart();
        }
    });
    site.world.end();
    let mut met = met.borrow_mut();
    met.occurred += site.world.occurred();
    met.kinds += site.drawn.kinds;
    met.torn += site.encountered.torn();
    met.across_gaps += site.encountered.across_gaps();
}

#[test]
fn a_tree_of_any_layers_over_failing_leaves_reads_what_was_written() {
    let met = Rc::new(RefCell::new(Met::default()));
    seeds(SEEDS, |seed| run(seed, &met));
    let met = met.borrow();
    let kinds = met.kinds;
    assert_occurred([
        ("stripes", kinds.stripes),
        ("with the smallest unit", kinds.smallest_units),
        ("with the largest unit", kinds.largest_units),
        ("concats", kinds.concats),
        ("stripes or concats in others", kinds.families_in_families),
        ("caches", kinds.caches),
        ("throttles", kinds.throttles),
        ("stats", kinds.stats),
        ("files", kinds.files),
        ("memory", kinds.memory),
        ("remote disks", kinds.remote),
        ("rules acted", met.rules_acted),
        ("requests failed", met.failed),
        ("writes torn by a failure", met.torn),
        ("flushes failed", met.flushes_failed),
        ("flushes failed for good", met.flushes_failed_for_good),
        ("requests across gaps", met.across_gaps),
        ("opened again", met.opened_again),
        ("power cuts in use", met.power_cuts_in_use),
        ("power cuts during writes", met.occurred.cuts_during_writes),
        ("connections reset in use", met.far.resets),
        ("partitions in use", met.far.partitions),
        ("targets killed in use", met.far.kills),
        ("power cuts of targets in use", met.far.power_cuts),
        (
            "of these, with unflushed writes",
            met.far.power_cuts_unflushed,
        ),
        ("changes lost", met.occurred.changes_lost),
        ("changes torn", met.occurred.changes_torn),
    ]);
}
