//! Disks for tests, whose changes wait while they are stuck.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use engine::{Duration, Lane, LaneConfig, LaneFuture, Payload, cross::oneshot, sync::Notify, time};
use scsi::TargetPort;
use volume::{
    AtomicWrites, CompareOutcome, Durability, Result, SharedVolume, Volume, fallback,
    leaf::ram::{Ram, Region},
};

use crate::{
    DiskSpec, LaneUnits, Luns, MemoryLimits, Nexus, Unit, Units, UnitsConfig, no_commands,
};

/// The disks of every test.
const NAMES: [&str; 2] = ["one", "two"];
const LEN_BYTES: u64 = 1 << 20;
/// Waits of a test that passes are much shorter.
const LIMIT: Duration = Duration::from_secs(120);

thread_local! {
    /// The disks whose writes and discards wait.
    static STUCK: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    /// How many of them wait.
    static WAITING: Cell<usize> = const { Cell::new(0) };
    static CHANGED: Rc<Notify> = Rc::default();
}

/// From now on, writes and discards of the disk `name` wait.
pub(crate) fn stick(name: &'static str) {
    STUCK.with_borrow_mut(|stuck| stuck.insert(name));
}

/// Lets all disks work.
pub(crate) fn unstick() {
    STUCK.with_borrow_mut(BTreeSet::clear);
    CHANGED.with(|changed| changed.notify());
}

/// Waits until `count` writes and discards wait.
pub(crate) async fn stuck(count: usize) {
    within(until(|| WAITING.get() == count)).await;
}

/// What `future` returns. Panics if that takes too long.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    let result = time::timeout(LIMIT, future).await;
    result.expect("it ends")
}

async fn until(condition: impl Fn() -> bool) {
    let changed = CHANGED.with(Rc::clone);
    changed.wait_for(|| condition().then_some(())).await;
}

async fn while_stuck(name: &str) {
    let changed = CHANGED.with(Rc::clone);
    WAITING.set(WAITING.get() + 1);
    changed.notify();
    until(|| STUCK.with_borrow(|stuck| !stuck.contains(name))).await;
    WAITING.set(WAITING.get() - 1);
}

/// Runs `test` with the units of the disks, behind one port.
pub(crate) fn with_units(test: impl AsyncFnOnce(&Rc<LaneUnits>, [Rc<Unit>; 2]) + Send + 'static) {
    with_limits(MemoryLimits::default(), test);
}

/// As [`with_units`], with so little memory that one operation in several steps runs at a time.
pub(crate) fn with_one_in_steps(
    test: impl AsyncFnOnce(&Rc<LaneUnits>, [Rc<Unit>; 2]) + Send + 'static,
) {
    let limits = MemoryLimits {
        memory_bytes: 512 << 10,
        transfer_max_bytes: 64 << 10,
    };
    with_limits(limits, test);
}

fn with_limits(
    limits: MemoryLimits,
    test: impl AsyncFnOnce(&Rc<LaneUnits>, [Rc<Unit>; 2]) + Send + 'static,
) {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    let config = UnitsConfig {
        disks: NAMES.into_iter().map(disk).collect(),
        keep: None,
        note: None,
        limits,
    };
    lane.block_on(async {
        let units = Units::open(config, &[handle]).await.expect("its disks");
        let (done, ended) = oneshot();
        units.enter(0, move |units| async move {
            let shown = NAMES.map(|name| show(&units, name));
            test(&units, shown).await;
            done.send(());
        });
        ended.outcome().await.expect("the test has passed");
    });
}

fn disk(name: &'static str) -> DiskSpec {
    let region = Region::new(LEN_BYTES, 512).expect("memory for a small disk");
    DiskSpec {
        name: name.into(),
        uuid: [name.as_bytes()[0]; 16],
        open: Arc::new(move || {
            let region = region.clone();
            LaneFuture::new(async move {
                let ram = region.on_lane();
                Ok(Rc::new(Sticky { name, ram }) as SharedVolume)
            })
        }),
        kept: None,
        told: Vec::new(),
    }
}

/// A new unit of the disk `name`.
pub(crate) fn show(units: &LaneUnits, name: &str) -> Rc<Unit> {
    let port = TargetPort {
        target_name: "iqn.2026-11.io.sanstone:unit".into(),
        portal_group_tag: 1,
        relative_port: 1,
        port_group: 1,
    };
    let unit = units.unit(name, port, false, false);
    unit.expect("it can be shown")
}

/// A new nexus that reaches `shown`, and knows that they have been powered on.
pub(crate) fn enter(units: &LaneUnits, shown: &[(u32, &Rc<Unit>)]) -> Rc<Nexus> {
    let nexus = units.enter("test", &luns(shown), no_commands());
    for (lun, unit) in shown {
        let port = format!("port {}", nexus.id.0);
        unit.logical.borrow().establish(nexus.id, &port);
        nexus.take_attention(*lun);
    }
    nexus
}

/// These units by LUN.
pub(crate) fn luns(shown: &[(u32, &Rc<Unit>)]) -> Rc<Luns> {
    let shown = shown.iter().map(|(lun, unit)| (*lun, (*unit).clone()));
    Rc::new(shown.collect::<BTreeMap<_, _>>())
}

/// Memory whose changes wait while it is stuck.
struct Sticky {
    name: &'static str,
    ram: Ram,
}

impl Volume for Sticky {
    volume::pass_on! { self => self.ram; shape, read, flush, member, close, allocation, write_zeroes }

    fn write(&self, at: u64, data: Payload, how: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            while_stuck(self.name).await;
            self.ram.write(at, data, how).await
        })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            while_stuck(self.name).await;
            self.ram.discard(at, len).await
        })
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        None
    }

    fn write_atomic(&self, _: u64, _: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        fallback::write_atomic()
    }

    fn compare_and_write(
        &self,
        _: u64,
        _: Payload,
        _: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        fallback::compare_and_write()
    }
}
