//! A concat takes another child, or a stripe or concat in use takes the new length of its children, and the power fails after each
//! change of a disk that this makes, and again while it is opened afterwards: it is the old volume or the new one, with its data,
//! and never neither.

use std::{cell::Cell, collections::BTreeSet, path::Path, rc::Rc};

use engine::{
    Buf, Duration, LaneHandle, Payload,
    sim::{Host, Random, World, seeds},
    spawn,
    time::sleep,
};
use sim::assert_occurred;
use uuid::Uuid;
use volume::{
    Durability, SharedVolume,
    claim::Owner,
    config::Volumes,
    graph::{Graph, Live, NewStripe},
};

const MIB: u64 = 1 << 20;
const UNIT_BYTES: usize = 64 << 10;

/// The volume before and after it has grown.
#[derive(Clone, Copy)]
struct Texts {
    old: &'static str,
    new: &'static str,
}

const JOINED: Texts = Texts {
    old: r#"db.concat = { of = [{ file = { path = "a" } }, { file = { path = "b" } }] }"#,
    new: r#"db.concat = { of = [{ file = { path = "a" } }, { file = { path = "b" } },
            { file = { path = "c" } }] }"#,
};
const LONGER_CONCAT: Texts = Texts {
    old: r#"db.concat = { of = [{ file = { path = "a", size = "3MiB" } },
            { file = { path = "b", size = "3MiB" } }] }"#,
    new: r#"db.concat = { of = [{ file = { path = "a", size = "3MiB" } },
            { file = { path = "b", size = "5MiB" } }] }"#,
};
const LONGER_STRIPE: Texts = Texts {
    old: r#"db.stripe = { of = [{ file = { path = "a", size = "3MiB" } },
            { file = { path = "b", size = "3MiB" } }] }"#,
    new: r#"db.stripe = { of = [{ file = { path = "a", size = "4MiB" } },
            { file = { path = "b", size = "4MiB" } }] }"#,
};
const OLD_BYTES: u64 = 4 * MIB;
const NEW_BYTES: u64 = 6 * MIB;
/// More changes than opening it makes.
const CHANGES_OF_AN_OPENING: u64 = 30;

/// How often what is hard has occurred.
#[derive(Default)]
struct Met {
    cut_as_old: u64,
    cut_as_new: u64,
    cut_while_opened: u64,
    opened_without_the_new: u64,
    used_the_new: u64,
}

/// A process on the machine, in the boot with this number.
fn graph(text: &str, host: &Host, boot: u128) -> Graph {
    let volumes: Volumes = toml::from_str(text).expect("a configuration");
    let mut graph = Graph::new(volumes, Path::new("/")).expect("a configuration");
    graph.set_lanes(&[host.lane(0)]);
    let boot = Uuid::from_u128(boot);
    graph.set_owner(Owner::new(Uuid::from_u128(1), boot, "the machine"));
    graph
}

/// What is done with the volume of `text` in one process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Create,
    Fill,
    Grow,
    /// Has it take the child, or the length, while it is used.
    Apply,
    /// The same, taken back before it takes effect.
    ApplyNot,
    /// Finds what was filled in, and writes to its end.
    Use,
}

fn byte_at(at: u64) -> u8 {
    (at >> 16) as u8 | 1
}

/// Opens the old volume, and has it become the new one while something reads and writes it, unless that is taken back.
async fn apply(
    texts: Texts,
    graph: &mut Graph,
    home: &LaneHandle,
    takes_effect: bool,
    used: &Rc<Cell<bool>>,
) -> Result<u64, String> {
    let tree = graph.open("db", home).await;
    let tree = tree.map_err(|error| error.to_string())?;
    let volume = tree.on_lane().await.expect("it is open");
    let using = spawn(uses(volume, used.clone()));
    let [was, is]: [Volumes; 2] =
        [texts.old, texts.new].map(|text| toml::from_str(text).expect("it parses"));
    let changes = was.changes(&is, "db", &BTreeSet::from(["db".to_owned()]));
    assert_eq!(changes.refused, [""; 0]);
    let mut live = Live::default();
    let prepared = graph.prepare(&changes, &mut live).await;
    if prepared.is_err() || !takes_effect {
        graph.undo(live).await;
        using.await?;
        return prepared
            .map(|()| tree.shape().len_bytes())
            .map_err(|error| error.to_string());
    }
    graph.replace_volumes(is).expect("they are valid");
    live.take_effect().await;
    let mut warnings = live.finish().await;
    warnings.extend(graph.lengthen().await.1);
    using.await?;
    match warnings.is_empty() {
        true => Ok(tree.shape().len_bytes()),
        false => Err(warnings.join("; ")),
    }
}

