//! One disk behind the iSCSI server and behind fronts that speak no SCSI, on both lanes of a machine: a fence holds for
//! every front, and no answered operation is overwritten later by an older one of another front.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    rc::Rc,
    time::Duration,
};

use engine::{
    sim::{Random, World, seeds},
    spawn,
    task::join_all,
    time,
};
use scsi::{Attention, Status};
use sim::{
    Count, assert_occurred, content,
    raw::{self, Answer, RawSession},
    slow_disk::{Moment, SECTORS, SECTORS_GROWN, SlowDisk},
    target_machine::PORT,
    two_fronts::{IQN, LANES, TRANSFER_MAX_BYTES, TwoFronts},
};
use unit::IoError;

use crate::MS;

const GOOD: Option<u8> = Some(0);
const CONFLICT: Option<u8> = Some(0x18);
const MISCOMPARE: u8 = 0xE;
const WRITE_EXCLUSIVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 3;
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
const EXCLUSIVE_ACCESS_REGISTRANTS: u8 = 6;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const PREEMPT_AND_ABORT: u8 = 5;
/// The sectors that most operations here use.
const PLACE: Range<u64> = 0..8;
const SLOW: Duration = Duration::from_millis(20);

/// Who wrote a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writer {
    /// A block front.
    Block = 1,
    /// An initiator, by a plain write.
    Plain = 2,
    /// An initiator, by an operation with exclusive access to its blocks.
    Alone = 3,
}

impl Writer {
    fn wrote(self, version: u64) -> bool {
        version >> 56 == self as u64
    }
}

fn is_blocks(version: u64) -> bool {
    Writer::Block.wrote(version)
}

/// A machine with two fronts, and a client.
struct Bench {
    machine: TwoFronts,
    random: RefCell<Random>,
    last: Cell<u64>,
}

impl Bench {
    fn each(seed_count: u64, scenario: impl AsyncFn(&Rc<Bench>)) {
        seeds(seed_count, |seed| {
            let world = World::new(seed);
            let client = world.host("client");
            let host = world.host_with_lanes("two-fronts", LANES);
            let disk = SlowDisk::new(world.random());
            let random = RefCell::new(world.random());
            world.block_on(&client, async {
                let machine = TwoFronts::start(&host, disk).await;
                let bench = Bench {
                    machine,
                    random,
                    last: Cell::new(0),
                };
                scenario(&Rc::new(bench)).await;
            });
        });
    }

    fn disk(&self) -> &SlowDisk {
        &self.machine.disk
    }

    fn version(&self, writer: Writer) -> u64 {
        self.last.set(self.last.get() + 1);
        (writer as u64) << 56 | self.last.get()
    }

    fn below(&self, n: u64) -> u64 {
        self.random.borrow_mut().below(n)
    }

    async fn login(&self, name: &str) -> Rc<RawSession> {
        let portal = self.machine.host.addr(PORT);
        let session = RawSession::login_at(portal, IQN, name).await;
        execute(&session, &[0; 6], &[]).await;
        session
    }

    /// Has the block front on `lane` write; returns a future for its end.
    fn block_write(
        &self,
        lane: usize,
        sectors: Range<u64>,
    ) -> impl Future<Output = Result<(), IoError>> + use<> {
        let version = self.version(Writer::Block);
        let front = &self.machine.block[lane];
        front.start(move |front| async move { front.write(version, sectors).await })
    }

    fn block_read(
        &self,
        lane: usize,
        sectors: Range<u64>,
    ) -> impl Future<Output = Result<Vec<u64>, IoError>> + use<> {
        let front = &self.machine.block[lane];
        front.start(move |front| async move { front.read(sectors).await })
    }

    /// PERSISTENT RESERVE OUT by the block front on `lane`.
    async fn block_reserve(&self, lane: usize, action: u8, kind: u8, keys: (u8, u8)) {
        let front = &self.machine.block[lane];
        let status = front.start(move |front| async move {
            front.reserve_out(action, kind, keys.0, keys.1).await
        });
        assert_eq!(status.await, Status::Good);
    }

    /// The results of a write and of a read by the block front on each lane.
    async fn block_results(&self) -> (Vec<Option<IoError>>, Vec<Option<IoError>>) {
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        for lane in 0..LANES {
            writes.push(self.block_write(lane, PLACE).await.err());
            reads.push(self.block_read(lane, PLACE).await.err());
        }
        (writes, reads)
    }

