//! Another disk in the place of a copy, while the mirror is used.

use std::{cell::Cell, collections::BTreeSet, rc::Rc};

use super::*;
use crate::graph::Live;

/// Gives the open graph the volumes of `to` instead of those of `from`. Returns what changed.
async fn changed(graph: &mut Graph, from: &str, to: &str) -> Result<Vec<String>, String> {
    let [was, is]: [Volumes; 2] = [from, to].map(|text| toml::from_str(text).expect("it parses"));
    let changes = was.changes(&is, "db", &BTreeSet::from(["db".to_owned()]));
    if !changes.refused.is_empty() {
        return Err(changes.refused.join("; "));
    }
    let barred = graph.in_the_way_of(&changes);
    if !barred.is_empty() {
        return Err(barred.join("; "));
    }
    let mut live = Live::default();
    if let Err(error) = graph.prepare(&changes, &mut live).await {
        graph.undo(live).await;
        return Err(error.to_string());
    }
    graph.replace_volumes(is).expect("they are valid");
    live.take_effect().await;
    graph.forget_replaced(&live);
    assert_eq!(live.finish().await, [""; 0]);
    Ok(changes.made)
}

async fn in_sync(graph: &Graph) {
    while !status(graph).is_in_sync() {
        engine::time::sleep(engine::Duration::from_millis(100)).await;
    }
}

async fn write(volume: &SharedVolume, at: u64, byte: u8) {
    let written = volume.write(at, block(byte), Durability::Fua).await;
    written.expect("one copy at least is there");
}

/// A mirror of `a` and `b` that is used, with its configuration and one with `c` in the place of `b`.
async fn in_use(host: &Host) -> (Graph, Tree, SharedVolume, [String; 2]) {
    let text = text("3MiB", "write-through");
    let other = text.replace("path = \"b\"", "path = \"c\"");
    create(host, &text, &NEW).await.expect("blank files");
    let mut graph = graph(&text);
    let (tree, volume) = open(&mut graph, host).await.expect("it opens");
    (graph, tree, volume, [text, other])
}

/// Without its register a mirror goes on as it is, and no copy can leave it.
#[test]
fn a_copy_stays_in_use_while_the_register_cannot_take_it_out() {
    on_a_machine(12, async |host| {
        let (mut graph, tree, volume, [text, other]) = in_use(&host).await;
        write(&volume, 8192, 6).await;
        let register = format!("{STATE}/mirror-{}.register", NEW.uuid);
        let record = host.read_file(&register).expect("a register");
        host.remove_file(&register);
        let refused = changed(&mut graph, &text, &other).await;
        let refused = refused.expect_err("nothing can take it out");
        assert!(
            refused.contains("has no record of this mirror"),
            "{refused}"
        );
        let began = engine::time::now();
        write(&volume, 8192, 7).await;
        let took = engine::time::now() - began;
        assert!(took < engine::Duration::from_secs(1), "{took:?}");
        assert!(status(&graph).is_in_sync());
        host.put_file(&register, &record);
        changed(&mut graph, &text, &other)
            .await
            .expect("it is back");
        in_sync(&graph).await;
        drop((tree, volume));
        assert_eq!(graph.close().await, [""; 0]);
    });
}

#[test]
fn a_blank_disk_takes_the_place_of_a_copy_while_the_mirror_is_used() {
    on_a_machine(12, async |host| {
        let (mut graph, tree, volume, [text, other]) = in_use(&host).await;
        write(&volume, 8192, 6).await;
        let writing = {
            let volume = volume.clone();
            engine::spawn(async move {
                for byte in 1..=200 {
                    write(&volume, 4096 * (100 + u64::from(byte)), byte).await;
                    let read = volume.read(8192, 4096).await.expect("it reads").to_vec();
                    assert_eq!(
                        read, [6; 4096],
                        "the new disk is not read before it is filled"
                    );
                }
            })
        };
        let made = changed(&mut graph, &text, &other)
            .await
            .expect("c is blank");
        let told =
            "volume db: copy 1 (b) is replaced by c, which must be blank, and is filled whole";
        assert_eq!(made, [told]);
        writing.await;
        in_sync(&graph).await;
        assert_eq!(compared(&graph).await, Ok(Vec::new()));
        let names = status(&graph).copies.into_iter().map(|copy| copy.name);
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["mirror copy 0 (a)", "mirror copy 1 (c)"]
        );
        drop((tree, volume));
        assert_eq!(graph.close().await, [""; 0]);
        let [a, c] = ["/srv/a", "/srv/c"].map(|path| host.read_file(path).expect("a copy"));
        assert_eq!(a[..2 << 20], c[..2 << 20]);
        assert_eq!(c[8192..12288], [6; 4096]);
        let mut next = self::graph(&other);
        let opened = open(&mut next, &host).await.expect("it opens");
        assert!(status(&next).is_in_sync(), "{:?}", status(&next));
        drop(opened);
        next.close().await;
        let lone = text.replace("path = \"a\"", "path = \"gone/a\"");
        let refused = open(&mut self::graph(&lone), &host).await.err();
        let refused = refused.expect("b was replaced long ago");
        assert!(
            refused.contains("(b) (it is older than the register knows"),
            "{refused}"
        );
        let mut both = self::graph(&text);
        let (_tree, volume) = open(&mut both, &host).await.expect("a tells");
        in_sync(&both).await;
        assert_eq!(compared(&both).await, Ok(Vec::new()));
        for _ in 0..2 {
            let read = volume.read(8192, 4096).await.expect("it reads").to_vec();
            assert_eq!(read, [6; 4096], "b is older and is filled anew");
        }
    });
}

