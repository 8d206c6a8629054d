//! Trees from configurations, on one lane and across lanes.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use engine::{Buf, Lane, LaneConfig, Payload, time};
use set::{FoundLabel, Label};

use super::*;
use crate::{
    Durability, ErrorKind,
    claim::{LABEL_AT, LABEL_BYTES},
    contract,
    kinds::fault::FaultHandle,
    scratch::Scratch,
    stats::{RequestKind, StatsHandle},
};

pub(crate) fn graph(text: &str, base: &Path) -> Graph {
    Graph::new(toml::from_str(text).expect("it parses"), base).expect("the configuration is valid")
}

/// A lane on a thread of its own, until dropped.
pub(crate) struct OtherLane {
    pub(crate) handle: LaneHandle,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl OtherLane {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let lane = Lane::new(&LaneConfig::default()).expect("a ring");
            sender.send(lane.handle()).expect("the test waits");
            lane.block_on(async {
                while !seen.load(Ordering::Acquire) {
                    time::sleep(Duration::from_millis(1)).await;
                }
            });
        });
        OtherLane {
            handle: receiver.recv().expect("the lane starts"),
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for OtherLane {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic on the other lane");
        }
    }
}

const TREES: &str = r#"
    ram.ram = { size = "1MiB" }
    file.file = { path = "disk", size = "1MiB", block_size = 4096 }
    link.throttle = { rate = "40Gbit/s", of = { stats = { of = { file = { path = "behind-link", size = "1MiB" } } } } }
    recorded.file = { path = "recorded", size = "1MiB", cache = "write-through" }
    faulty.fault = { rules = [{ on = "flush", skip = 1000000, fail = "medium" }], of = "ram2" }
    ram2.ram = { size = "512KiB" }
    measured.stats = { of = { throttle = { rate = "40Gbit/s", of = { ram = { size = "1MiB" } } } } }
"#;

fn new_stripe(uuid: u128) -> NewStripe {
    NewStripe {
        uuid: uuid::Uuid::from_u128(uuid),
        created_unix_s: 1,
        force: false,
        from: None,
    }
}

#[test]
fn every_tree_keeps_the_contract_at_home_and_from_another_lane() {
    let other = OtherLane::start();
    for name in ["ram", "file", "link", "recorded", "faulty", "measured"] {
        for at_home in [true, false] {
            let scratch = Scratch::new();
            let mut graph = graph(TREES, scratch.path());
            let recording = graph.record("recorded/file");
            let elsewhere = other.handle.clone();
            contract::run(move |here| {
                LaneFuture::new(async move {
                    let home = if at_home { here } else { elsewhere };
                    let tree = graph.open(name, &home).await.expect(name);
                    // What a lane uses stays open until the lane releases it, even without the graph and the tree.
                    tree.on_lane().await
                })
            });
            assert_eq!(recording.is_empty(), name != "recorded");
        }
    }
}

#[test]
fn every_tree_takes_atomic_writes_that_its_leaf_takes_at_home_and_from_another_lane() {
    let other = OtherLane::start();
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let cached = r#"
        cached.cache = { size = "4MiB", of = "measured" }
        measured.stats = { of = { throttle = { rate = "40Gbit/s", of = "faulty" } } }
        faulty.fault = { rules = [], of = { ram = { size = "1MiB" } } }
    "#;
    lane.block_on(async {
        for home in [lane.handle(), other.handle.clone()] {
            for name in ["faulty", "measured", "cached"] {
                let tree = graph(cached, Path::new("/")).open(name, &home).await;
                let volume = tree.expect(name).on_lane().await.expect(name);
                let atomic = volume.atomic_writes().expect("memory has them");
                assert_eq!((atomic.unit_bytes, atomic.max_bytes), (512, None), "{name}");
                contract::hold(volume, 1).await;
            }
        }
    });
}