    /// Checks that every write of the block fronts had ended when the answer came, at `answered`.
    fn assert_nothing_after(&self, answered: Moment) {
        for write in self.disk().writes() {
            let is_over = write.ended.is_some_and(|ended| ended < answered);
            assert!(
                !is_blocks(write.version) || is_over,
                "it was answered at {answered:?}, before this write's end: {write:?}"
            );
        }
    }

    /// Waits until the disk is working on a block front's write.
    async fn until_writing(&self) {
        while self.disk().writing(is_blocks) == 0 {
            time::sleep(MS / 10).await;
        }
    }
}

async fn execute(session: &RawSession, cdb: &[u8], data: &[u8]) -> Answer {
    let answer = session.execute(cdb, data, 0).await;
    answer.expect("the session lives")
}

async fn reserve(session: &RawSession, action: u8, kind: u8, keys: (u8, u8)) {
    let (cdb, list) = raw::reserve_out(action, kind, keys.0, keys.1);
    assert_eq!(execute(session, &cdb, &list).await.status, GOOD);
}

fn io(opcode: u8, sectors: &Range<u64>) -> [u8; 10] {
    let [high, low] = (sectors.start as u16).to_be_bytes();
    let blocks = (sectors.end - sectors.start) as u8;
    [opcode, 0, 0, 0, high, low, 0, 0, blocks, 0]
}

async fn write(bench: &Bench, session: &RawSession) -> Answer {
    let data = content::bytes(bench.version(Writer::Plain), PLACE);
    execute(session, &io(0x2A, &PLACE), &data).await
}

async fn read(session: &RawSession, sectors: Range<u64>) -> Answer {
    let len = 512 * (sectors.end - sectors.start) as u32;
    let answer = session.execute(&io(0x28, &sectors), &[], len).await;
    answer.expect("the session lives")
}

#[test]
fn a_reservation_of_an_initiator_keeps_block_fronts_out() {
    Bench::each(80, async |bench| {
        let (holder, other) = (bench.login("holder").await, bench.login("other").await);
        reserve(&holder, REGISTER, 0, (0, 1)).await;
        for kind in [
            WRITE_EXCLUSIVE,
            EXCLUSIVE_ACCESS,
            WRITE_EXCLUSIVE_REGISTRANTS,
            EXCLUSIVE_ACCESS_REGISTRANTS,
        ] {
            let free = (vec![None; LANES], vec![None; LANES]);
            assert_eq!(bench.block_results().await, free);
            reserve(&holder, RESERVE, kind, (1, 0)).await;
            let refused = vec![Some(IoError::ReservationConflict); LANES];
            let excludes_readers = matches!(kind, EXCLUSIVE_ACCESS | EXCLUSIVE_ACCESS_REGISTRANTS);
            let reads = match excludes_readers {
                true => refused.clone(),
                false => vec![None; LANES],
            };
            assert_eq!(bench.block_results().await, (refused, reads), "type {kind}");
            for lane in &bench.machine.block {
                let zeroed = lane.start(|front| async move { front.zero(PLACE).await });
                assert_eq!(zeroed.await, Err(IoError::ReservationConflict));
                let flushed = lane.start(|front| async move { front.flush().await });
                assert_eq!(flushed.await, Err(IoError::ReservationConflict));
            }
            assert_eq!(write(bench, &holder).await.status, GOOD);
            assert_eq!(read(&holder, PLACE).await.status, GOOD);
            assert_eq!(write(bench, &other).await.status, CONFLICT);
            reserve(&holder, RELEASE, kind, (1, 0)).await;
        }
        // The same with the roles swapped.
        bench.block_reserve(0, REGISTER, 0, (0, 2)).await;
        bench
            .block_reserve(0, RESERVE, WRITE_EXCLUSIVE, (2, 0))
            .await;
        assert_eq!(write(bench, &holder).await.status, CONFLICT);
        assert_eq!(bench.block_write(0, PLACE).await, Ok(()));
        let another = bench.block_write(1, PLACE).await;
        assert_eq!(another, Err(IoError::ReservationConflict));
    });
}

