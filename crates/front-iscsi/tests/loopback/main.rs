//! The target and our own initiator over real sockets: they understand each other, and together they keep the
//! contract of a volume. `authentication` tests who may log in.

mod authentication;
#[path = "../common/mod.rs"]
mod common;
mod depth;
mod growth;
mod stages;

use std::{net::SocketAddr, time::Duration};

use common::{config, disk_at, ram, with_config};
use engine::{Buf, Lane, LaneConfig, task, time};
use unit::OpenVolume;
use volume::{Durability, IscsiDisk, Volume, contract};

/// Runs `test` with a server on the same lane.
fn with_server<F: Future<Output = ()>>(open: OpenVolume, test: impl FnOnce(SocketAddr) -> F) {
    with_config(config(open), async |server| test(server.portals()[0]).await);
}

#[test]
fn the_pair_keeps_the_contract_of_a_volume() {
    for (seed, block) in [(1, 512), (2, 4096)] {
        with_server(ram(8 << 20, block), |address| async move {
            let disk = IscsiDisk::open(disk_at(address)).await.expect("a login");
            contract::hold(disk.clone(), seed).await;
            disk.close().await;
        });
    }
}

#[test]
fn what_was_written_is_read_at_every_size_and_depth() {
    with_server(ram(64 << 20, 512), |address| async move {
        let disk = IscsiDisk::open(disk_at(address)).await.expect("a login");
        for size in [
            512,
            4096,
            8192,
            64 << 10,
            65 << 10,
            256 << 10,
            1 << 20,
            4 << 20,
        ] {
            for depth in [1, 8, 128] {
                let places = depth.min((64 << 20) / size);
                let writes = (0..places).map(|i| {
                    let mut buf = Buf::new(size);
                    buf.chunks_mut(8).enumerate().for_each(|(word, bytes)| {
                        bytes.copy_from_slice(&((i * size + word) as u64).to_le_bytes());
                    });
                    disk.write((i * size) as u64, buf.into(), Durability::Cached)
                });
                for result in task::join_all(writes).await {
                    result.expect("a write");
                }
                let reads = (0..places).map(|i| disk.read((i * size) as u64, size));
                for (i, data) in task::join_all(reads).await.into_iter().enumerate() {
                    let data = data.expect("a read").to_vec();
                    for (word, bytes) in data.chunks(8).enumerate() {
                        assert_eq!(
                            bytes,
                            ((i * size + word) as u64).to_le_bytes(),
                            "size {size}"
                        );
                    }
                }
            }
        }
        disk.flush().await.expect("a flush");
    });
}

#[test]
fn a_discard_of_the_whole_disk_keeps_to_the_targets_limits() {
    for block in [512, 4096] {
        with_server(ram(2 << 30, block), |address| async move {
            let disk = IscsiDisk::open(disk_at(address)).await.expect("a login");
            disk.discard(0, 2 << 30).await.expect("all of it");
        });
    }
}

#[test]
fn a_session_that_is_logged_in_again_goes_on_where_it_was() {
    with_server(ram(1 << 20, 512), |address| async move {
        let first = IscsiDisk::open(disk_at(address)).await.expect("a login");
        first
            .write(0, Buf::copy_of(&[1; 512]).into(), Durability::Fua)
            .await
            .expect("a write");
        // The same initiator port logs in again: the first session ends, and is reestablished when used.
        let second = IscsiDisk::open(disk_at(address))
            .await
            .expect("the same login");
        assert_eq!(
            second.read(0, 512).await.expect("a read").to_vec(),
            [1; 512]
        );
        assert_eq!(
            first
                .read(0, 512)
                .await
                .expect("a read after the loss")
                .to_vec(),
            [1; 512]
        );
    });
}

#[test]
fn many_readers_on_another_lane_are_all_answered() {
    let (started, address) = std::sync::mpsc::channel();
    let (stop, stopped) = engine::cross::channel::<()>();
    let server = std::thread::spawn(move || {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        let handle = lane.handle();
        lane.block_on(async {
            let server = config(ram(8 << 20, 512)).start(&[handle]).await;
            started.send(server.portals()[0]).expect("the test waits");
            stopped.receive().await;
            server.stop().await;
        });
    });
    let address = address.recv().expect("the server starts");
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let disk = IscsiDisk::open(disk_at(address)).await.expect("a login");
        for round in 0..200u64 {
            let readers = (0..32u64).map(|i| {
                let disk = disk.clone();
                engine::spawn(async move {
                    for n in 0..20 {
                        let at = (round * 7 + i * 20 + n) % 2048 * 4096;
                        disk.read(at, 4096).await.expect("a read");
                    }
                })
            });
            let all = task::join_all(readers);
            let done = engine::time::timeout(Duration::from_secs(60), all).await;
            assert!(done.is_some(), "round {round}: a read got no answer");
        }
        disk.close().await;
    });
    drop(stop);
    server.join().expect("the server ends");
}

#[test]
fn a_disk_that_is_let_go_ends_its_session() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    let mut config = config(ram(1 << 20, 512));
    config.server.limits.connections_max = 1;
    lane.block_on(async {
        let server = config.start(&[handle]).await;
        for session in 0..3 {
            let mut config = disk_at(server.portals()[0]);
            config.isid = iscsi::Isid::random([1, 2, 3], session);
            let disk = IscsiDisk::open(config).await;
            drop(disk.expect("the one connection is free again"));
            // Gives the target time to notice that the connection ended.
            time::sleep(Duration::from_millis(100)).await;
        }
        server.stop().await;
    });
}
