//! Two paths to one disk of a third-party target. One path breaks, or silently drops everything, with writes in flight;
//! requests continue over the other, nothing is lost, and the path comes back.

use engine::{Buf, Duration, Payload, task, time};
use harness::disk::{Disk, Target};
use harness::forwarder::Forwarder;
use harness::initiator::{at_url, on_two_lanes};
use harness::lio::{Backing, Lio};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use volume::{Durability, IscsiConfig, IscsiDisk, Multipath, PathConfig, SharedVolume, Volume};

const SLOT_BYTES: usize = 16 << 10;
const SLOTS: u64 = 64;
const WRITERS: u64 = 8;

/// The disk by both forwarders, one session each.
fn by(forwarders: &[Forwarder; 2], url: &str) -> IscsiConfig {
    let mut config = at_url(url);
    config.address = forwarders[0].address();
    config.request_timeout = Duration::from_secs(4);
    config.connect_timeout = Duration::from_secs(4);
    config.reconnect_timeout = Duration::from_secs(120);
    config.multipath = Multipath {
        more: vec![PathConfig {
            address: forwarders[1].address(),
            source: None,
            isid: volume::next_isid(),
        }],
        ..Multipath::default()
    };
    config
}

/// Waits until this many paths are usable.
async fn paths(disk: &IscsiDisk, count: usize) {
    let deadline = time::now() + Duration::from_secs(180);
    while disk.live_paths() != count {
        assert!(
            time::now() < deadline,
            "{} of {count} paths",
            disk.live_paths()
        );
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the other lane has sent a command by a session of its own, which it may do once both have stood for a while.
async fn used_beside_home(disk: &IscsiDisk) {
    let deadline = time::now() + Duration::from_secs(180);
    while disk.path_counts().beside_home == 0 {
        assert!(time::now() < deadline, "{:?}", disk.path_counts());
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// Writes its own slots again and again until told to stop; returns what each slot then holds.
async fn write(disk: SharedVolume, writer: u64, is_over: Rc<Cell<bool>>) -> Vec<(u64, u8)> {
    let own: Vec<u64> = (0..SLOTS).filter(|slot| slot % WRITERS == writer).collect();
    let mut held = Vec::new();
    for round in 1u32.. {
        let byte = (round % 251) as u8;
        held.clear();
        for &slot in &own {
            let data: Payload = Buf::copy_of(&[byte; SLOT_BYTES]).into();
            let written = disk.write(slot * SLOT_BYTES as u64, data, Durability::Cached);
            written.await.expect("a path is there");
            held.push((slot, byte));
        }
        if is_over.get() {
            return held;
        }
        time::sleep(Duration::from_millis(50)).await;
    }
    unreachable!("it is told to end")
}

/// Two sessions through a disk's only portal: one on each of two lanes, or both on one lane.
fn one_path_is_enough(target: Target, is_on_two_lanes: bool) {
    if let Some(served) = Disk::on(target, 16 << 20) {
        let portal: SocketAddr = served.address().parse().expect("an address");
        one_of_two_is_enough(&served.url, [portal; 2], is_on_two_lanes);
    }
}

fn one_of_two_is_enough(url: &str, portals: [SocketAddr; 2], is_on_two_lanes: bool) {
    let forwarders = portals.map(|portal| Forwarder::new("127.0.0.1", portal));
    on_two_lanes(async |lanes| {
        let lanes = if is_on_two_lanes { lanes } else { &[] };
        let disk = IscsiDisk::open_on(by(&forwarders, url), lanes).await;
        let disk = disk.expect("two logins");
        paths(&disk, 2).await;
        let is_over = Rc::new(Cell::new(false));
        let mut ways: Vec<SharedVolume> = vec![disk.clone()];
        ways.extend(disk.from_branches().await.expect("the lane runs"));
        assert_eq!(ways.len(), 1 + usize::from(is_on_two_lanes));
        let writers = (0..WRITERS).zip(ways.iter().cycle().cloned());
        let writers = writers.map(|(writer, way)| task::spawn(write(way, writer, is_over.clone())));
        let writers: Vec<_> = writers.collect();
        for forwarder in &forwarders {
            forwarder.break_oldest();
            paths(&disk, 1).await;
            forwarder.mend();
            paths(&disk, 2).await;
            forwarder.stall();
            paths(&disk, 1).await;
            forwarder.mend();
            paths(&disk, 2).await;
        }
        if is_on_two_lanes {
            used_beside_home(&disk).await;
        }
        is_over.set(true);
        for writer in task::join_all(writers).await {
            for (slot, written) in writer {
                let read = disk.read(slot * SLOT_BYTES as u64, SLOT_BYTES).await;
                let read = read.expect("a read").to_vec();
                assert!(read.iter().all(|&byte| byte == written), "slot {slot}");
            }
        }
        disk.flush().await.expect("nothing was lost");
        let counts = disk.path_counts();
        println!("{counts:?}");
        assert!(counts.lost >= 4, "{counts:?}");
        assert_eq!(counts.beside_home > 0, is_on_two_lanes, "{counts:?}");
        disk.close().await;
    });
}

#[test]
fn one_path_of_tgt_is_enough() {
    one_path_is_enough(Target::Tgt, false);
}

#[test]
fn one_path_of_tgt_is_enough_for_two_lanes() {
    one_path_is_enough(Target::Tgt, true);
}

#[test]
fn one_path_of_istgt_is_enough() {
    one_path_is_enough(Target::Istgt, false);
}

#[test]
fn one_path_of_lio_is_enough() {
    one_path_is_enough(Target::Lio, true);
}

/// Writes lost on one path are ended by a LOGICAL UNIT RESET over the other.
#[test]
fn one_path_of_lio_is_enough_where_each_has_a_portal_group_of_its_own() {
    if let Some(lio) = Lio::serve(Backing::File, 16 << 20, 512) {
        one_of_two_is_enough(&lio.url(), lio.portals(), false);
    }
}

#[test]
fn one_path_of_our_own_target_is_enough() {
    one_path_is_enough(Target::Sanstone, false);
}

#[test]
fn one_path_of_our_own_target_is_enough_for_two_lanes() {
    one_path_is_enough(Target::Sanstone, true);
}
