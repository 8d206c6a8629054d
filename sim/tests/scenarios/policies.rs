//! How commands are dealt out over two paths, one of which is slow: by turns, or so that the slow one gets fewer.

use std::{net::SocketAddr, rc::Rc, time::Duration};

use engine::{
    Buf, Gather,
    net::{TcpListener, TcpStream},
    sim::{Host, World, seeds},
    spawn, time,
};
use sim::daemon_machine::DaemonMachine;
use volume::{IscsiConfig, IscsiDisk, Multipath, PathConfig, Policy, Volume};

use crate::MS;

const TARGET: &str = "iqn.2026-11.io.sanstone:t0";
const TEXT: &str = "lanes = 1\n[volume.db]\nram = { size = \"1MiB\" }\n\
                    [target.\"iqn.2026-11.io.sanstone:t0\"]\nluns = [\"db\"]\nallow = [\"*\"]\n";
const PORT: u16 = 3260;
/// What the slow path adds to each direction.
const SLOW: Duration = Duration::from_millis(2);
const WORKERS: u64 = 8;
/// Reads of each worker, a command each.
const READS: u64 = 100;

/// Passes everything on to `target`, in both directions, each time after [`SLOW`].
async fn relay(listener: TcpListener, target: SocketAddr) {
    while let Ok(near) = listener.accept().await {
        let far = TcpStream::connect(target).await.expect("it listens");
        let ends = [Rc::new(near), Rc::new(far)];
        for [from, to] in [[0, 1], [1, 0]] {
            let (from, to) = (ends[from].clone(), ends[to].clone());
            spawn(async move {
                loop {
                    let (received, buf) = from.receive(Buf::new(64 << 10), 0).await;
                    let received = received.unwrap_or(0);
                    if received == 0 {
                        return to.shutdown();
                    }
                    time::sleep(SLOW).await;
                    let mut passed_on = Gather::new();
                    passed_on.push_bytes(&buf[..received]);
                    if to.send_all(passed_on).await.0.is_err() {
                        return;
                    }
                }
            });
        }
    }
}

fn config(target: &Host, slow: &Host, policy: Policy) -> IscsiConfig {
    IscsiConfig {
        address: target.addr(PORT),
        target_name: TARGET.into(),
        lun: 0,
        initiator_name: "iqn.2026-11.io.sanstone:client".into(),
        isid: iscsi::Isid::random([0; 3], 1),
        multipath: Multipath {
            more: vec![PathConfig {
                address: slow.addr(PORT),
                source: None,
                isid: iscsi::Isid::random([0; 3], 2),
            }],
            policy,
            ..Multipath::default()
        },
        chap: None,
        header_digest: false,
        data_digest: false,
        stage_times: false,
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(10),
        reconnect_timeout: Duration::from_secs(10),
    }
}

/// How many of the [`WORKERS`] × [`READS`] commands of a load go over the slow path.
fn over_the_slow_path(seed: u64, policy: Policy) -> u64 {
    let world = World::new(seed);
    let target = DaemonMachine::new(world.host("target"), TEXT);
    let (slow, client) = (world.host("slow"), world.host("client"));
    world.block_on(&client, async {
        target.start();
        target.ready().await;
        let (address, to) = (slow.addr(PORT), target.host().addr(PORT));
        drop(slow.spawn(async move {
            relay(TcpListener::bind(address).expect("a free port"), to).await;
        }));
        time::sleep(MS).await;
        let disk = IscsiDisk::open(config(target.host(), &slow, policy)).await;
        let disk = disk.expect("both paths lead to it");
        assert_eq!(disk.live_paths(), 2);
        let before = disk.path_counts().beside_first;
        let workers = (0..WORKERS).map(|worker| {
            let disk = disk.clone();
            spawn(async move {
                for _ in 0..READS {
                    disk.read(worker * 4096, 4096).await.expect("a read");
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await;
        }
        let counts = disk.path_counts();
        assert_eq!((counts.lost, counts.resent), (0, 0));
        disk.close().await;
        counts.beside_first - before
    })
}

/// Runs several seeds; returns the smallest and the largest number of commands over the slow path.
fn range(policy: Policy) -> (u64, u64) {
    let (mut least, mut most) = (u64::MAX, 0);
    seeds(10, |seed| {
        let slow = over_the_slow_path(seed, policy);
        (least, most) = (least.min(slow), most.max(slow));
    });
    println!("{policy:?}: {least} to {most} of {}", WORKERS * READS);
    (least, most)
}

#[test]
fn round_robin_gives_a_slow_path_as_many_commands_as_the_other() {
    let half = WORKERS * READS / 2;
    let (least, most) = range(Policy::RoundRobin);
    assert!(half - 1 <= least && most <= half + 1, "{least} to {most}");
}

#[test]
fn least_outstanding_gives_a_slow_path_clearly_fewer_commands() {
    let (least, most) = range(Policy::LeastOutstanding);
    assert!(least > 0 && most < WORKERS * READS / 4, "{least} to {most}");
}

#[test]
fn lowest_latency_gives_a_slow_path_hardly_any_commands() {
    let (least, most) = range(Policy::LowestLatency);
    assert!(most < WORKERS * READS / 10, "{least} to {most}");
}
