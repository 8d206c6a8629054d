//! A mirror is given the length that its copies have now, and the power fails after each change of a disk that this makes, and
//! again while it is opened afterwards: it has the old length or the new one, and all data.

use std::{
    cell::{Cell, RefCell},
    path::Path,
    rc::Rc,
};

use engine::{
    Buf, Payload,
    fs::{OpenOptions, SharedFile},
    sim::{Host, World, seeds},
    time,
};
use sim::assert_occurred;
use uuid::Uuid;
use volume::{
    Durability, MirrorHandle, SharedVolume,
    claim::Owner,
    config::Volumes,
    graph::{Graph, NewStripe},
};

use crate::MS;

const MIB: u64 = 1 << 20;
const PIECE_BYTES: usize = 64 << 10;
const COPIES: [&str; 2] = ["/srv/a", "/srv/b"];
const OLD_BYTES: u64 = 2 * MIB;
const NEW_BYTES: u64 = 5 * MIB;
/// More changes than an opening makes.
const CHANGES_OF_AN_OPENING: u64 = 30;
const TEXT: &str = r#"db.mirror = { of = [{ file = { path = "a", cache = "direct-sync" } },
                      { file = { path = "b", cache = "direct-sync" } }] }"#;

/// How often what is hard has occurred.
#[derive(Default)]
struct Met {
    cut_as_old: u64,
    cut_as_new: u64,
    cut_while_opened: u64,
    differed_in_what_is_gained: u64,
}

/// What is done with the mirror in one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    Create,
    Fill,
    Grow,
    /// Finds what was filled in, writes to its end, and waits until both copies are equal.
    Use,
}

fn byte_at(at: u64) -> u8 {
    (at >> 16) as u8 | 1
}

fn piece_at(at: u64) -> Payload {
    Buf::copy_of(&[byte_at(at); PIECE_BYTES]).into()
}

async fn is_there(volume: &SharedVolume, at: u64) -> Result<(), String> {
    let read = volume.read(at, PIECE_BYTES).await;
    let read = read.map_err(|error| error.to_string())?.to_vec();
    assert!(read.iter().all(|byte| *byte == byte_at(at)), "{at}");
    Ok(())
}

/// Uses the mirror, which has `grown` once something was written to its new end. Returns its length.
async fn uses(
    graph: &mut Graph,
    host: &Host,
    deed: Deed,
    grown: &Cell<bool>,
) -> Result<u64, String> {
    let told = |error: volume::Error| error.to_string();
    let tree = graph.open("db", &host.lane(0)).await;
    let tree = tree.map_err(|error| error.to_string())?;
    let volume = tree.on_lane().await.expect("it is open");
    let len_bytes = volume.shape().len_bytes();
    assert!(
        !grown.get() || len_bytes == NEW_BYTES,
        "it has its old length again"
    );
    for at in (0..OLD_BYTES).step_by(PIECE_BYTES) {
        match deed {
            Deed::Fill => {
                let written = volume.write(at, piece_at(at), Durability::Cached).await;
                written.map_err(told)?;
            }
            _ => is_there(&volume, at).await?,
        }
    }
    let end = len_bytes - PIECE_BYTES as u64;
    if grown.get() {
        is_there(&volume, end).await?;
    }
    let written = volume.write(end, piece_at(end), Durability::Cached).await;
    written.map_err(told)?;
    grown.set(len_bytes == NEW_BYTES);
    let handle = graph.handles().get::<MirrorHandle>("db/mirror");
    let handle = handle.expect("it is open");
    for _ in 0..1000 {
        let status = handle.status();
        if status.is_in_sync() && status.marked_bytes == 0 {
            return Ok(len_bytes);
        }
        time::sleep(MS * 100).await;
    }
    Err(format!("{:?}", handle.status()))
}

/// A process on the machine, in the boot with this number.
async fn process(
    host: Host,
    (boot, deed): (u128, Deed),
    grown: Rc<Cell<bool>>,
) -> Result<u64, String> {
    let volumes: Volumes = toml::from_str(TEXT).expect("a configuration");
    let mut graph = Graph::new(volumes, Path::new("/srv")).expect("a configuration");
    let home = host.lane(0);
    graph.set_lanes(std::slice::from_ref(&home));
    let state = Path::new("/srv/state");
    let made = engine::store::make_directory(state, true);
    made.map_err(|error| error.to_string())?;
    graph.set_state_directory(state);
    let owner = Owner::new(Uuid::from_u128(1), Uuid::from_u128(boot), "the machine");
    graph.set_owner(owner);
    let new = NewStripe {
        uuid: Uuid::from_u128(7),
        created_unix_s: 1,
        force: false,
        from: None,
    };
    let done = match deed {
        Deed::Create => {
            let created = graph.create_stripe("db", &home, &new).await;
            created.map(|()| 0).map_err(|error| error.to_string())
        }
        Deed::Grow => {
            let grown = graph.grow_stripe("db", &home).await;
            grown
                .map(|it| it.to_bytes)
                .map_err(|error| error.to_string())
        }
        Deed::Fill | Deed::Use => uses(&mut graph, &host, deed, &grown).await,
    };
    graph.close().await;
    done
}

