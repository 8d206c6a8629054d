//! Every committed input runs through its target, on any compiler: what was found once stays
//! found. `fuzz/corpus` holds what the search has collected, `fuzz/regressions` what broke
//! something before it was mended, and what a missing check would let through.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// The files of `fuzz/KIND/TARGET`, in the order of their names.
fn inputs(kind: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(kind)
        .join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("a folder of ours can be read").path())
        .collect();
    files.sort();
    files
}

fn replay(target: &str) {
    let found = bodies::TARGETS.iter().find(|(name, _)| *name == target);
    let body = found.expect("the target is in the table").1;
    let corpus = inputs("corpus", target);
    assert!(
        !corpus.is_empty(),
        "fuzz/corpus/{target} is empty: see CONTRIBUTING.md, Fuzzing"
    );
    for file in corpus.into_iter().chain(inputs("regressions", target)) {
        let input = fs::read(&file).expect("a file of ours can be read");
        if catch_unwind(|| body(&input)).is_err() {
            panic!("{} fails in target {target}", file.display());
        }
    }
}

#[test]
fn pdu() {
    replay("pdu");
}

#[test]
fn login() {
    replay("login");
}

#[test]
fn scsi() {
    replay("scsi");
}

#[test]
fn target() {
    replay("target");
}

#[test]
fn initiator() {
    replay("initiator");
}

#[test]
fn pair() {
    replay("pair");
}

#[test]
fn disk() {
    replay("disk");
}

#[test]
fn nbd() {
    replay("nbd");
}

#[test]
fn fuse() {
    replay("fuse");
}

/// A target without a test here, or without an entry for libFuzzer, would be forgotten.
#[test]
fn every_target_is_replayed_and_searched() {
    let manifest = include_str!("../../Cargo.toml");
    let this = include_str!("replay.rs");
    for (name, _) in bodies::TARGETS {
        assert!(
            this.contains(&format!("replay(\"{name}\")")),
            "{name} is not replayed"
        );
        assert!(
            manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name}"
        );
    }
}
