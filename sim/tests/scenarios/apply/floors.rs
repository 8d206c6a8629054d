//! A served copy of a mirror becomes longer, by a larger `size` while it is used or by hand while nobody serves it, and the
//! power fails after each change of a disk that this makes, sometimes with the state directory: it keeps out whom it has kept
//! out before.

use std::{cell::RefCell, path::Path, rc::Rc};

use ::mirror::{
    CopyId,
    copy::{Floor, Header, METADATA_BYTES, MetadataBlock},
    key::FenceKey,
};
use engine::{
    cross::Sender,
    fs::{OpenOptions, SharedFile},
    sim::{Host, Random, World, seeds},
    time,
};
use node::Daemon;
use sim::{assert_occurred, raw::RawSession};
use uuid::Uuid;

use super::{
    Ask, CONFIG, GOOD, KEPT, PORT, TEST_UNIT_READY, ask, configuration, described, login, process,
    start,
};
use crate::MS;

const FILE: &str = "/srv/copy";
const STATE: &str = "/srv/daemon.state";
const FIRST_KIB: u64 = 1280;
/// What it grows to while it is served, and then while it is not.
const SECOND_KIB: u64 = 1536;
const THIRD_KIB: u64 = 2048;
/// More changes than a start makes.
const CHANGES_OF_A_START: u64 = 20;
const CONFLICT: Option<u8> = Some(0x18);

/// How often the hard cases occurred.
#[derive(Default)]
struct Met {
    longer_after_cut: u64,
    shorter_after_cut: u64,
    cut_at_start: u64,
    lost_state: u64,
    only_signpost_left: u64,
    shorter_again: u64,
}

fn text(kib: u64) -> String {
    format!(
        "lanes = 1\nmemory = \"32MiB\"\n[volume.copy]\nfile = {{ path = \"copy\", size = \"{kib}KiB\" }}\n\
         [target.\"{KEPT}\"]\nluns = [\"copy\"]\nallow = [\"*\"]\n"
    )
}

/// What a disk of this length holds that has just become a copy.
fn copy_of(kib: u64) -> Vec<u8> {
    let len_bytes = kib << 10;
    let mut bytes = vec![0; len_bytes as usize];
    let mut put = |place: MetadataBlock, block: Vec<u8>| {
        let at = place.at(len_bytes) as usize;
        bytes[at..at + block.len()].copy_from_slice(&block);
    };
    let data_bytes = len_bytes - METADATA_BYTES;
    let header = Header::new(Uuid::from_u128(7), CopyId::new(0), data_bytes, 512);
    put(MetadataBlock::Header, header.encode(len_bytes));
    for sequence in 0..2 {
        let slot = MetadataBlock::Floor(sequence as usize);
        put(slot, Floor::default().encode(sequence));
    }
    bytes
}

/// REGISTER AND IGNORE EXISTING KEY with APTPL, with the key of the first fence of this epoch.
async fn register(session: &RawSession, epoch: u64) -> Option<u8> {
    let mut list = [0; 24];
    list[8..16].copy_from_slice(&FenceKey::new(epoch, 0).raw().to_be_bytes());
    list[20] = 1;
    let cdb = [0x5F, 6, 0, 0, 0, 0, 0, 0, 24, 0];
    session
        .execute(&cdb, &list, 0)
        .await
        .expect("an answer")
        .status
}

async fn read(session: &RawSession) -> Option<u8> {
    let cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    session
        .execute(&cdb, &[], 512)
        .await
        .expect("an answer")
        .status
}

async fn login_owner(server: &Host) -> Rc<RawSession> {
    let owner = RawSession::login_at(server.addr(PORT), KEPT, "owner").await;
    let ready = owner.execute(&TEST_UNIT_READY, &[], 0).await;
    ready.expect("a session");
    owner
}

/// Whoever has the key of epoch 4, or none, is kept out, and whoever has that of epoch 5 is let in.
async fn is_kept(server: &Host, asks: &Sender<Ask>) {
    described(asks).await;
    let old = login(server, KEPT).await;
    assert_eq!(read(&old).await, CONFLICT, "without a key");
    assert_eq!(register(&old, 4).await, CONFLICT);
    assert_eq!(read(&old).await, CONFLICT);
    let owner = login_owner(server).await;
    assert_eq!(register(&owner, 5).await, GOOD);
    assert_eq!(read(&owner).await, GOOD);
    [old, owner].iter().for_each(|session| session.end());
}

/// Makes the file longer without writing to it.
async fn lengthen(server: &Host, kib: u64) {
    let lengthened = server.spawn(async move {
        let writing = OpenOptions {
            write: true,
            ..OpenOptions::default()
        };
        let file = SharedFile::open(Path::new(FILE), &writing);
        file.and_then(|file| file.set_len_bytes(kib << 10))
    });
    lengthened.await.expect("room");
}

