//! The owner of a disk ends it, and goes on from initiator ports of its own.

use engine::spawn;

use super::{lanes::site_of, *};
use crate::kinds::iscsi::PathConfig;

const WRITE_10: u8 = 0x2a;

#[test]
fn nothing_is_sent_after_the_end_whatever_was_under_way() {
    // Nothing; a write that is not answered; no session at all.
    for (waits, is_down) in [(false, false), (true, false), (true, true)] {
        let site = Site::new(Foreign::new(Claims::default()));
        site.world.block_on(&site.client, async {
            let disk = IscsiDisk::open(site.config()).await.expect("a login");
            let foreign = &site.foreign;
            foreign.answer(|cdb| (cdb[0] == WRITE_10).then_some(Instead::Late));
            if is_down {
                foreign.at_login(|_| AtLogin::Refuse(iscsi::LoginStatus::OUT_OF_RESOURCES));
                foreign.drop_connections();
            }
            let writing = disk.clone();
            let written = spawn(async move {
                let write = writing.write(0, Payload::zeroes(512), Durability::Cached);
                write.await.map_err(|error| error.kind())
            });
            if waits {
                time::sleep(Duration::from_millis(100)).await;
            }
            disk.end().await;
            let sent = (foreign.commands.get(), foreign.attempts.get());
            assert_eq!(
                written.await,
                Err(ErrorKind::Preempted),
                "{waits} {is_down}"
            );
            let began = time::now();
            for asked in [disk.read(0, 512).await.map(drop), disk.flush().await] {
                let error = asked.expect_err("it has ended");
                assert_eq!(error.kind(), ErrorKind::Preempted, "{error}");
            }
            assert!(time::now() - began < Duration::from_secs(1));
            disk.close().await;
            time::sleep(3 * RECONNECT).await;
            let now = (foreign.commands.get(), foreign.attempts.get());
            assert_eq!(now, sent, "{waits} {is_down}");
        });
    }
}

#[test]
fn an_end_holds_on_every_lane() {
    let (site, lanes) = site_of(2);
    let more = PathConfig {
        address: site.host.addr(PORT),
        source: None,
        isid: Isid::random([1, 2, 3], 2),
    };
    let config = IscsiConfig {
        multipath: Multipath {
            more: vec![more],
            ..Multipath::default()
        },
        ..site.config()
    };
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open_on(config, &lanes).await;
        let disk = disk.expect("two logins");
        let [other] = &disk.from_branches().await.expect("it runs")[..] else {
            panic!("one other lane");
        };
        while disk.path_counts().beside_home == 0 {
            other.read(0, 512).await.expect("a read");
            time::sleep(Duration::from_millis(1)).await;
        }
        disk.end().await;
        let sent = site.foreign.commands.get();
        let error = other.read(0, 512).await.expect_err("it has ended");
        assert_eq!(error.kind(), ErrorKind::Preempted, "{error}");
        assert_eq!(site.foreign.commands.get(), sent);
    });
}

#[test]
fn the_owner_chooses_the_initiator_ports() {
    let site = Site::new(Foreign::new(Claims::default()));
    site.world.block_on(&site.client, async {
        let old = IscsiDisk::open(site.config()).await.expect("a login");
        let ports = |number| Isid::random([9, 9, 9], number);
        let anew = site.config().from_ports(ports);
        let new = IscsiDisk::open(anew).await.expect("another port");
        old.read(0, 512)
            .await
            .expect("its session was not replaced");
        old.end().await;
        new.read(0, 512).await.expect("nor is the other one's");
        assert_eq!(site.foreign.connected.get(), 1);
        new.close().await;
    });
}
