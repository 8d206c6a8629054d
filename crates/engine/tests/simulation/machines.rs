//! Machines that stop and start again.

use std::{cell::Cell, rc::Rc, time::Duration};

use engine::{
    Buf,
    fs::{OpenOptions, SharedFile},
    net::{TcpListener, TcpStream},
    sim::{Host, World, seeds},
    spawn,
    time::{sleep, timeout},
};

use crate::{open, pattern, send};

const MS: Duration = Duration::from_millis(1);

/// A server that echoes each byte.
fn serve(host: &Host) {
    let addr = host.addr(7);
    host.spawn(async move {
        let listener = TcpListener::bind(addr).expect("a free port");
        while let Ok(stream) = listener.accept().await {
            spawn(async move {
                let mut buf = Buf::new(1);
                while let (Ok(1), back) = stream.receive(buf, 0).await {
                    buf = back;
                    if send(&stream, &buf).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
}

async fn ask(stream: &TcpStream) -> std::io::Result<usize> {
    send(stream, &[1]).await?;
    stream.receive(Buf::new(1), 0).await.0
}

#[test]
fn a_power_cut_is_silent_until_the_machine_is_back_and_resets() {
    seeds(20, |seed| {
        let world = World::new(seed);
        let (server, client) = (world.host("server"), world.host("client"));
        serve(&server);
        world.run_for(MS);
        let addr = server.addr(7);
        let power = server.clone();
        world.block_on(&client, async move {
            let idle = TcpStream::connect(addr).await.expect("it listens");
            let busy = TcpStream::connect(addr).await.expect("it listens");
            assert_eq!(ask(&busy).await.expect("an answer"), 1);
            power.power_cut();
            assert!(!power.is_on());
            assert!(
                timeout(MS * 1000, ask(&busy)).await.is_none(),
                "no word from a dead machine"
            );
            assert!(
                timeout(MS * 1000, idle.receive(Buf::new(1), 0))
                    .await
                    .is_none()
            );
            assert!(timeout(MS * 1000, TcpStream::connect(addr)).await.is_none());
            power.restart();
            // The retransmitted data reaches a machine that does not know the connection.
            let told = timeout(MS * 1000, busy.receive(Buf::new(1), 0))
                .await
                .expect("a reset");
            assert_eq!(
                told.0.expect_err("a reset").raw_os_error(),
                Some(libc::ECONNRESET)
            );
            assert!(
                timeout(MS * 1000, idle.receive(Buf::new(1), 0))
                    .await
                    .is_none(),
                "who says nothing hears nothing: half open"
            );
            send(&idle, &[1]).await.expect("taken");
            let told = idle.receive(Buf::new(1), 0).await.0;
            assert_eq!(
                told.expect_err("a reset").raw_os_error(),
                Some(libc::ECONNRESET)
            );
            let refused = TcpStream::connect(addr)
                .await
                .expect_err("nothing listens yet");
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
            serve(&power);
            sleep(MS).await;
            let fresh = TcpStream::connect(addr).await.expect("it listens again");
            assert_eq!(ask(&fresh).await.expect("an answer"), 1);
        });
    });
}

#[test]
fn a_peer_that_stays_dead_is_given_up() {
    let world = World::new(3);
    let (server, client) = (world.host("server"), world.host("client"));
    serve(&server);
    world.run_for(MS);
    let addr = server.addr(7);
    world.block_on(&client, async move {
        let stream = TcpStream::connect(addr).await.expect("it listens");
        server.power_cut();
        let error = ask(&stream).await.expect_err("in the end");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        let error = TcpStream::connect(addr).await.expect_err("in the end");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    });
}

#[test]
fn killed_software_closes_its_connections_and_its_files_stay() {
    seeds(20, |seed| {
        let world = World::new(seed);
        let (server, client) = (world.host("server"), world.host("client"));
        serve(&server);
        let written = server.spawn(async {
            let lock = OpenOptions {
                write: true,
                create: true,
                lock: true,
                ..OpenOptions::default()
            };
            let shared = SharedFile::open("/f".as_ref(), &lock).expect("free");
            let file = shared.on_lane();
            file.write_all_at(0, pattern(9000, 1).into(), false)
                .await
                .expect("a write");
            shared
        });
        let still_held = world.block_on(&client, written);
        let (addr, victim) = (server.addr(7), server.clone());
        world.block_on(&client, async move {
            let stream = TcpStream::connect(addr).await.expect("it listens");
            assert_eq!(ask(&stream).await.expect("an answer"), 1);
            victim.kill();
            let end = timeout(MS * 100, stream.receive(Buf::new(1), 0)).await;
            let end = end.expect("the kernel closes it").0;
            assert!(!matches!(end, Ok(1..)));
        });
        assert!(server.read_file("/f").expect("there")[..] == pattern(9000, 1)[..]);
        server.restart();
        world.block_on(&server, async {
            let lock = OpenOptions {
                write: true,
                lock: true,
                ..OpenOptions::default()
            };
            SharedFile::open("/f".as_ref(), &lock).expect("no lock outlives its process");
        });
        drop(still_held);
    });
}

#[test]
fn a_machine_may_cut_its_own_power_and_drops_its_tasks() {
    let world = World::new(1);
    let (victim, other) = (world.host("victim"), world.host("other"));
    let held = Rc::new(Cell::new(0));
    for lane in [victim.clone(), victim.clone()] {
        let held = held.clone();
        victim.spawn(async move {
            open("/f").sync().await.expect("a sync");
            lane.power_cut();
            held.set(held.get() + 1);
            sleep(MS).await;
            held.set(100);
        });
    }
    world.block_on(&other, async { sleep(MS * 100).await });
    assert!(!victim.is_on());
    assert!(held.get() < 100);
    assert_eq!(Rc::strong_count(&held), 1);
    victim.restart();
    world.block_on(&victim, async { sleep(MS).await });
}
