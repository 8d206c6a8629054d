//! Sockets: what arrives, how it is split, and how connections end.

use std::{io, os::unix::fs::MetadataExt, pin::pin, time::Duration};

use engine::{
    Buf, Gather, Lane, LaneConfig,
    net::{ConnectOptions, TcpListener, TcpStream, UnixListener},
    spawn,
    time::{sleep, timeout},
};

use crate::site::{MS, Site, anywhere, begin, pattern};

contract![
    an_echo_of_many_sizes_gives_every_byte_back,
    a_send_of_more_pieces_than_the_system_takes_arrives_whole,
    a_receive_gives_zero_when_the_peer_has_closed,
    a_shutdown_ends_receives_on_both_ends,
    an_abort_ends_receives_here_and_resets_the_peer,
    a_connection_that_resets_when_closed_does_so_unless_it_was_shut_down,
    a_connect_where_nobody_listens_is_refused,
    a_dropped_receive_leaves_the_socket_usable,
    a_dropped_receive_keeps_its_buffer_until_it_has_completed,
    a_dropped_accept_loses_no_connection,
    a_connection_that_nobody_takes_is_closed,
    a_reader_that_does_not_read_stops_its_writer,
    a_send_to_a_peer_that_is_gone_fails,
    a_send_to_a_peer_that_has_shut_down_fails,
    both_ends_agree_on_their_addresses,
];

#[test]
fn a_unix_socket_tells_who_has_connected_it() {
    let path = std::env::temp_dir().join(format!("sanstone-peer-{}", std::process::id()));
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let listener = UnixListener::bind(&path).expect("room");
        let ours = std::fs::metadata(&path).expect("it is there").uid();
        let client = std::os::unix::net::UnixStream::connect(&path).expect("it listens");
        let accepted = listener.accept().await.expect("a connection");
        let peer = accepted.credentials().expect("the system knows");
        assert_eq!((peer.pid as u32, peer.uid), (std::process::id(), ours));
        drop(client);
        let (_client, server) = pair().await;
        server.credentials().expect_err("it is a TCP socket");
    });
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(anywhere()).expect("loopback");
    let addr = listener.local_addr();
    let client = spawn(TcpStream::connect(addr));
    let server = listener.accept().await.expect("a connection");
    (client.await.expect("a connection"), server)
}

async fn send(stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut gather = Gather::new();
    gather.push_bytes(bytes);
    stream.send_all(gather).await.0
}

async fn an_echo_of_many_sizes_gives_every_byte_back(_: Site) {
    let (client, server) = pair().await;
    let echo = spawn(async move {
        let mut buf = Buf::new(16 << 10);
        loop {
            let result;
            (result, buf) = server.receive(buf, 0).await;
            match result.expect("an open connection") {
                0 => break,
                n => send(&server, &buf[..n]).await.expect("an open connection"),
            }
        }
    });
    for size in [1, 2, 48, 511, 512, 513, 4096, 65_537, 1_000_000] {
        let sent = pattern(size, size as u64).freeze();
        let (stream, bytes) = (client.clone(), sent.clone());
        let sender = spawn(async move {
            let mut gather = Gather::new();
            gather.push_slice(bytes);
            stream.send_all(gather).await.0
        });
        let (result, received) = client.receive_exact(Buf::zeroed(size), 0).await;
        result.expect("an open connection");
        assert!(received[..] == sent[..], "{size} bytes");
        sender.await.expect("an open connection");
    }
    drop(client);
    echo.await;
}

