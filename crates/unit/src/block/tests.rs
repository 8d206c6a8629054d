//! When block operations are refused, and how a volume's errors reach a block front.

use std::{cell::Cell, collections::BTreeMap, rc::Rc, sync::Arc};

use engine::{Buf, Duration, Lane, LaneConfig, LaneFuture, Payload, cross::oneshot, spawn, time};
use scsi::{Attention, TargetPort};
use volume::{
    AtomicWrites, CompareOutcome, Durability, Error, ErrorKind, Result, SharedVolume, Volume,
    fallback,
    leaf::ram::{Ram, Region},
};

use super::IoError;
use crate::{
    CommandId, DiskSpec, LaneUnits, Luns, Mark, MemoryLimits, Nexus, Units, UnitsConfig,
    no_commands,
};

const LEN_BYTES: u64 = 1 << 20;
const TRANSFER_MAX_BYTES: u32 = 64 << 10;
const OPERATION: (CommandId, u32) = (CommandId(1), 0);
const READ_ONLY: (CommandId, u32) = (CommandId(1), 1);

thread_local! {
    /// How long a discard takes.
    static DISCARD_TAKES: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// The error that every write returns.
    static FAILS: Cell<Option<ErrorKind>> = const { Cell::new(None) };
}

/// Memory whose writes fail.
struct Failing(Ram);

fn outcome() -> Result<()> {
    match FAILS.get() {
        None => Ok(()),
        Some(kind) => Err(Error::new(kind, "as the test wants it")),
    }
}

impl Volume for Failing {
    volume::pass_on! { self => self.0; shape, read, member, close, allocation, write_zeroes }

    fn write(&self, at: u64, data: Payload, how: Durability) -> LaneFuture<'_, Result<()>> {
        match outcome() {
            Ok(()) => self.0.write(at, data, how),
            failed => LaneFuture::new(async { failed }),
        }
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { outcome() })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            time::sleep(DISCARD_TAKES.get()).await;
            self.0.discard(at, len).await
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

/// A configuration with one disk, backed by `region`, whose writes and flushes may fail.
fn config(region: Arc<Region>) -> UnitsConfig {
    let disk = DiskSpec {
        name: "disk".into(),
        uuid: [1; 16],
        open: Arc::new(move || {
            let region = region.clone();
            LaneFuture::new(async move { Ok(Rc::new(Failing(region.on_lane())) as SharedVolume) })
        }),
        kept: None,
        told: Vec::new(),
    };
    let limits = MemoryLimits {
        transfer_max_bytes: TRANSFER_MAX_BYTES,
        ..MemoryLimits::default()
    };
    UnitsConfig {
        disks: vec![disk],
        keep: None,
        note: None,
        limits,
    }
}

/// Runs `test` with a nexus that reaches a disk at LUN 0, and at LUN 1 through a read-only port.
fn with_nexus(test: impl AsyncFnOnce(&Rc<LaneUnits>, &Rc<Nexus>) + Send + 'static) {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    let config = config(Region::new(LEN_BYTES, 512).expect("memory for a small disk"));
    lane.block_on(async {
        let units = Units::open(config, &[handle]).await.expect("its disk");
        let (done, ended) = oneshot();
        units.enter(0, move |units| async move {
            let luns = [(0, false), (1, true)].map(|(lun, read_only)| {
                let port = TargetPort {
                    target_name: "iqn.2026-11.io.sanstone:block".into(),
                    portal_group_tag: 1,
                    relative_port: 1,
                    port_group: 1,
                };
                let unit = units.unit("disk", port, read_only, false);
                (lun, unit.expect("it can be shown"))
            });
            let luns: Rc<Luns> = Rc::new(BTreeMap::from(luns));
            let nexus = units.enter("test", &luns, no_commands());
            test(&units, &nexus).await;
            done.send(());
        });
        ended.outcome().await.expect("the test has passed");
    });
}

fn zeroes(len: u64) -> Payload {
    Payload::zeroes(len as usize)
}

#[test]
fn what_is_not_in_whole_blocks_of_the_disk_is_refused() {
    with_nexus(async |units, nexus| {
        for ((at, len), refused) in [
            ((0, 0), IoError::OutOfRange),
            ((1, 512), IoError::Misaligned),
            ((0, 511), IoError::Misaligned),
            ((LEN_BYTES, 512), IoError::OutOfRange),
            ((LEN_BYTES - 512, 1024), IoError::OutOfRange),
            ((u64::MAX - 511, 512), IoError::OutOfRange),
            ((u64::MAX, 1), IoError::OutOfRange),
        ] {
            let refused = Err(refused);
            let read = units.read(nexus, OPERATION, (at, len as u32)).await;
            assert_eq!(read.map(drop), refused, "{len} at {at}");
            let write = units.write(nexus, OPERATION, at, zeroes(len), false).await;
            assert_eq!(write, refused);
            let discarded = units.discard(nexus, OPERATION, (at, len)).await;
            assert_eq!(discarded, refused);
            let zeroed = units.write_zeroes(nexus, OPERATION, (at, len), true).await;
            assert_eq!(zeroed, refused);
        }
        let last = (LEN_BYTES - 512, 512);
        assert!(units.read(nexus, OPERATION, last).await.is_ok());
        let all = (0, LEN_BYTES);
        assert_eq!(units.discard(nexus, OPERATION, all).await, Ok(()));
        let zeroed = units.write_zeroes(nexus, OPERATION, all, false).await;
        assert_eq!(zeroed, Ok(()));
    });
}

