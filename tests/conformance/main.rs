//! libiscsi's conformance suite on one disk, against what it said when this was last looked at.
//!
//! `expected-TARGET.txt` beside this file holds the outcome of each test; any difference, also one
//! for the better, fails until the file is written anew: `SANSTONE_BLESS=1 cargo test -p
//! sanstone-tests --test conformance`.

use harness::conformance::{differences, expectation, run_suite, summary};
use harness::disk::{Disk, Target};
use std::path::Path;

#[test]
fn the_suite_comes_out_as_expected() {
    let target = Target::chosen();
    let disk = Disk::new(1 << 30);
    let outcomes = run_suite(&disk.url);
    println!(
        "libiscsi's suite on {}: {}",
        target.name(),
        summary(&outcomes)
    );
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("conformance/expected-{}.txt", target.name()));
    if std::env::var_os("SANSTONE_BLESS").is_some() {
        std::fs::write(&file, expectation(&outcomes)).expect("the expectation can be written");
    }
    let expected = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}; SANSTONE_BLESS=1 writes it", file.display()));
    let differences = differences(&expected, &outcomes);
    assert!(
        differences.is_empty(),
        "{}\n{}",
        summary(&outcomes),
        differences.join("\n")
    );
}