/// Starts a daemon on a disk that makes this many changes more.
async fn start_in_vain(server: &Host, changes: u64) -> bool {
    server.doom_after(changes);
    let on = server.clone();
    drop(server.spawn(async move {
        let daemon = Daemon::start(configuration().await, &process(), &[on.lane(0)], true).await;
        // It serves until the power fails, if it does.
        time::sleep(MS * 10_000).await;
        drop(daemon);
    }));
    time::sleep(MS * 1_000).await;
    let was_cut = server.is_doomed();
    restart(server);
    was_cut
}

fn restart(server: &Host) {
    server.power_cut();
    server.doom_after(u64::MAX);
    server.restart();
}

struct Run<'a> {
    server: Host,
    random: Random,
    losses: u64,
    met: &'a RefCell<Met>,
}

impl Run<'_> {
    /// Returns whether it is lost.
    fn may_lose_state(&mut self) -> bool {
        let is_lost = self.random.chance(0.5);
        if is_lost {
            self.losses += 1;
            self.server
                .rename(STATE, format!("/srv/lost{}", self.losses));
            self.met.borrow_mut().lost_state += 1;
        }
        is_lost
    }

    /// Returns whether there were fewer changes than these.
    async fn grows_until(&mut self, changes: u64) -> bool {
        let server = self.server.clone();
        server.put_file(FILE, &copy_of(FIRST_KIB));
        server.put_file(CONFIG, text(FIRST_KIB).as_bytes());
        let asks = start(&server, 1);
        described(&asks).await;
        let owner = login_owner(&server).await;
        assert_eq!(register(&owner, 5).await, GOOD);
        time::sleep(100 * MS).await;
        server.put_file(CONFIG, text(SECOND_KIB).as_bytes());
        server.doom_after(changes);
        let _ = ask(&asks, Ask::Apply).await;
        time::sleep(100 * MS).await;
        let was_cut = server.is_doomed();
        restart(&server);
        let len = server.read_file(FILE).expect("it stays").len() as u64;
        let is_long = len == SECOND_KIB << 10;
        match is_long {
            true => self.met.borrow_mut().longer_after_cut += 1,
            false => self.met.borrow_mut().shorter_after_cut += 1,
        }
        // Cut off before the signpost, only the server knows the place.
        if !was_cut && self.may_lose_state() {
            // All of it occupies space: only what was written at its new end tells.
            let bytes = server.read_file(FILE).expect("it stays");
            server.put_file(FILE, &bytes);
            self.met.borrow_mut().only_signpost_left += 1;
        }
        if !is_long {
            server.put_file(CONFIG, text(FIRST_KIB).as_bytes());
        }
        let asks = start(&server, 1);
        is_kept(&server, &asks).await;
        ask(&asks, Ask::Stop).await;

        lengthen(&server, THIRD_KIB).await;
        server.put_file(CONFIG, text(THIRD_KIB).as_bytes());
        let changes_of_start = 1 + self.random.below(CHANGES_OF_A_START);
        let is_cut_at_start = start_in_vain(&server, changes_of_start).await;
        self.met.borrow_mut().cut_at_start += u64::from(is_cut_at_start);
        if self.random.chance(0.3) {
            self.met.borrow_mut().shorter_again += 1;
            server.put_file(CONFIG, text(FIRST_KIB).as_bytes());
        }
        let asks = start(&server, 1);
        is_kept(&server, &asks).await;
        ask(&asks, Ask::Stop).await;
        !was_cut
    }
}

#[test]
fn a_copy_that_becomes_longer_keeps_its_floor_wherever_the_power_fails() {
    let met = RefCell::default();
    seeds(10, |seed| {
        for changes in 1.. {
            let world = World::new(seed);
            let (server, client) = (world.host("server"), world.host("client"));
            let mut run = Run {
                server,
                random: world.random(),
                losses: 0,
                met: &met,
            };
            if world.block_on(&client, run.grows_until(changes)) {
                assert!(changes > 3, "it was done after {changes} changes");
                return;
            }
        }
    });
    let met = met.into_inner();
    assert_occurred([
        ("longer when the power failed", met.longer_after_cut),
        (
            "as long as before when the power failed",
            met.shorter_after_cut,
        ),
        ("cut when it was opened longer", met.cut_at_start),
        ("lost state directories", met.lost_state),
        ("nothing left but the signpost", met.only_signpost_left),
        ("served with its first length again", met.shorter_again),
    ]);
}
