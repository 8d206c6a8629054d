//! The target is killed and comes back before the initiator gives up: I/O continues as after a pause. But if its machine
//! has lost its power, acknowledged, unflushed writes may be lost, and the initiator must report that at the next flush,
//! even if that flush is the first command to reach the new target.

use engine::{Buf, Duration, Payload, task, time};
use harness::directory::Directory;
use harness::initiator::{on_lane, on_port, opened};
use harness::noise;
use harness::sanstone::Sanstone;
use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use volume::{Durability, ErrorKind, IscsiDisk, Volume};

/// A served file that can be killed and served again on the same port.
struct Share {
    directory: Directory,
    volume: String,
    port: u16,
    server: Option<Sanstone>,
}

impl Share {
    fn new(cache: &str) -> Share {
        let mut share = Share {
            directory: Directory::new(),
            volume: format!(
                "[volume.disk]\nfile = {{ path = \"disk.img\", size = \"64MiB\", cache = \"{cache}\" }}\n"
            ),
            port: harness::free_port(),
            server: None,
        };
        share.start();
        share
    }

    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.daemon().signal("KILL");
            let gone = server.daemon().wait(Duration::from_secs(60));
            gone.expect("nothing survives kill -9");
        }
    }

    fn start(&mut self) {
        let directory = self.directory.path();
        let server = Sanstone::serve_on(self.port, directory, &self.volume, &["disk"]);
        self.server = Some(server);
    }

    fn restart(&mut self) {
        self.kill();
        self.start();
    }

    /// Restarts it as after a power cut: nobody has been told of the power-on of this boot. (A real one would need another
    /// machine.)
    fn restart_in_another_boot(&mut self) {
        self.kill();
        let told = self.told().expect("of its only disk");
        std::fs::remove_file(told).expect("it is there");
        self.start();
    }

    /// Waits until the share has stored that an initiator port has been told of the power-on.
    async fn has_stored_a_port(&self) {
        let deadline = time::now() + Duration::from_secs(60);
        let is_stored = || {
            let text = std::fs::read_to_string(self.told()?).ok()?;
            text.contains(",i,0x").then_some(())
        };
        while is_stored().is_none() {
            assert!(time::now() < deadline, "no port is stored");
            time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The text that says who has been told of the power-on. A new one that was being written is not it.
    fn told(&self) -> Option<PathBuf> {
        let state = self.directory.join("sanstone.state");
        let files = std::fs::read_dir(state).expect("its state directory");
        let mut files = files.map(|file| file.expect("a file").path());
        files.find(|file| {
            let name = file.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("told-") && !name.contains('.'))
        })
    }

    async fn open(&self) -> Rc<IscsiDisk> {
        opened(on_port(self.port)).await
    }
}

fn block(byte: u8) -> Payload {
    Buf::copy_of(&[byte; 4096]).into()
}

