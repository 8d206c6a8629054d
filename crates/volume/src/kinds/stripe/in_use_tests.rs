//! A stripe or concat takes the new length of its disks while it is used. The power cuts are in the simulator
//! (`scenarios/concats.rs`).

use std::{collections::BTreeSet, fs::File};

use engine::{Buf, Lane, LaneConfig, LaneHandle, Payload};

use crate::{
    Durability, SharedVolume,
    graph::{
        Graph, Live, NewStripe,
        tests::{OtherLane, graph},
    },
    kinds::Volumes,
    scratch::Scratch,
};

const MIB: u64 = 1 << 20;

async fn fill(volume: &SharedVolume, at_mib: u64, mib: u64, byte: u8) {
    let data = Payload::from(Buf::copy_of(&vec![byte; (mib * MIB) as usize]));
    let written = volume.write(at_mib * MIB, data, Durability::Cached).await;
    written.expect("it writes");
}

async fn has(volume: &SharedVolume, at_mib: u64, mib: u64, byte: u8) {
    let read = volume.read(at_mib * MIB, (mib * MIB) as usize).await;
    let read = read.expect("it reads").to_vec();
    assert!(read.iter().all(|it| *it == byte), "{at_mib}");
}

async fn create(text: &str, name: &str, scratch: &Scratch, home: &LaneHandle) {
    let new = NewStripe {
        uuid: uuid::Uuid::new_v4(),
        created_unix_s: 1,
        force: false,
        from: None,
    };
    let mut graph = graph(text, scratch.path());
    let created = graph.create_stripe(name, home, &new).await;
    created.expect("blank files");
    graph.close().await;
}

/// Gives the open graph the volumes of `to` instead of those of `from`; returns what has become longer.
async fn apply(graph: &mut Graph, from: &str, to: &str) -> Vec<String> {
    let [was, is]: [Volumes; 2] = [from, to].map(|text| toml::from_str(text).expect("it parses"));
    let open: BTreeSet<String> = is.0.keys().cloned().collect();
    let mut live = Live::default();
    for name in &open {
        let changes = was.changes(&is, name, &open);
        assert_eq!(changes.refused, [""; 0]);
        let prepared = graph.prepare(&changes, &mut live).await;
        prepared.expect("there is room");
    }
    graph.replace_volumes(is).expect("they are valid");
    live.take_effect().await;
    assert_eq!(live.finish().await, [""; 0]);
    let (made, failed) = graph.lengthen().await;
    assert_eq!(failed, [""; 0]);
    made
}

fn on_lane(test: impl AsyncFnOnce(&Scratch, LaneHandle)) {
    let (scratch, lane) = (
        Scratch::new(),
        Lane::new(&LaneConfig::default()).expect("a ring"),
    );
    let home = lane.handle();
    lane.block_on(test(&scratch, home));
}

#[test]
fn it_is_longer_on_every_lane_and_all_that_was_written_stays() {
    let text = |kind: &str, mib: u64| {
        let file = |name| format!("{{ file = {{ path = \"{name}\", size = \"{mib}MiB\" }} }}");
        let first = match kind {
            "concat" => file("a").replace(&mib.to_string(), "3"),
            _ => file("a"),
        };
        format!(
            "db.cache = {{ size = \"16MiB\", of = {{ {kind} = {{ of = [{first}, {}] }} }} }}",
            file("b")
        )
    };
    // The longer disk is worth 3 MiB more to a concat, and to a stripe twice that.
    for (kind, gained) in [("stripe", 6), ("concat", 3)] {
        on_lane(async |scratch, home| {
            let [old, new] = [3, 6].map(|mib| text(kind, mib));
            create(&old, "db", scratch, &home).await;
            let other = OtherLane::start();
            let mut graph = graph(&old, scratch.path());
            graph.set_lanes(&[home.clone(), other.handle.clone()]);
            let tree = graph.open("db", &home).await.expect("it opens");
            let volume = tree.on_lane().await.expect("a volume");
            fill(&volume, 0, 4, 1).await;
            assert_eq!(
                graph.lengthen().await,
                (Vec::new(), Vec::new()),
                "it has no room"
            );
            let told = format!(
                "volume db: its {kind} grows from 4 MiB to {} MiB, for which its disks have room",
                4 + gained
            );
            assert_eq!(apply(&mut graph, &old, &new).await, [told]);
            assert_eq!(volume.shape().len_bytes(), (4 + gained) * MIB);
            // Across the old end, and by a lane that has not used it yet.
            fill(&volume, 3, 2, 2).await;
            let elsewhere = tree.clone();
            let there = other.handle.call(move || async move {
                let volume = elsewhere.on_lane().await.expect("a volume");
                has(&volume, 3, 2, 2).await;
                fill(&volume, 5, gained - 1, 3).await;
                volume.flush().await.expect("a flush");
            });
            there.await.expect("it lives");
            assert_eq!(graph.may_lengthen(), [""; 0], "it has all of it");
            drop((volume, tree));
            assert_eq!(graph.close().await, [""; 0]);
            drop(other);
            let mut graph = self::graph(&new, scratch.path());
            let tree = graph
                .open("db", &home)
                .await
                .expect("nothing is left claimed");
            let volume = tree.on_lane().await.expect("a volume");
            assert_eq!(volume.shape().len_bytes(), (4 + gained) * MIB);
            for (at_mib, mib, byte) in [(0, 3, 1), (3, 2, 2), (5, gained - 1, 3)] {
                has(&volume, at_mib, mib, byte).await;
            }
        });
    }
}

