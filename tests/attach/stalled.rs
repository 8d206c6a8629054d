//! A file whose file system does not answer, here because its FUSE process is stopped. Any number of requests to it
//! wait, but nothing else does: no other volume on the same lane, with or without the page cache.

use engine::{Buf, Payload, task};
use harness::directory::Directory;
use harness::initiator::{on_lane, on_port, opened};
use harness::sanstone::{Sanstone, target_table};
use volume::{Durability, Volume};

use crate::attached::{Attached, can_attach, text};

fn block(byte: u8) -> Payload {
    Buf::copy_of(&[byte; 4096]).into()
}

#[test]
fn a_file_that_stands_still_holds_up_no_other_volume_of_its_lane() {
    if !can_attach() {
        return;
    }
    for cache in ["direct", "write-back", "write-through"] {
        let slow = Attached::start("[volume.db]\nram = { size = \"16MiB\" }\n");
        let directory = Directory::new();
        let port = harness::free_port();
        let configuration = format!(
            "lanes = 1\n\
             [volume.slow]\nfile = {{ path = \"{}\", cache = \"{cache}\" }}\n\
             [volume.quick]\nfile = {{ path = \"quick.img\", size = \"16MiB\", cache = \"{cache}\" }}\n{}",
            text(&slow.path),
            target_table(port, &["slow", "quick"])
        );
        let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
        on_lane(async {
            let disk = opened(on_port(server.port())).await;
            let mut other = on_port(server.port());
            other.lun = 1;
            other.isid = volume::next_isid();
            let quick = opened(other).await;
            slow.daemon.stop();
            let writers = (0..16).map(|i| {
                let disk = disk.clone();
                task::spawn(async move {
                    disk.write(i * 4096, block(7), Durability::Cached).await?;
                    disk.flush().await
                })
            });
            // More than the kernel has threads for.
            let readers = (16..80).map(|i| {
                let disk = disk.clone();
                task::spawn(async move { disk.read(i * 4096, 4096).await.map(drop) })
            });
            let waiting: Vec<_> = writers.chain(readers).collect();
            for i in 0..64 {
                let written = quick.write(i * 4096, block(9), Durability::Cached).await;
                written.unwrap_or_else(|error| panic!("{cache}: {error}"));
                let read = quick.read(i * 4096, 4096).await.expect("a read");
                assert!(read.to_vec().iter().all(|&byte| byte == 9));
            }
            quick.flush().await.expect("a flush");
            assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
            slow.daemon.signal("CONT");
            for result in task::join_all(waiting).await {
                result.unwrap_or_else(|error| panic!("{cache}: {error}"));
            }
        });
    }
}
