//! libiscsi's conformance suite against what it said when this was last looked at.
//!
//! Sanstone serves it three disks: a thin one, which is a file, with two paths; a removable one with
//! blocks of 4096 bytes; a read-only one. Memory stands in for what no file system here promises,
//! atomic writes. Other targets get one disk. `expected-TARGET-DISK.txt` beside this file holds the outcome of each
//! test, `exceptions.txt` why a test takes part on none of Sanstone's disks; any difference, also
//! one for the better, fails until the files are written anew: `SANSTONE_BLESS=1 cargo test -p
//! sanstone-tests --test conformance`.

use harness::conformance::{
    Destroys, Outcome, Outcomes, differences, expectation, run_suite, summary, together,
};
use harness::directory::Directory;
use harness::disk::{Disk, Target};
use harness::sanstone::{IQN, Sanstone};
use std::path::Path;

/// Compares with the expectation, or writes it.
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

/// Three disks and memory, and every test passes on one of them and fails on none, but for the
/// exceptions.
fn all_disks() -> Vec<String> {
    let directory = Directory::new();
    let port = harness::free_port();
    let configuration = format!(
        "[volume.thin]\nfile = {{ path = \"thin.img\", size = \"1GiB\" }}\n\
         [volume.removable]\nram = {{ size = \"256MiB\", block_size = 4096 }}\n\
         [volume.read-only]\nram = {{ size = \"64MiB\" }}\n\
         [volume.memory]\nram = {{ size = \"64MiB\" }}\n\
         [target.\"{IQN}\"]\nportals = [\"127.0.0.1:{port}\"]\nallow = [\"*\"]\n\
         luns = {{ 0 = \"thin\", 1 = {{ volume = \"removable\", removable = true }}, \
         2 = {{ volume = \"read-only\", read_only = true }}, 3 = \"memory\" }}\n"
    );
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let second_path = server.url(0);
    let (all, read_only) = (Destroys::Everything, Destroys::OnlyWhatIsReadOnly);
    let thin = ["--allow-sanitize", &second_path];
    let runs: [(&str, &[&str], _, _); 4] = [
        ("sanstone-thin", &thin, all, None),
        ("sanstone-removable", &[], all, None),
        ("sanstone-read-only", &[], read_only, None),
        ("sanstone-memory", &[], all, Some("WriteAtomic16")),
    ];
    let mut differences = Vec::new();
    let mut all = Vec::new();
    for ((name, arguments, destroys, only), lun) in runs.into_iter().zip(0..) {
        let outcomes = run_suite(&server.url(lun), arguments, destroys, only);
        differences.extend(compare(name, &outcomes));
        all.push(outcomes);
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
            let outcomes = run_suite(&disk.url, &[], Destroys::Everything, None);
            compare(&format!("{}-disk", other.name()), &outcomes)
        }
    };
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
