//! A mirror over files of a simulated machine, from its creation on.

mod exchanges;
mod missing;
mod set_back;

use std::{ops::Range, path::Path};

use engine::{
    Buf, Duration, Payload,
    fs::{OpenOptions, SharedFile},
    sim::{FaultKind, Host, InjectedFault, World},
    time,
};
use uuid::Uuid;

use super::{MirrorHandle, MirrorStatus};
use crate::{
    Durability, ErrorKind, SharedVolume, contract,
    graph::{Graph, NewStripe, Source, Tree},
    kinds::Volumes,
};

const STATE: &str = "/srv/state";
const MOMENT: Duration = Duration::from_millis(100);
const NEW: NewStripe = NewStripe {
    uuid: Uuid::from_u128(0x3117),
    created_unix_s: 0,
    force: false,
    from: None,
};

fn text(size: &str, cache: &str) -> String {
    let copy = |name: &str| {
        format!("{{ file = {{ path = \"{name}\", size = \"{size}\", cache = \"{cache}\" }} }}")
    };
    format!("db.mirror = {{ of = [ {}, {} ] }}", copy("a"), copy("b"))
}

fn graph(text: &str) -> Graph {
    let volumes: Volumes = toml::from_str(text).expect("it parses");
    let mut graph = Graph::new(volumes, Path::new("/srv")).expect("it is valid");
    engine::store::make_directory(Path::new(STATE), true).expect("room");
    graph.set_state_directory(Path::new(STATE));
    graph.set_owner(crate::claim::Owner::new(
        Uuid::from_u128(1),
        Uuid::nil(),
        "a test",
    ));
    graph
}

async fn create(host: &Host, text: &str, new: &NewStripe) -> Result<(), String> {
    create_called("db", host, text, new).await
}

async fn create_called(name: &str, host: &Host, text: &str, new: &NewStripe) -> Result<(), String> {
    let mut graph = graph(text);
    let created = graph.create_stripe(name, &host.lane(0), new).await;
    graph.close().await;
    created.map_err(|error| error.to_string())
}

async fn open(graph: &mut Graph, host: &Host) -> Result<(Tree, SharedVolume), String> {
    let tree = graph.open("db", &host.lane(0)).await;
    let tree = tree.map_err(|error| error.to_string())?;
    let volume = tree.on_lane().await.expect("its lane runs");
    Ok((tree, volume))
}

fn status(graph: &Graph) -> MirrorStatus {
    let handle = graph.handles().get::<MirrorHandle>("db/mirror");
    handle.expect("it is open").status()
}

/// Looks for what is missing, as a program does, until the mirror is in sync.
async fn until_in_sync(graph: &mut Graph) {
    while !status(graph).is_in_sync() {
        let looks_at = graph.looks_for_missing_at();
        if time::before(looks_at, time::sleep(MOMENT)).await.is_none() {
            graph.look_for_missing().await;
        }
    }
    assert_eq!(graph.looks_for_missing_at(), None);
}

fn block(byte: u8) -> Payload {
    Buf::copy_of(&[byte; 4096]).into()
}

/// Runs `test` on a machine.
fn on_a_machine<T>(seed: u64, test: impl AsyncFnOnce(Host) -> T) -> T {
    let world = World::new(seed);
    let host = world.host("machine");
    let run = test(host.clone());
    world.block_on(&host, run)
}

#[test]
fn it_is_a_volume_and_both_copies_hold_its_data() {
    on_a_machine(1, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut graph = graph(&text);
        let (tree, volume) = open(&mut graph, &host).await.expect("it opens");
        assert!(status(&graph).is_in_sync(), "{:?}", status(&graph));
        assert_eq!(volume.shape().len_bytes(), 2 << 20);
        contract::hold(volume.clone(), 1).await;
        volume
            .write(4096, block(7), Durability::Cached)
            .await
            .expect("both are there");
        drop((tree, volume));
        assert_eq!(graph.close().await, [""; 0]);
        let [a, b] = ["/srv/a", "/srv/b"].map(|path| host.read_file(path).expect("a copy"));
        assert_eq!(a[..2 << 20], b[..2 << 20]);
        assert_eq!(a[4096..8192], [7; 4096]);
    });
}

