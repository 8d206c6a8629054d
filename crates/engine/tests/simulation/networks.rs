//! Networks with cuts, delays and resets.

use std::{io, time::Duration};

use engine::{
    Buf, Gather,
    net::{TcpListener, TcpStream},
    sim::{Host, World, WorldConfig, seeds},
    spawn,
    task::JoinHandle,
    time::{now, sleep, timeout},
};

use crate::{pattern, send};

const MS: Duration = Duration::from_millis(1);

/// A server that takes one connection and receives once.
fn listen_once(host: &Host) -> JoinHandle<io::Result<usize>> {
    let addr = host.addr(7);
    host.spawn(async move {
        let listener = TcpListener::bind(addr).expect("a free port");
        let stream = listener.accept().await.expect("a connection");
        stream.receive(Buf::new(100), 0).await.0
    })
}

/// A server that reads to the end and returns the byte count, or the error that ended the stream early.
fn sink(host: &Host) -> JoinHandle<Result<usize, io::ErrorKind>> {
    let addr = host.addr(7);
    host.spawn(async move {
        let listener = TcpListener::bind(addr).expect("a free port");
        let stream = listener.accept().await.expect("a connection");
        let (mut buf, mut all) = (Buf::new(64 << 10), 0);
        loop {
            let result;
            (result, buf) = stream.receive(buf, 0).await;
            match result {
                Ok(0) => return Ok(all),
                Ok(n) => all += n,
                Err(error) => return Err(error.kind()),
            }
        }
    })
}

#[test]
fn a_partition_delays_and_loses_nothing_if_it_ends_in_time() {
    seeds(30, |seed| {
        let world = World::new(seed);
        let (server, client) = (world.host("server"), world.host("client"));
        let received = sink(&server);
        world.run_for(MS);
        let addr = server.addr(7);
        let (a, b) = (server.clone(), client.clone());
        world.block_on(&client, async move {
            let stream = TcpStream::connect(addr).await.expect("it listens");
            let chaos = spawn(async move {
                for _ in 0..5 {
                    sleep(MS * 2).await;
                    a.partition(&b);
                    sleep(MS * 700).await;
                    a.heal(&b);
                }
            });
            let mut gather = Gather::new();
            gather.push_slice(pattern(3_000_000, 1).freeze());
            stream
                .send_all(gather)
                .await
                .0
                .expect("the way is free again and again");
            drop(stream);
            assert_eq!(received.await, Ok(3_000_000));
            chaos.await;
        });
    });
}

#[test]
fn a_lasting_partition_ends_connections_that_want_something() {
    seeds(10, |seed| {
        let world = World::new(seed);
        let (server, client) = (world.host("server"), world.host("client"));
        let received = listen_once(&server);
        world.run_for(MS);
        let addr = server.addr(7);
        let (a, b) = (server.clone(), client.clone());
        world.block_on(&client, async move {
            let stream = TcpStream::connect(addr).await.expect("it listens");
            a.partition(&b);
            let began = now();
            send(&stream, b"into the dark")
                .await
                .expect("there is room in the buffer");
            let error = stream
                .receive(Buf::new(1), 0)
                .await
                .0
                .expect_err("in the end");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(now() - began > MS * 60_000);
            let error = TcpStream::connect(addr).await.expect_err("in the end");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(!received.is_finished(), "who only listens does not notice");
            a.heal(&b);
            sleep(MS * 10).await;
            assert!(
                !received.is_finished(),
                "what was given up does not come after all"
            );
        });
    });
}

#[test]
fn what_a_dead_machine_could_not_deliver_is_lost() {
    seeds(10, |seed| {
        let world = World::new(seed);
        let (server, client) = (world.host("server"), world.host("client"));
        let received = listen_once(&server);
        let addr = server.addr(7);
        let (a, b) = (server.clone(), client.clone());
        client.spawn(async move {
            sleep(MS).await;
            let stream = TcpStream::connect(addr).await.expect("it listens");
            a.partition(&b);
            send(&stream, b"last words")
                .await
                .expect("there is room in the buffer");
            sleep(MS).await;
            b.power_cut();
        });
        world.run_for(MS * 10);
        assert!(!client.is_on());
        client.restart();
        world.heal(&server, &client);
        world.run_for(MS * 1000);
        assert!(!received.is_finished(), "nobody is left to send it again");
    });
}