#[test]
fn a_set_of_sets_takes_the_length_that_these_have_taken() {
    on_lane(async |scratch, home| {
        let text = |mib: u64| {
            let concat = |name| {
                format!(
                    "{name}.concat = {{ of = [{{ file = {{ path = \"{name}\", size = \"{mib}MiB\" }} }}] }}"
                )
            };
            let (one, two) = (concat("one"), concat("two"));
            format!("{one}\n{two}\ndb.stripe = {{ of = [\"one\", \"two\"] }}\n")
        };
        let [old, new] = [4, 8].map(text);
        for name in ["one", "two", "db"] {
            create(&old, name, scratch, &home).await;
        }
        let mut graph = graph(&old, scratch.path());
        graph.set_lanes(std::slice::from_ref(&home));
        let tree = graph.open("db", &home).await.expect("it opens");
        let volume = tree.on_lane().await.expect("a volume");
        fill(&volume, 0, 4, 1).await;
        let made = apply(&mut graph, &old, &new).await;
        assert_eq!(made.len(), 3, "{made:?}");
        assert_eq!(volume.shape().len_bytes(), 12 * MIB);
        fill(&volume, 4, 8, 2).await;
        has(&volume, 0, 4, 1).await;
        has(&volume, 4, 8, 2).await;
        volume.flush().await.expect("a flush");
    });
}

#[test]
fn a_disk_that_has_grown_alone_changes_nothing_and_one_that_grows_by_itself_is_used() {
    on_lane(async |scratch, home| {
        let set_len = |name: &str, mib: u64| {
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(scratch.file(name))
                .expect("room");
            file.set_len(mib * MIB).expect("room");
        };
        let text =
            "db.stripe = { of = [{ file = { path = \"a\" } }, { file = { path = \"b\" } }] }";
        ["a", "b"].iter().for_each(|name| set_len(name, 3));
        create(text, "db", scratch, &home).await;
        let mut graph = graph(text, scratch.path());
        graph.set_lanes(std::slice::from_ref(&home));
        let tree = graph.open("db", &home).await.expect("it opens");
        set_len("a", 9);
        assert_eq!(graph.look_at_lengths().await.len(), 1);
        assert_eq!(graph.lengthen().await, (Vec::new(), Vec::new()));
        set_len("b", 5);
        graph.look_at_lengths().await;
        let may = graph.may_lengthen();
        assert_eq!(graph.lengthen().await, (may.clone(), Vec::new()));
        assert!(may[0].contains("grows from 4 MiB to 8 MiB"), "{may:?}");
        assert_eq!(tree.shape().len_bytes(), 8 * MIB);
    });
}

#[test]
fn a_set_that_is_a_copy_keeps_its_length_while_its_mirror_uses_it() {
    let set = |name: &str| {
        format!(
            "{{ stripe = {{ of = [{{ file = {{ path = \"{name}\", cache = \"write-through\" }} }}] }} }}"
        )
    };
    let named = |name: &str| {
        format!(
            "{name}.stripe = {{ of = [{{ file = {{ path = \"{name}\", cache = \"write-through\" }} }}] }}\n"
        )
    };
    let sets = format!("{}{}", named("one"), named("two"));
    for of in [
        "\"one\", \"two\"".to_owned(),
        format!("{}, {}", set("one"), set("two")),
    ] {
        on_lane(async |scratch, home| {
            let set_len = |mib: u64| {
                for name in ["one", "two"] {
                    let mut file = File::options();
                    let file = file.create(true).truncate(false).write(true);
                    let file = file.open(scratch.file(name)).expect("room");
                    file.set_len(mib * MIB).expect("room");
                }
            };
            set_len(8);
            for name in ["one", "two"] {
                create(&sets, name, scratch, &home).await;
            }
            let text = format!("{sets}db.mirror = {{ of = [{of}] }}\n");
            let new = NewStripe {
                uuid: uuid::Uuid::new_v4(),
                created_unix_s: 1,
                force: false,
                from: None,
            };
            for is_new in [true, false] {
                let mut graph = graph(&text, scratch.path());
                graph.set_state_directory(scratch.path());
                graph.set_lanes(std::slice::from_ref(&home));
                if is_new {
                    let created = graph.create_stripe("db", &home, &new).await;
                    created.expect("blank stripes");
                }
                let tree = graph.open("db", &home).await.expect("it finds its copies");
                if is_new {
                    set_len(16);
                    assert_eq!(graph.look_at_lengths().await.len(), 2);
                    assert_eq!(graph.may_lengthen(), [""; 0]);
                    assert_eq!(graph.lengthen().await, (Vec::new(), Vec::new()));
                }
                drop(tree);
                graph.close().await;
            }
        });
    }
}
