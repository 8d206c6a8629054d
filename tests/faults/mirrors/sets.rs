//! Copies that are not there at the start, and copies that are stripes.

use std::process::Command;

use harness::{process::Daemon, sanstone::binary};

use super::*;

/// So many nodes that serve a disk each.
fn storages<const N: usize>() -> [Node; N] {
    [(); N].map(|()| Node::storage("direct-sync"))
}

#[test]
fn a_copy_that_is_a_stripe_and_not_there_at_the_start_returns_by_itself() {
    let [mut a, mut b, mut c] = storages();
    let mut owner = Node::begins_with_set(&mut a, "stripe", [&mut b, &mut c]);
    on_lane(async {
        owner.is(0, "in sync").await;
        for signal in ["TERM", "KILL"] {
            owner.ends_by(signal);
            c.kill();
            owner.start();
            owner.server().daemon().log_with("it is not there yet");
            let load = Load::new(disk_of(&owner).await);
            load.writes_all().await;
            owner.is(1, "out").await;
            // What is missing has other settings from when it is there.
            let limits = ["connect_timeout = \"2s\"", "connect_timeout = \"3s\""];
            match signal {
                "TERM" => owner.changes_set(limits[0], limits[1]),
                _ => owner.changes_set(limits[1], limits[0]),
            }
            c.start();
            owner.is(0, "in sync").await;
            let shown = owner.shown();
            let disk = &shown["children"][1]["children"][1];
            assert_eq!(disk["kind"], "iscsi", "{shown}");
            assert_ne!(disk["requests"]["write"]["bytes"], 0, "{shown}");
            owner.volume("compare").success();
            a.kill();
            load.checks_all().await;
            a.start();
            owner.is(0, "in sync").await;
            load.disk.close().await;
        }
    });
}

/// Their file system was not mounted. All of the data is on the other copy.
#[test]
fn a_copy_that_is_a_stripe_of_files_which_are_not_there_at_the_start_returns_by_itself() {
    let [mut b] = storages();
    let files = ["one", "two"].map(|name| {
        let file = format!("path = \"{name}\", size = \"{}MiB\"", DATA_BYTES >> 20);
        format!("{{ file = {{ {file}, cache = \"direct-sync\" }} }}")
    });
    let mut owner = Node::new(
        "db",
        format!(
            "[volume.set]\nstripe.of = [{}]\n[volume.db]\nmirror = {{ {}, of = [\"set\", {}] }}\n",
            files.join(", "),
            "copy_timeout = \"2s\", request_timeout = \"100s\"",
            b.remote()
        ),
    );
    owner.begins_over([&mut b], &["set", "db"]);
    on_lane(async {
        owner.is(0, "in sync").await;
        let load = Load::new(disk_of(&owner).await);
        for missing in [&["one"][..], &["two"], &["one", "two"]] {
            load.writes_all().await;
            owner.ends_by("TERM");
            let directory = owner.directory.path().to_owned();
            let path = |name: &str| directory.join(name);
            let moves = |from: &str, to: &str| {
                for name in missing {
                    let [from, to] = [from, to].map(|suffix| path(&format!("{name}{suffix}")));
                    std::fs::rename(from, to).expect("it is there");
                }
            };
            moves("", ".away");
            owner.start();
            load.checks_all().await;
            load.writes_all().await;
            owner.is(1, "out").await;
            assert!(!path(missing[0]).exists(), "it was made anew");
            moves(".away", "");
            owner.is(0, "in sync").await;
            owner.volume("compare").success();
        }
        // Without the other copy as well nothing is made of blank files.
        owner.ends_by("TERM");
        b.kill();
        std::fs::remove_file(owner.directory.join("one")).expect("it is there");
        owner.serves_not();
        load.disk.close().await;
    });
}

/// Waits until nothing is marked any more, so that heartbeats alone tell of what is set back.
async fn nothing_is_marked(owner: &Node) {
    let deadline = time::now() + LIMIT;
    while owner.shown()["mirror"]["marked_bytes"] != 0 {
        assert!(time::now() < deadline, "{}", owner.shown());
        time::sleep(Duration::from_millis(500)).await;
    }
}