#[test]
fn the_children_of_a_stripe_live_on_lanes_in_turn_from_the_home_of_the_tree_on() {
    let scratch = Scratch::new();
    let others = [OtherLane::start(), OtherLane::start()];
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let child = |n| {
        format!(
            "{{ throttle = {{ rate = \"40Gbit/s\", of = {{ file = {{ path = \"{n}\", size = \"2MiB\" }} }} }} }}"
        )
    };
    let children: Vec<_> = (0..4).map(child).collect();
    let text = format!("db.stripe = {{ of = [{}] }}", children.join(", "));
    let lanes = [&others[0].handle, &lane.handle(), &others[1].handle].map(Clone::clone);
    lane.block_on(async {
        let mut graph = graph(&text, scratch.path());
        graph.set_lanes(&lanes);
        let new = new_stripe(1);
        let created = graph.create_stripe("db", &lanes[1], &new).await;
        created.expect("blank files");
        let tree = graph.open("db", &lanes[1]).await.expect("a stripe");
        let children = tree.part.below();
        let homes: Vec<_> = children.iter().map(|part| part.only_lane()).collect();
        assert_eq!(homes, [1, 2, 0, 1].map(|lane| Some(&lanes[lane])));
        drop(tree);
        graph.close().await;
    });
}

#[test]
fn lanes_share_what_a_tree_holds() {
    let scratch = Scratch::new();
    let (a, b) = (OtherLane::start(), OtherLane::start());
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        for name in ["ram", "file", "link"] {
            let mut graph = graph(TREES, scratch.path());
            let tree = graph.open(name, &a.handle).await.expect(name);
            for (writer, reader) in [(&a, &b), (&b, &a)] {
                let writing = tree.clone();
                let wrote = writer.handle.call(move || async move {
                    let volume = writing.on_lane().await?;
                    let mut buf = Buf::new(4096);
                    buf.fill(7);
                    volume.write(8192, buf.into(), Durability::Cached).await?;
                    volume.flush().await
                });
                wrote.await.expect("the lane runs").expect("it writes");
                let reading = tree.clone();
                let read = reader.handle.call(move || async move {
                    let volume = reading.on_lane().await?;
                    Ok::<_, crate::Error>(volume.read(8192, 4096).await?.into_buf())
                });
                let seen = read.await.expect("the lane runs").expect("it reads");
                assert_eq!(seen[..], [7; 4096], "{name}");
            }
        }
    });
}

#[test]
fn whatever_shows_a_file_grows_with_it_at_home_and_elsewhere_and_a_stripe_does_not() {
    const BEFORE: u64 = 4 << 20;
    const AFTER: u64 = 6 << 20;
    let scratch = Scratch::new();
    let text = r#"
        plain.file = { path = "plain" }
        buffered.file = { path = "buffered", cache = "write-back" }
        layers.cache = { size = "1MiB", of = { throttle = { rate = "40Gbit/s", of = { stats = { of = { file = { path = "deep" } } } } } } }
        recorded.file = { path = "recorded", cache = "write-through" }
        rules.fault = { rules = [], of = "named" }
        named.file = { path = "named" }
        fixed.file = { path = "fixed", size = "4MiB" }
        striped.stripe = { unit = "4KiB", of = [{ file = { path = "child" } }] }
    "#;
    let files = [
        "plain", "buffered", "deep", "recorded", "named", "fixed", "child",
    ];
    let set_len = |len| {
        for name in files {
            let mut file = fs::File::options();
            let file = file.write(true).create(true).truncate(false);
            let file = file.open(scratch.file(name)).expect("a file of ours");
            file.set_len(len).expect("room");
        }
    };
    set_len(BEFORE);
    let other = OtherLane::start();
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let mut graph = graph(text, scratch.path());
        graph.record("recorded/file");
        let home = other.handle.clone();
        let new = new_stripe(7);
        graph
            .create_stripe("striped", &home, &new)
            .await
            .expect("a stripe");
        let mut trees = Vec::new();
        for name in [
            "plain", "buffered", "layers", "recorded", "rules", "fixed", "striped",
        ] {
            trees.push(graph.open(name, &home).await.expect(name));
        }
        set_len(AFTER);
        let (grown, refused): (Vec<_>, Vec<_>) = graph
            .look_at_lengths()
            .await
            .into_iter()
            .partition(Result::is_ok);
        assert_eq!((grown.len(), refused.len()), (6, 1), "{refused:?}");
        let grown: Vec<Grown> = grown.into_iter().flatten().collect();
        for tree in &trees {
            let follows = !["fixed", "striped"].contains(&tree.name());
            let len = &tree.shape().len;
            let shared = grown.iter().any(|grown| grown.len.is_shared_with(len));
            assert_eq!(shared, follows, "{tree:?}");
            let volume = tree.on_lane().await.expect("it is open");
            let write = volume.write(AFTER - 512, Payload::zeroes(512), Durability::Cached);
            assert_eq!(write.await.is_ok(), follows, "{tree:?}");
            if follows {
                assert_eq!((len.bytes(), volume.shape().len_bytes()), (AFTER, AFTER));
                volume
                    .read(BEFORE - 512, 1024)
                    .await
                    .expect("across the old end");
            }
        }
        let again = graph.look_at_lengths().await;
        assert!(again.iter().all(Result::is_err), "once");
        drop(trees);
    });
}