#[test]
fn a_disk_that_holds_something_replaces_nothing_and_the_copy_stays() {
    on_a_machine(13, async |host| {
        let text = text("3MiB", "write-through");
        let other = text.replace("path = \"b\"", "path = \"c\"");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut old = vec![0; 3 << 20];
        old[4000] = 1;
        host.put_file("/srv/c", &old);
        let mut graph = graph(&text);
        let (_tree, volume) = open(&mut graph, &host).await.expect("it opens");
        let refused = changed(&mut graph, &text, &other).await;
        let refused = refused.expect_err("c holds something");
        assert!(
            refused.contains("a nonzero byte at 4000")
                && refused.contains("volume replace --force"),
            "{refused}"
        );
        assert!(status(&graph).is_in_sync(), "{:?}", status(&graph));
        write(&volume, 0, 3).await;
        let both = text.replace("path = \"a\"", "path = \"d\"");
        let both = both.replace("path = \"b\"", "path = \"c\"");
        let refused = changed(&mut graph, &text, &both).await;
        let refused = refused.expect_err("nothing would be left to fill them with");
        assert!(refused.contains("change one, wait until"), "{refused}");
        assert_eq!(compared(&graph).await, Ok(Vec::new()));
        assert_eq!(host.read_file("/srv/c").expect("it is there"), old);
    });
}

#[test]
fn what_else_changes_beside_an_exchange_is_neither_lost_nor_let_in() {
    let text = text("3MiB", "write-through");
    let changes = |to: &str| {
        let [was, is]: [Volumes; 2] =
            [&text, to].map(|text| toml::from_str(text).expect("it parses"));
        was.changes(&is, "db", &BTreeSet::from(["db".to_owned()]))
    };
    // Copy 0 is exchanged, and copy 1 after it cannot change so in use.
    let other = text.replace("path = \"a\"", "path = \"c\"");
    assert_eq!(changes(&other).refused, [""; 0]);
    let (first, second) = other.split_once("path = \"b\"").expect("two copies");
    let second = second.replace("write-through", "direct-sync");
    let refused = changes(&format!("{first}path = \"b\"{second}")).refused;
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains("restart to apply them"), "{refused:?}");
}

#[test]
fn an_exchange_that_is_taken_back_costs_what_was_written_meanwhile() {
    on_a_machine(14, async |host| {
        let (mut graph, _tree, volume, [text, other]) = in_use(&host).await;
        let [was, is]: [Volumes; 2] =
            [&text, &other].map(|text| toml::from_str(text).expect("it parses"));
        let changes = was.changes(&is, "db", &BTreeSet::from(["db".to_owned()]));
        let mut live = Live::default();
        let prepared = graph.prepare(&changes, &mut live).await;
        prepared.expect("c is blank");
        assert!(!status(&graph).is_in_sync(), "b has left");
        write(&volume, 0, 3).await;
        graph.undo(live).await;
        in_sync(&graph).await;
        let copies = status(&graph).copies;
        assert_eq!(copies[1].name, "mirror copy 1 (b)");
        assert_eq!(compared(&graph).await, Ok(Vec::new()));
        // What was left on the disk by that keeps nobody from trying again.
        changed(&mut graph, &text, &other)
            .await
            .expect("nothing is on it");
        in_sync(&graph).await;
        assert_eq!(compared(&graph).await, Ok(Vec::new()));
    });
}

#[test]
fn the_only_copy_in_sync_is_not_replaced_while_it_is_used() {
    on_a_machine(15, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let away = text.replace("\"b\", size = \"3MiB\"", "\"gone/b\"");
        let other = away.replace("path = \"a\"", "path = \"c\"");
        let mut graph = graph(&away);
        let (_tree, volume) = open(&mut graph, &host).await.expect("one copy is enough");
        write(&volume, 0, 3).await;
        let refused = changed(&mut graph, &away, &other).await;
        let refused = refused.expect_err("a alone has it");
        assert!(refused.contains("the only copy in sync"), "{refused}");
        let read = volume.read(0, 4096).await.expect("it goes on").to_vec();
        assert_eq!(read, [3; 4096]);
    });
}

/// What is acknowledged by `volume` at 12288, until it fails or an hour has passed: bytes in turn.
async fn writes(volume: SharedVolume, acknowledged: Rc<Cell<u8>>) {
    for byte in 1..=250 {
        if volume
            .write(12288, block(byte), Durability::Fua)
            .await
            .is_err()
        {
            return;
        }
        acknowledged.set(byte);
    }
}

