//! Copies and registers that were set back, where nobody but the register or a copy can tell.

use engine::spawn;

use super::*;

/// What is left when the other copy is away is not believed because it is alone, in sync with the other or without it.
#[test]
fn a_copy_that_was_set_back_is_not_believed_alone_by_any_start_or_take_over() {
    for (is_last, is_killed) in [(false, false), (true, false), (true, true)] {
        on_a_machine(19, async |host| {
            let text = text("3MiB", "write-through");
            create(&host, &text, &NEW).await.expect("blank files");
            let alone = text.replace("\"b\", size = \"3MiB\"", "\"gone/b\"");
            // Ended in order, or killed before its first heartbeat is due.
            let writes = async |text: &str, byte: u8, is_killed: bool| {
                let mut graph = graph(text);
                let (tree, volume) = open(&mut graph, &host).await.expect("it opens");
                let older = host.read_file("/srv/a").expect("a copy");
                let written = volume.write(0, block(byte), Durability::Fua).await;
                written.expect("it writes");
                if is_killed {
                    time::sleep(Duration::from_secs(1)).await;
                }
                drop((tree, volume));
                if !is_killed {
                    graph.close().await;
                }
                older
            };
            let text_after = if is_last { &alone } else { &text };
            let older = if is_killed {
                writes(text_after, 4, true).await;
                let older = writes(text_after, 3, true).await;
                writes(text_after, 1, true).await;
                older
            } else {
                writes(text_after, 1, false).await
            };
            let newest = host.read_file("/srv/a").expect("a copy");
            host.put_file("/srv/a", &older);
            for attempt in 0..4 {
                let refused = open(&mut graph(&alone), &host).await.err();
                let refused = refused.unwrap_or_else(|| panic!("attempt {attempt}: it is older"));
                assert!(
                    refused.contains("(a) (it is older than the register knows"),
                    "{refused}"
                );
                let mut taking = graph(&alone);
                let others = crate::claim::Others::Fence;
                let taken = taking.take_over("db", &host.lane(0), others).await;
                assert!(taken.is_err(), "attempt {attempt}");
            }
            if is_last {
                let both = open(&mut graph(&text), &host).await.err();
                assert!(
                    both.expect("the other one is older")
                        .contains("older than the register")
                );
            } else {
                let mut both = graph(&text);
                let (_tree, volume) = open(&mut both, &host).await.expect("the other one has all");
                let read = volume.read(0, 4096).await.expect("it reads").to_vec();
                assert_eq!(read, [1; 4096]);
                return until_in_sync(&mut both).await;
            }
            let mut waits = graph(&alone);
            let disk: Payload = Buf::copy_of(&newest).into();
            let put_back = spawn(async move {
                time::sleep(Duration::from_secs(20)).await;
                let writing = OpenOptions {
                    write: true,
                    ..OpenOptions::default()
                };
                let file = SharedFile::open(Path::new("/srv/a"), &writing).expect("a copy");
                let written = file.on_lane().write_all_at(0, disk, true).await;
                written.expect("it is as it was");
            });
            let opened = open(&mut waits, &host).await;
            put_back.await;
            drop(opened.expect("it is as it was again, while it is waited for"));
            waits.close().await;
            writes(&alone, 2, false).await;
            host.put_file("/srv/a", &newest);
            let mut taking = graph(&alone);
            let others = crate::claim::Others::Overrule;
            let taken = taking.take_over("db", &host.lane(0), others).await;
            drop(taken.expect("somebody insists"));
            taking.close().await;
            let mut both = graph(&text);
            let (_tree, volume) = open(&mut both, &host).await.expect("it was accepted");
            let read = volume.read(0, 4096).await.expect("it reads").to_vec();
            assert_eq!(read, [1; 4096]);
            until_in_sync(&mut both).await;
        });
    }
}

#[test]
fn a_register_that_is_set_back_under_a_mirror_is_waited_for_as_one_that_is_away() {
    on_a_machine(18, async |host| {
        let text = text("3MiB", "write-through");
        create(&host, &text, &NEW).await.expect("blank files");
        let register = format!("{STATE}/mirror-{}.register", NEW.uuid);
        let older = host.read_file(&register).expect("a register");
        let mut graph = graph(&text);
        let (_tree, volume) = open(&mut graph, &host).await.expect("it opens");
        let newest = host.read_file(&register).expect("a register");
        host.put_file(&register, &older);
        host.add_fault(InjectedFault {
            path: Some("/srv/b".into()),
            range: 0..4096,
            ..InjectedFault::new(FaultKind::Write, libc::EIO)
        });
        let writing = spawn({
            let volume = volume.clone();
            async move { volume.write(0, block(3), Durability::Fua).await }
        });
        time::sleep(Duration::from_secs(3)).await;
        let told = status(&graph).register_trouble.unwrap_or_default();
        assert!(told.contains("from an older state"), "{told}");
        assert!(!writing.is_finished(), "the other copy may still be read");
        host.put_file(&register, &newest);
        writing.await.expect("the copy has left");
        host.clear_faults();
        until_in_sync(&mut graph).await;
    });
}