#[test]
fn a_volume_named_twice_is_opened_once_and_closed_with_the_last() {
    let scratch = Scratch::new();
    let text = r#"
        disk.file = { path = "disk", size = "1MiB" }
        slow.throttle = { rate = "1Gbit/s", of = "disk" }
        seen.stats = { of = "disk" }
    "#;
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let home = lane.handle();
        let mut first = graph(text, scratch.path());
        let slow = first.open("slow", &home).await.expect("it opens");
        let seen = first
            .open("seen", &home)
            .await
            .expect("the file is open already");
        let disk = first
            .open("disk", &home)
            .await
            .expect("the file is open already");
        drop((slow, disk));

        let mut second = graph(text, scratch.path());
        let error = second.open("disk", &home).await.expect_err("it is in use");
        assert!(error.message().contains("in use by process"), "{error}");
        assert!(text[error.span().expect("a place").start..].starts_with("\"disk\", size"));

        let volume = seen.on_lane().await.expect("it is open");
        volume.read(0, 512).await.expect("it reads");
        let stats = first.handles().get::<StatsHandle>("seen/stats");
        let stats = stats.expect("it counts");
        assert_eq!(stats.snapshot().of(RequestKind::Read).requests, 1);
        drop((volume, seen));
        second.open("disk", &home).await.expect("it is free again");
    });
}

#[test]
fn a_volume_is_closed_before_those_that_it_is_made_of() {
    let text = r#"
        disk.ram = { size = "1MiB" }
        slow.throttle = { rate = "1Gbit/s", of = "disk" }
        all.stats = { of = "slow" }
    "#;
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let mut graph = graph(text, Path::new("/"));
        let _all = graph.open("all", &lane.handle()).await.expect("it opens");
        let closing = graph.take_all_but(&BTreeSet::new());
        let names: Vec<_> = closing.iter().map(Closing::name).collect();
        assert_eq!(names, ["all", "slow", "disk"]);
    });
}

#[test]
fn every_node_counts_under_its_path_on_all_lanes() {
    let scratch = Scratch::new();
    let text = r#"
        db.cache = { size = "4MiB", of = { throttle = { rate = "40Gbit/s", of = { stripe = { unit = "64KiB", of = [
            { file = { path = "a", size = "2MiB" } }, "b",
        ] } } } } }
        b.file = { path = "b", size = "2MiB" }
    "#;
    let other = OtherLane::start();
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let mut graph = graph(text, scratch.path());
        let options = new_stripe(1);
        let created = graph.create_stripe("db", &other.handle, &options).await;
        created.expect("blank files");
        let tree = graph.open("db", &other.handle).await.expect("it opens");
        let volume = tree.on_lane().await.expect("a volume");
        let data = Payload::zeroes(128 << 10);
        let written = volume.write(0, data, Durability::Cached).await;
        written.expect("it writes");
        volume.read(0, 4096).await.expect("it is cached");
        volume
            .read(9, 512)
            .await
            .expect_err("it is not whole blocks");
        let report = graph.report();
        let counted = |path: &str, kind| {
            let counts = report.0[path].of(kind);
            assert_eq!(counts.latency_ns.len(), counts.requests, "{path}");
            (counts.requests, counts.bytes, counts.errors)
        };
        use RequestKind::{Read, Write};
        assert_eq!(counted("db/cache", Write), (1, 128 << 10, 0));
        assert_eq!(counted("db/cache", Read), (2, 4096, 1));
        let link = "db/cache/throttle";
        assert_eq!(counted(link, Write), (1, 128 << 10, 0));
        let stripe = "db/cache/throttle/stripe";
        assert_eq!(counted(stripe, Write), (1, 128 << 10, 0));
        for leaf in ["db/cache/throttle/stripe/0/file", "b/file"] {
            let (requests, bytes, errors) = counted(leaf, Write);
            assert!(requests >= 1 && bytes >= 64 << 10 && errors == 0, "{leaf}");
        }
        let shown = report.to_string();
        assert!(
            shown.contains(
                "node b/file
  read "
            ),
            "{shown}"
        );
    });
}

