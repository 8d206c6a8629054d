//! Serves a RAM disk on one lane to a kernel played by the test, over a socket that preserves message
//! boundaries as the device does.

mod unaligned;

use std::{cell::Cell, os::fd::OwnedFd, sync::Arc};

use engine::{Buf, Duration, Lane, LaneConfig, LaneFuture, device::Device, spawn};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use unit::{DiskSpec, MemoryLimits, UnitsConfig};
use volume::{
    ErrorKind, SharedVolume,
    layer::fault::{Fault, FaultAction, FaultHandle, FaultOperation, Rule},
    leaf::ram::Region,
};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::{
    abi::{AttrOut, SetattrIn, fattr, init, opcode},
    codec_tests::{allocate, greeting, read, request, write},
};

const LEN_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u32 = 512;
const PUNCH_HOLE: u32 = 3;

/// The kernel's end: sends requests and waits for their answers, one test at a time.
struct Kernel {
    device: Device,
    unique: Cell<u64>,
    /// Injects faults into the disk's requests.
    faults: FaultHandle,
}

/// An answer: a negated errno or 0, and the data that follow.
type Answer = (i32, Vec<u8>);

impl Kernel {
    /// Sends all of these at once; returns their answers in the order of the requests.
    async fn ask_all(&self, requests: Vec<impl FnOnce(u64) -> Vec<u8>>) -> Vec<Answer> {
        let first = self.unique.get();
        let count = requests.len();
        self.unique.set(first + count as u64);
        for (unique, request) in (first..).zip(requests) {
            let request = Buf::copy_of(&request(unique));
            self.device.send(request.into()).await.expect("it is taken");
        }
        let mut answers = vec![None; count];
        for _ in 0..count {
            let (unique, answer) = self.answer().await;
            let place = &mut answers[(unique - first) as usize];
            assert!(place.replace(answer).is_none(), "one answer for each");
        }
        answers.into_iter().flatten().collect()
    }

    async fn ask(&self, request: impl FnOnce(u64) -> Vec<u8>) -> Answer {
        self.ask_all(vec![request]).await.remove(0)
    }

    async fn answer(&self) -> (u64, Answer) {
        let (head, body) = (Buf::new(16), Buf::new(1 << 20));
        let (len, head, body) = self.device.take(head, body).await;
        let len = len.expect("an answer");
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().expect("four"));
        assert_eq!(word(0) as usize, len, "it says how long it is");
        let unique = u64::from_ne_bytes(head[8..16].try_into().expect("eight"));
        (unique, (word(4) as i32, body[..len - 16].to_vec()))
    }

    async fn write(&self, at: u64, data: &[u8]) {
        let (error, written) = self.ask(|unique| write(unique, at, data, 0)).await;
        assert_eq!((error, written[0] as usize), (0, data.len() & 0xff));
    }

    /// When the file was modified and changed, by the answer to this.
    async fn times(&self, request: impl FnOnce(u64) -> Vec<u8>) -> [(u64, u32); 2] {
        let (error, attributes) = self.ask(request).await;
        assert_eq!(error, 0);
        let attr = AttrOut::read_from_bytes(&attributes)
            .expect("attributes")
            .attr;
        [(attr.mtime, attr.mtimensec), (attr.ctime, attr.ctimensec)]
    }

    async fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let (error, data) = self.ask(|unique| read(unique, at, len as u32)).await;
        assert_eq!(error, 0);
        data
    }
}

/// A disk of `len_bytes` whose requests follow `faults`.
fn disk(len_bytes: u64, faults: &FaultHandle) -> DiskSpec {
    let region = Region::new(len_bytes, BLOCK_BYTES).expect("memory for a small disk");
    let faults = faults.clone();
    DiskSpec {
        name: "disk".into(),
        uuid: [1; 16],
        open: Arc::new(move || {
            let disk: SharedVolume = Rc::new(region.on_lane());
            let disk = Fault::new(disk, faults.clone());
            LaneFuture::new(async move { Ok(Rc::new(disk) as SharedVolume) })
        }),
        kept: None,
        told: Vec::new(),
    }
}

/// What to serve of it.
fn spec() -> Spec {
    Spec {
        volume: "disk".to_owned(),
        read_only: false,
        relative_port: 1,
    }
}

