//! A target that reports access states for its ports (ALUA, SPC-4 5.15) and changes them while in use.

use engine::{Buf, Duration, Payload, task, time};
use harness::initiator::{at_url, in_flight, on_lane};
use harness::lio::{Backing, Lio};
use std::cell::Cell;
use std::rc::Rc;
use volume::{Durability, IscsiConfig, IscsiDisk, Multipath, PathConfig, Volume};

const OPTIMIZED: u8 = 0;
const NON_OPTIMIZED: u8 = 1;
const STANDBY: u8 = 2;
const UNAVAILABLE: u8 = 3;

const BLOCK_BYTES: usize = 4096;
const WRITES: usize = 64;

/// The disk by both portals.
fn by_both(lio: &Lio) -> IscsiConfig {
    let mut config = at_url(&lio.url());
    config.request_timeout = Duration::from_secs(120);
    config.reconnect_timeout = Duration::from_secs(120);
    config.multipath = Multipath {
        more: vec![PathConfig {
            address: lio.portals()[1],
            source: None,
            isid: volume::next_isid(),
        }],
        ..Multipath::default()
    };
    config
}

/// Some writes, several at a time.
async fn write_some(disk: &IscsiDisk) {
    in_flight(8, WRITES, |i| {
        let data: Payload = Buf::copy_of(&[i as u8; BLOCK_BYTES]).into();
        let written = disk.write((i * BLOCK_BYTES) as u64, data, Durability::Cached);
        async move { written.await.expect("a port may be used") }
    })
    .await;
}

/// Writes until the writes are distributed over the portals like this. Occasional probes of a path do not count as use.
async fn goes_over(disk: &IscsiDisk, lio: &Lio, expected: [bool; 2]) {
    let deadline = time::now() + Duration::from_secs(180);
    loop {
        let before = [0, 1].map(|portal| lio.commands(portal));
        write_some(disk).await;
        let used = [0, 1].map(|portal| lio.commands(portal) - before[portal] > 8);
        if used == expected {
            return;
        }
        assert!(
            time::now() < deadline,
            "it goes over {used:?}, not {expected:?}"
        );
        time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn the_ports_that_lio_calls_the_best_are_used_and_no_others() {
    let Some(lio) = Lio::serve(Backing::Ram, 1 << 20, 512) else {
        return;
    };
    on_lane(async {
        let disk = IscsiDisk::open(by_both(&lio)).await.expect("two logins");
        for (states, expected) in [
            ([OPTIMIZED, OPTIMIZED], [true, true]),
            ([OPTIMIZED, NON_OPTIMIZED], [true, false]),
            ([STANDBY, NON_OPTIMIZED], [false, true]),
            ([NON_OPTIMIZED, NON_OPTIMIZED], [true, true]),
            ([NON_OPTIMIZED, UNAVAILABLE], [true, false]),
            ([OPTIMIZED, OPTIMIZED], [true, true]),
        ] {
            // Improves states first, so that there is always a usable port.
            for portal in [1, 0] {
                lio.set_state(portal, states[portal]);
            }
            goes_over(&disk, &lio, expected).await;
        }
        disk.close().await;
    });
}

#[test]
fn requests_wait_while_lio_lets_no_port_be_used() {
    let Some(lio) = Lio::serve(Backing::Ram, 1 << 20, 512) else {
        return;
    };
    on_lane(async {
        let disk = IscsiDisk::open(by_both(&lio)).await.expect("two logins");
        write_some(&disk).await;
        lio.set_state(0, STANDBY);
        lio.set_state(1, UNAVAILABLE);
        let is_over = Rc::new(Cell::new(false));
        let (writing, over) = (disk.clone(), is_over.clone());
        let writer = task::spawn(async move {
            write_some(&writing).await;
            over.set(true);
        });
        // Long enough for the target to have refused some.
        let before = lio.commands(0) + lio.commands(1);
        while lio.commands(0) + lio.commands(1) < before + 2 {
            time::sleep(Duration::from_millis(50)).await;
        }
        assert!(!is_over.get(), "a write has passed a port on standby");
        lio.set_state(1, NON_OPTIMIZED);
        writer.await;
        disk.close().await;
    });
}