/// Makes both copies longer without writing to them.
async fn lengthen(machine: &Host) {
    let lengthened = machine.spawn(async {
        let writing = OpenOptions {
            write: true,
            ..OpenOptions::default()
        };
        COPIES.iter().zip([6, 8]).try_for_each(|(path, mib)| {
            let file = SharedFile::open(Path::new(path), &writing)?;
            file.set_len_bytes(mib * MIB)
        })
    });
    lengthened.await.expect("room");
}

fn restart(machine: &Host, boot: &mut u128) {
    machine.power_cut();
    machine.doom_after(u64::MAX);
    machine.restart();
    *boot += 1;
}

/// Whether what the copies hold of the mirror's data is the same.
fn are_equal(machine: &Host, len_bytes: u64) -> bool {
    let [a, b] = COPIES.map(|path| machine.read_file(path).expect("a copy"));
    a[..len_bytes as usize] == b[..len_bytes as usize]
}

/// Grows it on a disk that makes this many changes more. Returns whether that were too few.
fn grows_until(seed: u64, changes: u64, met: &RefCell<Met>) -> bool {
    let world = World::new(seed);
    let mut random = world.random();
    let (machine, bench) = (world.host("machine"), world.host("bench"));
    for path in COPIES {
        machine.put_file(path, &vec![0; 3 * MIB as usize]);
    }
    let is_cut = world.block_on(&bench, async {
        let mut boot = 1;
        let grown = Rc::new(Cell::new(false));
        let run = async |boot, deed| {
            let done = process(machine.clone(), (boot, deed), grown.clone());
            machine.spawn(done).await
        };
        run(boot, Deed::Create).await.expect("blank files");
        run(boot, Deed::Fill).await.expect("a new mirror");
        lengthen(&machine).await;
        assert_eq!(run(boot, Deed::Use).await, Ok(OLD_BYTES), "it was not told");
        if random.chance(0.5) {
            let mut copy = machine.read_file(COPIES[1]).expect("a copy");
            copy[4 * MIB as usize..5 * MIB as usize].fill(0xEE);
            machine.put_file(COPIES[1], &copy);
            met.borrow_mut().differed_in_what_is_gained += 1;
        }
        machine.doom_after(changes);
        let done = run(boot, Deed::Grow).await;
        let is_cut = machine.is_doomed();
        assert!(done == Ok(NEW_BYTES) || is_cut, "{done:?}");
        restart(&machine, &mut boot);
        if random.chance(0.5) {
            let deed = [Deed::Use, Deed::Grow][random.index(2)];
            machine.doom_after(random.below(CHANGES_OF_AN_OPENING));
            let _ = run(boot, deed).await;
            met.borrow_mut().cut_while_opened += u64::from(machine.is_doomed());
            restart(&machine, &mut boot);
        }
        let len_bytes = run(boot, Deed::Use).await.expect("it is there");
        assert!(are_equal(&machine, len_bytes));
        match len_bytes {
            OLD_BYTES => {
                assert!(is_cut, "it has grown");
                met.borrow_mut().cut_as_old += 1;
            }
            NEW_BYTES => met.borrow_mut().cut_as_new += u64::from(is_cut),
            other => panic!("{other} bytes"),
        }
        assert_eq!(run(boot, Deed::Grow).await, Ok(NEW_BYTES));
        assert_eq!(run(boot, Deed::Use).await, Ok(NEW_BYTES));
        assert!(are_equal(&machine, NEW_BYTES));
        is_cut
    });
    world.end();
    is_cut
}

#[test]
fn a_mirror_that_grows_has_its_old_length_or_the_new_one_and_all_data_wherever_the_power_fails() {
    let met = RefCell::default();
    seeds(4, |seed| {
        let mut changes = 0;
        while grows_until(seed, changes, &met) {
            changes += 1;
        }
        assert!(changes > 20, "it was done after {changes} changes");
    });
    let met = met.into_inner();
    assert_occurred([
        ("cut when it had its old length", met.cut_as_old),
        ("cut when it had the new one", met.cut_as_new),
        ("cut while it was opened", met.cut_while_opened),
        (
            "copies that differed in what is gained",
            met.differed_in_what_is_gained,
        ),
    ]);
}