/// Serves a disk to `test`.
fn with_kernel(test: impl AsyncFnOnce(&Kernel) + Send + 'static) {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    let faults = FaultHandle::new();
    let config = UnitsConfig {
        disks: vec![disk(LEN_BYTES, &faults)],
        keep: None,
        note: None,
        limits: MemoryLimits::default(),
    };
    lane.block_on(async {
        let units = Units::open(config, &[handle]).await.expect("its disk");
        let (done, ended) = oneshot();
        units.enter(0, move |units| async move {
            serve_to(&units, faults, test).await;
            done.send(());
        });
        ended.outcome().await.expect("the test has passed");
    });
}

async fn serve_to(units: &Rc<LaneUnits>, faults: FaultHandle, test: impl AsyncFnOnce(&Kernel)) {
    let (ours, its) = pair();
    let transfer = enter(&spec(), units, 0).expect("it can be shown");
    let session = FileProperties {
        read_only: false,
        takes_discards: true,
        io_max_bytes: 128 << 10,
        max_background: 1,
        mode: 0o600,
        uid: 0,
        gid: 0,
    };
    let (greet, greeted) = channel();
    let (_stop, stopped) = channel();
    let crew = Crew::of(1).remove(0);
    let changes = Arc::new(Changes::new(1, LEN_BYTES));
    let serving = serve(
        (units.clone(), transfer),
        session,
        changes,
        (its, (crew, greet)),
        stopped,
    );
    let served = spawn(serving);
    let kernel = Kernel {
        device: ours.on_lane(),
        unique: Cell::new(2),
        faults,
    };
    let (error, _) = kernel.ask(|unique| greeting(unique, init::MAX_PAGES)).await;
    assert_eq!(error, 0);
    assert!(greeted.receive().await.expect("a greeting").is_taken);
    test(&kernel).await;
    drop((kernel, ours));
    assert!(matches!(served.await, LaneEnd::Unmounted));
}

/// Both ends of a socket that stands in for the device.
fn pair() -> (SharedDevice, SharedDevice) {
    let (one, other) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("two sockets");
    // The longest write has to fit into one message.
    for socket in [&one, &other] {
        rustix::net::sockopt::set_socket_send_buffer_size(socket, 4 << 20).expect("room");
    }
    let device = |socket: OwnedFd| SharedDevice::adopt(socket).expect("a descriptor");
    (device(one), device(other))
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + seed * 13 + 1) as u8).collect()
}

#[test]
fn any_range_is_read_as_it_was_written() {
    with_kernel(async |kernel| {
        let mut expected = vec![0; LEN_BYTES as usize];
        let ranges = [
            (0, 512),
            (512, 4096),
            (1, 1),
            (511, 2),
            (700, 100),
            (700, 1500),
            (1024, 100),
            (5000, 40_000),
            (4096, 100_000),
            (LEN_BYTES as usize - 3, 3),
        ];
        for (seed, (at, len)) in ranges.into_iter().enumerate() {
            let data = bytes(seed, len);
            expected[at..at + len].copy_from_slice(&data);
            kernel.write(at as u64, &data).await;
            for (at, len) in ranges {
                let read = kernel.read(at as u64, len).await;
                assert!(read == expected[at..at + len], "{len} at {at}");
            }
        }
        let (punched, _) = kernel.ask(|n| allocate(n, PUNCH_HOLE, 100, 9000)).await;
        assert_eq!(punched, 0);
        expected[100..9100].fill(0);
        assert!(kernel.read(0, 20_000).await == expected[..20_000]);
        let (error, data) = kernel.ask(|n| read(n, LEN_BYTES - 3, 4096)).await;
        assert_eq!((error, data.len()), (0, 3), "no more than there is");
    });
}

/// A write to part of a block is a read-modify-write. Two at once, or one beside a write of the whole
/// block, must not restore old data.
#[test]
fn writes_of_parts_of_a_block_at_once_all_count() {
    with_kernel(async |kernel| {
        const PART: usize = 16;
        // Delay the write, so that others get in between the read of a block and its write.
        kernel.faults.add(Rule {
            on: Some(FaultOperation::Write),
            ..Rule::always(FaultAction::Delay(Duration::from_micros(100)))
        });
        for round in 0..20 {
            let parts = (0..BLOCK_BYTES as usize / PART).map(|part| {
                let data = bytes(round + part, PART);
                move |n| write(n, (part * PART) as u64, &data, 0)
            });
            for (error, _) in kernel.ask_all(parts.collect()).await {
                assert_eq!(error, 0);
            }
            let expected: Vec<u8> = (0..BLOCK_BYTES as usize / PART)
                .flat_map(|part| bytes(round + part, PART))
                .collect();
            assert_eq!(kernel.read(0, BLOCK_BYTES as usize).await, expected);
        }
    });
}