/// What lies in the last blocks of a copy, the header last, in the order in which it is written.
const METADATA: [usize; 9] = [6, 7, 8, 9, 4, 2, 5, 3, 1];

/// Leaves of the metadata of a copy, with `blank` data, what was written first.
fn cut_short(host: &Host, path: &str, written: usize) {
    let mut copy = host.read_file(path).expect("a copy");
    for &from_the_end in &METADATA[written..] {
        let at = copy.len() - 4096 * from_the_end;
        copy[at..at + 4096].fill(0);
    }
    host.put_file(path, &copy);
}

#[test]
fn an_attempt_to_make_it_that_was_cut_short_is_repeated_and_one_that_was_not_is_told() {
    on_a_machine(13, async |host| {
        let text = text("3MiB", "write-through");
        let from = NewStripe {
            from: Some(Source::Copy(0)),
            ..NEW
        };
        let mut old = vec![9; 2 << 20];
        old.resize(3 << 20, 0);
        for [of_a, of_b] in (0..9).map(|a| [a, 0]).chain((0..9).map(|b| [9, b])) {
            host.put_file("/srv/a", &old);
            host.put_file("/srv/b", &vec![0; 3 << 20]);
            create(&host, &text, &from).await.expect("room");
            cut_short(&host, "/srv/a", of_a);
            cut_short(&host, "/srv/b", of_b);
            let again = NewStripe {
                uuid: Uuid::from_u128(0x3118),
                ..from
            };
            let created = create(&host, &text, &again).await;
            created.unwrap_or_else(|why| panic!("{of_a} and {of_b} blocks: {why}"));
            let a = host.read_file("/srv/a").expect("a copy");
            assert_eq!(a[..2 << 20], old[..2 << 20]);
        }
        let refused = create(&host, &text, &from).await;
        let refused = refused.expect_err("nothing is left to do");
        assert!(refused.contains("this is already done"), "{refused}");
        let mut graph = graph(&text);
        drop(open(&mut graph, &host).await.expect("it is a mirror"));
        graph.close().await;
        cut_short(&host, "/srv/b", 8);
        let refused = create(&host, &text, &from).await.expect_err("it was used");
        assert!(refused.contains("already copy 0 of mirror"), "{refused}");
    });
}

#[test]
fn a_volatile_cache_is_refused_with_the_setting_to_change() {
    on_a_machine(2, async |host| {
        for cache in ["direct", "write-back"] {
            let refused = create(&host, &text("3MiB", cache), &NEW).await;
            let refused = refused.expect_err(cache);
            assert!(refused.contains("cache = \"direct-sync\""), "{refused}");
        }
    });
}

/// Makes both copies this long, by nothing that occupies space or by zeroes that do.
async fn lengthen(host: &Host, len_bytes: u64, with_zeroes: bool) {
    for name in ["/srv/a", "/srv/b"] {
        if with_zeroes {
            let mut copy = host.read_file(name).expect("a copy");
            copy.resize(len_bytes as usize, 0);
            host.put_file(name, &copy);
        } else {
            let writing = OpenOptions {
                write: true,
                ..OpenOptions::default()
            };
            let file = SharedFile::open(Path::new(name), &writing);
            let set = file.and_then(|file| file.set_len_bytes(len_bytes));
            set.expect("room");
        }
    }
}

#[test]
fn copies_that_were_made_longer_are_the_mirror_that_they_were_and_so_are_they_when_shorter_again() {
    on_a_machine(8, async |host| {
        let first = text("3MiB", "write-through");
        create(&host, &first, &NEW).await.expect("blank files");
        for (round, size) in ["3MiB", "5MiB", "12MiB", "7MiB", "3MiB"].iter().enumerate() {
            if round == 1 || round == 2 {
                let len_bytes = size
                    .trim_end_matches("MiB")
                    .parse::<u64>()
                    .expect("a number");
                lengthen(&host, len_bytes << 20, false).await;
            }
            // What is found once, is found by its new end from then on.
            let mut graph = graph(&text(size, "write-through"));
            let (tree, volume) = open(&mut graph, &host).await.expect(size);
            assert!(status(&graph).is_in_sync(), "{:?}", status(&graph));
            assert_eq!(volume.shape().len_bytes(), 2 << 20, "it was told nothing");
            let at = (2 << 20) - 4096;
            let read = volume
                .read(at, 4096)
                .await
                .expect("both are there")
                .to_vec();
            assert_eq!(read, [round as u8; 4096]);
            let next = block(round as u8 + 1);
            let written = volume.write(at, next, Durability::Cached).await;
            written.expect("both are there");
            drop((tree, volume));
            assert_eq!(graph.close().await, [""; 0]);
        }
    });
}