#[test]
fn io_goes_on_when_the_target_is_back_in_time() {
    const SIZE_BYTES: usize = 64 << 10;
    let mut share = Share::new("direct");
    let bytes = Rc::new(noise(9, SIZE_BYTES + 4096));
    on_lane(async {
        let disk = share.open().await;
        let stop = Rc::new(Cell::new(false));
        let rounds: Rc<[Cell<usize>; 16]> = Rc::default();
        let loads: Vec<_> = (0..16)
            .map(|worker| {
                let (disk, bytes, stop) = (disk.clone(), bytes.clone(), stop.clone());
                let done = rounds.clone();
                task::spawn(async move {
                    let at = (worker * SIZE_BYTES) as u64;
                    let mut rounds = 0;
                    while !stop.get() {
                        let now = &bytes[(rounds * 7 + worker) % 4096..][..SIZE_BYTES];
                        // Durable when acknowledged, so nothing can be lost by the kill.
                        let data = Buf::copy_of(now).into();
                        let written = disk.write(at, data, Durability::Fua).await;
                        written.expect("the write waits for the target");
                        let read = disk.read(at, SIZE_BYTES).await;
                        let read = read.expect("the read waits for the target");
                        assert!(read.to_vec() == now, "worker {worker}, round {rounds}");
                        rounds += 1;
                        done[worker].set(rounds);
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            time::sleep(Duration::from_millis(400)).await;
            share.kill();
            time::sleep(Duration::from_millis(300)).await;
            share.start();
        }
        // I/O continues in every slot.
        let before: Vec<usize> = rounds.iter().map(Cell::get).collect();
        let deadline = time::now() + Duration::from_secs(60);
        while rounds
            .iter()
            .zip(&before)
            .any(|(now, before)| now.get() < before + 3)
        {
            assert!(time::now() < deadline, "{before:?}, then {rounds:?}");
            time::sleep(Duration::from_millis(20)).await;
        }
        stop.set(true);
        task::join_all(loads).await;
        disk.flush().await.expect("nothing was unflushed");
    });
}

#[test]
fn a_flush_after_a_restart_fails_if_a_write_was_unflushed() {
    // The first command to reach the new target: a read, or the flush itself.
    for flush_first in [false, true] {
        let mut share = Share::new("write-back");
        on_lane(async {
            let disk = share.open().await;
            let written = disk.write(0, block(1), Durability::Cached).await;
            written.expect("a write");
            share.restart_in_another_boot();
            if !flush_first {
                disk.read(0, 4096).await.expect("a read");
            }
            for _ in 0..2 {
                let error = disk.flush().await.expect_err("the write may be lost");
                assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
            }
            // Nothing may be written on top of data that may be lost.
            let write = disk.write(4096, block(2), Durability::Cached).await;
            let error = write.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
            let again = share.open().await;
            again.flush().await.expect("opened again");
        });
    }
}

#[test]
fn a_long_write_that_is_cut_by_a_restart_is_not_called_durable() {
    const ATTEMPTS: usize = 10;
    if !(0..ATTEMPTS).any(|_| is_cut_and_told()) {
        harness::skip(format_args!("{ATTEMPTS} writes were too fast to be cut"));
    }
}

/// Returns whether a restart of the share cut a long write in two, which the next flush must report.
fn is_cut_and_told() -> bool {
    // The target accepts 4 MiB per command: the first part is acknowledged, the last one is not.
    const PARTS: usize = 8;
    let mut share = Share::new("write-back");
    on_lane(async {
        let disk = share.open().await;
        let bytes = noise(1, 4 << 20);
        let part: Payload = Buf::copy_of(&bytes).into();
        let mut whole = Payload::new();
        (0..PARTS).for_each(|_| whole.append(part.clone()));
        let writing = {
            let disk = disk.clone();
            task::spawn(async move { disk.write(0, whole, Durability::Cached).await })
        };
        let image = share.directory.join("disk.img");
        let allocated = || {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(&image)
                .expect("the share's file")
                .blocks()
                * 512
        };
        let begun = time::now();
        while allocated() < 12 << 20 && time::now() - begun < Duration::from_secs(10) {
            time::sleep(Duration::from_millis(1)).await;
        }
        let cut = !writing.is_finished();
        share.restart_in_another_boot();
        writing.await.expect("it goes on");
        if cut {
            let error = disk.flush().await.expect_err("a part may be lost");
            assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
        }
        cut
    })
}

/// The kernel has what the killed target had acknowledged.
#[test]
fn a_flush_after_a_mere_kill_covers_what_was_unflushed() {
    let mut share = Share::new("write-back");
    on_lane(async {
        let disk = share.open().await;
        for byte in 1..4 {
            let written = disk.write(0, block(byte), Durability::Cached).await;
            written.expect("a write");
            share.has_stored_a_port().await;
            share.restart();
            disk.flush().await.expect("nothing was lost");
            let read = disk.read(0, 4096).await.expect("a read").to_vec();
            assert!(read == [byte; 4096], "{byte}");
        }
    });
}

#[test]
fn a_flush_after_a_restart_is_good_if_all_was_durable() {
    for cache in ["write-back", "write-through"] {
        let mut share = Share::new(cache);
        on_lane(async {
            let disk = share.open().await;
            let written = disk.write(0, block(1), Durability::Cached).await;
            written.expect("a write");
            if cache == "write-back" {
                disk.flush().await.expect("a flush");
            }
            let written = disk.write(4096, block(2), Durability::Fua).await;
            written.expect("a durable write");
            share.restart_in_another_boot();
            disk.flush().await.expect("nothing was lost");
            let read = disk.read(0, 8192).await.expect("a read").to_vec();
            assert!(read == [[1; 4096], [2; 4096]].concat(), "{cache}");
        });
    }
}