#[test]
fn a_copy_of_which_one_disk_is_set_back_is_filled_and_never_read_before() {
    let [mut a, mut b, mut c] = storages();
    let mut owner = Node::begins_with_set(&mut a, "stripe", [&mut b, &mut c]);
    on_lane(async {
        owner.is(0, "in sync").await;
        let load = Load::new(disk_of(&owner).await);
        // Of two disks, while it is used or not, to before its last start or not.
        for case in 0..8 {
            let [is_first, is_used, is_started] = [1, 2, 4].map(|bit| case & bit == 0);
            let member = if is_first { &mut b } else { &mut c };
            let file = member.directory.join("copy");
            load.writes_all().await;
            let older = std::fs::read(&file).expect("a disk of the copy");
            if is_started {
                owner.ends_by("TERM");
                owner.start();
            }
            load.writes_all().await;
            if is_used {
                nothing_is_marked(&owner).await;
            } else {
                owner.ends_by("TERM");
            }
            member.kill();
            std::fs::write(&file, older).expect("room");
            member.start();
            if !is_used {
                owner.start();
            }
            load.checks_all().await;
            owner.is(0, "in sync").await;
            owner.volume("compare").success();
        }
        load.disk.close().await;
    });
}

/// What a storage has on its disk, with its reservations, as a snapshot of its machine would have it.
struct Snapshot(Directory);

impl Snapshot {
    const PARTS: [&str; 2] = ["copy", "sanstone.state"];

    fn of(storage: &Node) -> Snapshot {
        let snapshot = Snapshot(Directory::new());
        Snapshot::copy(&storage.directory, &snapshot.0);
        snapshot
    }

    fn put_back(&self, storage: &Node) {
        Snapshot::copy(&self.0, &storage.directory);
    }

    fn copy(from: &Directory, to: &Directory) {
        for part in Snapshot::PARTS {
            let _ = std::fs::remove_dir_all(to.join(part));
            let mut copy = Command::new("cp");
            copy.arg("-a").args([from.join(part), to.path().to_owned()]);
            assert!(copy.status().expect("it runs").success());
        }
    }
}

#[test]
fn a_copy_whose_disks_are_set_back_with_their_reservations_is_filled_and_never_read_before() {
    let [mut a, mut b, mut c] = storages();
    let mut owner = Node::begins_with_set(&mut a, "stripe", [&mut b, &mut c]);
    on_lane(async {
        owner.is(0, "in sync").await;
        let load = Load::new(disk_of(&owner).await);
        // To when an owner had them or none did, one disk or both.
        for case in 0..4 {
            let [was_owned, is_one] = [1, 2].map(|bit| case & bit == 0);
            let snapshots = |b: &Node, c: &Node| [Snapshot::of(b), Snapshot::of(c)];
            let while_owned = was_owned.then(|| snapshots(&b, &c));
            owner.ends_by("TERM");
            let [of_b, of_c] = while_owned.unwrap_or_else(|| snapshots(&b, &c));
            owner.start();
            load.writes_all().await;
            b.kill();
            c.kill();
            of_b.put_back(&b);
            if !is_one {
                of_c.put_back(&c);
            }
            b.start();
            c.start();
            load.checks_all().await;
            owner.is(0, "in sync").await;
            owner.volume("compare").success();
        }
        load.disk.close().await;
    });
}

#[test]
fn a_copy_whose_disks_become_longer_again_and_again_is_the_copy_that_it_was() {
    let [mut a, mut b, mut c] = storages();
    for kind in ["concat", "stripe"] {
        let mut owner = Node::begins_with_set(&mut a, kind, [&mut b, &mut c]);
        on_lane(async {
            owner.is(0, "in sync").await;
            let load = Load::new(disk_of(&owner).await);
            load.writes_all().await;
            load.disk.close().await;
            for mib in [80, 100] {
                owner.ends_by("TERM");
                for disk in [&mut b, &mut c] {
                    disk.grows(mib);
                    disk.grows(mib + 8);
                }
                owner.volume_called("set", "grow").success();
                for disk in [&mut b, &mut c] {
                    disk.grows(mib + 12);
                }
                owner.volume_called("set", "grow").success();
                owner.start();
                owner.is(0, "in sync").await;
                owner.volume("compare").success();
            }
            a.grows(160);
            owner.ends_by("TERM");
            owner.volume("grow").success();
            b.grows(120);
            c.grows(120);
            owner.volume_called("set", "grow").success();
            owner.start();
            owner.is(0, "in sync").await;
            owner.volume("compare").success();
            let again = Load {
                disk: disk_of(&owner).await,
                source: load.source.clone(),
                ledger: load.ledger.clone(),
                is_over: Cell::new(false),
            };
            a.kill();
            again.checks_all().await;
            again.disk.close().await;
        });
        owner.ends_by("TERM");
        [a, b, c] = storages();
    }
}