#[test]
fn copies_of_which_nobody_tells_that_they_were_made_longer_are_refused_until_they_are_as_before() {
    on_a_machine(8, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        lengthen(&host, 4 << 20, true).await;
        let longer = text.replace("3MiB", "4MiB");
        let opened = open(&mut graph(&longer), &host).await;
        let refused = opened.err().expect("nobody finds what was at the end");
        let mend = "It has 4194304 bytes: if it was made longer, make it as long as it was before";
        assert!(refused.contains(mend), "{refused}");
        let mut graph = graph(&text);
        open(&mut graph, &host).await.expect("it is what it was");
        assert!(status(&graph).is_in_sync(), "{:?}", status(&graph));
    });
}

#[test]
fn the_data_of_a_disk_in_use_is_kept_and_copied() {
    on_a_machine(3, async |host| {
        let mut old = vec![9; 2 << 20];
        old[5000] = 1;
        host.put_file("/srv/a", &old);
        let text = text("3MiB", "write-through");
        let text = text.replacen(", size = \"3MiB\"", "", 1);
        let refused = create(&host, &text, &NEW).await.expect_err("it holds data");
        assert!(refused.contains("--from"), "{refused}");
        let from = NewStripe {
            from: Some(Source::Copy(0)),
            ..NEW
        };
        let refused = create(&host, &text, &from).await.expect_err("no room");
        assert!(refused.contains("1MiB longer"), "{refused}");
        old.resize(3 << 20, 0);
        host.put_file("/srv/a", &old);
        create(&host, &text, &from).await.expect("there is room");
        let mut graph = graph(&text);
        let (_tree, volume) = open(&mut graph, &host).await.expect("it opens");
        until_in_sync(&mut graph).await;
        let read = volume.read(4096, 4096).await.expect("it reads").to_vec();
        assert_eq!(read, old[4096..8192]);
        let b = host.read_file("/srv/b").expect("a copy");
        assert_eq!(b[..2 << 20], old[..2 << 20]);
    });
}

