//! A concat takes more children while it is used. The power cuts are in the simulator (`scenarios/concats.rs`).

use std::{collections::BTreeSet, fs::File, os::unix::fs::FileExt};

use engine::{Buf, Lane, LaneConfig, LaneHandle, Payload};

use crate::{
    Durability, SharedVolume,
    graph::{
        Changes, Graph, Live, NewStripe,
        tests::{OtherLane, graph},
    },
    kinds::Volumes,
    scratch::Scratch,
};

const MIB: u64 = 1 << 20;

/// A concat of these files, below `above`.
fn concat(above: &str, names: &[&str]) -> String {
    let of: Vec<String> = names
        .iter()
        .map(|name| format!("{{ file = {{ path = \"{name}\" }} }}"))
        .collect();
    let concat = format!("concat = {{ of = [{}] }}", of.join(", "));
    match above {
        "" => format!("[db]\n{concat}\n"),
        above => format!(
            "[db]\n{}\n",
            above.replace("BELOW", &format!("{{ {concat} }}"))
        ),
    }
}

fn changes(from: &str, to: &str) -> (Changes, Volumes) {
    let [was, is]: [Volumes; 2] = [from, to].map(|text| toml::from_str(text).expect("it parses"));
    let changes = was.changes(&is, "db", &BTreeSet::from(["db".to_owned()]));
    (changes, is)
}

/// Gives the open graph the volumes of `to` instead of those of `from`.
async fn apply(graph: &mut Graph, from: &str, to: &str) -> Result<(), String> {
    let (changes, is) = changes(from, to);
    assert_eq!(changes.refused, [""; 0]);
    let mut live = Live::default();
    if let Err(error) = graph.prepare(&changes, &mut live).await {
        graph.undo(live).await;
        return Err(error.to_string());
    }
    graph.replace_volumes(is).expect("they are valid");
    live.take_effect().await;
    assert_eq!(live.finish().await, [""; 0]);
    Ok(())
}

fn make(scratch: &Scratch, name: &str, mib: u64) -> File {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(scratch.file(name))
        .expect("room");
    file.set_len(mib * MIB).expect("room");
    file
}

async fn create(text: &str, scratch: &Scratch, home: &LaneHandle) {
    let new = NewStripe {
        uuid: uuid::Uuid::from_u128(7),
        created_unix_s: 1,
        force: false,
        from: None,
    };
    let mut graph = graph(text, scratch.path());
    let created = graph.create_stripe("db", home, &new).await;
    created.expect("blank files");
    graph.close().await;
}

async fn fill(volume: &SharedVolume, at: u64, len: u64, byte: u8) {
    let data = Payload::from(Buf::copy_of(&vec![byte; len as usize]));
    let written = volume.write(at, data, Durability::Cached).await;
    written.expect("it writes");
}

async fn has(volume: &SharedVolume, at: u64, len: u64, byte: u8) {
    let read = volume.read(at, len as usize).await.expect("it reads");
    assert!(read.to_vec().iter().all(|it| *it == byte), "{at}");
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
    let above = "cache = { size = \"16MiB\", of = BELOW }";
    for above in ["", above] {
        on_lane(async |scratch, home| {
            for name in ["a", "b", "c"] {
                make(scratch, name, 3);
            }
            let steps = [&["a"][..], &["a", "b"], &["a", "b", "c"]].map(|it| concat(above, it));
            create(&steps[0], scratch, &home).await;
            let other = OtherLane::start();
            let mut graph = graph(&steps[0], scratch.path());
            graph.set_lanes(&[home.clone(), other.handle.clone()]);
            let tree = graph.open("db", &home).await.expect("it opens");
            let volume = tree.on_lane().await.expect("a volume");
            fill(&volume, 0, 2 * MIB, 1).await;
            apply(&mut graph, &steps[0], &steps[1])
                .await
                .expect("b is blank");
            assert_eq!(volume.shape().len_bytes(), 4 * MIB);
            // Across the border, and then by a lane that has not used it yet.
            fill(&volume, MIB, 2 * MIB, 2).await;
            apply(&mut graph, &steps[1], &steps[2])
                .await
                .expect("c is blank");
            let elsewhere = tree.clone();
            let there = other.handle.call(move || async move {
                let volume = elsewhere.on_lane().await.expect("a volume");
                has(&volume, MIB, 2 * MIB, 2).await;
                fill(&volume, 3 * MIB, 3 * MIB, 3).await;
                volume.flush().await.expect("a flush");
                volume.shape().len_bytes()
            });
            assert_eq!(there.await, Some(6 * MIB));
            has(&volume, 0, MIB, 1).await;
            has(&volume, 3 * MIB, 3 * MIB, 3).await;
            volume.flush().await.expect("a flush");
            let view = graph.view("db").expect("it is there");
            let leaves = view.children.iter().flat_map(|it| &it.children).count();
            assert!(view.children.len() == 3 || leaves == 3, "{view:?}");
            drop((volume, tree));
            assert_eq!(graph.close().await, [""; 0]);
            drop(other);
            // A start with the new configuration has the same volume, and one with the old has none.
            let mut graph = self::graph(&steps[2], scratch.path());
            let tree = graph
                .open("db", &home)
                .await
                .expect("nothing is left claimed");
            let volume = tree.on_lane().await.expect("a volume");
            for (at, len, byte) in [(0, 1, 1), (1, 2, 2), (3, 3, 3)] {
                has(&volume, at * MIB, len * MIB, byte).await;
            }
            drop((volume, tree));
            graph.close().await;
            let mut graph = self::graph(&steps[1], scratch.path());
            let refused = graph.open("db", &home).await.expect_err("c is missing");
            assert!(refused.to_string().contains("has 3 children"), "{refused}");
        });
    }
}

