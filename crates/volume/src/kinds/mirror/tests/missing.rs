//! Copies that are not there when the mirror opens.

use super::*;

#[test]
fn a_copy_whose_file_is_missing_is_not_made_anew() {
    on_a_machine(14, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let b = host.read_file("/srv/b").expect("a copy");
        assert!(host.remove_file("/srv/b"), "it was there");
        let mut first = graph(&text);
        let opened = open(&mut first, &host).await.expect("one copy is enough");
        let seen = status(&first);
        let trouble = seen.copies[1].trouble.as_deref().unwrap_or_default();
        assert!(trouble.contains("mount its file system"), "{seen:?}");
        assert!(
            host.read_file("/srv/b").is_none(),
            "nothing is in its place"
        );
        // Another configuration, and one that is taken back, are no reason to forget it.
        for text in [super::text("4MiB", "write-through"), text.clone()] {
            let volumes = toml::from_str(&text).expect("it parses");
            first.replace_volumes(volumes).expect("it is valid");
        }
        assert!(first.looks_for_missing_at().is_some());
        drop(opened);
        first.close().await;
        host.put_file("/srv/b", &b);
        let mut next = graph(&text);
        let _opened = open(&mut next, &host).await.expect("it opens");
        until_in_sync(&mut next).await;
    });
}

#[test]
fn a_copy_that_is_a_concat_whose_disk_comes_later_returns_by_itself() {
    on_a_machine(18, async |host| {
        let file = |name: &str| {
            format!(
                "{{ file = {{ path = \"{name}\", size = \"2MiB\", cache = \"write-through\" }} }}"
            )
        };
        let concat = |one, other| {
            format!(
                "{{ concat = {{ of = [ {}, {} ] }} }}",
                file(one),
                file(other)
            )
        };
        let text = format!(
            "db.mirror = {{ of = [ \"first\", \"second\" ] }}\nfirst = {}\nsecond = {}",
            concat("a", "d"),
            concat("b", "c")
        );
        for (name, number) in [("first", 1), ("second", 2), ("db", 3)] {
            let uuid = Uuid::from_u128(number);
            let created = create_called(name, &host, &text, &NewStripe { uuid, ..NEW }).await;
            created.expect("blank files");
        }
        for (missing, copy) in [("/srv/c", 1), ("/srv/a", 0)] {
            let disk = host.read_file(missing).expect("a disk of a copy");
            assert!(host.remove_file(missing), "it was there");
            let mut graph = graph(&text);
            let (tree, volume) = open(&mut graph, &host).await.expect("one copy is enough");
            for byte in 1..9 {
                let at = u64::from(byte) << 16;
                let written = volume.write(at, block(byte), Durability::Cached).await;
                written.expect("one copy is there");
            }
            assert!(status(&graph).copies[copy].trouble.is_some());
            assert!(graph.looks_for_missing_at().is_some());
            time::sleep(100 * MOMENT).await;
            graph.look_for_missing().await;
            assert!(!status(&graph).is_in_sync(), "nothing is in its place");
            assert_eq!(host.read_file(missing), None);
            host.put_file(missing, &disk);
            until_in_sync(&mut graph).await;
            assert_eq!(compared(&graph).await, Ok(Vec::new()));
            let counted = graph.report();
            let path = ["first/concat", "second/concat"][copy];
            assert!(counted.0.contains_key(path), "{counted}");
            drop((tree, volume));
            assert_eq!(graph.close().await, [""; 0]);
        }
    });
}

#[test]
fn its_blocks_are_what_it_was_made_with_whichever_copies_are_there() {
    on_a_machine(19, async |host| {
        let copy = |name: &str, block: u32| {
            format!(
                "{{ file = {{ path = \"{name}\", size = \"3MiB\", cache = \"write-through\", block_size = {block} }} }}"
            )
        };
        let text = |one: u32, other: u32| {
            let (one, other) = (copy("a", one), copy("b", other));
            format!("db.mirror = {{ of = [ {one}, {other} ] }}")
        };
        let of_a = NewStripe {
            from: Some(Source::Copy(0)),
            ..NEW
        };
        let refused = create(&host, &text(512, 4096), &of_a).await.err();
        let refused = refused.expect("what uses the data of a knows its blocks");
        assert!(
            refused.contains("(b): its blocks have 4096 bytes, and those of the mirror 512"),
            "{refused}"
        );
        create(&host, &text(512, 4096), &NEW)
            .await
            .expect("blank files");
        let b = host.read_file("/srv/b").expect("a copy");
        for there in [false, true] {
            if there {
                host.put_file("/srv/b", &b);
            } else {
                host.remove_file("/srv/b");
            }
            let mut graph = graph(&text(512, 4096));
            let (tree, volume) = open(&mut graph, &host).await.expect("one copy is enough");
            assert_eq!(volume.shape().block_size_bytes, 4096, "with b: {there}");
            drop((tree, volume));
            graph.close().await;
        }
    });
}

#[test]
fn a_cache_inside_a_copy_is_refused() {
    let file = |name| {
        format!("{{ file = {{ path = \"{name}\", size = \"3MiB\", cache = \"write-through\" }} }}")
    };
    for copy in [
        format!("{{ cache = {{ of = {}, size = \"1MiB\" }} }}", file("a")),
        "\"inner\"".to_owned(),
    ] {
        let inner = format!(
            "{{ throttle = {{ of = {{ cache = {{ of = {}, size = \"1MiB\" }} }}, rate = \"1Gbit/s\" }} }}",
            file("c")
        );
        let text = format!(
            "db.mirror = {{ of = [ {copy}, {} ] }}\ninner = {inner}",
            file("b")
        );
        let volumes: Volumes = toml::from_str(&text).expect("it parses");
        let graph = Graph::new(volumes, Path::new("/srv")).expect("it is valid");
        let found = graph.check().errors;
        let told = found
            .iter()
            .any(|error| error.message().contains("put the cache above the mirror"));
        assert!(told, "{found:?}");
    }
}
