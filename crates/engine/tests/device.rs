//! Messages of a device, tested over a socket that preserves message boundaries as `/dev/fuse` does.

use std::{io::ErrorKind, os::unix::net::UnixDatagram, rc::Rc};

use engine::{
    Buf, Duration, Lane, LaneConfig, Payload,
    device::{Device, SharedDevice},
    spawn, time,
};

/// Both ends of a datagram socket pair.
fn pair() -> (SharedDevice, UnixDatagram) {
    let (one, other) = UnixDatagram::pair().expect("two sockets");
    (
        SharedDevice::adopt(one.into()).expect("a descriptor"),
        other,
    )
}

fn on_a_lane(test: impl AsyncFnOnce()) {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(test());
}

async fn take(device: &Device) -> Vec<u8> {
    let (len, head, body) = device.take(Buf::new(4), Buf::new(100)).await;
    let bytes = [&head[..], &body[..]].concat();
    bytes[..len.expect("a message")].to_vec()
}

#[test]
fn a_message_is_taken_in_two_parts_and_answered_in_one() {
    on_a_lane(async || {
        let (device, peer) = pair();
        let device = device.on_lane();
        for message in [&b"ab"[..], b"abcd", b"abcdefgh"] {
            peer.send(message).expect("room");
            assert_eq!(take(&device).await, message);
        }
        let mut answer = Payload::from(Buf::copy_of(b"ab"));
        answer.append(Buf::copy_of(b"cdef").into());
        device.send(answer).await.expect("room");
        let mut bytes = [0; 100];
        assert_eq!(peer.recv(&mut bytes).expect("a message"), 6);
        assert_eq!(&bytes[..6], b"abcdef");
    });
}

#[test]
fn one_that_waits_is_woken_by_the_next_message_and_no_other_is_lost() {
    on_a_lane(async || {
        let (device, peer) = pair();
        let device = Rc::new(device.on_lane());
        const WAITING: usize = 8;
        let waiting = (0..WAITING).map(|_| {
            let device = device.clone();
            spawn(async move { take(&device).await })
        });
        let waiting: Vec<_> = waiting.collect();
        // Either they are waiting by now or they will find the messages there; both are fine.
        time::sleep(Duration::from_millis(5)).await;
        for number in 0..WAITING as u8 {
            peer.send(&[number]).expect("room");
        }
        let mut taken = Vec::new();
        for one in waiting {
            taken.push(one.await[0]);
        }
        taken.sort_unstable();
        assert_eq!(taken, (0..WAITING as u8).collect::<Vec<_>>());
    });
}

#[test]
fn a_wait_that_is_dropped_ends_and_so_does_its_lane() {
    on_a_lane(async || {
        let (device, _peer) = pair();
        let device = device.on_lane();
        let dropped = time::timeout(Duration::from_millis(5), take(&device)).await;
        assert!(dropped.is_none());
        // It is still waiting when the lane ends.
        spawn(async move { take(&device).await });
        time::sleep(Duration::from_millis(5)).await;
    });
}

#[test]
fn more_waits_than_the_queue_holds_all_end() {
    let config = LaneConfig {
        entries: 4,
        ..LaneConfig::default()
    };
    Lane::new(&config).expect("a ring").block_on(async {
        let pairs: Vec<_> = (0..20).map(|_| pair()).collect();
        let waiting: Vec<_> = pairs
            .iter()
            .map(|(device, _)| {
                let device = device.on_lane();
                spawn(async move { take(&device).await })
            })
            .collect();
        time::sleep(Duration::from_millis(5)).await;
        for (_, peer) in &pairs {
            peer.send(b"x").expect("room");
        }
        for one in waiting {
            assert_eq!(one.await, b"x");
        }
    });
}

#[test]
fn another_descriptor_is_to_be_had_of_the_device_only() {
    let (device, _peer) = pair();
    // The descriptor is not a FUSE device, so this fails.
    let error = device.another().expect_err("it is a socket");
    let kinds = [
        ErrorKind::InvalidInput,
        ErrorKind::NotFound,
        ErrorKind::PermissionDenied,
    ];
    assert!(kinds.contains(&error.kind()), "{error}");
}