#[test]
fn a_volume_whose_lane_has_ended_is_unreachable() {
    let other = OtherLane::start();
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let mut graph = graph(TREES, Path::new("."));
        let tree = graph
            .open("measured", &other.handle)
            .await
            .expect("it opens");
        let volume = tree.on_lane().await.expect("it is open");
        volume.flush().await.expect("it flushes");
        drop(other);
        let error = volume.flush().await.expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    });
}

#[test]
fn rules_in_the_configuration_act_and_can_be_cleared() {
    let text = r#"a.fault = { rules = [{ on = "write", skip = 1, times = 1, fail = "no-space" }],
                              of = { ram = { size = "1MiB" } } }"#;
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let mut graph = graph(text, Path::new("."));
        let tree = graph.open("a", &lane.handle()).await.expect("it opens");
        let volume = tree.on_lane().await.expect("it is open");
        let mut kinds = Vec::new();
        for _ in 0..3 {
            let zeroes = engine::Payload::zeroes(512);
            let result = volume.write(0, zeroes, Durability::Cached).await;
            kinds.push(result.err().map(|error| error.kind()));
        }
        assert_eq!(kinds, [None, Some(ErrorKind::NoSpace), None]);
        let handle = graph.handles().get::<FaultHandle>("a/fault");
        assert_eq!(handle.expect("it has rules").acted(), 1);
    });
}

#[test]
fn a_check_finds_what_would_fail_and_changes_nothing() {
    let scratch = Scratch::new();
    fs::write(scratch.file("small"), [0; 4096]).expect("a file");
    let text = r#"
        new.file = { path = "new", size = "1MiB" }
        missing.file = { path = "missing" }
        small.file = { path = "small", size = "1MiB" }
        again.file = { path = "./new", size = "1MiB" }
        nowhere.file = { path = "no/where", size = "1MiB" }
        directory.file = { path = "." }
        scratch.ram = { size = "1MiB" }
        cached.file = { path = "cached", size = "1MiB", cache = "write-back" }
    "#;
    let findings = graph(text, scratch.path()).check();
    let messages: Vec<&str> = findings.errors.iter().map(ConfigError::message).collect();
    for part in [
        "give it a size, such as",
        "has 4096 bytes, less than its configured size of 1048576",
        "its directory cannot be accessed (No such file",
        "is a directory",
        "is already used by \"again\"",
    ] {
        assert!(
            messages.iter().any(|message| message.contains(part)),
            "{part}: {messages:?}"
        );
    }
    assert_eq!(messages.len(), 5, "{messages:?}");
    let said = |messages: &[ConfigError], part: &str| {
        messages.len() == 1 && messages[0].message().contains(part)
    };
    let is_volatile = said(&findings.warnings, "\"scratch\" is in memory");
    assert!(is_volatile, "{:?}", findings.warnings);
    let is_cached = said(&findings.notes, "page cache");
    assert!(is_cached, "{:?}", findings.notes);
    assert!(!scratch.file("new").exists());
}

#[test]
fn an_unknown_name_is_refused_with_those_that_there_are() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let mut graph = graph("b.ram = { size = \"1MiB\" }", Path::new("."));
        let error = graph.open("c", &lane.handle()).await.expect_err("no c");
        assert!(
            error
                .message()
                .contains("no volume called \"c\"; there is only \"b\""),
            "{error}"
        );
    });
}

#[test]
fn a_stripe_opens_after_it_was_created_and_not_before() {
    let text = r#"
        a.ram = { size = "4MiB" }
        b.ram = { size = "4MiB" }
        db.cache = { size = "4MiB", of = { stripe = { unit = "4KiB", of = ["a", "b"] } } }
    "#;
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let mut graph = graph(text, Path::new("."));
        let home = lane.handle();
        let _both = (graph.open("a", &home).await, graph.open("b", &home).await);
        let error = graph.open("db", &home).await.expect_err("blank children");
        assert!(
            error.message().contains("sanstone volume create"),
            "{error}"
        );
        let uuid = uuid::Uuid::from_u128(7);
        let new = NewStripe {
            uuid,
            created_unix_s: 1,
            force: false,
            from: None,
        };
        graph
            .create_stripe("db", &home, &new)
            .await
            .expect("it is created");
        let error = graph
            .create_stripe("db", &home, &new)
            .await
            .expect_err("it is there");
        assert!(error.message().contains("--force"), "{error}");
        let tree = graph.open("db", &home).await.expect("it opens");
        // The cache's only child is the stripe.
        assert_eq!(tree.carried(), Some(&Carried::Stripe(uuid)));
        contract::hold(tree.on_lane().await.expect("a volume"), 3).await;
    });
}

