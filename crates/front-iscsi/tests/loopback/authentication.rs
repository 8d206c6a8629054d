//! Login access control over real sockets: CHAP with each algorithm, its refusals and their delay, access lists,
//! digests.

use std::{sync::Arc, time::Duration};

use engine::{Buf, Gather, Lane, LaneConfig, net::TcpStream, time};
use front_iscsi::Allow;
use iscsi::{Chap, ChapAccount, ChapAlgorithm, ChapSecret};
use volume::{Durability, ErrorKind, IscsiConfig, IscsiDisk, Secrets, Volume};

use crate::{
    common::{IQN, Served, Setup},
    config, disk_at, ram, with_config,
};

const SECRET: &str = "the initiator's secret";
const TARGET_SECRET: &str = "the target's own secret";

fn account(user: &str, secret: &str) -> ChapAccount {
    let secret = ChapSecret::new(secret.as_bytes()).expect("it is long enough");
    ChapAccount::new(user, secret).expect("a name")
}

fn one_way(secret: &str) -> Option<Arc<Chap>> {
    Some(Arc::new(
        Chap::new(account("host", secret), None).expect("one secret"),
    ))
}

fn mutual(target_secret: &str) -> Chap {
    let target = account("disk", target_secret);
    Chap::new(account("host", SECRET), Some(target)).expect("two secrets")
}

fn guarded() -> Setup {
    let mut config = config(ram(1 << 20, 512));
    config.server.targets[0].chap = Some(Arc::new(mutual(TARGET_SECRET)));
    config
}

fn disk_with(server: &Served, chap: Option<Arc<Chap>>) -> IscsiConfig {
    IscsiConfig {
        chap: chap.map(Secrets::fixed),
        ..disk_at(server.portals()[0])
    }
}

async fn refused(config: IscsiConfig) -> String {
    match IscsiDisk::open(config).await {
        Ok(_) => panic!("it was let in"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
            error.to_string()
        }
    }
}

#[test]
fn each_algorithm_lets_the_right_initiator_in_one_way_and_both() {
    with_config(guarded(), async |server| {
        for algorithm in ChapAlgorithm::ALL {
            for chap in [
                mutual(TARGET_SECRET),
                Chap::clone(&one_way(SECRET).expect("some")),
            ] {
                let chap = chap.with_algorithms(&[algorithm]).expect("one");
                let disk = IscsiDisk::open(disk_with(server, Some(Arc::new(chap))))
                    .await
                    .expect("a login");
                let written = Buf::copy_of(&[algorithm.number() as u8; 512]);
                disk.write(0, written.into(), Durability::Fua)
                    .await
                    .expect("a write");
                let read = disk.read(0, 512).await.expect("a read").to_vec();
                assert_eq!(read, [algorithm.number() as u8; 512]);
                disk.close().await;
            }
        }
        assert_eq!(server.server.failed_logins(), 0);
    });
}

#[test]
fn a_wrong_secret_is_answered_later_each_time_and_the_right_one_at_once() {
    with_config(guarded(), async |server| {
        let wrong = || disk_with(server, one_way("not the right secret"));
        let began = time::now();
        let message = refused(wrong()).await;
        assert!(
            message.contains("authentication failure (status 0x0201)"),
            "{message}"
        );
        let message = refused(disk_with(server, None)).await;
        assert!(message.contains("0x0201"), "{message}");
        assert_eq!(server.server.failed_logins(), 2);
        refused(wrong()).await;
        let waited = time::now() - began;
        assert!(waited >= Duration::from_millis(1750), "{waited:?}");
        // The next wrong one would wait for two seconds. One of several right ones must be quick, however busy this machine
        // is.
        let mut soonest = Duration::MAX;
        for _ in 0..5 {
            let began = time::now();
            let disk = IscsiDisk::open(disk_with(server, one_way(SECRET)));
            disk.await.expect("a login").close().await;
            soonest = soonest.min(time::now() - began);
        }
        assert!(soonest < Duration::from_millis(900), "{soonest:?}");
        assert_eq!(server.server.failed_logins(), 3);
    });
}

/// They use its name, its address and its port name, come many at once, and leave when they are not answered.
#[test]
fn nobody_keeps_the_right_initiator_out_by_guessing() {
    with_config(guarded(), async |server| {
        let guesses = |at_once: u64| {
            let before = server.server.failed_logins();
            let all: Vec<_> = (0..at_once)
                .map(|_| engine::spawn(refused(disk_with(server, one_way("a wrong secret")))))
                .collect();
            async move {
                while server.server.failed_logins() < before + at_once {
                    time::sleep(Duration::from_millis(5)).await;
                }
                all
            }
        };
        let mut waiting = Vec::new();
        for _ in 0..3 {
            // All are looked at, although most of those before have not been answered.
            for _ in 0..2 {
                waiting.extend(guesses(8).await);
            }
            let disk = IscsiDisk::open(disk_with(server, one_way(SECRET)));
            disk.await.expect("a login").close().await;
        }
        for guess in waiting {
            let message = guess.await;
            assert!(message.contains("0x0201"), "{message}");
        }
    });
}