/// Exchanges b for c, and lets the disk of the machine make `changes` changes meanwhile before its power fails. Then the mirror
/// is opened of `a` and c. Returns whether the power failed before the copies were in sync, and whether c was a copy then.
fn exchanged_until(seed: u64, changes: u64) -> (bool, bool) {
    let world = World::new(seed);
    let (host, bench) = (world.host("machine"), world.host("bench"));
    let text = text("3MiB", "write-through");
    let other = text.replace("path = \"b\"", "path = \"c\"");
    let acknowledged = Rc::new(Cell::new(0));
    let work = {
        let (host, text, other, acknowledged) = (
            host.clone(),
            text.clone(),
            other.clone(),
            acknowledged.clone(),
        );
        async move {
            create(&host, &text, &NEW).await.expect("blank files");
            let mut graph = graph(&text);
            let (_tree, volume) = open(&mut graph, &host).await.expect("it opens");
            write(&volume, 8192, 6).await;
            host.doom_after(changes);
            let writing = engine::spawn(writes(volume.clone(), acknowledged));
            if changed(&mut graph, &text, &other).await.is_ok() {
                let synced =
                    engine::time::timeout(engine::Duration::from_secs(60), in_sync(&graph));
                synced.await;
            }
            writing.await;
        }
    };
    let again = {
        let host = host.clone();
        async move {
            let mut graph = graph(&other);
            let (_tree, volume) = open(&mut graph, &host).await.expect("a is in sync");
            let is_copy = engine::time::timeout(engine::Duration::from_secs(60), in_sync(&graph));
            let is_copy = is_copy.await.is_some();
            for _ in 0..2 {
                let old = volume.read(8192, 4096).await.expect("it reads").to_vec();
                assert_eq!(old, [6; 4096], "after {changes} changes");
                let read = volume.read(12288, 4096).await.expect("it reads").to_vec()[0];
                let least = acknowledged.get();
                assert!(
                    [least, least + 1].contains(&read),
                    "{read} of {least}, after {changes} changes"
                );
            }
            if is_copy {
                assert_eq!(compared(&graph).await, Ok(Vec::new()));
            }
            is_copy
        }
    };
    world.block_on(&bench, async {
        host.spawn(work).await;
        let is_cut = host.is_doomed();
        host.power_cut();
        host.doom_after(u64::MAX);
        host.restart();
        (is_cut, host.spawn(again).await)
    })
}

#[test]
fn wherever_the_power_fails_in_an_exchange_nothing_is_lost() {
    let (mut as_copy, mut as_none) = (0, 0);
    let mut changes = 0;
    loop {
        let (is_cut, is_copy) = exchanged_until(changes, changes);
        if !is_cut {
            assert!(is_copy, "the power never failed");
            break;
        }
        as_copy += u64::from(is_copy);
        as_none += u64::from(!is_copy);
        changes += 1;
    }
    assert!(
        as_copy > 10 && as_none > 10,
        "{as_copy} and {as_none} of {changes}"
    );
}

#[test]
fn copies_in_another_order_and_two_others_at_once_are_refused_with_what_to_do() {
    on_a_machine(19, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut graph = graph(&text);
        let (_tree, _volume) = open(&mut graph, &host).await.expect("it opens");
        let named = |a: &str, b: &str| {
            let text = text.replace("path = \"a\"", "path = \"x\"");
            let text = text.replace("path = \"b\"", &format!("path = \"{b}\""));
            text.replace("path = \"x\"", &format!("path = \"{a}\""))
        };
        for (to, mend) in [
            (named("b", "a"), "keep the order while it is used"),
            (named("c", "d"), "change one, wait until"),
        ] {
            let refused = changed(&mut graph, &text, &to).await.expect_err(mend);
            assert!(refused.contains(mend), "{refused}");
            assert!(!refused.contains("restart"), "{refused}");
        }
    });
}

#[test]
fn a_register_that_is_gone_is_told_as_soon_as_it_is_missed() {
    on_a_machine(20, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut graph = graph(&text);
        let (_tree, volume) = open(&mut graph, &host).await.expect("it opens");
        let path = format!("{STATE}/mirror-{}.register", NEW.uuid);
        let register = host.read_file(&path).expect("it has a register");
        assert_eq!(status(&graph).register_trouble, None);
        host.remove_file(&path);
        host.add_fault(InjectedFault {
            path: Some("/srv/b".into()),
            ..InjectedFault::new(FaultKind::Write, libc::EIO)
        });
        let refused = volume.write(1 << 20, block(1), Durability::Fua).await;
        let refused = refused.expect_err("b has failed, and stays").to_string();
        assert!(refused.contains(&path), "{refused}");
        let seen = status(&graph);
        let trouble = seen.register_trouble.as_deref().unwrap_or_default();
        assert!(trouble.contains(&path), "{seen:?}");
        assert_eq!(seen.copies[1].state(), "in trouble");
        host.put_file(&path, &register);
        while status(&graph).register_trouble.is_some() {
            engine::time::sleep(engine::Duration::from_millis(100)).await;
        }
        assert_ne!(
            status(&graph).copies[1].state(),
            "in trouble",
            "it has left"
        );
        write(&volume, 0, 2).await;
    });
}
