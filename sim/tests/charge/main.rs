//! All work is charged to whoever causes it. Every command that the disk reports, every task management function, every
//! key of a login or a text, every option and request of NBD, and what the daemon asks its lanes for, is sent in its
//! most expensive form to a machine where others have left as much as they may.
//!
//! There is no clock here. Valgrind counts the instructions that each form takes, and the lane says what it has charged
//! for it. A TEST UNIT READY says how many instructions a charged byte may stand for; no other form may take
//! [`FACTOR`] times as many for what it was charged. So a loop that nobody charged is found, however short it is on this
//! machine, and a new command fails until its longest form is written down.

mod cases;
#[path = "../../../tests/fairness/forms.rs"]
#[expect(dead_code, reason = "the tests of fairness use more of it")]
mod forms;
mod machine;
mod mirror;
mod wire;

use std::{
    collections::BTreeMap, fs, hint::black_box, path::Path, process::Command, time::Duration,
};

use engine::{
    share::TURN_BYTES,
    sim::{NetConfig, World, WorldConfig},
};
use machine::Machine;

/// How many times the instructions of a TEST UNIT READY a form may take for each byte that it is charged.
const FACTOR: f64 = 4.0;
/// The most that a share may spend at once beyond its turn, in bytes: what cannot be cut into pieces, about 400 µs.
const PIECE_BYTES_MAX: usize = 2 << 20;
/// The form that the others are compared with.
const MEASURE: &str = "TEST UNIT READY";
/// What nobody charges, so that it must be found.
const PLANTED: &str = "planted";
/// The same, but charged.
const PLANTED_CHARGED: &str = "planted, charged";

/// Valgrind writes down here what it has counted since the last time.
#[inline(never)]
fn section_begins() {
    black_box(1);
}

/// See [`section_begins`].
#[inline(never)]
fn section_ends() {
    black_box(2);
}

/// Tells the lane's charges for each form, for who runs this.
struct Meter<'a> {
    machine: &'a Machine,
    spent_most_bytes: usize,
}

impl Meter<'_> {
    /// Measures `form`.
    async fn measure(&mut self, name: &str, form: impl Future<Output = ()>) {
        let before = self.machine.counts().await;
        let moved = wire::moved_bytes();
        section_begins();
        form.await;
        section_ends();
        let after = self.machine.counts().await;
        let charged = after.spent_bytes - before.spent_bytes;
        // Whoever is at the other end of the connections moves its payload, and is counted with the machine.
        println!("charge: {} {name}", charged + wire::moved_bytes() - moved);
        let most = after.spent_most_bytes;
        assert!(
            most == self.spent_most_bytes || most <= TURN_BYTES + PIECE_BYTES_MAX,
            "{name}: the work of {most} bytes in one turn"
        );
        self.spent_most_bytes = most;
    }
}

/// What valgrind counts; proves nothing by itself.
#[test]
#[ignore = "run by everything_that_is_asked_is_charged"]
fn counted() {
    let mut config = WorldConfig::default();
    config.net = NetConfig {
        split_probability: 0.0,
        ..config.net
    };
    // Everything is slow under valgrind.
    config.turn_cpu_max = Duration::from_secs(600);
    let world = World::with_config(1, config);
    let (client, host) = (world.host("client"), world.host("machine"));
    world.block_on(&client, async {
        let machine = Machine::start(host).await;
        let mut meter = Meter {
            machine: &machine,
            spent_most_bytes: 0,
        };
        meter.spent_most_bytes = machine.counts().await.spent_most_bytes;
        cases::all(&mut meter).await;
    });
    world.end();
}

/// The instructions for each byte charged, by form.
fn measured() -> BTreeMap<String, f64> {
    let directory = std::env::temp_dir().join(format!("sanstone-charge-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let program = std::env::current_exe().expect("this program has a path");
    let out = directory.join("out");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--dump-line=no"])
        .arg("--zero-before=*section_begins*")
        .arg("--dump-before=*section_ends*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(["--exact", "counted", "--ignored", "--nocapture"])
        .output()
        .expect("valgrind; `tools/install test` brings it");
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{said}{errors}");
    let charges = said.lines().filter_map(|line| line.split_once("charge: "));
    let forms = charges.enumerate().map(|(index, (_, form))| {
        let (charged, name) = form.split_once(' ').expect("a charge and a name");
        let charged: f64 = charged.parse().expect("a number");
        let instructions = total(&out.with_extension(format!("{}", index + 1)));
        println!("{name}: {instructions} instructions, {charged} bytes charged");
        (name.to_owned(), instructions / charged)
    });
    let forms = forms.collect();
    fs::remove_dir_all(&directory).expect("it is ours");
    forms
}

/// The instructions in one of valgrind's files.
fn total(path: &Path) -> f64 {
    let text = fs::read_to_string(path).expect("a dump for each form");
    let line = text.lines().find_map(|line| line.strip_prefix("summary: "));
    line.expect("a summary").trim().parse().expect("a number")
}

#[test]
fn everything_that_is_asked_is_charged() {
    let mut forms = measured();
    let bound = FACTOR * forms[MEASURE];
    println!("at most {bound:.1} instructions for each byte");
    let planted = forms.remove(PLANTED).expect("it was sent");
    assert!(planted > bound, "the planted loop is not found: {planted}");
    assert!(forms[PLANTED_CHARGED] <= bound);
    let uncharged: Vec<String> = forms
        .iter()
        .filter(|(_, taken)| **taken > bound)
        .map(|(name, taken)| format!("{name}: {taken:.1}"))
        .collect();
    assert!(
        uncharged.is_empty(),
        "these take more than {bound:.1} instructions for each byte that they are charged:\n{}",
        uncharged.join("\n")
    );
}
