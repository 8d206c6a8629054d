//! How long a request takes at most: one clock runs from the first session that is lost with it, over all the sessions
//! that the target accepts after that.

use super::{
    paths::{path, with_second},
    *,
};
use crate::values::Wait;

const READ_10: u8 = 0x28;
const READ_CAPACITY_16: u8 = 0x9e;

/// The longest that a request of this disk may take (docs/guide/multipath.md).
fn bound(config: &IscsiConfig) -> Duration {
    let request = config.request_timeout + Duration::from_secs(1);
    2 * request + config.reconnect_timeout + config.connect_timeout
}

/// Runs `test` with a disk that has two sessions over one path.
fn with_two_sessions(test: impl AsyncFnOnce(&Rc<IscsiDisk>, &Foreign, Duration)) {
    let site = Site::new(Foreign::new(Claims::default()));
    let config = with_second(&site, site.host.addr(PORT));
    let limit = bound(&config);
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("two logins");
        assert_eq!(disk.live_paths(), 2);
        test(&disk, &site.foreign, limit).await;
        disk.close().await;
    });
}

#[test]
fn a_request_that_is_never_answered_ends_in_time_while_other_sessions_are_there() {
    with_two_sessions(async |disk, foreign, limit| {
        foreign.answer(|cdb| (cdb[0] == READ_10).then_some(Instead::Late));
        let began = time::now();
        let error = disk.read(0, 512).await.expect_err("nobody answers");
        let took = time::now() - began;
        assert!(took <= limit, "{took:?}: {error}");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        foreign.answer(|_| None);
        disk.read(0, 512).await.expect("the target answers again");
    });
}

#[test]
fn a_question_before_a_request_that_is_never_answered_bounds_the_request() {
    const CAPACITY_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x09];
    with_two_sessions(async |disk, foreign, limit| {
        let mut told = once(CAPACITY_CHANGED);
        foreign.answer(move |cdb| match cdb[0] {
            READ_CAPACITY_16 => Some(Instead::Late),
            READ_10 => told(cdb),
            _ => None,
        });
        let began = time::now();
        let error = disk.read(0, 512).await.expect_err("nobody answers");
        let took = time::now() - began;
        assert!(took <= limit, "{took:?}: {error}");
        foreign.answer(|_| None);
        disk.read(0, 512).await.expect("the target answers again");
    });
}

/// The portal of a target that starts listens before its disks are there.
#[test]
fn a_refusal_at_a_later_login_is_waited_for_like_an_unreachable_target() {
    use iscsi::LoginStatus as Refused;
    for status in [
        Refused::NOT_FOUND,
        Refused::AUTHORIZATION_FAILURE,
        Refused::SERVICE_UNAVAILABLE,
    ] {
        Foreign::new(Claims::default()).with(async |disk, foreign| {
            let written = disk.write(0, Payload::zeroes(512), Durability::Cached);
            written.await.expect("a write");
            let until = time::now() + Duration::from_secs(2);
            foreign.at_login(move |_| match time::now() < until {
                true => AtLogin::Refuse(status),
                false => AtLogin::LetIn,
            });
            foreign.drop_connections();
            disk.flush().await.expect("it lets us in later");
            disk.read(0, 512).await.expect("it has let us in");
        });
    }
}

#[test]
fn a_disk_that_is_waited_for_forever_is_used_again_after_hours() {
    const AWAY: Duration = Duration::from_secs(2 * 60 * 60);
    let site = Site::new(Foreign::new(Claims::default()));
    let config = IscsiConfig {
        reconnect_timeout: Wait::Forever.limit(),
        ..site.config()
    };
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("a login");
        let until = time::now() + AWAY;
        site.foreign.at_login(move |_| match time::now() < until {
            true => AtLogin::Refuse(iscsi::LoginStatus::SERVICE_UNAVAILABLE),
            false => AtLogin::LetIn,
        });
        site.foreign.drop_connections();
        disk.read(0, 512).await.expect("it has waited");
        assert!(time::now() >= until, "nobody was let in before");
        disk.close().await;
    });
}

/// It moved for good, later back, and nothing is at the new address any more, not even a refusal.
#[test]
fn an_address_that_a_target_once_moved_to_is_left_when_it_is_silent() {
    let site = Site::new(Foreign::new(Claims::default()));
    let moved = site.second_network();
    let to = moved.to_string();
    site.foreign.at_login({
        let mut is_first = true;
        move |_| match std::mem::take(&mut is_first) {
            true => AtLogin::Move(to.clone()),
            false => AtLogin::LetIn,
        }
    });
    site.run(async |disk, foreign| {
        site.host.cut(moved.ip(), engine::sim::TrafficDirection::To);
        disk.read(0, 512).await.expect("where it was at first");
        assert_eq!(foreign.logins.get(), 2);
        site.host.mend(moved.ip());
    });
}

#[test]
fn a_pdu_that_was_damaged_on_its_way_ends_the_session_and_fails_nothing() {
    const WRITE_10: u8 = 0x2a;
    let site = Site::new(Foreign::new(Claims::default()));
    let config = IscsiConfig {
        multipath: Multipath {
            more: vec![path(site.host.addr(PORT), 2)],
            ..Multipath::default()
        },
        ..site.config()
    };
    for config in [site.config(), config] {
        site.world.block_on(&site.client, async {
            let disk = IscsiDisk::open(config).await.expect("a login");
            for opcode in [WRITE_10, READ_10] {
                let mut is_first = true;
                site.foreign.answer(move |cdb| {
                    let is_damaged = cdb[0] == opcode && std::mem::take(&mut is_first);
                    is_damaged.then_some(Instead::RejectAsDamaged)
                });
                let write = disk.write(0, Payload::zeroes(4096), Durability::Cached);
                write.await.expect("it is sent again");
                disk.read(0, 4096).await.expect("it is sent again");
            }
            disk.close().await;
        });
    }
}
