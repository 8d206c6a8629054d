//! What an I/O takes of the whole machine changes only on purpose: instructions are counted, so nothing else that
//! is at work shakes the figures.

use harness::count::{LOADS, count};
use harness::sanstone::binary;

/// The build profile that the figures are of. What ships takes less: `make bench-kernel`.
const PROFILE: &str = "tested";
/// Instructions for each I/O on a disk in memory, for each of [`LOADS`].
const KNOWN: [f64; LOADS.len()] = [42_493.0, 66_507.0, 67_010.0, 86_803.0, 608_684.0, 561_408.0];
/// How far a figure may be from what is written here, as a part of it.
const TOLERANCE: f64 = 0.03;

/// The kernel's own target is counted beside it and printed, and bounds nothing: how it batches writes differs by a
/// fifth from run to run.
#[test]
fn counted_in_instructions_an_io_takes_what_it_took() {
    let binary = binary();
    if !binary.ancestors().any(|path| path.ends_with(PROFILE)) {
        println!("nothing is counted: this is not the profile \"{PROFILE}\"");
        return;
    }
    let Some(counted) = count("ram", &binary, "serve -c /tmp/sanstone.toml", 0.1) else {
        return;
    };
    let mut changed = Vec::new();
    for (((name, _), counted), known) in LOADS.into_iter().zip(counted).zip(KNOWN) {
        let (own, lio) = (counted.own, counted.lio);
        println!(
            "{name}: {own:.0}, {:.2} of the {lio:.0} of Linux's target",
            counted.ratio()
        );
        if (own / known - 1.0).abs() > TOLERANCE {
            changed.push(format!("{name}: {own:.0} instead of {known:.0}"));
        }
    }
    assert!(
        changed.is_empty(),
        "more or fewer instructions than written down; find out why, and write down what is meant to stay:\n{}",
        changed.join("\n")
    );
}
