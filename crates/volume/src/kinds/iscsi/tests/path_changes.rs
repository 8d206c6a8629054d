//! Other paths for a disk that is in use.

use engine::spawn;
use iscsi::LoginStatus;

use super::{
    paths::{block, designators, named, with_second},
    *,
};
use crate::kinds::{
    Settings,
    change::Change,
    iscsi::{LoginTerms, Sessions, Transport, settings::Iscsi},
};

const REFUSE: AtLogin = AtLogin::Refuse(LoginStatus::SERVICE_UNAVAILABLE);

/// A disk with one path, to the first portal group, and ISIDs for more.
fn with_later(site: &Site) -> IscsiConfig {
    let later = 2..10;
    IscsiConfig {
        multipath: Multipath {
            later_isids: later.map(|n| Isid::random([1, 2, 3], n)).collect(),
            ..Multipath::default()
        },
        ..site.config()
    }
}

/// A session by each of these ports of the target.
fn by(site: &Site, ports: &[u16]) -> Sessions {
    let ways = ports.iter().map(|&port| Transport {
        address: site.host.addr(port),
        source: None,
    });
    Sessions {
        ways: ways.collect(),
        spare: 0,
    }
}

/// Runs `test` with a disk by the first portal group.
fn with_one_path(test: impl AsyncFnOnce(&Site, &Rc<IscsiDisk>)) {
    let site = Site::new(Foreign::new(named()));
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(with_later(&site)).await.expect("a login");
        test(&site, &disk).await;
        disk.close().await;
    });
}

/// Lets the target accept logins at this portal group alone.
fn let_in_only(site: &Site, group: u16) {
    site.foreign.at_login(move |Group(tag)| match tag == group {
        true => AtLogin::LetIn,
        false => REFUSE,
    });
}