/// Reads and writes the old volume for a while, and the end of the new one as soon as it is there, from when on it is `used`.
async fn uses(volume: SharedVolume, used: Rc<Cell<bool>>) -> Result<(), String> {
    let told = |error: volume::Error| error.to_string();
    for round in 0..60u64 {
        let at = round * 7 % (OLD_BYTES / UNIT_BYTES as u64) * UNIT_BYTES as u64;
        let read = volume.read(at, UNIT_BYTES).await.map_err(told)?.to_vec();
        assert!(read.iter().all(|it| *it == byte_at(at)), "{at}");
        let end = volume.shape().len_bytes() - UNIT_BYTES as u64;
        let places = if end < OLD_BYTES {
            &[at][..]
        } else {
            &[at, end]
        };
        for at in places {
            let data = Payload::from(Buf::copy_of(&[byte_at(*at); UNIT_BYTES]));
            volume
                .write(*at, data, Durability::Cached)
                .await
                .map_err(told)?;
        }
        volume.flush().await.map_err(told)?;
        used.set(end > OLD_BYTES);
        sleep(Duration::from_micros(20)).await;
    }
    Ok(())
}

/// Does it. Returns the length of the volume. What was written to the new child is there once it was `used`.
async fn process(
    (texts, text): (Texts, &str),
    host: Host,
    (boot, deed): (u128, Deed),
    used: Rc<Cell<bool>>,
) -> Result<u64, String> {
    let mut graph = graph(text, &host, boot);
    let home = host.lane(0);
    let new = NewStripe {
        uuid: Uuid::from_u128(7),
        created_unix_s: 1,
        force: false,
        from: None,
    };
    let done = match deed {
        Deed::Create => graph.create_stripe("db", &home, &new).await.map(|()| 0),
        Deed::Grow => graph.grow_stripe("db", &home).await.map(|it| it.to_bytes),
        Deed::Apply | Deed::ApplyNot => {
            let takes_effect = deed == Deed::Apply;
            let joined = apply(texts, &mut graph, &home, takes_effect, &used).await;
            graph.close().await;
            return joined;
        }
        Deed::Fill | Deed::Use => match graph.open("db", &home).await {
            Err(error) => Err(error),
            Ok(tree) => {
                let len = tree.shape().len_bytes();
                let volume = tree.on_lane().await.expect("it is open");
                for at in (0..OLD_BYTES).step_by(UNIT_BYTES) {
                    if deed == Deed::Fill {
                        let data = Payload::from(Buf::copy_of(&[byte_at(at); UNIT_BYTES]));
                        let written = volume.write(at, data, Durability::Cached).await;
                        written.map_err(|error| error.to_string())?;
                    } else {
                        let read = volume.read(at, UNIT_BYTES).await;
                        let read = read.map_err(|error| error.to_string())?.to_vec();
                        assert!(read.iter().all(|it| *it == byte_at(at)), "{at}");
                    }
                }
                let at = len - UNIT_BYTES as u64;
                if used.get() {
                    assert_eq!(len, NEW_BYTES, "the new end is not left out");
                    let read = volume.read(at, UNIT_BYTES).await;
                    let read = read.map_err(|error| error.to_string())?.to_vec();
                    assert!(read.iter().all(|it| *it == byte_at(at)), "the end");
                }
                let data = Payload::from(Buf::copy_of(&[byte_at(at); UNIT_BYTES]));
                let written = volume.write(at, data, Durability::Cached).await;
                written.map_err(|error| error.to_string())?;
                volume.flush().await.map_err(|error| error.to_string())?;
                Ok(len)
            }
        },
    };
    graph.close().await;
    done.map_err(|error| error.to_string())
}