#[test]
fn a_register_that_is_named_is_a_remote_disk_for_registers_alone() {
    let disk = |name: &str| {
        format!(
            "{name}.iscsi = {{ url = \"iscsi://10.0.0.1/iqn.2026-11.io.sanstone:{name}/0\" }}\n"
        )
    };
    let disks = ["a", "b", "c", "d", "r"].map(disk).concat();
    let mirror = |name: &str, of: [&str; 2], register: &str| {
        format!("{name}.mirror = {{ of = {of:?}, register = \"{register}\" }}\n")
    };
    let checked = |more: &[String]| {
        let text = disks.clone() + &more.concat();
        let volumes: Volumes = toml::from_str(&text).expect("it parses");
        volumes.check().map_err(|error| error.message().to_owned())
    };
    let both = ["one", "two"].map(|name| match name {
        "one" => mirror(name, ["a", "b"], "r"),
        _ => mirror(name, ["c", "d"], "r"),
    });
    let stripe = "db.stripe = { of = [\"one\", \"two\"] }\n".to_owned();
    checked(&[both.concat(), stripe]).expect("one disk has both registers");
    for (more, why) in [
        (
            mirror("one", ["a", "b"], "a"),
            "\"a\" has the register of a mirror, and nothing else",
        ),
        (
            both[0].clone() + "db.stripe = { of = [\"one\", \"r\"] }\n",
            "\"r\" has the register",
        ),
        (
            both[0].clone() + &mirror("two", ["c", "r"], "d"),
            "\"r\" has the register",
        ),
        (
            "f.file = { path = \"f\" }\n".to_owned() + &mirror("one", ["a", "b"], "f"),
            "a register is on an iSCSI disk",
        ),
        (
            mirror("one", ["a", "b"], "z"),
            "there is no volume called \"z\"",
        ),
    ] {
        let refused = checked(&[more]).expect_err(why);
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn what_would_not_be_served_or_not_be_created_is_told_before() {
    on_a_machine(9, async |_| {
        let text = text("3MiB", "write-through");
        let twice = text.replace("\"b\"", "\"a\"");
        let refused = graph(&twice).check_creatable("db").expect_err("one file");
        let told = "/srv/a appears twice";
        assert!(refused.message().contains(told), "{refused:?}");
        let b = "{ file = { path = \"b\"";
        let inner = format!("{{ stripe.of = [\"c\", {b}");
        let text =
            text.replace(b, &inner).replace(" ] }", "] } ] }") + "\nc.ram = { size = \"3MiB\" }";
        let found = graph(&text).check();
        let told = |it: &crate::values::ConfigError| {
            it.message().contains("does not make the stripe inside it")
        };
        assert!(found.notes.iter().any(told), "{found:?}");
    });
}

#[test]
fn a_blank_or_foreign_disk_in_place_of_a_copy_is_never_used() {
    on_a_machine(4, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        host.put_file("/srv/b", &vec![0; 3 << 20]);
        let mut first = graph(&text);
        let (tree, volume) = open(&mut first, &host).await.expect("one copy is enough");
        volume
            .write(0, block(5), Durability::Fua)
            .await
            .expect("it writes");
        let seen = status(&first);
        assert!(!seen.is_in_sync(), "{seen:?}");
        let trouble = seen.copies[1].trouble.as_deref().unwrap_or_default();
        assert!(trouble.contains("its last block is blank"), "{seen:?}");
        drop((tree, volume));
        first.close().await;
        let b = host.read_file("/srv/b").expect("it is there");
        assert!(b.iter().all(|&byte| byte == 0), "nothing was written there");
    });
}

#[test]
fn a_copy_that_lacks_the_last_writes_before_a_stop_is_filled() {
    on_a_machine(15, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut first = graph(&text);
        let (tree, volume) = open(&mut first, &host).await.expect("it opens");
        let written = volume.write(0, block(1), Durability::Fua).await;
        written.expect("both are there");
        // Its marks are cleared by then, and its heartbeats sent.
        time::sleep(Duration::from_secs(40)).await;
        let older = host.read_file("/srv/b").expect("a copy");
        let written = volume.write(0, block(2), Durability::Fua).await;
        written.expect("both are there");
        drop((tree, volume));
        first.close().await;
        host.put_file("/srv/b", &older);
        let mut next = graph(&text);
        let (_tree, volume) = open(&mut next, &host).await.expect("it opens");
        for _ in 0..4 {
            let read = volume.read(0, 4096).await.expect("it reads").to_vec();
            assert_eq!(read, [2; 4096]);
        }
        until_in_sync(&mut next).await;
        assert_eq!(compared(&next).await, Ok(Vec::new()));
    });
}

/// Compares everything.
async fn compared(graph: &Graph) -> Result<Vec<Range<u64>>, String> {
    let handle = graph.handles().get::<MirrorHandle>("db/mirror");
    let answer = handle.expect("it is open").compare(0);
    loop {
        time::sleep(Duration::from_millis(50)).await;
        if let Ok(compared) = answer.try_recv() {
            let compared = compared.map_err(|error| error.to_string())?;
            assert_eq!(compared.next_bytes, compared.len_bytes);
            return Ok(compared.differ);
        }
    }
}

#[test]
fn a_comparison_finds_what_was_changed_behind_the_mirror() {
    on_a_machine(9, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut graph = graph(&text);
        let (tree, volume) = open(&mut graph, &host).await.expect("it opens");
        for at in [0, 1 << 20] {
            let written = volume.write(at, block(3), Durability::Fua).await;
            written.expect("both are there");
        }
        assert_eq!(compared(&graph).await, Ok(Vec::new()));
        drop((tree, volume));
        graph.close().await;
        let mut b = host.read_file("/srv/b").expect("a copy");
        b[5 << 18] ^= 1;
        b[(2 << 20) - 1] ^= 1;
        host.put_file("/srv/b", &b);
        let mut graph = self::graph(&text);
        let (_again, volume) = open(&mut graph, &host).await.expect("it opens");
        let block = u64::from(volume.shape().block_size_bytes);
        let (first, end) = (5 << 18, 2 << 20);
        assert_eq!(
            compared(&graph).await,
            Ok(vec![first..first + block, end - block..end])
        );
    });
}