async fn a_send_of_more_pieces_than_the_system_takes_arrives_whole(_: Site) {
    let (client, server) = pair().await;
    let mut gather = Gather::new();
    let mut expected = Vec::new();
    for i in 0..1500usize {
        let piece = pattern(60 + i % 7 * 30, i as u64);
        gather.push_bytes(&piece[..48]);
        gather.push_slice(Buf::copy_of(&piece[48..]).freeze());
        expected.extend_from_slice(&piece);
    }
    assert!(gather.pieces() > 2048);
    let sender = spawn(async move {
        let (result, gather) = client.send_all(gather).await;
        assert!(gather.is_empty());
        result
    });
    let (result, received) = server.receive_exact(Buf::zeroed(expected.len()), 0).await;
    result.expect("all of it");
    assert!(received[..] == expected[..]);
    sender.await.expect("all is sent");
}

async fn a_receive_gives_zero_when_the_peer_has_closed(_: Site) {
    let (client, server) = pair().await;
    send(&client, b"the last words").await.expect("open");
    drop(client);
    let (result, buf) = server.receive_exact(Buf::zeroed(14), 0).await;
    result.expect("what was sent before the end");
    assert_eq!(buf[..], *b"the last words");
    let (result, buf) = server.receive(buf, 0).await;
    assert_eq!(result.expect("an orderly end"), 0);
    let (result, _) = server.receive_exact(buf, 0).await;
    let error = result.expect_err("nothing follows the end");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

async fn an_abort_ends_receives_here_and_resets_the_peer(_: Site) {
    let (client, server) = pair().await;
    let waiting = {
        let client = client.clone();
        spawn(async move { client.receive(Buf::new(16), 0).await.0 })
    };
    sleep(5 * MS).await;
    client.abort();
    let received = waiting.await.unwrap_or(0);
    assert_eq!(received, 0);
    let (result, _) = server.receive(Buf::new(16), 0).await;
    let error = result.expect_err("it is no orderly end");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    send(&client, b"x").await.expect_err("it is over");
}

async fn a_connection_that_resets_when_closed_does_so_unless_it_was_shut_down(_: Site) {
    let listener = TcpListener::bind(anywhere()).expect("loopback");
    for is_shut_down in [false, true] {
        let addr = listener.local_addr();
        let client = spawn(async move {
            let options = ConnectOptions {
                resets_when_closed: true,
                ..ConnectOptions::default()
            };
            TcpStream::connect_with(addr, &options).await
        });
        let server = listener.accept().await.expect("a connection");
        let client = client.await.expect("a connection");
        if is_shut_down {
            client.shutdown();
        }
        drop(client);
        let (result, _) = server.receive(Buf::new(16), 0).await;
        match is_shut_down {
            true => assert_eq!(result.expect("an orderly end"), 0),
            false => {
                let error = result.expect_err("it is no orderly end");
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            }
        }
    }
}

async fn a_shutdown_ends_receives_on_both_ends(_: Site) {
    let (client, server) = pair().await;
    let (ours, theirs) = (client.clone(), server.clone());
    let ours = spawn(async move { ours.receive(Buf::new(100), 0).await.0 });
    let theirs = spawn(async move { theirs.receive(Buf::new(100), 0).await.0 });
    sleep(5 * MS).await;
    assert!(!ours.is_finished() && !theirs.is_finished());
    client.shutdown();
    assert_eq!(ours.await.expect("an orderly end"), 0);
    assert_eq!(theirs.await.expect("an orderly end"), 0);
    let error = send(&client, b"too late").await.expect_err("shut down");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

async fn a_connect_where_nobody_listens_is_refused(_: Site) {
    let listener = TcpListener::bind(anywhere()).expect("loopback");
    let addr = listener.local_addr();
    drop(listener);
    let error = TcpStream::connect(addr).await.expect_err("nobody listens");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

async fn a_dropped_receive_leaves_the_socket_usable(_: Site) {
    let (client, server) = pair().await;
    for round in 0..5u8 {
        assert!(
            timeout(2 * MS, server.receive(Buf::new(64), 0))
                .await
                .is_none()
        );
        send(&client, &[round]).await.expect("open");
        let (result, buf) = server.receive(Buf::new(64), 0).await;
        assert_eq!(result.expect("open"), 1);
        assert_eq!(
            buf[0], round,
            "no byte went to a receive that nobody waited for"
        );
    }
}

async fn a_dropped_receive_keeps_its_buffer_until_it_has_completed(_: Site) {
    const LEN: usize = 1 << 20;
    let (_client, server) = pair().await;
    let buf = Buf::new(LEN);
    let address = buf.as_ptr();
    {
        let mut receive = pin!(server.receive(buf, 0));
        begin(receive.as_mut()).await;
    }
    let next = Buf::new(LEN);
    assert_ne!(next.as_ptr(), address, "the reactor still holds it");
    sleep(5 * MS).await;
    let after = Buf::new(LEN);
    assert_eq!(after.as_ptr(), address, "cancelled, it is free again");
    drop((next, after));
}

async fn a_dropped_accept_loses_no_connection(_: Site) {
    let listener = TcpListener::bind(anywhere()).expect("loopback");
    for _ in 0..3 {
        assert!(timeout(2 * MS, listener.accept()).await.is_none());
        let client = spawn(TcpStream::connect(listener.local_addr()));
        listener.accept().await.expect("a connection");
        client.await.expect("a connection");
    }
    assert!(timeout(2 * MS, listener.accept()).await.is_none());
    let client = TcpStream::connect(listener.local_addr())
        .await
        .expect("a connection");
    sleep(5 * MS).await; // arrives while nobody waits
    let server = listener.accept().await.expect("the connection");
    assert_eq!(
        server.addresses().expect("open").1,
        client.addresses().expect("open").0
    );
}

async fn a_connection_that_nobody_takes_is_closed(_: Site) {
    let listener = TcpListener::bind(anywhere()).expect("loopback");
    assert!(timeout(2 * MS, listener.accept()).await.is_none());
    let client = TcpStream::connect(listener.local_addr())
        .await
        .expect("a connection");
    sleep(5 * MS).await; // accepted by now, but not taken by anybody
    drop(listener);
    let receive = timeout(Duration::from_secs(60), client.receive(Buf::new(10), 0));
    let (result, _) = receive.await.expect("somebody closes it");
    assert!(!matches!(result, Ok(1..)));
}

async fn a_reader_that_does_not_read_stops_its_writer(_: Site) {
    const LEN: usize = 16 << 20;
    let (client, server) = pair().await;
    let sent = pattern(LEN, 1).freeze();
    let bytes = sent.clone();
    let sender = spawn(async move {
        let mut gather = Gather::new();
        gather.push_slice(bytes);
        client.send_all(gather).await.0
    });
    sleep(50 * MS).await;
    assert!(!sender.is_finished(), "no socket buffer holds 16 MiB");
    let (result, received) = server.receive_exact(Buf::zeroed(LEN), 0).await;
    result.expect("all of it");
    assert!(received[..] == sent[..]);
    sender.await.expect("all is sent");
}

/// Sends until the connection is found to be closed.
async fn send_in_vain(stream: &TcpStream) {
    let mut error = None;
    for _ in 0..100 {
        if let Err(failed) = send(stream, &[7; 1000]).await {
            error = Some(failed.kind());
            break;
        }
        sleep(MS).await;
    }
    let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    assert!(kinds.contains(&error.expect("an error")));
}

async fn a_send_to_a_peer_that_is_gone_fails(_: Site) {
    let (client, server) = pair().await;
    drop(server);
    send_in_vain(&client).await;
}

async fn a_send_to_a_peer_that_has_shut_down_fails(_: Site) {
    let (client, server) = pair().await;
    server.shutdown();
    send_in_vain(&client).await;
    drop(server);
}

async fn both_ends_agree_on_their_addresses(_: Site) {
    let (client, server) = pair().await;
    let (ours, theirs) = client.addresses().expect("connected");
    assert_eq!(server.addresses().expect("connected"), (theirs, ours));
}