#[test]
fn preempt_and_abort_is_answered_when_no_block_write_can_land_any_more() {
    let [overtaken, at_gate, for_memory] = [const { Count::new() }; 3];
    Bench::each(240, async |bench| {
        let fencer = bench.login("fencer").await;
        reserve(&fencer, REGISTER, 0, (0, 9)).await;
        for lane in 0..LANES {
            bench.block_reserve(lane, REGISTER, 0, (0, 1)).await;
        }
        let kind = EXCLUSIVE_ACCESS_REGISTRANTS;
        bench.block_reserve(0, RESERVE, kind, (1, 0)).await;
        bench.disk().set_pause_max(SLOW);
        bench.disk().set_fail_chance(0.1);
        // Some to other blocks, so that they run; some to blocks where an ordered write holds them at the gate.
        let mut writes = Vec::new();
        for at in 0..6 {
            let (lane, at) = (at as usize % LANES, 64 + 8 * at);
            writes.push(spawn(bench.block_write(lane, at..at + 8)));
        }
        bench.until_writing().await;
        let data = content::bytes(bench.version(Writer::Alone), PLACE);
        let ordered = fencer.submit_as(raw::ORDERED, &io(0x2A, &PLACE), &data, 0);
        while bench.disk().writing(|version| Writer::Alone.wrote(version)) == 0 {
            time::sleep(MS / 10).await;
        }
        let waiting: Vec<_> = (0..2 * LANES)
            .map(|n| spawn(bench.block_write(n % LANES, PLACE)))
            .collect();
        let transfer = 128..128 + u64::from(TRANSFER_MAX_BYTES) / 512;
        let reads: Vec<_> = (0..32)
            .map(|n| spawn(bench.block_read(n % LANES, transfer.clone())))
            .collect();
        time::sleep(MS * (1 + bench.below(10) as u32)).await;
        let running = bench.disk().writing(is_blocks);
        // Bypasses the ordered command, which would hold it back.
        let (cdb, list) = raw::reserve_out(PREEMPT_AND_ABORT, kind, 9, 1);
        let preempt = fencer.submit_as(raw::HEAD_OF_QUEUE, &cdb, &list, 0);
        let preempt = fencer.answer(preempt.expect("it is sent")).await;
        assert_eq!(preempt.expect("an answer").status, GOOD);
        let answered = bench.disk().now();
        bench.assert_nothing_after(answered);
        assert_eq!(bench.disk().reading(), 0, "a read of who was fenced off");
        let later = bench.block_write(0, PLACE).await;
        assert_eq!(later, Err(IoError::ReservationConflict));
        join_all(writes).await;
        overtaken.add(running);
        for result in join_all(waiting).await {
            assert_eq!(
                result,
                Err(IoError::ReservationConflict),
                "it was at the gate"
            );
            at_gate.add(1);
        }
        let reads = join_all(reads).await;
        let refused = |read: &&Result<_, _>| **read == Err(IoError::ReservationConflict);
        for_memory.add(reads.iter().filter(refused).count());
        let ordered = fencer.answer(ordered.expect("it is sent")).await;
        ordered.expect("the session lives");
        time::sleep(20 * SLOW).await;
        bench.assert_nothing_after(answered);
    });
    assert_occurred([
        ("writes at work", overtaken.get()),
        ("writes at the gate", at_gate.get()),
        ("reads that waited for memory", for_memory.get()),
    ]);
}

#[test]
fn a_logical_unit_reset_waits_for_block_operations() {
    let overtaken = Count::new();
    Bench::each(120, async |bench| {
        let session = bench.login("resetter").await;
        bench.disk().set_pause_max(SLOW);
        let writes: Vec<_> = (0..6)
            .map(|n| spawn(bench.block_write(n % LANES, PLACE)))
            .collect();
        let reads: Vec<_> = (0..6)
            .map(|n| spawn(bench.block_read(n % LANES, PLACE)))
            .collect();
        bench.until_writing().await;
        overtaken.add(bench.disk().writing(is_blocks));
        let reset = session.task_management(raw::LOGICAL_UNIT_RESET).await;
        assert_eq!(reset, Ok(0));
        bench.assert_nothing_after(bench.disk().now());
        assert_eq!(bench.disk().reading(), 0);
        let writes = join_all(writes).await;
        assert!(writes.iter().all(Result::is_ok));
        assert!(join_all(reads).await.iter().all(Result::is_ok));
        for lane in &bench.machine.block {
            let told = lane.start(|front| async move { front.take_attention() });
            assert_eq!(told.await, Some(Attention::BusDeviceReset));
        }
    });
    assert_occurred([("writes at work", overtaken.get())]);
}