#[test]
fn a_transfer_that_is_longer_than_its_memory_is_refused() {
    with_nexus(async |units, nexus| {
        let max = u64::from(units.transfer_max_bytes());
        assert_eq!(max, u64::from(TRANSFER_MAX_BYTES));
        for (len, result) in [(max, Ok(())), (max + 512, Err(IoError::TooLong))] {
            let read = units.read(nexus, OPERATION, (0, len as u32)).await;
            assert_eq!(read.map(drop), result);
            let write = units.write(nexus, OPERATION, 0, zeroes(len), true).await;
            assert_eq!(write, result);
        }
    });
}

#[test]
fn what_is_compared_is_written_only_where_it_is_the_same() {
    with_nexus(async |units, nexus| {
        let of = |byte: u8| Payload::from(Buf::copy_of(&[byte; 512]));
        let change = async |(old, new), lun| {
            let operation = (CommandId(1), lun);
            let change = (of(old), of(new));
            units
                .compare_and_write(nexus, operation, 512, change, true)
                .await
        };
        assert_eq!(change((0, 1), 0).await, Ok(true));
        assert_eq!(change((0, 2), 0).await, Ok(false));
        let read = units.read(nexus, OPERATION, (0, 1536)).await;
        let expected = [[0; 512], [1; 512], [0; 512]].concat();
        assert_eq!(read.expect("a read").0.to_vec(), expected);
        assert_eq!(change((1, 2), 1).await, Err(IoError::WriteProtected));
        let short = (of(1), zeroes(1024));
        let refused = units.compare_and_write(nexus, OPERATION, 512, short, false);
        assert_eq!(refused.await, Err(IoError::OutOfRange));
        FAILS.set(Some(ErrorKind::NoSpace));
        assert_eq!(change((1, 2), 0).await, Err(IoError::NoSpace));
        FAILS.set(None);
        assert_eq!(change((1, 2), 0).await, Ok(true));
    });
}

#[test]
fn where_the_disk_takes_space_is_told() {
    with_nexus(async |units, nexus| {
        let written = units.write(nexus, OPERATION, 0, zeroes(4096), false);
        written.await.expect("a write");
        for (len, result) in [
            (512, Ok(())),
            (LEN_BYTES, Ok(())),
            (513, Err(IoError::Misaligned)),
        ] {
            let found = units.allocation(nexus, OPERATION, (0, len)).await;
            assert_eq!(
                found.map(|found| assert!(found.is_mapped && found.len_bytes >= 512)),
                result
            );
        }
        units.leave(nexus).await;
        let refused = units.allocation(nexus, OPERATION, (0, 512)).await;
        assert_eq!(refused.map(drop), Err(IoError::NoUnit));
    });
}

#[test]
fn a_port_that_takes_no_writes_reads_and_flushes() {
    with_nexus(async |units, nexus| {
        let range = (0, 512);
        assert!(units.read(nexus, READ_ONLY, range).await.is_ok());
        assert_eq!(units.flush(nexus, READ_ONLY).await, Ok(()));
        let refused = Err(IoError::WriteProtected);
        let write = units.write(nexus, READ_ONLY, 0, zeroes(512), false).await;
        assert_eq!(write, refused);
        let range = (0, 512);
        let discarded = units.discard(nexus, READ_ONLY, range).await;
        assert_eq!(discarded, refused);
        let zeroed = units.write_zeroes(nexus, READ_ONLY, range, true).await;
        assert_eq!(zeroed, refused);
    });
}

#[test]
fn who_has_no_unit_or_has_left_does_nothing() {
    with_nexus(async |units, nexus| {
        let nowhere = (CommandId(1), 2);
        let refused = Err(IoError::NoUnit);
        assert_eq!(units.flush(nexus, nowhere).await, refused);
        assert_eq!(units.flush(nexus, OPERATION).await, Ok(()));
        units.leave(nexus).await;
        assert_eq!(units.flush(nexus, OPERATION).await, refused);
        let write = units.write(nexus, OPERATION, 0, zeroes(512), false).await;
        assert_eq!(write, refused);
    });
}

