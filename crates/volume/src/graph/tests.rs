//! Trees from configurations, on one lane and across lanes.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use engine::{Buf, Lane, LaneConfig, Payload, time};

use super::*;
use crate::{Durability, contract, layer::stats::RequestKind, scratch::Scratch};

fn graph(text: &str, base: &Path) -> Graph {
    Graph::new(toml::from_str(text).expect("it parses"), base).expect("it can be meant")
}

/// A lane on a thread of its own, until it is dropped.
struct OtherLane {
    handle: LaneHandle,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl OtherLane {
    fn start() -> Self {
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
    recorded.recorder = { of = { file = { path = "recorded", size = "1MiB", cache = "write-through" } } }
    faulty.fault = { rules = [{ on = "flush", skip = 1000000, fail = "medium" }], of = "ram2" }
    ram2.ram = { size = "512KiB" }
    measured.stats = { of = { throttle = { rate = "40Gbit/s", of = { ram = { size = "1MiB" } } } } }
"#;

#[test]
fn every_tree_keeps_the_contract_at_home_and_from_another_lane() {
    let other = OtherLane::start();
    for name in ["ram", "file", "link", "recorded", "faulty", "measured"] {
        for at_home in [true, false] {
            let scratch = Scratch::new();
            let mut graph = graph(TREES, scratch.path());
            let elsewhere = other.handle.clone();
            contract::run(move |here| {
                LaneFuture::new(async move {
                    let home = if at_home { here } else { elsewhere };
                    let tree = graph.open(name, &home).await.expect(name);
                    // What a lane uses stays open until it lets go, without the graph and the tree.
                    tree.on_lane().await
                })
            });
        }
    }
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
        recorded.recorder = { of = { file = { path = "recorded", cache = "write-through" } } }
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
        let home = other.handle.clone();
        let new = NewStripe {
            uuid: uuid::Uuid::from_u128(7),
            created_unix_s: 1,
            force: false,
        };
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
        let (grown, refused): (Vec<_>, Vec<_>) =
            graph.look_at_lengths().into_iter().partition(Result::is_ok);
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
        assert!(graph.look_at_lengths().iter().all(Result::is_err), "once");
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
        assert!(error.message().contains("has it locked"), "{error}");
        assert!(text[error.span().expect("a place").start..].starts_with("\"disk\", size"));

        let volume = seen.on_lane().await.expect("it is open");
        volume.read(0, 512).await.expect("it reads");
        let stats = &first.handles().stats["seen/stats"];
        assert_eq!(stats.snapshot().of(RequestKind::Read).requests, 1);
        drop((volume, seen));
        second.open("disk", &home).await.expect("it is free again");
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
        assert_eq!(graph.handles().faults["a/fault"].acted(), 1);
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
    "#;
    let findings = graph(text, scratch.path()).check(&Served::default());
    let messages: Vec<&str> = findings.errors.iter().map(ConfigError::message).collect();
    for part in [
        "give it a size to have it made",
        "has 4096 bytes, fewer than the size of 1048576",
        "cannot be made in its directory",
        "is a directory",
        "is used by \"again\" already",
    ] {
        assert!(
            messages.iter().any(|message| message.contains(part)),
            "{part}: {messages:?}"
        );
    }
    assert_eq!(messages.len(), 5, "{messages:?}");
    assert_eq!(findings.notes.len(), 1, "memory is volatile");
    assert!(!scratch.file("new").exists());
}

#[test]
fn a_file_of_what_was_served_must_be_there() {
    let scratch = Scratch::new();
    let text = r#"
        whole.cache = { size = "4MiB", of = { stripe = { of = ["part", { file = { path = "inline", size = "1MiB" } }] } } }
        part.stats = { of = { file = { path = "named", size = "1MiB" } } }
        other.file = { path = "other", size = "1MiB" }
    "#;
    let served = Served {
        names: ["whole".to_owned(), "gone".to_owned()].into(),
        record: "record".into(),
    };
    let graph = graph(text, scratch.path());
    for (name, errors) in [("inline", 2), ("named", 1), ("other", 0)] {
        let findings = graph.check(&served);
        let messages: Vec<&str> = findings.errors.iter().map(ConfigError::message).collect();
        assert_eq!(messages.len(), errors, "{messages:?}");
        for message in messages {
            assert!(
                message.contains("the line of \"whole\" from record"),
                "{message}"
            );
        }
        fs::write(scratch.file(name), [0; 1 << 20]).expect("it is restored");
    }
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
        contract::hold(tree.on_lane().await.expect("a volume"), 3).await;
    });
}