async fn come_back(disk: &IscsiDisk, count: usize) {
    while disk.live_paths() != count {
        time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_path_is_used_once_it_is_added_and_never_after_it_is_removed() {
    with_one_path(async |site, disk| {
        for (ports, connections) in [
            (&[PORT, OTHER_PORT][..], 2),
            (&[OTHER_PORT], 1),
            (&[OTHER_PORT, PORT, OTHER_PORT], 3),
            (&[PORT], 1),
        ] {
            let next = by(site, ports);
            let problems = disk.add_paths(&next).await.expect("they work");
            assert_eq!(problems, [""; 0]);
            disk.adopt_paths(&next);
            assert_eq!(disk.parted().await, [""; 0]);
            time::sleep(Duration::from_millis(10)).await;
            assert_eq!(site.foreign.connected.get(), connections, "{ports:?}");
            assert_eq!(disk.live_paths() as u64, connections);
            disk.write(0, block(1), Durability::Cached)
                .await
                .expect("a write");
        }
        let logins = site.foreign.logins.get();
        // The same once more.
        let next = by(site, &[PORT]);
        disk.add_paths(&next).await.expect("it works");
        disk.adopt_paths(&next);
        time::sleep(Duration::from_secs(60)).await;
        assert_eq!(site.foreign.logins.get(), logins);
        assert_eq!(disk.path_counts().lost, 0);
    });
}

#[test]
fn a_new_path_that_leads_to_another_disk_is_refused_and_never_written() {
    for last in [Some(2), None] {
        with_one_path(async |site, disk| {
            let other = Rc::new(Foreign::new(Claims {
                designators: last.map(designators).unwrap_or_default(),
                ..Claims::default()
            }));
            let (address, served) = (site.host.addr(PORT + 7), other.clone());
            site.host.spawn(async move {
                let listener = TcpListener::bind(address).expect("a free port");
                served.serve(listener, Group(1));
            });
            time::sleep(Duration::from_millis(10)).await;
            let writing = {
                let disk = disk.clone();
                spawn(async move {
                    for _ in 0..100 {
                        let written = disk.write(0, block(1), Durability::Cached).await;
                        written.expect("the first path works");
                    }
                })
            };
            let next = by(site, &[PORT, OTHER_PORT, PORT + 7]);
            let refused = disk.add_paths(&next).await.expect_err("it is another");
            let said = "is another disk: it identifies itself as ";
            assert!(refused.to_string().contains(said), "{refused}");
            disk.remove_added_paths();
            writing.await;
            assert_eq!(disk.parted().await, [""; 0]);
            time::sleep(Duration::from_secs(60)).await;
            assert_eq!(other.first_byte(0), 0, "it was written");
            let connected = (site.foreign.connected.get(), other.connected.get());
            assert_eq!(connected, (1, 0), "a session stays");
        });
    }
}

#[test]
fn a_new_path_that_does_not_work_is_retried_if_another_one_works() {
    with_one_path(async |site, disk| {
        let_in_only(site, 1);
        let next = by(site, &[PORT, OTHER_PORT]);
        let problems = disk.add_paths(&next).await.expect("one works");
        disk.adopt_paths(&next);
        let [problem] = &problems[..] else {
            panic!("{problems:?}");
        };
        assert!(problem.contains("does not work yet"), "{problem}");
        disk.read(0, 512).await.expect("the first path works");
        site.foreign.at_login(|_| AtLogin::LetIn);
        come_back(disk, 2).await;
    });
}

#[test]
fn the_only_path_that_works_cannot_be_removed() {
    with_one_path(async |site, disk| {
        let_in_only(site, 1);
        let attempted = || site.foreign.attempts.get();
        let refused = disk.add_paths(&by(site, &[OTHER_PORT])).await;
        let refused = refused.expect_err("no path would work").to_string();
        let said = "none of the paths that would be left works: ";
        assert!(refused.contains(said), "{refused}");
        disk.remove_added_paths();
        disk.read(0, 512).await.expect("the first path works");
        let before = attempted();
        time::sleep(Duration::from_secs(60)).await;
        assert_eq!(attempted(), before, "it is still tried");
        assert_eq!(disk.path_counts().lost, 0);
    });
}

#[test]
fn a_removed_path_is_used_until_another_one_works() {
    with_one_path(async |site, disk| {
        let_in_only(site, 1);
        let both = by(site, &[PORT, OTHER_PORT]);
        disk.add_paths(&both).await.expect("one works");
        disk.adopt_paths(&both);
        // As if the second path had been lost after it was added.
        disk.adopt_paths(&by(site, &[OTHER_PORT]));
        let began = time::now();
        let [left] = &disk.parted().await[..] else {
            panic!("it is not needed");
        };
        assert!(left.contains("is still in use"), "{left}");
        assert!(time::now() - began < Duration::from_secs(20));
        let began = time::now();
        disk.read(0, 512).await.expect("the first path works");
        assert!(time::now() - began < Duration::from_secs(1));
        site.foreign.at_login(|_| AtLogin::LetIn);
        assert_eq!(disk.parted().await, [""; 0]);
        assert_eq!(disk.live_paths(), 1);
        disk.read(0, 512).await.expect("the second path works");
    });
}

/// A removed path is lost with a write in flight that takes effect late, unless somebody ends it.
#[test]
fn the_writes_of_a_removed_path_are_ended_before_they_are_sent_again() {
    const WRITE_10: u8 = 0x2a;
    with_one_path(async |site, disk| {
        let first = Cell::new(true);
        site.foreign.answer(move |cdb| {
            (cdb[0] == WRITE_10 && first.replace(false)).then_some(Instead::Late)
        });
        let writing = {
            let disk = disk.clone();
            spawn(async move { disk.write(0, block(1), Durability::Cached).await })
        };
        site.foreign.holds(1).await;
        let next = by(site, &[OTHER_PORT]);
        disk.add_paths(&next).await.expect("it works");
        disk.adopt_paths(&next);
        let_in_only(site, 2);
        time::sleep(Duration::from_millis(1)).await;
        assert_eq!(disk.live_paths(), 1, "the first takes no more requests");
        writing.await.expect("it is sent again");
        let newer = disk.write(0, block(2), Durability::Cached).await;
        newer.expect("the second path works");
        assert_eq!(site.foreign.resets.get(), 1);
        site.foreign.land();
        assert_eq!(site.foreign.first_byte(0), 2);
        assert_eq!(disk.parted().await, [""; 0]);
        assert_eq!(disk.path_counts().lost_with_writes, 1);
        // Nobody logs in there any more.
        let attempts = site.foreign.attempts.get();
        time::sleep(Duration::from_secs(60)).await;
        assert_eq!(site.foreign.attempts.get(), attempts);
    });
}

/// What the target reports to the initiator port that it knows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reports {
    Nothing,
    PowerOn,
    /// A power-on; then it drops the connection.
    PowerOnAndDrops,
}

/// A path is added while the only other one is lost with something unflushed, and the target reports a power-on to the new
/// initiator port, as many do; and to the old one what it `reports`. Returns whether the flush succeeds.
fn flush_after_adding(second_group: u16, reports: Reports, comes_back: bool) -> bool {
    const TEST_UNIT_READY: u8 = 0;
    const POWER_ON: Instead = Instead::Sense([UNIT_ATTENTION, 0x29, 0x00]);
    let mut is_flushed = false;
    with_one_path(async |site, disk| {
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("the first path works");
        let is_back = Rc::new(Cell::new(false));
        let lets_in = is_back.clone();
        site.foreign.at_login(move |Group(tag)| match tag {
            1 if lets_in.get() => AtLogin::LetIn,
            1 => REFUSE,
            _ => AtLogin::LetInAt(Group(second_group)),
        });
        let mut asked = 0;
        site.foreign.answer(move |cdb| {
            if cdb[0] != TEST_UNIT_READY {
                return None;
            }
            asked += 1;
            // Each port is asked until it has nothing more to report.
            match (asked, reports) {
                (1, _) | (3, Reports::PowerOn | Reports::PowerOnAndDrops) => Some(POWER_ON),
                (4, Reports::PowerOnAndDrops) => Some(Instead::Drop),
                _ => None,
            }
        });
        site.foreign.drop_connections();
        time::sleep(Duration::from_millis(10)).await;
        if comes_back {
            spawn(async move {
                time::sleep(Duration::from_secs(8)).await;
                is_back.set(true);
            });
        }
        let both = by(site, &[PORT, OTHER_PORT]);
        disk.add_paths(&both).await.expect("the second path works");
        disk.adopt_paths(&both);
        is_flushed = disk.flush().await.is_ok();
    });
    is_flushed
}

#[test]
fn the_power_on_of_a_new_initiator_port_loses_nothing_if_an_old_one_knows_better() {
    use Reports::{Nothing, PowerOn, PowerOnAndDrops};
    // At the same target port, the old initiator port logs in over the new path.
    assert!(flush_after_adding(1, Nothing, false));
    assert!(!flush_after_adding(1, PowerOn, false));
    assert!(
        !flush_after_adding(1, PowerOnAndDrops, true),
        "it is told once"
    );
    // At another one, the old path is waited for.
    assert!(flush_after_adding(2, Nothing, true));
    assert!(!flush_after_adding(2, PowerOn, true));
    assert!(!flush_after_adding(2, Nothing, false), "nobody knows");
}

/// Whoever could deny that power-on is slow, and meanwhile a write is acknowledged there, the first that could be lost.
#[test]
fn a_write_that_is_done_while_others_are_asked_is_not_lost_with_that_power_on() {
    const TEST_UNIT_READY: u8 = 0;
    with_one_path(async |site, disk| {
        let asked = Rc::new(Cell::new(0));
        let count = asked.clone();
        site.foreign.answer(move |cdb| {
            if cdb[0] != TEST_UNIT_READY {
                return None;
            }
            count.set(count.get() + 1);
            match count.get() {
                1 => Some(Instead::Sense([UNIT_ATTENTION, 0x29, 0x00])),
                // The second is for the new port too, the third for the old one.
                3 => Some(Instead::Late),
                _ => None,
            }
        });
        let writing = {
            let (disk, asked) = (disk.clone(), asked.clone());
            spawn(async move {
                while asked.get() < 3 {
                    time::sleep(Duration::from_millis(1)).await;
                }
                disk.write(0, block(1), Durability::Cached).await
            })
        };
        let both = by(site, &[PORT, OTHER_PORT]);
        disk.add_paths(&both).await.expect("the second path works");
        disk.adopt_paths(&both);
        writing.await.expect("the first path works");
        disk.flush().await.expect("there was no restart");
        // When its session was lost, and it was back.
        assert_eq!(asked.get(), 5, "the old port was not asked again");
    });
}

#[test]
fn paths_can_be_replaced_as_often_as_they_are_free_again() {
    with_one_path(async |site, disk| {
        for round in 0..50 {
            let next = by(site, &[[PORT, OTHER_PORT][round % 2]; 4]);
            disk.add_paths(&next).await.expect("they work");
            disk.adopt_paths(&next);
            assert_eq!(disk.parted().await, [""; 0]);
        }
        let next = by(site, &[PORT; 10]);
        let refused = disk.add_paths(&next).await;
        let refused = refused.expect_err("there are nine ISIDs").to_string();
        assert!(refused.contains("still in use"), "{refused}");
        disk.read(0, 512).await.expect("nothing has changed");
    });
}

#[test]
fn a_disk_that_was_opened_with_two_paths_may_lose_either() {
    for left in [PORT, OTHER_PORT] {
        let site = Site::new(Foreign::new(named()));
        let config = with_second(&site, site.host.addr(OTHER_PORT));
        site.world.block_on(&site.client, async {
            let disk = IscsiDisk::open(config).await.expect("two logins");
            let next = by(&site, &[left]);
            disk.add_paths(&next).await.expect("it works");
            disk.adopt_paths(&next);
            assert_eq!(disk.parted().await, [""; 0]);
            // A lone path comes back on demand.
            site.foreign.drop_connections();
            time::sleep(Duration::from_secs(1)).await;
            disk.read(0, 512).await.expect("it is back");
            assert_eq!(disk.live_paths(), 1);
            disk.close().await;
        });
    }
}

fn settings(more: &str) -> Iscsi {
    let text = format!("url = \"iscsi://10.0.0.1/iqn.2026-11.example:a/0\"\n{more}");
    toml::from_str(&text).expect("it parses")
}

#[test]
fn paths_and_sessions_may_change_and_not_what_a_login_negotiates() {
    let live = |made: &[&str]| Change::Live(made.iter().map(|it| (*it).to_owned()).collect());
    let one = "paths = [{ portal = \"10.0.0.1\" }]";
    let two = "paths = [{ portal = \"10.0.0.1\" }, { portal = \"10.0.0.2\", from = \"eth1\" }]";
    let swapped = "paths = [{ portal = \"10.0.0.2\", from = \"eth1\" }, { portal = \"10.0.0.1\" }]";
    for (before, after, change) in [
        ("", one, Change::None),
        (
            "",
            two,
            live(&["a path to 10.0.0.2:3260 from eth1 is added"]),
        ),
        (
            two,
            one,
            live(&["the path to 10.0.0.2:3260 from eth1 is removed"]),
        ),
        (two, swapped, live(&["its paths in another order"])),
        ("", "sessions = 3", live(&["sessions"])),
    ] {
        let found = settings(before).change(&settings(after));
        assert_eq!(found, change, "{before} to {after}");
    }
    let other = format!("{two}\ndata_digest = true");
    let found = settings("").change(&settings(&other));
    assert!(matches!(found, Change::Refused(_)), "{found:?}");
}

#[test]
fn a_limit_that_is_changed_holds_for_sessions_that_are_open() {
    with_one_path(async |site, disk| {
        disk.adopt_terms(LoginTerms {
            chap: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            reconnect_timeout: Duration::from_secs(20),
            ping_timeout: None,
        });
        // The first command is answered with the second, which nobody sends.
        site.foreign.answer(|_| Some(Instead::Overtaken));
        let disk = disk.clone();
        let reading = spawn({
            let disk = disk.clone();
            async move { disk.read(0, 512).await.map(drop) }
        });
        time::sleep(Duration::from_secs(5)).await;
        assert!(
            disk.path_counts().lost > 0,
            "with the old limit it takes 10 s"
        );
        site.foreign.answer(|_| None);
        reading.await.expect("it is sent again");
    });
}

#[test]
fn limits_and_secrets_may_change_and_a_url_may_not() {
    let change = |more: &str| {
        let parsed = |url: &str, more: &str| -> Iscsi {
            let text = format!("url = \"iscsi://{url}/iqn.2026-11.example:a/0\"\n{more}");
            toml::from_str(&text).expect("it parses")
        };
        let is = match more.strip_prefix("url ") {
            Some(url) => parsed(url, ""),
            None => parsed("a", more),
        };
        parsed("a", "").change(&is)
    };
    let live = |made: &str| Change::Live(vec![made.to_owned()]);
    for (more, expected) in [
        ("", Change::None),
        ("connect_timeout = \"9s\"", live("connect_timeout 5s → 9s")),
        ("request_timeout = \"9s\"", live("request_timeout 30s → 9s")),
        ("ping_timeout = \"9s\"", live("ping_timeout (not set) → 9s")),
        (
            "reconnect_timeout = \"forever\"",
            live("reconnect_timeout 2min → forever"),
        ),
        ("wait_at_start = \"9s\"", live("wait_at_start 0s → 9s")),
        (
            "chap = { user = \"a\", secret_file = \"b\" }",
            live("the secrets of its next logins"),
        ),
    ] {
        assert_eq!(change(more), expected, "{more}");
    }
    for more in ["url b", "initiator = \"iqn.2026-11.example:i\""] {
        assert!(matches!(change(more), Change::Refused(_)), "{more}");
    }
}