#[test]
fn a_read_that_waits_for_memory_is_not_done_for_a_nexus_that_leaves() {
    with_nexus(async |units, nexus| {
        let mut held = Vec::new();
        while let Some(permits) = nexus.memory.try_take(None, TRANSFER_MAX_BYTES as usize) {
            held.push(permits);
        }
        // The reserve.
        held.push(nexus.memory.take(None, TRANSFER_MAX_BYTES as usize).await);
        let (units_of_read, nexus_of_read) = (units.clone(), nexus.clone());
        let read = spawn(async move {
            let read = units_of_read.read(&nexus_of_read, OPERATION, (0, TRANSFER_MAX_BYTES));
            read.await.map(drop)
        });
        let (units_of_leave, nexus_of_leave) = (units.clone(), nexus.clone());
        let left = spawn(async move { units_of_leave.leave(&nexus_of_leave).await });
        // It waits for no memory that others hold.
        left.await;
        assert!(!read.is_finished());
        drop(held);
        assert_eq!(read.await, Err(IoError::NoUnit));
    });
}

#[test]
fn an_error_of_the_volume_says_what_it_is() {
    with_nexus(async |units, nexus| {
        for (kind, error) in [
            (ErrorKind::NoSpace, IoError::NoSpace),
            (ErrorKind::ReadOnly, IoError::WriteProtected),
            (ErrorKind::Unreachable, IoError::Unreachable),
            (ErrorKind::TimedOut, IoError::TimedOut),
            (ErrorKind::ReservationConflict, IoError::ReservedBelow),
            (ErrorKind::Preempted, IoError::Preempted),
            (ErrorKind::FlushFailed, IoError::WritesLost),
        ] {
            FAILS.set(Some(kind));
            let write = units.write(nexus, OPERATION, 0, zeroes(512), false).await;
            assert_eq!(write, Err(error), "{kind:?}");
            assert_eq!(units.flush(nexus, OPERATION).await, Err(error));
        }
        FAILS.set(Some(ErrorKind::Medium));
        let write = units.write(nexus, OPERATION, 0, zeroes(512), false).await;
        assert_eq!(write, Err(IoError::WriteFailed));
        let flush = units.flush(nexus, OPERATION).await;
        assert_eq!(flush, Err(IoError::FlushFailed));
        FAILS.set(None);
        assert_eq!(units.flush(nexus, OPERATION).await, Ok(()));
    });
}

#[test]
fn a_nexus_that_is_one_too_many_is_served_and_told_nothing() {
    with_nexus(async |units, nexus| {
        const NEXUSES_MAX: usize = 4096;
        let enter = || units.enter("test", &nexus.luns(), no_commands());
        let others: Vec<_> = (0..NEXUSES_MAX).map(|_| enter()).collect();
        let power_on = Some(Attention::PowerOnOrReset);
        for other in &others {
            assert_eq!(other.take_attention(0), power_on);
        }
        assert_eq!(nexus.take_attention(0), None);
        assert_eq!(units.flush(nexus, OPERATION).await, Ok(()));
        units.leave(&others[0]).await;
        assert_eq!(nexus.take_attention(0), power_on, "there is room now");
    });
}

#[test]
fn a_long_discard_ends_with_the_piece_in_hand_when_it_is_aborted() {
    with_nexus(async |units, nexus| {
        let ones = Buf::copy_of(&[1; 512]);
        let last = LEN_BYTES - 512;
        let written = units.write(nexus, OPERATION, last, ones.into(), false);
        written.await.expect("a write");
        DISCARD_TAKES.set(Duration::from_millis(20));
        let discarding = {
            let (units, nexus) = (units.clone(), nexus.clone());
            spawn(async move { units.discard(&nexus, OPERATION, (0, LEN_BYTES)).await })
        };
        time::sleep(Duration::from_millis(1)).await;
        assert!(nexus.is_running(), "it has begun");
        units.reset(nexus, OPERATION.1, Mark::default()).await;
        // Answered only after it has ended, and it ends before its last piece.
        assert!(!nexus.is_running());
        assert_eq!(discarding.await, Err(IoError::Aborted));
        let (data, _permits) = units
            .read(nexus, OPERATION, (last, 512))
            .await
            .expect("a read");
        assert_eq!(data.to_vec(), [1; 512]);
        DISCARD_TAKES.set(Duration::ZERO);
        let whole = units.discard(nexus, OPERATION, (0, LEN_BYTES));
        whole.await.expect("nobody aborts it");
        let (data, _permits) = units
            .read(nexus, OPERATION, (last, 512))
            .await
            .expect("a read");
        assert_eq!(data.to_vec(), [0; 512]);
    });
}

#[test]
fn the_last_flush_of_a_volume_that_was_taken_over_is_no_error() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    lane.block_on(async {
        let config = config(Region::new(LEN_BYTES, 512).expect("memory"));
        let units = Units::open(config, &[handle]).await.expect("its disk");
        FAILS.set(Some(ErrorKind::Preempted));
        units.flush().await.expect("it is not ours to flush");
        FAILS.set(Some(ErrorKind::Medium));
        units.flush().await.expect_err("data may be lost");
        FAILS.set(None);
    });
}
