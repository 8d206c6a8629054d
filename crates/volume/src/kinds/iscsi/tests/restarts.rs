//! A claim on a disk with several paths, after a daemon was killed: the reservation belongs to one of its
//! nexuses, whichever that was, and the next one takes it up.

use iscsi::LoginStatus;
use uuid::Uuid;

use super::*;
use crate::{
    Claim,
    claim::{Others, Owner},
    kinds::iscsi::{PathConfig, Sessions, Transport, foreign::LetsIn},
    member::Order,
};

const AWAY: AtLogin = AtLogin::Refuse(LoginStatus::SERVICE_UNAVAILABLE);

/// A site whose target reserves, and a disk with a path to each of `ports`.
fn site(lets_in: LetsIn, ports: [u16; 2]) -> (Site, IscsiConfig) {
    let mut designators = vec![1, 3, 0, 16, 0x60];
    designators.resize(20, 1);
    let site = Site::new(Foreign::new(Claims {
        designators,
        ..Claims::default()
    }));
    site.foreign.reserves(lets_in, &[Group(1), Group(2)]);
    let [first, second] = ports.map(|port| site.host.addr(port));
    let other = PathConfig {
        address: second,
        source: None,
        isid: Isid::random([1, 2, 3], 2),
    };
    let config = IscsiConfig {
        multipath: Multipath {
            more: vec![other],
            ..Multipath::default()
        },
        ..disk_at(first)
    };
    (site, config)
}

/// What a daemon has after each of its starts.
struct Start {
    disk: Rc<IscsiDisk>,
    claim: Claim,
}

impl Start {
    async fn new(config: &IscsiConfig) -> Start {
        let disk = IscsiDisk::open(config.clone()).await.expect("it is there");
        let owner = Owner::new(Uuid::from_u128(7), Uuid::nil(), "a test");
        let claim = Claim::single(&owner, Others::Refuse);
        disk.member(Order::Take(claim.clone()))
            .await
            .expect("it is this owner's");
        Start { disk, claim }
    }

    /// Its sessions end, and nothing else is done.
    async fn end_by_kill(self) {
        drop(self);
        time::sleep(Duration::from_secs(1)).await;
    }

    async fn write_and_read(&self) {
        for at in (0..16).map(|n| n * 512) {
            let written = self.disk.write(at, Payload::zeroes(512), Durability::Fua);
            written.await.expect("it is ours");
            self.disk.read(at, 512).await.expect("it is ours");
        }
    }
}

impl Foreign {
    /// Ports and portal groups that are registered, with their keys, the holder's first.
    fn registered(&self) -> Vec<(String, u16, u64)> {
        let (report, _) = self.reserved();
        let holder = report.reservation.and_then(|it| it.holder);
        let all = report.registrations.into_iter();
        let mut all: Vec<_> = all
            .map(|it| (it.initiator_port, it.target_port, it.key))
            .collect();
        all.sort_by_key(|(port, ..)| Some(port) != holder.as_ref());
        all
    }

    fn unreserved_times(&self) -> u64 {
        self.reserved().1
    }
}

#[test]
fn a_reservation_from_before_a_restart_is_taken_up_where_it_is_and_never_ends() {
    // The portal group that is there at first.
    for alone in [1, 2] {
        let (site, config) = site(LetsIn::Registrants, [PORT, OTHER_PORT]);
        site.world.block_on(&site.client, async {
            site.foreign.at_login(move |Group(tag)| match tag == alone {
                true => AtLogin::LetIn,
                false => AWAY,
            });
            let first = Start::new(&config).await;
            let holder = site.foreign.registered();
            assert_eq!(holder.len(), 1);
            assert_eq!(holder[0].1, alone);
            first.end_by_kill().await;
            site.foreign.at_login(|_| AtLogin::LetIn);
            let second = Start::new(&config).await;
            let registered = site.foreign.registered();
            assert_eq!(site.foreign.unreserved_times(), 0, "it stood all the time");
            assert_eq!(registered.len(), 2, "{registered:?}");
            assert_eq!(registered[0].0, holder[0].0, "who holds it");
            let key = second.claim.key();
            assert!(registered.iter().all(|(.., it)| *it == key));
            assert_eq!(second.disk.live_paths(), 2);
            second.write_and_read().await;
            second.disk.close().await;
            assert_eq!(site.foreign.registered(), []);
        });
    }
}

