//! Login access control over real sockets: CHAP with each algorithm, its refusals and their delay, access lists,
//! digests.

use std::{sync::Arc, time::Duration};

use engine::{Buf, time};
use front_iscsi::Allow;
use iscsi::{Chap, ChapAccount, ChapAlgorithm, ChapSecret};
use volume::{Durability, ErrorKind, IscsiConfig, IscsiDisk, Volume};

use crate::{
    common::{Served, Setup},
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
        chap,
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
fn the_wrong_one_is_refused_and_has_to_wait_before_it_tries_again() {
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
        assert!(waited >= Duration::from_millis(750), "{waited:?}");
        // The right secret is accepted after its delay, and from then on nobody is delayed. One of several logins
        // must be quick, however busy this machine is.
        let login = async || {
            let disk = IscsiDisk::open(disk_with(server, one_way(SECRET)));
            disk.await.expect("a login").close().await;
        };
        login().await;
        let waited = time::now() - began;
        assert!(waited >= Duration::from_millis(1750), "{waited:?}");
        let mut soonest = Duration::MAX;
        for _ in 0..5 {
            let began = time::now();
            login().await;
            soonest = soonest.min(time::now() - began);
        }
        assert!(soonest < Duration::from_millis(900), "{soonest:?}");
        assert_eq!(server.server.failed_logins(), 3);
    });
}

#[test]
fn bystanders_do_not_wait_for_the_failures_of_others() {
    let mut config = guarded();
    let mut open = self::config(ram(1 << 20, 512)).server.targets.remove(0);
    open.name += "-open";
    let open_name = open.name.clone();
    config.server.targets.push(open);
    with_config(config, async |server| {
        let named = |name: &str, secret| IscsiConfig {
            initiator_name: format!("iqn.2026-11.io.sanstone:{name}"),
            ..disk_with(server, one_way(secret))
        };
        let login = async |disk| IscsiDisk::open(disk).await.expect("a login").close().await;
        login(named("db", SECRET)).await;
        for _ in 0..4 {
            refused(named("guesser", "not the right secret")).await;
        }
        let waiting = named("stranger", SECRET);
        let waiting = engine::spawn(async move { IscsiDisk::open(waiting).await });
        // Initiators that have authenticated before, and those that need not, are not delayed.
        login(named("db", SECRET)).await;
        let open = IscsiConfig {
            target_name: open_name.clone(),
            chap: None,
            ..named("guesser", SECRET)
        };
        login(open).await;
        assert!(!waiting.is_finished(), "a stranger did not wait");
        waiting.await.expect("a login").close().await;
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
