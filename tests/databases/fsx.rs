//! The file systems on the volume, exercised by [fsx](../src/bin/fsx.rs) and then looked at by their own
//! checkers.

use crate::attached::{Attached, FileSystem};
use crate::shares::Shares;
use harness::run::run;
use std::process::Command;
use std::time::Duration;

const OPERATIONS: u32 = 10_000;

/// Two files at a time, each with a seed of its own.
fn holds_what_is_written(file_system: FileSystem, seeds: [u64; 2]) {
    if !crate::attached::can_attach() {
        return;
    }
    let shares = Shares::serve();
    let attached = Attached::create(&shares.volumes(), "stripe", file_system);
    std::thread::scope(|scope| {
        for seed in seeds {
            let file = attached.data().join(seed.to_string());
            scope.spawn(move || {
                let mut fsx = Command::new(env!("CARGO_BIN_EXE_fsx"));
                let arguments = [seed.to_string(), OPERATIONS.to_string()];
                let fsx = fsx.arg(file).args(arguments);
                println!("{}", run(fsx, Duration::from_secs(1200)).success().stdout);
            });
        }
    });
    attached.check_and_end();
}

#[test]
fn ext4_holds_what_is_written() {
    holds_what_is_written(FileSystem::Ext4, [1, 2]);
}

#[test]
fn xfs_holds_what_is_written() {
    holds_what_is_written(FileSystem::Xfs, [3, 4]);
}
