//! Deep queues: far more commands in one session than the target's window holds, some cancelled while they wait for
//! it.

use engine::{Buf, Duration, task, time};
use volume::{Durability, Volume};

use crate::{IscsiDisk, config, disk_at, ram, with_config};

const BLOCK: usize = 4096;

fn block(number: usize) -> Buf {
    let mut buf = Buf::new(BLOCK);
    for bytes in buf.chunks_mut(8) {
        bytes.copy_from_slice(&(number as u64).to_le_bytes());
    }
    buf
}

#[test]
fn what_the_window_has_no_place_for_waits_in_line() {
    for window in [1, 4, 1024] {
        let mut config = config(ram(16 << 20, 512));
        config.server.limits.command_window = window;
        with_config(config, async |server| {
            let disk = IscsiDisk::open(disk_at(server.portals()[0])).await;
            let disk = disk.expect("a login");
            let writes = (0..2000)
                .map(|i| disk.write((i * BLOCK) as u64, block(i).into(), Durability::Cached));
            let impatient = disk.clone();
            let given_up = engine::spawn(async move {
                let reads = (0..500).map(|i| impatient.read((i * BLOCK) as u64, BLOCK));
                let reads = reads.map(|read| Box::pin(time::timeout(Duration::ZERO, read)));
                task::join_all(reads).await;
            });
            let written = task::join_all(writes).await;
            given_up.await;
            assert!(written.iter().all(Result::is_ok), "{written:?}");
            let reads = (0..2000).map(|i| disk.read((i * BLOCK) as u64, BLOCK));
            for (i, read) in task::join_all(reads).await.into_iter().enumerate() {
                let read = read.expect("a read").to_vec();
                assert!(read == block(i)[..], "block {i} with a window of {window}");
            }
            disk.close().await;
        });
    }
}
