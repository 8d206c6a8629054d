//! A daemon whose disk is away when it starts: it waits for the disk as long as `wait_at_start` says.

use std::time::Duration;

use engine::{
    sim::{World, seeds},
    time,
};
use sim::{daemon_machine::DaemonMachine, raw::RawSession};

const FAR: &str = "iqn.2026-11.io.sanstone:far";
const NEAR: &str = "iqn.2026-11.io.sanstone:near";
const PORT: u16 = 3260;
const READ_10: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// When the disk comes.
const COMES_AFTER: Duration = Duration::from_secs(3);

/// Why the disk is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Away {
    /// Its machine is up, but serves nothing yet.
    NotServed,
    /// Its machine cannot be reached.
    CutOff,
}

fn far_text() -> String {
    format!(
        "lanes = 1\n[volume.db]\nfile = {{ path = \"db\", size = \"1MiB\" }}\n\
         [target.\"{FAR}\"]\nluns = [\"db\"]\nallow = [\"*\"]\n"
    )
}

fn near_text(wait_s: u64) -> String {
    format!(
        "lanes = 1\n[volume.db]\niscsi = {{ url = \"iscsi://storage/{FAR}/0\", \
         initiator = \"iqn.2026-11.io.sanstone:server\", wait_at_start = \"{wait_s}s\", \
         connect_timeout = \"2s\" }}\n\
         [target.\"{NEAR}\"]\nluns = [\"db\"]\nallow = [\"*\"]\n"
    )
}

/// Starts a daemon that waits this long for its disk. Returns how long it takes until it serves, and how often it has
/// failed to start.
fn start(seed: u64, away: Away, wait_s: u64) -> (Duration, usize) {
    let world = World::new(seed);
    let storage = DaemonMachine::new(world.host("storage"), &far_text());
    let server = DaemonMachine::new(world.host("server"), &near_text(wait_s));
    let client = world.host("client");
    world.block_on(&client, async {
        if away == Away::CutOff {
            storage.start();
            storage.ready().await;
            server.host().partition(storage.host());
        }
        let begun = time::now();
        server.start();
        time::sleep(COMES_AFTER).await;
        assert!(!server.serves(), "there is no disk");
        match away {
            Away::NotServed => storage.start(),
            Away::CutOff => server.host().heal(storage.host()),
        }
        server.ready().await;
        let took = time::now() - begun;
        // The disk is there for its users.
        let session = RawSession::login_at(server.host().addr(PORT), NEAR, "client").await;
        let _attention = session.execute(&TEST_UNIT_READY, &[], 0).await;
        let read = session
            .execute(&READ_10, &[], 512)
            .await
            .expect("a session");
        assert_eq!((read.status, read.data), (Some(0), vec![0; 512]));
        session.end();
        (took, server.refused())
    })
}

#[test]
fn a_disk_that_comes_after_the_start_is_waited_for() {
    // An attempt that began before, a pause, and one that works.
    let limit = COMES_AFTER + Duration::from_secs(4);
    for away in [Away::NotServed, Away::CutOff] {
        seeds(10, |seed| {
            let (took, refused) = start(seed, away, 10);
            assert_eq!(refused, 0, "{away:?}: it has not waited");
            assert!(took < limit, "{away:?}: {took:?}");
        });
    }
}

#[test]
fn a_disk_that_comes_after_the_wait_is_over_has_failed_the_start() {
    for wait_s in [0, 1] {
        for away in [Away::NotServed, Away::CutOff] {
            seeds(3, |seed| {
                let (_, refused) = start(seed, away, wait_s);
                assert!(
                    refused > 0,
                    "{away:?}: it has waited for longer than {wait_s} s"
                );
            });
        }
    }
}