#[test]
fn a_concat_of_any_lengths_keeps_the_contract_also_below_layers() {
    let text = r#"
        a.ram = { size = "2MiB" }
        b.ram = { size = "4MiB", block_size = 4096 }
        c.ram = { size = "1216KiB" }
        inner.stripe = { unit = "4KiB", of = ["b"] }
        db.cache = { size = "1MiB", of = { stats = { of = { concat = { of = ["a", "inner", "c"] } } } } }
    "#;
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let mut graph = graph(text, Path::new("."));
        let home = lane.handle();
        let _open = (
            graph.open("a", &home).await,
            graph.open("b", &home).await,
            graph.open("c", &home).await,
        );
        let error = graph.open("db", &home).await.expect_err("blank children");
        assert!(
            error.message().contains("sanstone volume create"),
            "{error}"
        );
        for (name, id) in [("inner", 7), ("db", 8)] {
            let new = new_stripe(id);
            let created = graph.create_stripe(name, &home, &new).await;
            created.expect("it is created");
        }
        let tree = graph.open("db", &home).await.expect("it opens");
        // One MiB, two MiB, and three times 64 KiB.
        assert_eq!(tree.shape().len_bytes(), (3 << 20) + 3 * (64 << 10));
        assert_eq!(tree.shape().block_size_bytes, 4096);
        let uuid = uuid::Uuid::from_u128(8);
        assert_eq!(tree.carried(), Some(&Carried::Stripe(uuid)));
        contract::hold(tree.on_lane().await.expect("a volume"), 5).await;
    });
}

#[test]
fn the_smallest_and_the_largest_units_of_a_stripe_hold_what_is_written() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    for (unit, unit_bytes) in [("4KiB", 4 << 10), ("4MiB", 4 << 20), ("1GiB", 1u64 << 30)] {
        let scratch = Scratch::new();
        let len = (1 << 20) + 2 * unit_bytes;
        let files = ["a", "b", "c"]
            .map(|name| format!("{{ file = {{ path = \"{name}\", size = \"{len}B\" }} }}"));
        let text = format!(
            "db.stripe = {{ unit = \"{unit}\", of = [{}] }}",
            files.join(", ")
        );
        lane.block_on(async {
            let mut graph = graph(&text, scratch.path());
            let home = lane.handle();
            let new = new_stripe(7);
            let created = graph.create_stripe("db", &home, &new).await;
            created.expect("it is created");
            let tree = graph.open("db", &home).await.expect("it opens");
            let volume = tree.on_lane().await.expect("a volume");
            assert_eq!(volume.shape().len_bytes(), 6 * unit_bytes);
            // Across each border between units, and at both ends.
            let ends = [0, 6 * unit_bytes - 8192];
            let borders = (1..6).map(|border| border * unit_bytes - 4096);
            for (value, at) in (1u8..).zip(borders.chain(ends)) {
                let data = Payload::from(Buf::copy_of(&[value; 8192]));
                let written = volume.write(at, data, Durability::Fua).await;
                written.unwrap_or_else(|error| panic!("{unit} at {at}: {error}"));
                let read = volume.read(at, 8192).await.expect("it reads");
                assert!(read.to_vec() == [value; 8192], "{unit} at {at}");
            }
            assert_eq!(graph.close().await, Vec::<String>::new());
        });
    }
}

/// Whether this content of a file has a label with an owner.
fn is_claimed(bytes: &[u8]) -> bool {
    match Label::decode(&bytes[LABEL_AT as usize..][..LABEL_BYTES]) {
        FoundLabel::Label(label) => !label.is_released(),
        found => panic!("it was claimed once: {found:?}"),
    }
}