#[test]
fn a_disk_that_replaces_a_copy_is_filled_whole_and_never_read_before() {
    on_a_machine(10, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut first = graph(&text);
        let (tree, volume) = open(&mut first, &host).await.expect("it opens");
        let written = volume.write(8192, block(6), Durability::Fua).await;
        written.expect("both are there");
        drop((tree, volume));
        first.close().await;
        let replaces = |copy| NewStripe {
            from: Some(Source::AllBut(copy)),
            ..NEW
        };
        let refused = create(&host, &text, &replaces(1)).await;
        let refused = refused.expect_err("the copy is there");
        assert!(refused.contains("already copy 1"), "{refused}");
        host.put_file("/srv/b", &vec![0; 3 << 20]);
        create(&host, &text, &replaces(1)).await.expect("blank");
        for written in 0..9 {
            cut_short(&host, "/srv/b", written);
            let again = create(&host, &text, &replaces(1)).await;
            again.unwrap_or_else(|why| panic!("{written} blocks: {why}"));
        }
        create(&host, &text, &replaces(1)).await.expect("once more");
        let mut next = graph(&text);
        let (tree, volume) = open(&mut next, &host).await.expect("it opens");
        assert!(!status(&next).is_in_sync(), "{:?}", status(&next));
        for _ in 0..4 {
            let read = volume.read(8192, 4096).await.expect("it reads").to_vec();
            assert_eq!(read, [6; 4096]);
        }
        let refused = compared(&next).await.expect_err("one is out");
        assert!(refused.contains("nothing to compare"), "{refused}");
        until_in_sync(&mut next).await;
        assert_eq!(compared(&next).await, Ok(Vec::new()));
        drop((tree, volume));
        next.close().await;
        let b = host.read_file("/srv/b").expect("a copy");
        assert_eq!(b[8192..12288], [6; 4096]);
    });
}

#[test]
fn the_only_copy_in_sync_is_not_replaced() {
    on_a_machine(11, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut first = graph(&text.replace("\"b\", size = \"3MiB\"", "\"gone/b\""));
        let (tree, volume) = open(&mut first, &host).await.expect("one copy is enough");
        let written = volume.write(0, block(6), Durability::Fua).await;
        written.expect("it writes");
        drop((tree, volume));
        first.close().await;
        host.put_file("/srv/a", &vec![0; 3 << 20]);
        let replaces = NewStripe {
            from: Some(Source::AllBut(0)),
            ..NEW
        };
        let refused = create(&host, &text, &replaces).await;
        let refused = refused.expect_err("it held what the other has missed");
        assert!(refused.contains("the only one in sync"), "{refused}");
    });
}

#[test]
fn what_one_copy_has_missed_is_on_it_when_it_returns() {
    on_a_machine(5, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let away = text.replace("\"b\", size = \"3MiB\"", "\"gone/b\"");
        let mut first = graph(&away);
        let (tree, volume) = open(&mut first, &host).await.expect("one copy is enough");
        volume
            .write(8192, block(6), Durability::Fua)
            .await
            .expect("it writes");
        drop((tree, volume));
        first.close().await;
        let mut next = graph(&text);
        let (_tree, volume) = open(&mut next, &host).await.expect("it opens");
        let read = volume.read(8192, 4096).await.expect("it reads").to_vec();
        assert_eq!(read, [6; 4096]);
        until_in_sync(&mut next).await;
        let b = host.read_file("/srv/b").expect("a copy");
        assert_eq!(b[8192..12288], [6; 4096]);
    });
}

#[test]
fn a_copy_is_told_to_be_in_sync_by_nobody_who_knows_of_a_write_that_it_lacks() {
    on_a_machine(15, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut graph = graph(&text);
        let (_tree, volume) = open(&mut graph, &host).await.expect("it opens");
        for attempt in 0..20 {
            until_in_sync(&mut graph).await;
            // At whatever time since it was told last.
            time::sleep(Duration::from_millis(attempt * 17)).await;
            host.add_fault(InjectedFault {
                path: Some("/srv/b".into()),
                range: 0..4096,
                ..InjectedFault::new(FaultKind::Write, libc::EIO)
            });
            let written = volume.write(0, block(6), Durability::Fua).await;
            written.expect("the other copy is there");
            let told = status(&graph);
            assert!(!told.is_in_sync(), "after {attempt}: {told:?}");
            host.clear_faults();
        }
    });
}

