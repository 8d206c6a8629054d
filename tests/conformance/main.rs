//! libiscsi's conformance suite, compared with its recorded outcome.
//!
//! Sanstone serves it three disks: a thin one, which is a file, with two paths; a removable one; a read-only one. A
//! memory disk with blocks of 4096 bytes covers atomic writes, which no file system here provides, and a test that
//! mishandles other block sizes. Other targets get one disk. `expected-TARGET-DISK.txt` in this directory holds the
//! outcome of each test, `exceptions.txt` the reason why a test passes on none of Sanstone's disks. Any difference,
//! also an improvement, fails until the files are rewritten: `SANSTONE_BLESS=1 cargo test -p sanstone-tests --test
//! conformance`.

use harness::conformance::{
    Destroys, Outcome, Outcomes, differences, expectation, run_suite, summary, together,
};
use harness::directory::Directory;
use harness::disk::{Disk, Target};
use harness::sanstone::{IQN, Sanstone};
use std::fmt::Write as _;
use std::path::Path;

/// Compares with the expectation, or records it.
fn compare(name: &str, outcomes: &Outcomes) -> Vec<String> {
    println!("libiscsi's suite on {name}: {}", summary(outcomes));
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("conformance/expected-{name}.txt"));
    if std::env::var_os("SANSTONE_BLESS").is_some() {
        std::fs::write(&file, expectation(outcomes)).expect("the expectation can be written");
    }
    let expected = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}; SANSTONE_BLESS=1 writes it", file.display()));
    let differences = differences(&expected, outcomes);
    differences
        .iter()
        .map(|line| format!("{name}: {line}"))
        .collect()
}

/// A disk, how the suite runs on it, and the suites to run: all if none is named.
struct Run {
    name: &'static str,
    volume: &'static str,
    lun: &'static str,
    arguments: &'static [&'static str],
    paths: usize,
    destroys: Destroys,
    only: &'static [&'static str],
}

const RUNS: [Run; 4] = [
    Run {
        name: "thin",
        volume: "file = { path = \"thin.img\", size = \"1GiB\" }",
        lun: "",
        arguments: &["--allow-sanitize"],
        paths: 2,
        destroys: Destroys::Everything,
        only: &[],
    },
    Run {
        name: "removable",
        volume: "ram = { size = \"256MiB\" }",
        lun: ", removable = true",
        arguments: &[],
        paths: 1,
        destroys: Destroys::Everything,
        only: &[],
    },
    Run {
        name: "read-only",
        volume: "ram = { size = \"64MiB\" }",
        lun: ", read_only = true",
        arguments: &[],
        paths: 1,
        destroys: Destroys::OnlyWhatIsReadOnly,
        only: &[],
    },
    Run {
        name: "memory",
        volume: "ram = { size = \"64MiB\", block_size = 4096 }",
        lun: "",
        arguments: &[],
        paths: 1,
        destroys: Destroys::Everything,
        only: &["GetLBAStatus", "WriteAtomic16"],
    },
];

/// With three disks and memory, every test except the exceptions passes on at least one and fails on none. Each disk
/// has its own target so that they can be tested concurrently: some tests reset everything their target serves.
fn all_disks() -> Vec<String> {
    let directory = Directory::new();
    let port = harness::free_port();
    let mut configuration = String::new();
    for Run { name, volume, .. } in &RUNS {
        let _ = writeln!(configuration, "[volume.{name}]\n{volume}");
    }
    for Run { name, lun, .. } in &RUNS {
        let _ = writeln!(
            configuration,
            "[target.\"{IQN}-{name}\"]\nportals = [\"127.0.0.1:{port}\"]\nallow = [\"*\"]\n\
             luns = {{ 0 = {{ volume = \"{name}\"{lun} }} }}"
        );
    }
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let portal = server.portal();
    let all: Vec<Outcomes> = std::thread::scope(|scope| {
        let threads: Vec<_> = RUNS
            .iter()
            .map(|run| {
                let url = format!("{portal}/{IQN}-{}/0", run.name);
                scope.spawn(move || {
                    let mut arguments = run.arguments.to_vec();
                    arguments.extend((1..run.paths).map(|_| &*url));
                    run_suite(&url, &arguments, run.destroys, run.only)
                })
            })
            .collect();
        let outcomes = threads.into_iter().map(|thread| thread.join());
        outcomes
            .map(|outcomes| outcomes.expect("the suite was run"))
            .collect()
    });
    let mut differences = Vec::new();
    for (run, outcomes) in RUNS.iter().zip(&all) {
        differences.extend(compare(&format!("sanstone-{}", run.name), outcomes));
    }
    let all = together(&all);
    println!("libiscsi's suite on all of them: {}", summary(&all));
    let exceptions = include_str!("exceptions.txt");
    let is_exception = |name: &str| {
        let mut listed = exceptions.lines().filter_map(|line| line.split_once(' '));
        listed.any(|(listed, _)| listed == name)
    };
    for (name, outcome) in &all {
        if *outcome != Outcome::Passed && !is_exception(name) {
            let (word, detail) = (outcome.word(), outcome.detail());
            differences.push(format!("{name}: {word} and no exception: {detail}"));
        }
    }
    differences
}

#[test]
fn the_suite_comes_out_as_expected() {
    let differences = match Target::chosen() {
        Target::Sanstone => all_disks(),
        other => {
            let disk = Disk::new(1 << 30);
            let outcomes = run_suite(&disk.url, &[], Destroys::Everything, &[]);
            compare(&format!("{}-disk", other.name()), &outcomes)
        }
    };
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
