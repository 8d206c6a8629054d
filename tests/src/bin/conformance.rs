//! Counts libiscsi's conformance suite on Sanstone, tgt and istgt, or on those named as
//! arguments, and prints a table row for each; `make conformance` runs it.

use harness::conformance::{Destroys, run_suite, summary};
use harness::disk::{Disk, Target};

/// Large enough for every test of the suite.
const DISK_BYTES: u64 = 1 << 30;

fn main() {
    let named: Vec<String> = std::env::args().skip(1).collect();
    for target in [Target::Sanstone, Target::Tgt, Target::Istgt] {
        if !named.is_empty() && !named.iter().any(|name| name == target.name()) {
            continue;
        }
        let Some(disk) = Disk::on(target, DISK_BYTES) else {
            println!("{:9} is not installed here", target.name());
            continue;
        };
        let outcomes = run_suite(&disk.url, &[], Destroys::Everything, &[]);
        println!("{:9} {}", target.name(), summary(&outcomes));
        for (name, outcome) in &outcomes {
            if ["failed", "no-end"].contains(&outcome.word()) {
                println!("    {:7} {name}: {}", outcome.word(), outcome.detail());
            }
        }
    }
}
