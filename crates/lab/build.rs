//! Tells the program which commit it is built from, for its reports. Where there is no repository it stays unknown.

use std::{path::Path, process::Command};

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let said = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| said.trim().to_owned())
    };
    // Sources that were unpacked within somebody else's repository have no commit of their own.
    let is_ours = git(&["rev-parse", "--show-prefix"]).is_some_and(|place| place == "crates/lab/");
    let commit = git(&["rev-parse", "--short", "HEAD"]).filter(|_| is_ours);
    let commit = commit.unwrap_or_default();
    println!("cargo:rustc-env=SANSTONE_COMMIT={commit}");
    // Written by each commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