#[test]
fn the_copy_that_was_out_does_not_serve_alone() {
    on_a_machine(6, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut first = graph(&text.replace("\"b\", size = \"3MiB\"", "\"gone/b\""));
        let (tree, volume) = open(&mut first, &host).await.expect("one copy is enough");
        volume
            .write(0, block(6), Durability::Fua)
            .await
            .expect("it writes");
        drop((tree, volume));
        first.close().await;
        let mut next = graph(&text.replace("\"a\", size = \"3MiB\"", "\"gone/a\""));
        let refused = open(&mut next, &host).await.err().expect("it is older");
        assert!(refused.contains("no copy that is in sync"), "{refused}");
    });
}

#[test]
fn without_its_register_it_is_refused_until_it_is_taken_over() {
    on_a_machine(7, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let register = format!("{STATE}/mirror-{}.register", NEW.uuid);
        assert!(host.remove_file(&register), "it is where it is said to be");
        let refused = open(&mut graph(&text), &host)
            .await
            .err()
            .expect("no register");
        assert!(refused.contains("volume take-over"), "{refused}");
        // By the name of what is served, a layer of its own.
        let layered = format!("{text}\ntop.throttle = {{ rate = \"40Gbit/s\", of = \"db\" }}");
        let mut taking = graph(&layered);
        let others = crate::claim::Others::Fence;
        let looked = taking.identify("top", &host.lane(0), others).await;
        let found = looked.expect("it is there").expect("its copies tell");
        assert_eq!(found.uuid, NEW.uuid);
        let tree = taking.take_over("top", &host.lane(0), others).await;
        drop(tree.expect("both copies are there"));
        drop(taking);
        let mut next = graph(&text);
        let (_tree, volume) = open(&mut next, &host).await.expect("it has a register");
        volume
            .write(0, block(6), Durability::Fua)
            .await
            .expect("it writes");
        assert_eq!(status(&next).epoch, 2);
    });
}

#[test]
fn a_volume_that_was_closed_refuses_everything() {
    on_a_machine(8, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let mut graph = graph(&text);
        let (_tree, volume) = open(&mut graph, &host).await.expect("it opens");
        graph.close().await;
        let refused = volume.write(0, block(1), Durability::Fua).await;
        assert_eq!(refused.expect_err("closed").kind(), ErrorKind::Preempted);
    });
}

#[test]
fn a_register_that_is_older_than_a_copy_is_refused_however_often_it_is_tried() {
    on_a_machine(17, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let register = format!("{STATE}/mirror-{}.register", NEW.uuid);
        let mut both = graph(&text);
        drop(open(&mut both, &host).await.expect("it opens"));
        both.close().await;
        let older = host.read_file(&register).expect("a register");
        let mut one = graph(&text.replace("\"a\", size = \"3MiB\"", "\"gone/a\""));
        let (tree, volume) = open(&mut one, &host).await.expect("one copy is enough");
        let written = volume.write(0, block(2), Durability::Fua).await;
        written.expect("it writes");
        drop((tree, volume));
        one.close().await;
        let newest = host.read_file(&register).expect("a register");
        host.put_file(&register, &older);
        for attempt in 0..8 {
            let refused = open(&mut graph(&text), &host).await.err();
            let refused = refused.unwrap_or_else(|| panic!("attempt {attempt}: it is older"));
            assert!(refused.contains("from an older state"), "{refused}");
        }
        assert!(
            host.read_file(&register) == Some(older),
            "nobody has claimed it"
        );
        host.put_file(&register, &newest);
        let mut both = graph(&text);
        let (_tree, volume) = open(&mut both, &host).await.expect("that is the right one");
        for _ in 0..4 {
            let read = volume.read(0, 4096).await.expect("it reads").to_vec();
            assert_eq!(read, [2; 4096]);
        }
    });
}