/// Has the old volume become the new one, by `deed`, on a disk that makes this many changes more. Returns whether that were too few.
fn grows_until(texts: Texts, seed: u64, changes: u64, deed: Deed, met: &mut Met) -> bool {
    let Texts { old, new } = texts;
    let pick = |random: &mut Random| if random.chance(0.5) { old } else { new };
    let world = World::new(seed);
    let mut random = world.random();
    let machine = world.host("machine");
    for name in ["a", "b", "c"] {
        machine.put_file(format!("/{name}"), &vec![0; 3 * MIB as usize]);
    }
    let bench = world.host("bench");
    let is_cut = world.block_on(&bench, async {
        let mut boot = 1;
        let used = Rc::new(Cell::new(false));
        let run = async |text, boot, deed| {
            let done = process((texts, text), machine.clone(), (boot, deed), used.clone());
            machine.spawn(done).await
        };
        run(old, boot, Deed::Create).await.expect("blank files");
        run(old, boot, Deed::Fill).await.expect("a new volume");
        machine.doom_after(changes);
        let text = if deed == Deed::Grow { new } else { old };
        let grown = run(text, boot, deed).await;
        let is_cut = machine.is_doomed();
        assert!(grown.is_ok() || is_cut, "{grown:?}");
        met.used_the_new += u64::from(used.get());
        restart(&machine, &mut boot);
        if random.chance(0.5) {
            // The next process is cut as well.
            machine.doom_after(random.below(CHANGES_OF_AN_OPENING));
            let text = pick(&mut random);
            let _ = run(text, boot, Deed::Use).await;
            met.cut_while_opened += u64::from(machine.is_doomed());
            restart(&machine, &mut boot);
        }
        let first = pick(&mut random);
        let second = if first == old { new } else { old };
        let len = match run(first, boot, Deed::Use).await {
            Ok(len) => len,
            Err(_) => {
                let opened = run(second, boot, Deed::Use).await;
                opened.unwrap_or_else(|error| panic!("neither: {error}"))
            }
        };
        if len == NEW_BYTES {
            met.cut_as_new += u64::from(is_cut);
            // What is written to the new end is not left out by anybody.
            run(old, boot, Deed::Use).await.expect_err("it is longer");
        } else {
            assert!(is_cut || deed == Deed::ApplyNot, "it has grown");
            assert!(!used.get(), "the new end is left out");
            met.cut_as_old += 1;
            met.opened_without_the_new += u64::from(first == old);
            // The files may still be as short as they were, and a start does not extend them.
            let grown = match run(new, boot, Deed::Grow).await {
                Err(_) => run(old, boot, Deed::Apply).await,
                grown => grown,
            };
            assert_eq!(grown, Ok(NEW_BYTES));
        }
        assert_eq!(run(new, boot, Deed::Use).await, Ok(NEW_BYTES));
        is_cut
    });
    world.end();
    is_cut
}

fn restart(machine: &Host, boot: &mut u128) {
    machine.power_cut();
    machine.doom_after(u64::MAX);
    machine.restart();
    *boot += 1;
}

fn grows_wherever_the_power_fails(texts: Texts, count: u64, deed: Deed) -> Met {
    let mut met = Met::default();
    seeds(count, |seed| {
        let mut changes = 0;
        while grows_until(texts, seed, changes, deed, &mut met) {
            changes += 1;
        }
        assert!(changes > 10, "it was done after {changes} changes");
    });
    met
}

#[test]
fn a_concat_that_takes_a_child_is_the_old_or_the_new_one_wherever_the_power_fails() {
    let met = grows_wherever_the_power_fails(JOINED, 20, Deed::Grow);
    assert_occurred([
        ("cut before it was the new one", met.cut_as_old),
        ("cut when it was the new one", met.cut_as_new),
        ("cut while it was opened", met.cut_while_opened),
        ("used without the new child", met.opened_without_the_new),
    ]);
}

#[test]
fn a_concat_that_takes_a_child_while_it_is_used_is_the_old_or_the_new_one_wherever_the_power_fails()
{
    let met = grows_wherever_the_power_fails(JOINED, 4, Deed::Apply);
    assert_occurred([
        ("cut before it was the new one", met.cut_as_old),
        ("cut when it was the new one", met.cut_as_new),
        ("cut while it was opened", met.cut_while_opened),
        ("used without the new child", met.opened_without_the_new),
        ("the new child was used", met.used_the_new),
    ]);
}

#[test]
fn a_set_that_takes_the_length_of_its_disks_in_use_has_the_old_or_the_new_wherever_the_power_fails()
{
    for texts in [LONGER_STRIPE, LONGER_CONCAT] {
        let met = grows_wherever_the_power_fails(texts, 4, Deed::Apply);
        assert_occurred([
            ("cut before it was longer", met.cut_as_old),
            ("cut when it was longer", met.cut_as_new),
            ("cut while it was opened", met.cut_while_opened),
            ("the new end was used", met.used_the_new),
        ]);
        grows_wherever_the_power_fails(texts, 2, Deed::ApplyNot);
    }
}

#[test]
fn a_child_that_is_taken_back_is_no_part_of_its_concat_wherever_the_power_fails() {
    let met = grows_wherever_the_power_fails(JOINED, 2, Deed::ApplyNot);
    assert_occurred([("used without the new child", met.opened_without_the_new)]);
    assert_eq!(met.used_the_new, 0);
}