#[test]
fn a_claim_reaches_the_leaves_through_every_layer_and_from_another_lane_and_so_does_the_end() {
    let scratch = Scratch::new();
    let text = r#"
        db.cache = { size = "4MiB", of = { throttle = { rate = "40Gbit/s", of = { stripe = { unit = "4KiB", of = [
            { stats = { of = { throttle = { rate = "40Gbit/s", of = { file = { path = "a", size = "4MiB" } } } } } },
            { fault = { rules = [], of = { cache = { size = "1MiB", of = { file = { path = "b", size = "4MiB" } } } } } },
            { file = { path = "c", size = "4MiB", cache = "write-back" } },
            { stripe = { of = [{ file = { path = "d", size = "4MiB" } }] } },
        ] } } } } }
        inner.stripe = { of = [{ file = { path = "d", size = "4MiB" } }] }
    "#;
    let marked = || {
        ["a", "b", "c", "d"].map(|name| {
            let bytes = fs::read(scratch.file(name)).expect("a file");
            is_claimed(&bytes)
        })
    };
    let other = OtherLane::start();
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let mut graph = graph(text, scratch.path());
        let recording = graph.record("db/cache/throttle/stripe/2/file");
        let new = new_stripe(7);
        for name in ["inner", "db"] {
            let made = graph.create_stripe(name, &other.handle, &new).await;
            made.expect("blank files");
        }
        assert_eq!(marked()[..3], [false; 3], "a creation ends its claims");
        let tree = graph.open("db", &other.handle).await.expect("it opens");
        assert_eq!(marked(), [true; 4]);
        assert!(!recording.is_empty());
        let volume = tree.on_lane().await.expect("a volume");
        volume.read(0, 4096).await.expect("it is open");
        assert_eq!(graph.close().await, Vec::<String>::new());
        assert_eq!(marked(), [false; 4]);
        let error = volume.read(0, 4096).await.expect_err("it is closed");
        assert_eq!(error.kind(), ErrorKind::Preempted);
    });
}

#[test]
fn what_a_start_that_failed_has_claimed_is_given_up_when_it_ends() {
    let scratch = Scratch::new();
    let text = "db.cache = { size = \"1MiB\", of = { stripe = { of = [\
                { file = { path = \"a\", size = \"4MiB\" } }] } } }";
    let is_marked = || is_claimed(&fs::read(scratch.file("a")).expect("a file"));
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let home = lane.handle();
    lane.block_on(async {
        let mut graph = graph(text, scratch.path());
        let new = new_stripe(7);
        let made = graph.create_stripe("db", &home, &new).await;
        made.expect("a blank file");
        drop(graph.open("db", &home).await.expect("it opens"));
        assert!(is_marked());
        assert_eq!(graph.close().await, Vec::<String>::new());
        assert!(!is_marked());
    });
}

#[test]
fn a_disk_that_is_named_twice_is_refused_however_it_is_written() {
    let leaf = |url: &str| format!("iscsi = {{ url = \"{url}\" }}");
    let one = "iscsi://10.0.1.2/iqn.2026-11.example:a/0";
    for (other, is_same) in [
        (one, true),
        ("iscsi://10.0.1.2:3260/iqn.2026-11.Example:A/0", true),
        ("iscsi://[::ffff:10.0.1.2]/iqn.2026-11.example:a/0", true),
        ("iscsi://10.0.1.2/iqn.2026-11.example:a/1", false),
        ("iscsi://10.0.1.2:3261/iqn.2026-11.example:a/0", false),
        ("iscsi://10.0.1.3/iqn.2026-11.example:a/0", false),
    ] {
        let (one, other) = (leaf(one), leaf(other));
        let two_volumes = format!("one.{one}\ntwo.stats = {{ of = {{ {other} }} }}");
        let one_stripe = format!("db.stripe = {{ of = [{{ {one} }}, {{ {other} }}] }}");
        for (text, users) in [(two_volumes, ["one", "two"]), (one_stripe, ["db", "db"])] {
            let findings = graph(&text, Path::new("")).check();
            let messages: Vec<&str> = findings.errors.iter().map(ConfigError::message).collect();
            assert_eq!(messages.len(), usize::from(is_same), "{text}: {messages:?}");
            for (message, user) in messages.iter().flat_map(|m| users.map(|user| (m, user))) {
                assert!(message.contains(&format!("\"{user}\"")), "{message}");
            }
        }
    }
}

#[test]
fn the_name_of_a_host_is_looked_up_while_its_lane_goes_on() {
    engine::sim::seeds(5, |seed| {
        let world = engine::sim::World::new(seed);
        let host = world.host("here");
        world.block_on(&host, async {
            let url = "iscsi://nowhere/iqn.2026-11.io.sanstone:t0/0";
            let text = format!("db.iscsi = {{ url = \"{url}\" }}");
            let mut graph = graph(&text, Path::new("/"));
            let other = engine::spawn(async {});
            let error = graph.open("db", &host.lane(0)).await;
            let error = error.expect_err("no machine is called so").to_string();
            let why = "\"nowhere\" cannot be resolved: the name has no address";
            assert!(error.contains(why), "{error}");
            assert!(other.is_finished());
        });
    });
}
