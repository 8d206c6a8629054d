//! `kill -9` of the target under load: every write that was acknowledged is there after the
//! restart, whole and not older, and the initiator reports errors within its time limits.

use engine::{Buf, Duration, task, time};
use harness::directory::Directory;
use harness::initiator::{Awake, on_lane, on_port, opened};
use harness::noise;
use harness::sanstone::Sanstone;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use volume::{Durability, ErrorKind, Volume};

const SLOT_BYTES: usize = 16 << 10;
const SLOTS: usize = 1024;
const WRITERS: usize = 32;

/// What is known of each slot, by write number.
struct Slots {
    /// The last write that was begun: nothing newer can be there.
    begun: Vec<u64>,
    /// The last write that was acknowledged: nothing older may be there.
    acknowledged: Vec<u64>,
    /// The last write that a completed flush covers.
    flushed: Vec<u64>,
}

/// Contents of a slot: its number and the write's number in every block, with noise in between.
fn contents(source: &[u8], slot: usize, write: u64) -> Vec<u8> {
    let begin = (slot * 7 + write as usize * 13) % 4096;
    let mut bytes = source[begin..begin + SLOT_BYTES].to_vec();
    for block in bytes.chunks_mut(512) {
        block[..8].copy_from_slice(&(slot as u64).to_le_bytes());
        block[8..16].copy_from_slice(&write.to_le_bytes());
    }
    bytes
}

fn acknowledged_writes_survive(cache: &str) {
    let directory = Directory::new();
    let volume = format!(
        "[volume.disk]\nfile = {{ path = \"disk.img\", size = \"16MiB\", cache = \"{cache}\" }}\n"
    );
    let mut server = Sanstone::serve(directory.path(), &volume, &["disk"]);
    let port = server.port();
    let source = Rc::new(noise(3, SLOT_BYTES + 4096));
    let slots = Rc::new(RefCell::new(Slots {
        begun: vec![0; SLOTS],
        acknowledged: vec![0; SLOTS],
        flushed: vec![0; SLOTS],
    }));
    let mut config = on_port(port);
    config.connect_timeout = Duration::from_secs(2);
    config.request_timeout = Duration::from_secs(2);
    config.reconnect_timeout = Duration::from_secs(1);
    on_lane(async {
        let disk = opened(config).await;
        let flushes = Rc::new(Cell::new(0));
        let mut loads = Vec::new();
        for writer in 0..WRITERS {
            let (disk, slots, source) = (disk.clone(), slots.clone(), source.clone());
            loads.push(task::spawn(async move {
                for write in 1.. {
                    let slot = writer + (write as usize * 17 % (SLOTS / WRITERS)) * WRITERS;
                    slots.borrow_mut().begun[slot] = write;
                    let data = Buf::copy_of(&contents(&source, slot, write)).into();
                    let durability = match write % 5 {
                        0 => Durability::Fua,
                        _ => Durability::Cached,
                    };
                    if let Err(error) = disk
                        .write((slot * SLOT_BYTES) as u64, data, durability)
                        .await
                    {
                        return error;
                    }
                    slots.borrow_mut().acknowledged[slot] = write;
                }
                unreachable!("writes end with an error")
            }));
        }
        let over = Rc::new(Cell::new(false));
        let flushing = {
            let (flushes, over) = (flushes.clone(), over.clone());
            let (disk, slots) = (disk.clone(), slots.clone());
            task::spawn(async move {
                while !over.get() {
                    let covered = slots.borrow().acknowledged.clone();
                    disk.flush().await?;
                    slots.borrow_mut().flushed = covered;
                    flushes.set(flushes.get() + 1);
                    time::sleep(Duration::from_millis(20)).await;
                }
                // Nothing was unflushed at the end, or nothing can be: there is no volatile cache.
                volume::Result::Ok(())
            })
        };
        let deadline = time::now() + Duration::from_secs(60);
        let acknowledged = || slots.borrow().acknowledged.iter().sum::<u64>();
        while flushes.get() == 0 || acknowledged() <= 100 {
            assert!(time::now() < deadline, "hardly anything was written");
            time::sleep(Duration::from_millis(20)).await;
        }
        time::sleep(Duration::from_millis(1500)).await;
        server.daemon().signal("KILL");
        let began = Awake::begin();
        let errors = task::join_all(loads).await;
        let took = began.elapsed();
        // One second to come back, two more for an attempt that began before that second ended, and the time the system
        // takes to end a process with requests in flight.
        assert!(took < Duration::from_secs(8), "errors came after {took:?}");
        for error in errors {
            let kinds = [ErrorKind::Unreachable, ErrorKind::TimedOut];
            assert!(kinds.contains(&error.kind()), "{error}");
        }
        over.set(true);
        let flushed = time::timeout(Duration::from_secs(30), flushing).await;
        if let Err(error) = flushed.expect("a flush ends in time, too") {
            let kinds = [
                ErrorKind::Unreachable,
                ErrorKind::TimedOut,
                ErrorKind::FlushFailed,
            ];
            assert!(kinds.contains(&error.kind()), "{error}");
        }
    });
    server
        .daemon()
        .wait(std::time::Duration::from_secs(60))
        .expect("it is dead");
    let again = Sanstone::serve(directory.path(), &volume, &["disk"]);
    let slots = slots.borrow();
    on_lane(async {
        let disk = opened(on_port(again.port())).await;
        for slot in 0..SLOTS {
            let at = (slot * SLOT_BYTES) as u64;
            let found = disk.read(at, SLOT_BYTES).await.expect("a read").to_vec();
            check_slot(&slots, &source, slot, &found);
        }
        disk.close().await;
    });
}

/// Blocks may come from different writes if a write was cut; none may be older than the acknowledged one.
fn check_slot(slots: &Slots, source: &[u8], slot: usize, found: &[u8]) {
    let (oldest, newest) = (slots.acknowledged[slot], slots.begun[slot]);
    assert!(slots.flushed[slot] <= oldest);
    for (number, block) in found.chunks(512).enumerate() {
        let write = u64::from_le_bytes(block[8..16].try_into().expect("eight bytes"));
        assert!(
            (oldest..=newest).contains(&write),
            "slot {slot}, block {number}: write {write} is there; {oldest} was acknowledged, \
             {newest} begun, {} flushed",
            slots.flushed[slot]
        );
        let expected = match write {
            0 => vec![0; 512],
            _ => contents(source, slot, write)[number * 512..][..512].to_vec(),
        };
        assert!(block == expected, "slot {slot}, block {number} is damaged");
    }
}

#[test]
fn of_a_share_with_direct_io() {
    acknowledged_writes_survive("direct");
}

#[test]
fn of_a_share_in_the_page_cache() {
    acknowledged_writes_survive("write-back");
}

#[test]
fn of_a_share_whose_every_write_is_durable() {
    acknowledged_writes_survive("write-through");
}