#[test]
fn connections_are_reset_by_chance_or_on_demand() {
    let mut resets = 0;
    seeds(30, |seed| {
        let mut config = WorldConfig::default();
        config.net.reset_probability = 0.02;
        let world = World::with_config(seed, config);
        let (server, client) = (world.host("server"), world.host("client"));
        let received = sink(&server);
        world.run_for(MS);
        let addr = server.addr(7);
        let end = world.block_on(&client, async move {
            let stream = TcpStream::connect(addr).await.expect("it listens");
            let mut gather = Gather::new();
            gather.push_slice(pattern(4_000_000, 1).freeze());
            let sent = stream.send_all(gather).await.0;
            drop(stream);
            (sent.is_ok(), received.await)
        });
        if end != (true, Ok(4_000_000)) {
            assert_eq!(end.1, Err(io::ErrorKind::ConnectionReset));
            resets += 1;
        }
    });
    if std::env::var("SANSTONE_SEED").is_err() {
        assert!((5..30).contains(&resets), "{resets} of 30");
    }
    let world = World::new(1);
    let (server, client) = (world.host("server"), world.host("client"));
    let received = sink(&server);
    world.run_for(MS);
    let addr = server.addr(7);
    let (a, b) = (server.clone(), client.clone());
    world.block_on(&client, async move {
        let stream = TcpStream::connect(addr).await.expect("it listens");
        a.reset_connections(&b);
        let error = stream.receive(Buf::new(1), 0).await.0.expect_err("reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(received.await, Err(io::ErrorKind::ConnectionReset));
        send(&stream, b"x").await.expect_err("it is over");
    });
}

#[test]
fn a_network_card_sends_no_faster_than_it_can() {
    let mut config = WorldConfig::default();
    config.net.bytes_per_s = Some(10_000_000);
    let world = World::with_config(1, config);
    let (server, client) = (world.host("server"), world.host("client"));
    let received = sink(&server);
    world.run_for(MS);
    let addr = server.addr(7);
    let took = world.block_on(&client, async move {
        let stream = TcpStream::connect(addr).await.expect("it listens");
        let began = now();
        let mut gather = Gather::new();
        gather.push_slice(pattern(5_000_000, 1).freeze());
        stream.send_all(gather).await.0.expect("an open connection");
        drop(stream);
        assert_eq!(received.await, Ok(5_000_000));
        now() - began
    });
    assert!(took >= MS * 500 && took < MS * 600, "{took:?}");
}

#[test]
fn ports_and_addresses_are_as_on_a_real_machine() {
    let world = World::new(1);
    let (one, two) = (world.host("one"), world.host("two"));
    let (addr, foreign) = (one.addr(7), two.addr(7));
    world.block_on(&one, async move {
        let listener = TcpListener::bind(([0, 0, 0, 0], 7).into()).expect("free");
        let kind = |result: io::Result<TcpListener>| result.expect_err("refused").kind();
        assert_eq!(kind(TcpListener::bind(addr)), io::ErrorKind::AddrInUse);
        assert_eq!(
            kind(TcpListener::bind(foreign)),
            io::ErrorKind::AddrNotAvailable
        );
        for to in [addr, ([127, 0, 0, 1], 7).into()] {
            let (client, server) = (TcpStream::connect(to), listener.accept());
            let client = client.await.expect("any of its addresses");
            let server = server.await.expect("a connection");
            assert_eq!(server.addresses().expect("open").0, to);
            assert_eq!(client.addresses().expect("open").1, to);
        }
        let nowhere = TcpStream::connect(([192, 0, 2, 1], 7).into()).await;
        assert_eq!(
            nowhere.expect_err("nobody").kind(),
            io::ErrorKind::HostUnreachable
        );
        drop(listener);
        sleep(MS).await; // let its accepts end first
        TcpListener::bind(addr).expect("free again");
        let lost = timeout(MS * 100, TcpStream::connect(foreign)).await;
        let error = lost.expect("at once").expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    });
}