#[test]
fn what_is_no_blank_disk_is_refused_and_the_concat_goes_on_and_takes_another() {
    on_lane(async |scratch, home| {
        for name in ["a", "b", "d"] {
            make(scratch, name, 3);
        }
        let held = make(scratch, "c", 3);
        held.write_all_at(&[1], 8192).expect("room");
        let [old, same, bad, good] = [
            &["a", "b"][..],
            &["a", "b", "a"],
            &["a", "b", "c"],
            &["a", "b", "d"],
        ]
        .map(|it| concat("", it));
        create(&old, scratch, &home).await;
        let mut graph = graph(&old, scratch.path());
        graph.set_lanes(std::slice::from_ref(&home));
        let tree = graph.open("db", &home).await.expect("it opens");
        let volume = tree.on_lane().await.expect("a volume");
        fill(&volume, 0, 4 * MIB, 1).await;
        for (text, said) in [
            (&bad, &["concat child 2 (c)", "nonzero byte at 8192"][..]),
            (&same, &["a"]),
        ] {
            let refused = apply(&mut graph, &old, text).await;
            let refused = refused.expect_err("it does not join");
            assert!(said.iter().all(|it| refused.contains(it)), "{refused}");
            assert_eq!(volume.shape().len_bytes(), 4 * MIB);
        }
        fill(&volume, 0, MIB, 2).await;
        apply(&mut graph, &old, &good).await.expect("d is blank");
        fill(&volume, 4 * MIB, 2 * MIB, 3).await;
        has(&volume, 0, MIB, 2).await;
        has(&volume, MIB, 3 * MIB, 1).await;
        volume.flush().await.expect("a flush");
    });
}

#[test]
fn a_child_that_was_taken_back_is_blank_again_and_the_concat_is_as_it_was() {
    on_lane(async |scratch, home| {
        for name in ["a", "b", "c"] {
            make(scratch, name, 3);
        }
        let [old, new] = [&["a", "b"][..], &["a", "b", "c"]].map(|it| concat("", it));
        create(&old, scratch, &home).await;
        let mut graph = graph(&old, scratch.path());
        graph.set_lanes(std::slice::from_ref(&home));
        let tree = graph.open("db", &home).await.expect("it opens");
        let volume = tree.on_lane().await.expect("a volume");
        let (changes, _) = changes(&old, &new);
        let mut live = Live::default();
        graph
            .prepare(&changes, &mut live)
            .await
            .expect("c is blank");
        graph.undo(live).await;
        fill(&volume, 0, 4 * MIB, 1).await;
        volume.flush().await.expect("it is still claimed");
        let of_c = std::fs::read(scratch.file("c")).expect("ours");
        assert!(of_c[..4096].iter().all(|it| *it == 0), "its superblock");
        drop((volume, tree));
        assert_eq!(graph.close().await, [""; 0]);
        // Neither the concat nor another volume is kept from using what it wants.
        let other = concat("", &["c"]);
        create(&other, scratch, &home).await;
        let mut graph = self::graph(&old, scratch.path());
        graph.open("db", &home).await.expect("it is what it was");
        graph.close().await;
    });
}

#[test]
fn another_order_fewer_children_and_a_keeper_of_its_length_are_refused() {
    let mirror = "mirror = { of = [BELOW, { file = { path = \"m\" } }] }";
    for (above, from, to, said) in [
        ("", &["a", "b"][..], &["a"][..], "keeps its 2 children"),
        (
            "",
            &["a", "b"],
            &["c", "a", "b"],
            "write the new one at its end",
        ),
        ("", &["a", "b"], &["b", "a"], "restart to apply them"),
        (mirror, &["a"], &["a", "b"], "a mirror keeps the length"),
    ] {
        let (changes, _) = changes(&concat(above, from), &concat(above, to));
        assert!(changes.made.is_empty(), "{:?}", changes.made);
        assert!(
            changes.refused.iter().all(|it| it.contains(said)),
            "{:?}",
            changes.refused
        );
        assert!(!changes.refused.is_empty(), "{to:?}");
    }
    let (changes, _) = changes(&concat("", &["a"]), &concat("", &["a", "b", "c"]));
    let told = "volume db: its concat has 1 → 3 children, and is longer: behind the others comes b, then c, which must be blank";
    assert_eq!(changes.made, [told]);
}