#[test]
fn the_last_copy_goes_on_when_its_target_has_restarted_however_long_the_other_is_silent() {
    let [mut a, mut b] = storages();
    let mut owner = Node::owner([&a, &b]);
    // What is asked of a disk that is away waits, as by default.
    let limits = ", request_timeout = \"2s\", reconnect_timeout = \"2s\"";
    owner.volumes = owner.volumes.replace(limits, "");
    owner.begins_with([&mut a, &mut b]);
    on_lane(async {
        owner.is(0, "in sync").await;
        let load = Load::new(disk_of(&owner).await);
        b.kill();
        load.write(0).await.expect("the other copy lives");
        owner.is(1, "out").await;
        for slot in 0..4 {
            a.kill();
            a.start();
            // Its session is back before anything is asked of it.
            time::sleep(Duration::from_millis(1500)).await;
            let written = time::timeout(LIMIT / 4, load.write(slot)).await;
            written.expect("it answers").expect("it is the last one");
        }
        b.start();
        owner.is(0, "in sync").await;
        owner.volume("compare").success();
        load.disk.close().await;
    });
}

#[test]
fn the_last_copy_stands_still_when_its_target_has_restarted_with_an_older_disk() {
    for is_used in [true, false] {
        let [mut a, mut b] = storages();
        let mut owner = Node::owner([&a, &b]);
        owner.begins_with([&mut a, &mut b]);
        on_lane(async {
            owner.is(0, "in sync").await;
            let load = Load::new(disk_of(&owner).await);
            load.writes_all().await;
            let file = b.directory.join("copy");
            let older = std::fs::read(&file).expect("a copy");
            load.writes_all().await;
            nothing_is_marked(&owner).await;
            a.kill();
            if is_used {
                load.write(0).await.expect("the other copy lives");
                owner.is(1, "out").await;
            }
            b.kill();
            let newer = std::fs::read(&file).expect("a copy");
            std::fs::write(&file, older).expect("room");
            b.start();
            if is_used {
                owner.is(2, "set back").await;
            }
            a.start();
            // Whatever is there, nothing older is read, nor does the other copy get it.
            for slot in 0..4 {
                let read = time::timeout(Duration::from_secs(1), load.check(slot)).await;
                assert!(
                    !matches!(read, Some(Ok(_))) || !is_used,
                    "slot {slot} was read"
                );
            }
            b.kill();
            std::fs::write(&file, newer).expect("room");
            b.start();
            owner.is(0, "in sync").await;
            load.checks_all().await;
            owner.volume("compare").success();
            load.disk.close().await;
        });
    }
}

#[test]
fn a_copy_that_another_process_has_at_the_start_returns_when_that_has_ended() {
    let [mut a, mut b] = storages();
    let mut owner = Node::owner([&a, &b]);
    let alone = a.remote();
    let alone = &alone[2..alone.len() - 2];
    owner.volumes += &format!("[volume.one]\n{alone}\n");
    [&mut a, &mut b].into_iter().for_each(Node::start);
    owner.volume("create").success();
    let file = owner.configuration();
    let attached = |volume: &str| {
        let mut command = Command::new(binary());
        let socket = owner.directory.join(volume);
        let place = format!("unix:{}", socket.display());
        command.arg("attach").arg("-c").arg(&file);
        command.args([volume, "--nbd", &place]);
        let mut daemon = Daemon::start(&command, owner.directory.join(&format!("{volume}.log")));
        daemon.wait_for_socket(&socket);
        daemon
    };
    on_lane(async {
        let mut other = attached("one");
        let mut mirror = attached("db");
        owner.is(1, "out").await;
        other.signal("TERM");
        other.wait(LIMIT).expect("it ends");
        owner.is(0, "in sync").await;
        mirror.signal("TERM");
        mirror.wait(LIMIT).expect("it ends");
    });
}

/// The claim on its disks is that of the former owner, who is gone.
#[test]
fn a_set_that_is_away_when_its_mirror_is_taken_over_is_the_new_owners_when_it_returns() {
    let [mut a, mut b, mut c] = storages();
    let mut register = Node::register();
    let volumes = format!(
        "[volume.set]\nstripe.of = [{}, {}]\n[volume.db]\nmirror = {{ {}, of = [{}, \"set\"], register = {} }}\n",
        b.remote(),
        c.remote(),
        "copy_timeout = \"2s\", request_timeout = \"100s\"",
        a.remote(),
        register.remote()
    );
    let host = || Node::new("db", volumes.clone());
    let mut hosts = [host(), host()];
    hosts[0].begins_over([&mut a, &mut b, &mut c, &mut register], &["set", "db"]);
    on_lane(async {
        hosts[0].is(0, "in sync").await;
        let load = Load::new(disk_of(&hosts[0]).await);
        let mut ledger = load.ledger.borrow().clone();
        load.disk.close().await;
        // One of its disks, or both.
        for (is_one, at) in [(true, 0), (false, 1)] {
            hosts[at].kill();
            b.kill();
            if !is_one {
                c.kill();
            }
            let next = &mut hosts[1 - at];
            next.volume("take-over").success();
            next.start();
            let load = Load::new(disk_of(next).await);
            load.ledger.replace(ledger.clone());
            load.writes_all().await;
            next.is(1, "out").await;
            b.start();
            if !is_one {
                c.start();
            }
            next.is(0, "in sync").await;
            next.volume("compare").success();
            a.kill();
            load.checks_all().await;
            a.start();
            next.is(0, "in sync").await;
            ledger = load.ledger.borrow().clone();
            load.disk.close().await;
        }
    });
}