#[test]
fn many_long_and_short_requests_at_once_are_all_answered() {
    with_kernel(async |kernel| {
        let len = |index: usize| [512, 4096, 33 << 10, 128 << 10, 100][index % 5];
        let at = |index: usize| (index % 5 * (160 << 10)) as u64;
        for round in 0..10 {
            let writes = (0..40).map(|index| {
                let data = bytes(round + index % 5, len(index));
                move |n| write(n, at(index), &data, 0)
            });
            for (error, _) in kernel.ask_all(writes.collect()).await {
                assert_eq!(error, 0);
            }
            let reads = (0..40).map(|index| move |n| read(n, at(index), len(index) as u32));
            let answers = kernel.ask_all(reads.collect()).await;
            for (index, (error, data)) in answers.into_iter().enumerate() {
                assert_eq!(error, 0);
                assert!(data == bytes(round + index % 5, len(index)), "{index}");
            }
        }
    });
}

#[test]
fn what_is_no_request_is_refused_and_the_next_one_served() {
    with_kernel(async |kernel| {
        let short = |n| request(opcode::WRITE, n, &[0; 8]);
        let (error, _) = kernel.ask(short).await;
        assert_eq!(error, -rustix::io::Errno::INVAL.raw_os_error());
        kernel.write(0, b"served").await;
        assert_eq!(kernel.read(0, 6).await, b"served");
        let (error, _) = kernel.ask(|n| request(opcode::FSYNC, n, &[0; 16])).await;
        assert_eq!(error, 0);
    });
}

#[test]
fn each_change_moves_the_times_even_one_that_fails() {
    with_kernel(async |kernel| {
        let stat = |n| request(opcode::GETATTR, n, &[0; 16]);
        let mut last = kernel.times(stat).await;
        kernel.read(0, 4096).await;
        kernel.ask(|n| request(opcode::FSYNC, n, &[0; 16])).await;
        assert_eq!(kernel.times(stat).await, last, "nothing has changed");
        kernel.faults.add(Rule {
            on: Some(FaultOperation::Write),
            skip: 2,
            times: Some(1),
            ..Rule::always(FaultAction::Fail(ErrorKind::Medium))
        });
        type Change = fn(u64) -> Vec<u8>;
        let changes: [(Change, bool); 5] = [
            (|n| write(n, 0, &[1; 4096], 0), true),
            (|n| write(n, 700, b"part", 0), true),
            (|n| write(n, 0, &[2; 4096], 0), false),
            (|n| allocate(n, PUNCH_HOLE, 0, 4096), true),
            (|n| allocate(n, 0x10, 512, 100), true),
        ];
        for (index, (change, is_done)) in changes.into_iter().enumerate() {
            let (error, _) = kernel.ask(change).await;
            assert_eq!(error == 0, is_done, "{index}");
            let now = kernel.times(stat).await;
            assert!(
                now[0] > last[0] && now[1] > last[1],
                "{index}: {now:?} after {last:?}"
            );
            last = now;
        }
    });
}

#[test]
fn a_truncation_is_refused_and_times_are_set() {
    with_kernel(async |kernel| {
        let set = |valid, size| {
            move |n| {
                let fields = SetattrIn {
                    valid,
                    size,
                    mtime: 77,
                    mtimensec: 5,
                    ..SetattrIn::default()
                };
                request(opcode::SETATTR, n, fields.as_bytes())
            }
        };
        kernel.write(0, b"data").await;
        for size in [0, 4096, 2 * LEN_BYTES] {
            let (error, _) = kernel.ask(set(fattr::SIZE, size)).await;
            assert_eq!(error, -rustix::io::Errno::PERM.raw_os_error());
        }
        assert_eq!(kernel.read(0, 4).await, b"data");
        let [modified, changed] = kernel.times(set(fattr::MTIME, 0)).await;
        assert_eq!(modified, (77, 5));
        let stat = |n| request(opcode::GETATTR, n, &[0; 16]);
        assert_eq!(kernel.times(stat).await, [modified, changed]);
        kernel.write(0, b"more").await;
        let after = kernel.times(stat).await;
        assert!(after[0] > changed && after[1] == after[0]);
    });
}