/// What exclusive operations encountered.
#[derive(Default)]
struct Alone {
    ordered: u64,
    atomic: u64,
    compared: u64,
    miscompared: u64,
    /// New versions, each with the old versions it must have replaced.
    replaced: Vec<(u64, Vec<u64>)>,
    beside: u64,
}

async fn write_alone(bench: &Bench, session: &RawSession, met: &RefCell<Alone>) {
    let version = bench.version(Writer::Alone);
    let data = content::bytes(version, PLACE);
    match bench.below(3) {
        0 => {
            let task = session.submit_as(raw::ORDERED, &io(0x2A, &PLACE), &data, 0);
            let answer = session.answer(task.expect("it is sent")).await;
            answer.expect("the session lives");
            met.borrow_mut().ordered += 1;
        }
        1 => {
            let mut cdb = [0; 16];
            (cdb[0], cdb[13]) = (0x9C, 8);
            execute(session, &cdb, &data).await;
            met.borrow_mut().atomic += 1;
        }
        _ => {
            let old = read(session, PLACE).await.data;
            let mut cdb = [0; 16];
            (cdb[0], cdb[13]) = (0x89, 8);
            let answer = execute(session, &cdb, &[&old[..], &data].concat()).await;
            let met = &mut *met.borrow_mut();
            match (answer.status, answer.sense[0]) {
                (GOOD, _) => {
                    met.compared += 1;
                    let old = content::versions(PLACE.start, &old);
                    met.replaced.push((version, old));
                }
                (_, MISCOMPARE) => met.miscompared += 1,
                _ => {}
            }
        }
    }
}

impl Alone {
    /// Checks that nothing else was working on the same blocks, and that exactly the compared versions were replaced.
    fn check(&mut self, bench: &Bench) {
        let writes = bench.disk().writes();
        let is_alone = |version| Writer::Alone.wrote(version);
        for (index, one) in writes.iter().enumerate() {
            for other in &writes[index + 1..] {
                let overlap =
                    one.sectors.start < other.sectors.end && other.sectors.start < one.sectors.end;
                if !overlap || !(is_alone(one.version) || is_alone(other.version)) {
                    continue;
                }
                let is_after = one.ended.is_some_and(|ended| ended < other.began);
                assert!(is_after, "{one:?} beside {other:?}");
            }
        }
        for (new, old) in &self.replaced {
            for (sector, old) in PLACE.zip(old) {
                let history = bench.disk().history(sector);
                let at = history.iter().position(|version| version == new);
                let at = at.expect("it has landed");
                let before = at.checked_sub(1).map_or(content::ZEROES, |at| history[at]);
                assert_eq!(before, *old, "what was compared was not there any more");
            }
        }
        let blocks = writes.iter().filter(|write| is_blocks(write.version));
        self.beside += blocks.count() as u64;
        self.replaced.clear();
    }
}

#[test]
fn what_excludes_others_excludes_block_fronts() {
    let met = RefCell::new(Alone::default());
    let failed = Count::new();
    Bench::each(240, async |bench| {
        bench.disk().set_fail_chance(0.05);
        let mut busy = Vec::new();
        for n in 0..3 * LANES {
            let bench = bench.clone();
            busy.push(spawn(async move {
                for _ in 0..15 {
                    let start = bench.below(8);
                    let sectors = start..start + 1 + bench.below(8);
                    let front = &bench.machine.block[n % LANES];
                    match bench.below(8) {
                        0 => _ = bench.block_read(n % LANES, sectors).await,
                        1 => {
                            let zeroed =
                                front.start(|front| async move { front.zero(sectors).await });
                            let _ = zeroed.await;
                        }
                        _ => _ = bench.block_write(n % LANES, sectors).await,
                    }
                    time::sleep(MS * bench.below(5) as u32).await;
                }
            }));
        }
        let sessions = [bench.login("one").await, bench.login("two").await];
        for _ in 0..10 {
            for session in &sessions {
                write_alone(bench, session, &met).await;
            }
        }
        join_all(busy).await;
        met.borrow_mut().check(bench);
        failed.add(bench.disk().failed() as usize);
    });
    let met = met.take();
    assert_occurred([
        ("ordered writes", met.ordered),
        ("atomic writes", met.atomic),
        ("compared and written", met.compared),
        ("miscompared", met.miscompared),
        ("writes of block fronts", met.beside),
        ("failures of the disk", failed.get()),
    ]);
}