#[test]
fn a_reservation_is_found_over_the_path_that_alone_is_let_in() {
    let (site, config) = site(LetsIn::HoldingPort, [PORT, PORT]);
    site.world.block_on(&site.client, async {
        // The first path is away when the disk is claimed.
        let mut logins = 0;
        site.foreign.at_login(move |_| {
            logins += 1;
            match logins {
                2 => AtLogin::LetIn,
                _ => AWAY,
            }
        });
        let first = Start::new(&config).await;
        let registered = site.foreign.registered();
        assert_eq!(registered.len(), 1, "{registered:?}");
        let holder = &registered[0].0;
        assert!(holder.ends_with("0002"), "{holder}");
        first.end_by_kill().await;
        site.foreign.at_login(|_| AtLogin::LetIn);
        let second = Start::new(&config).await;
        second.write_and_read().await;
        assert_eq!(&site.foreign.registered()[0].0, holder);
        assert_eq!(site.foreign.unreserved_times(), 0, "it stood all the time");
        assert_eq!(second.disk.live_paths(), 1, "the other is not let in");
        second.disk.close().await;
    });
}

#[test]
fn a_claim_is_given_up_whole_also_when_the_path_that_holds_it_is_lost() {
    let (site, config) = site(LetsIn::Registrants, [PORT, OTHER_PORT]);
    site.world.block_on(&site.client, async {
        let start = Start::new(&config).await;
        let (_, lost, _) = site.foreign.registered()[0];
        site.foreign.at_login(move |Group(tag)| match tag == lost {
            true => AWAY,
            false => AtLogin::LetIn,
        });
        site.foreign.drop_connections();
        start.write_and_read().await;
        assert_eq!(start.disk.live_paths(), 1);
        start.disk.close().await;
        let (report, _) = site.foreign.reserved();
        assert_eq!(report.reservation, None, "nobody has it");
        assert_eq!(report.registrations, []);
    });
}

#[test]
fn the_reservation_stands_although_the_path_that_holds_it_is_removed() {
    for removed in [1, 2] {
        let (site, config) = site(LetsIn::Registrants, [PORT, OTHER_PORT]);
        site.world.block_on(&site.client, async {
            let start = Start::new(&config).await;
            let left = [OTHER_PORT, PORT][removed - 1];
            let next = Sessions {
                ways: vec![Transport {
                    address: site.host.addr(left),
                    source: None,
                }],
                spare: 0,
            };
            start.disk.add_paths(&next).await.expect("it works");
            start.disk.adopt_paths(&next);
            assert_eq!(start.disk.parted().await, [""; 0]);
            let registered = site.foreign.registered();
            let [(_, group, key)] = registered[..] else {
                panic!("{registered:?}");
            };
            assert_eq!((usize::from(group), key), (3 - removed, start.claim.key()));
            assert_eq!(site.foreign.unreserved_times(), 0, "it stood all the time");
            start.write_and_read().await;
            start.disk.close().await;
            assert_eq!(site.foreign.registered(), []);
        });
    }
}

/// The daemon was killed while its paths were not those that it now starts with.
#[test]
fn a_reservation_is_found_under_an_initiator_port_that_is_not_used_now() {
    let (site, mut config) = site(LetsIn::HoldingPort, [PORT, PORT]);
    let added = config.multipath.more.remove(0).isid;
    site.world.block_on(&site.client, async {
        let before = IscsiConfig {
            isid: added,
            ..config.clone()
        };
        Start::new(&before).await.end_by_kill().await;
        let holder = site.foreign.registered()[0].0.clone();
        config.multipath.later_isids = vec![Isid::random([1, 2, 3], 9), added];
        let second = Start::new(&config).await;
        second.write_and_read().await;
        assert_eq!(site.foreign.registered()[0].0, holder);
        assert_eq!(site.foreign.unreserved_times(), 0, "it stood all the time");
        second.disk.close().await;
    });
}
