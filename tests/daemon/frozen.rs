//! A frozen file system, as if its disk did not answer: writes to it through the page cache wait, but reads of another
//! volume on the same lane do not. Skipped where this account or system cannot mount a file system.

use harness::sanstone::{IQN, Sanstone};
use harness::wire::{Direction, Session, read_10, write_10};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::atomic::{Mounted, run};

const GOOD: u8 = 0x00;
/// Reads of the other volume while writes are pending.
const READS: usize = 200;

/// A file system that takes no writes until this is dropped.
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn new(place: &'a Path) -> Result<Frozen<'a>, String> {
        run(Command::new("fsfreeze").arg("-f").arg(place))?;
        Ok(Frozen(place))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run(Command::new("fsfreeze").arg("-u").arg(self.0)).expect("it goes on");
    }
}

#[test]
fn a_file_system_that_stands_still_holds_up_its_own_volume_only() {
    for kind in ["ext4", "xfs"] {
        let mounted = match Mounted::new(kind) {
            Ok(mounted) => mounted,
            Err(why) => return harness::skip(format_args!("no {kind} can be mounted here: {why}")),
        };
        let volumes = format!(
            "lanes = 1\n[volume.still]\nfile = {{ path = \"{}\", size = \"16MiB\", cache = \"write-back\" }}\n\
             [volume.other]\nfile = {{ path = \"other.img\", size = \"16MiB\", cache = \"write-back\" }}\n",
            mounted.place.join("disk.img").display()
        );
        let server = Sanstone::serve(mounted.directory.path(), &volumes, &["still", "other"]);
        let address = format!("127.0.0.1:{}", server.port());
        let login = |lun, number| {
            let mut session = Session::login(&address, IQN, lun, number, &[]).expect("a login");
            session.wait_until_ready().expect("a ready disk");
            session
        };
        let (mut still, mut other) = (login(0, 1), login(1, 2));
        let data = [0x5A; 4096];
        // Its blocks are cached, so that the file system blocks the write and not a read.
        assert_eq!(
            still
                .execute(&write_10(0, 8), &data, 0)
                .expect("a response")
                .0,
            GOOD
        );
        let frozen = match Frozen::new(&mounted.place) {
            Ok(frozen) => frozen,
            Err(why) => {
                return harness::skip(format_args!("no file system can be frozen here: {why}"));
            }
        };
        let writes = (0..8).map(|n| {
            let sent = still.command(&write_10(8 * n, 8), Direction::Write, 4096, &data);
            sent.expect("a command")
        });
        let writes: Vec<u32> = writes.collect();
        for _ in 0..READS {
            let read = other
                .execute(&read_10(0, 8), &[], 4096)
                .expect("a response");
            assert_eq!(read.0, GOOD);
        }
        // None of them was answered in the meantime.
        let mut byte = [0];
        still.stream().set_nonblocking(true).expect("a socket");
        let none = still.stream().peek(&mut byte);
        assert!(none.is_err(), "{none:?}: the file system took a write");
        still.stream().set_nonblocking(false).expect("a socket");
        drop(frozen);
        still
            .stream()
            .set_read_timeout(Some(Duration::from_secs(120)))
            .expect("a socket");
        let answers = still.responses_to(&writes).expect("the responses");
        assert!(answers.iter().all(|(status, _)| *status == GOOD), "{kind}");
    }
}
