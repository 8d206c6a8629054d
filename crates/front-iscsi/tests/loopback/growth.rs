//! A volume grows while it is served: our own initiator on every lane notices, and its I/O continues undisturbed.

use std::{fs::File, path::PathBuf, rc::Rc, sync::Arc, thread, time::Duration};

use engine::{Buf, Lane, LaneConfig, LaneFuture, spawn, task, time};
use front_iscsi::PortalGroup;
use volume::{
    Durability, ErrorKind, IscsiDisk, SharedVolume, Volume,
    config::Caching,
    leaf::file::{FileOptions, OpenFile},
};

use crate::common::{config, disk_at};

const BEFORE: u64 = 1 << 20;
const AFTER: u64 = 3 << 20;

/// A file that is deleted when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn set_len(&self, len: u64) {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.0);
        file.and_then(|file| file.set_len(len)).expect("room");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn disks_on_all_lanes_follow_a_file_that_grew_under_load() {
    let name = format!("sanstone-growth-{}", std::process::id());
    let scratch = Scratch(std::env::temp_dir().join(name));
    scratch.set_len(BEFORE);
    let (started, other) = std::sync::mpsc::channel();
    let (stop, stopped) = engine::cross::channel::<()>();
    let thread = thread::spawn(move || {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        started.send(lane.handle()).expect("the test waits");
        lane.block_on(stopped.receive());
    });
    let other = other.recv().expect("it starts");
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let own = lane.handle();
    lane.block_on(async {
        let options = FileOptions {
            path: scratch.0.clone(),
            len_bytes: None,
            caching: Caching::Direct,
            block_size_bytes: 512,
            read_only: false,
        };
        let file = OpenFile::open(&options).await.expect("it opens");
        let served = file.clone();
        let mut config = config(Arc::new(move || {
            let file = served.clone();
            LaneFuture::new(async move { Ok(Rc::new(file.on_lane()) as SharedVolume) })
        }));
        // Two target ports, each served by two lanes.
        let mut second =
            PortalGroup::only(config.server.targets[0].portal_groups[0].portals.clone());
        (second.tag, second.relative_port) = (2, 2);
        second.portals[0].set_ip([127, 0, 0, 2].into());
        config.server.targets[0].portal_groups.push(second);
        let server = config.start(&[own, other]).await;
        let mut disks = Vec::new();
        for number in 0..4u16 {
            let mut to = disk_at(server.portals()[usize::from(number / 2)]);
            to.isid = iscsi::Isid::random([1, 2, 3], number);
            disks.push(IscsiDisk::open(to).await.expect("a login"));
        }
        let load = disks.iter().cloned().map(|disk| {
            spawn(async move {
                let mut rounds = 0u32;
                // Until the growth is noticed, plus a few rounds at the new length.
                while disk.shape().len_bytes() == BEFORE || rounds % 8 != 0 {
                    let at = u64::from(rounds % 128) * 4096;
                    disk.read(at, 4096).await.expect("no I/O is disturbed");
                    rounds += 1;
                }
            })
        });
        let load: Vec<_> = load.collect();
        time::sleep(Duration::from_millis(10)).await;
        for disk in &disks {
            let early = disk.read(AFTER - 512, 512).await.expect_err("not yet");
            assert_eq!(early.kind(), ErrorKind::OutOfRange);
        }
        scratch.set_len(AFTER);
        file.follow_length(file.len_bytes_now())
            .expect("it may")
            .expect("it grew");
        server.units.tell_changes();
        let all = time::timeout(Duration::from_secs(60), task::join_all(load)).await;
        assert!(all.is_some(), "somebody has not heard of it");
        for (number, disk) in disks.iter().enumerate() {
            assert_eq!(disk.shape().len_bytes(), AFTER);
            let at = AFTER - 4096 * (1 + number as u64);
            let data = Buf::copy_of(&[number as u8 + 1; 4096]);
            let write = disk.write(at, data.into(), Durability::Fua);
            write.await.expect("room up to the new end");
        }
        let tail = disks[0]
            .read(AFTER - 4 * 4096, 4 * 4096)
            .await
            .expect("a read");
        let values = [4, 3, 2, 1].map(|value| [value; 4096]).concat();
        assert!(tail.to_vec() == values);
        for disk in disks {
            disk.close().await;
        }
        server.stop().await;
    });
    drop(stop);
    thread.join().expect("the lane ends");
}