#[test]
fn a_sanitize_refuses_block_operations_until_its_end() {
    let [refused, waited] = [const { Count::new() }; 2];
    Bench::each(60, async |bench| {
        let session = bench.login("one").await;
        bench.disk().set_pause_max(MS);
        let before = spawn(bench.block_write(0, PLACE));
        bench.until_writing().await;
        let [overwrite, immediate] = [0x01, 0x80];
        let cdb = [0x48, overwrite | immediate, 0, 0, 0, 0, 0, 0, 8, 0];
        let list = [1, 0, 0, 4, 0xA5, 0xA5, 0xA5, 0xA5];
        assert_eq!(execute(&session, &cdb, &list).await.status, GOOD);
        before.await.expect("it had begun before");
        let is_refused = |result: &Option<_>| matches!(result, Some(IoError::Sanitizing { .. }));
        let (writes, reads) = bench.block_results().await;
        assert!(writes.iter().chain(&reads).all(is_refused));
        refused.add(1);
        while let Err(IoError::Sanitizing { .. }) = bench.block_write(1, PLACE).await {
            waited.add(1);
            time::sleep(MS).await;
        }
        assert_eq!(bench.block_write(0, PLACE).await, Ok(()));
    });
    assert_occurred([
        ("operations refused", refused.get()),
        ("writes that waited for the end", waited.get()),
    ]);
}

#[test]
fn a_block_front_is_told_of_growth_once_and_finds_the_new_end() {
    Bench::each(60, async |bench| {
        let beyond = SECTORS..SECTORS + 8;
        for lane in 0..LANES {
            let write = bench.block_write(lane, beyond.clone()).await;
            assert_eq!(write, Err(IoError::OutOfRange));
        }
        bench.disk().grow();
        bench.machine.units.tell_changes();
        for (lane, front) in bench.machine.block.iter().enumerate() {
            let told = loop {
                let told = front.start(|front| async move { front.take_attention() });
                match told.await {
                    Some(told) => break told,
                    None => time::sleep(MS).await,
                }
            };
            assert_eq!(told, Attention::CapacityChanged);
            assert_eq!(bench.block_write(lane, beyond.clone()).await, Ok(()));
            let (again, sectors) = front
                .start(|front| async move { (front.take_attention(), front.sectors()) })
                .await;
            assert_eq!((again, sectors), (None, SECTORS_GROWN));
        }
    });
}

#[test]
fn a_block_front_that_leaves_is_waited_for_and_does_nothing_afterwards() {
    let [running, refused] = [const { Count::new() }; 2];
    Bench::each(120, async |bench| {
        bench.disk().set_pause_max(SLOW);
        let writes: Vec<_> = (0..4).map(|_| spawn(bench.block_write(0, PLACE))).collect();
        bench.until_writing().await;
        running.add(bench.disk().writing(is_blocks));
        let left = spawn(bench.machine.block[0].start(|front| async move { front.leave().await }));
        let meanwhile = spawn(bench.block_write(0, PLACE));
        left.await;
        bench.assert_nothing_after(bench.disk().now());
        // Either it came before the front left, and is waited for, or it is refused.
        match meanwhile.await {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, IoError::NoUnit);
                refused.add(1);
            }
        }
        assert!(join_all(writes).await.iter().all(Result::is_ok));
        let later = bench.block_write(0, PLACE).await;
        assert_eq!(later, Err(IoError::NoUnit));
        assert_eq!(bench.block_write(1, PLACE).await, Ok(()));
    });
    assert_occurred([
        ("writes at work", running.get()),
        ("writes that came too late", refused.get()),
    ]);
}

#[test]
fn growth_is_told_where_one_lane_alone_shows_the_disk() {
    seeds(40, |seed| {
        let world = World::new(seed);
        let client = world.host("client");
        let host = world.host_with_lanes("block-alone", LANES);
        let disk = SlowDisk::new(world.random());
        world.block_on(&client, async {
            let machine = TwoFronts::start_block_alone(&host, disk).await;
            let front = &machine.block[0];
            let first = front.start(|front| async move { front.sectors() });
            assert_eq!(first.await, SECTORS);
            machine.disk.grow();
            machine.units.tell_changes();
            let told = time::timeout(1000 * MS, async {
                loop {
                    let told = front.start(|front| async move { front.take_attention() });
                    match told.await {
                        Some(told) => break told,
                        None => time::sleep(MS).await,
                    }
                }
            });
            assert_eq!(told.await, Some(Attention::CapacityChanged));
        });
    });
}