/// The initiators that had the old secret are no longer those that fail.
#[test]
fn another_secret_ends_the_delays() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    lane.block_on(async {
        let mut served = guarded().start(&[handle]).await;
        let wrong = |served: &Served| refused(disk_with(served, one_way("not the right secret")));
        for _ in 0..3 {
            wrong(&served).await;
        }
        // Without an end to the delays, each would take longer than a second. One must be quick, however busy this
        // machine is.
        let mut soonest = Duration::MAX;
        for number in 0..4 {
            let mut config = guarded().server;
            config.targets[0].chap = one_way(&format!("the secret number {number}"));
            let over = served.server.change(config).await.expect("it changes");
            over.await;
            let began = time::now();
            wrong(&served).await;
            soonest = soonest.min(time::now() - began);
        }
        assert!(soonest < Duration::from_millis(900), "{soonest:?}");
        served.stop().await;
    });
}

/// What a stranger is told before it has proved anything does not depend on the sessions that there are.
#[test]
fn a_stranger_does_not_learn_which_sessions_exist() {
    with_config(guarded(), async |server| {
        let config = disk_with(server, one_way(SECRET));
        let (name, isid) = (config.initiator_name.clone(), config.isid);
        let disk = IscsiDisk::open(config).await.expect("a login");
        let asked = async |tsih: u16| {
            let text = format!("InitiatorName={name}\0TargetName={IQN}\0AuthMethod=CHAP\0");
            let mut request = vec![0; 48];
            (request[0], request[1]) = (0x43, 0x81);
            request[7] = text.len() as u8;
            request[8..14].copy_from_slice(&isid.0);
            request[14..16].copy_from_slice(&tsih.to_be_bytes());
            request.extend(text.as_bytes());
            request.resize(request.len().next_multiple_of(4), 0);
            let stream = TcpStream::connect(server.portals()[0]).await;
            let stream = stream.expect("it listens");
            let mut gather = Gather::new();
            gather.push_bytes(&request);
            let (sent, _) = stream.send_all(gather).await;
            sent.expect("it takes it");
            let (received, header) = stream.receive_exact(Buf::new(48), 0).await;
            received.expect("a login response");
            (header[1], header[36], header[37])
        };
        // The first session of a server is 1. Asked to prove themselves are all alike.
        let [new, there, not_there] = [asked(0).await, asked(1).await, asked(2).await];
        assert_eq!((new.1, new.2), (0, 0), "it is asked for a proof");
        assert_eq!([there, not_there], [new; 2]);
        disk.close().await;
    });
}

#[test]
fn a_target_that_cannot_prove_itself_gets_no_session() {
    let mut config = guarded();
    config.server.targets[0].chap = Some(Arc::new(mutual("another target's secret")));
    with_config(config, async |server| {
        let message = refused(disk_with(server, Some(Arc::new(mutual(TARGET_SECRET))))).await;
        assert!(message.contains("not that of `mutual`"), "{message}");
        assert_eq!(
            server.server.failed_logins(),
            0,
            "the initiator has done nothing wrong"
        );
    });
}

#[test]
fn chap_is_not_dropped_where_the_target_wants_none() {
    with_config(config(ram(1 << 20, 512)), async |server| {
        let message = refused(disk_with(server, one_way(SECRET))).await;
        assert!(message.contains("0x0201"), "{message}");
    });
}

#[test]
fn names_and_networks_decide_who_may_try() {
    let with = |names: &[&str], from: &[&str]| {
        let mut config = config(ram(1 << 20, 512));
        config.server.targets[0].allow =
            Allow::Names(names.iter().map(|name| (*name).to_owned()).collect());
        config.server.targets[0].allow_from =
            from.iter().map(|p| p.parse().expect("a network")).collect();
        config
    };
    let own = "iqn.2026-11.io.sanstone:initiator";
    for (names, from, let_in) in [
        (&[own][..], &[][..], true),
        (&[own], &["10.0.0.0/8", "127.0.0.0/8"], true),
        (&[own], &["10.0.0.0/8"], false),
        (&["iqn.2026-11.io.sanstone:another"], &["127.0.0.1"], false),
    ] {
        with_config(with(names, from), async |server| {
            if let_in {
                IscsiDisk::open(disk_with(server, None))
                    .await
                    .expect("a login")
                    .close()
                    .await;
            } else {
                let message = refused(disk_with(server, None)).await;
                assert!(message.contains("0x0202"), "{message}");
            }
        });
    }
}

#[test]
fn digests_are_used_when_the_initiator_prefers_them_and_the_target_may() {
    for allowed in [true, false] {
        let mut config = guarded();
        config.server.digests = allowed;
        with_config(config, async |server| {
            for (header_digest, data_digest) in [(true, true), (true, false), (false, true)] {
                let disk = IscsiConfig {
                    header_digest,
                    data_digest,
                    ..disk_with(server, one_way(SECRET))
                };
                let disk = IscsiDisk::open(disk).await.expect("a login");
                assert_eq!(disk.digests().header, header_digest && allowed);
                assert_eq!(disk.digests().data, data_digest && allowed);
                for (at, len) in [(0, 512), (4096, 200 << 10)] {
                    let mut buf = Buf::new(len);
                    buf.iter_mut()
                        .enumerate()
                        .for_each(|(at, byte)| *byte = (at % 251) as u8);
                    let expected = buf.to_vec();
                    disk.write(at, buf.into(), Durability::Cached)
                        .await
                        .expect("a write");
                    assert!(disk.read(at, len).await.expect("a read").to_vec() == expected);
                }
                disk.close().await;
            }
        });
    }
}