#[test]
fn a_mirror_of_which_both_copies_are_sets_is_taken_over_by_another_host() {
    let [mut a, mut b, mut c, mut d] = storages();
    let mut register = Node::register();
    let set =
        |kind: &str, of: [&Node; 2]| format!("{kind}.of = [{}]", of.map(Node::remote).join(", "));
    let volumes = format!(
        "[volume.one]\n{}\n[volume.two]\n{}\n[volume.db]\nmirror = {{ {}, register = {} }}\n",
        set("stripe", [&a, &b]),
        set("concat", [&c, &d]),
        "copy_timeout = \"2s\", request_timeout = \"100s\", of = [\"one\", \"two\"]",
        register.remote()
    );
    let host = || Node::new("db", volumes.clone());
    let (mut first, mut second) = (host(), host());
    first.begins_over(
        [&mut a, &mut b, &mut c, &mut d, &mut register],
        &["one", "two", "db"],
    );
    on_lane(async {
        first.is(0, "in sync").await;
        let load = Load::new(disk_of(&first).await);
        load.write(3).await.expect("it has the mirror");
        let refused = second.volume("take-over");
        assert!(
            refused.stderr.contains("on this machine: stop it"),
            "{refused}"
        );
        load.write(3).await.expect("nothing has happened to it");
        first.kill();
        let refused = second.serves_not();
        assert!(refused.stderr.contains("volume take-over"), "{refused}");
        second.volume("take-over").success();
        second.start();
        let there = Load::new(disk_of(&second).await);
        there.ledger.replace(load.ledger.borrow().clone());
        there.check(3).await.expect("a read");
        second.is(0, "in sync").await;
        second.volume("compare").success();
        there.disk.close().await;
    });
}

#[test]
fn mirrors_in_a_stripe_have_their_registers_on_one_disk_and_end_before_it() {
    let [mut a, mut b, mut c, mut d] = storages();
    let mut register = Node::register();
    let mirror = |of: [&Node; 2]| {
        let of = of.map(Node::remote).join(", ");
        let times = "copy_timeout = \"2s\", request_timeout = \"100s\"";
        format!("mirror = {{ {times}, of = [{of}], register = \"register\" }}")
    };
    let remote = register.remote();
    let mut owner = Node::new(
        "z",
        format!(
            "[volume.register]\n{}\n[volume.one]\n{}\n[volume.two]\n{}\n[volume.z]\nstripe.of = [\"one\", \"two\"]\n",
            &remote[2..remote.len() - 2],
            mirror([&a, &b]),
            mirror([&c, &d])
        ),
    );
    owner.begins_over(
        [&mut a, &mut b, &mut c, &mut d, &mut register],
        &["one", "two", "z"],
    );
    // A host that sees one of them alone takes neither.
    let mut blind = owner.volumes.clone();
    for out_of_sight in [&c, &d] {
        let at = |port| format!(":{port}/");
        blind = blind.replace(&at(out_of_sight.port), &at(harness::free_port()));
    }
    let blind = Node::new("z", blind);
    on_lane(async {
        owner.is(0, "in sync").await;
        let load = Load::new(disk_of(&owner).await);
        load.writes_all().await;
        let refused = blind.volume("take-over");
        assert!(refused.stderr.contains("cannot be reached"), "{refused}");
        load.writes_all().await;
        owner.is(0, "in sync").await;
        a.kill();
        d.kill();
        load.writes_all().await;
        owner.is(1, "out").await;
        register.kill();
        register.start();
        a.start();
        d.start();
        owner.is(0, "in sync").await;
        owner.server().daemon().signal("TERM");
        owner.server().daemon().wait(LIMIT).expect("it ends");
        let log = owner.server().daemon().log();
        let (_, end) = log.split_once("stopping: ").expect("it was told to");
        assert!(!end.contains("logged in again"), "{end}");
        owner.start();
        owner.is(0, "in sync").await;
        load.checks_all().await;
        load.disk.close().await;
    });
}
