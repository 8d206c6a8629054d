//! WRITE ATOMIC (16) on a file system that supports atomic writes. XFS does (Linux 6.16), also on a loop device.
//! Skipped where this account or system cannot mount one.

use harness::directory::Directory;
use harness::process::find_program;
use harness::sanstone::{IQN, Sanstone};
use harness::wire::{Direction, Session, opcode, read_10};
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

const UNIT_BLOCKS: u16 = 32;

/// A fresh file system on a loop device, mounted until this is dropped.
pub(crate) struct Mounted {
    pub(crate) directory: Directory,
    pub(crate) place: PathBuf,
}

impl Mounted {
    /// One of this `kind`, as `xfs`.
    pub(crate) fn new(kind: &str) -> Result<Mounted, String> {
        let directory = Directory::new();
        let image = directory.sparse("system.img", 512 << 20);
        let place = directory.path().join("mounted");
        std::fs::create_dir(&place).map_err(|error| error.to_string())?;
        let mkfs = format!("mkfs.{kind}");
        let mkfs = find_program(&mkfs).ok_or(format!("{mkfs} is missing (xfsprogs, e2fsprogs)"))?;
        run(Command::new(mkfs).arg("-q").arg(&image))?;
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&place))?;
        Ok(Mounted { directory, place })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The kernel may still be finishing I/O of the killed daemon.
        for _ in 0..100 {
            if run(Command::new("umount").arg(&self.place)).is_ok() {
                return;
            }
            sleep(Duration::from_millis(50));
        }
    }
}

pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

fn write_atomic(session: &mut Session, lba: u8, blocks: u16, fill: u8) -> u8 {
    let [high, low] = blocks.to_be_bytes();
    let cdb = [0x9C, 0, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, high, low, 0, 0];
    let data = vec![fill; usize::from(blocks) * 512];
    let sent = session.command(&cdb, Direction::Write, data.len() as u32, &data);
    sent.expect("a command");
    let response = session.receive().expect("a response");
    assert_eq!(response.opcode(), opcode::SCSI_RESPONSE);
    response.status()
}

fn read(session: &mut Session, cdb: &[u8], len: u32) -> Vec<u8> {
    let sent = session.command(cdb, Direction::Read, len, &[]);
    sent.expect("a command");
    session.receive().expect("a reply").data
}

#[test]
fn a_file_system_with_atomic_writes_lends_them_to_the_disk() {
    let mounted = match Mounted::new("xfs") {
        Ok(mounted) => mounted,
        Err(why) => return harness::skip(format_args!("no XFS can be mounted here: {why}")),
    };
    // Layers above the file preserve the limits.
    let volume = format!(
        "[volume.disk]\ncache = {{ size = \"8MiB\", of = {{ stats = {{ of = \"file\" }} }} }}\n\
         [volume.file]\nfile = {{ path = \"{}\", size = \"64MiB\" }}\n",
        mounted.place.join("disk.img").display()
    );
    let server = Sanstone::serve(mounted.directory.path(), &volume, &["disk"]);
    let address = format!("127.0.0.1:{}", server.port());
    let keys = ["MaxRecvDataSegmentLength=262144"];
    let mut session = Session::login(&address, IQN, 0, 1, &keys).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let limits = read(&mut session, &[0x12, 1, 0xB0, 0, 64, 0], 64);
    if limits[44..48] == [0; 4] {
        return harness::skip("this kernel's XFS writes nothing atomically");
    }
    // Length, alignment and granularity are one unit.
    assert_eq!(limits[44..56], [0, 0, 0, 32, 0, 0, 0, 32, 0, 0, 0, 32]);
    assert_eq!(write_atomic(&mut session, 0, UNIT_BLOCKS, 1), 0);
    assert_eq!(write_atomic(&mut session, 64, UNIT_BLOCKS, 2), 0);
    for (lba, blocks) in [(8, UNIT_BLOCKS), (0, 8), (0, 2 * UNIT_BLOCKS)] {
        assert_eq!(
            write_atomic(&mut session, lba, blocks, 3),
            2,
            "{lba} {blocks}"
        );
    }
    let seen = read(&mut session, &read_10(0, 96), 96 * 512);
    let unit = usize::from(UNIT_BLOCKS) * 512;
    assert!(seen[..unit].iter().all(|byte| *byte == 1));
    assert!(seen[unit..2 * unit].iter().all(|byte| *byte == 0));
    assert!(seen[2 * unit..].iter().all(|byte| *byte == 2));
    drop(session);
    drop(server);
}
