//! The command by itself. That it is a test of this package makes cargo build the command together with the tests, from
//! the same libraries; the tests of the running daemon start it.

use std::process::Command;

#[test]
fn the_command_says_its_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_sanstone"))
        .arg("--version")
        .output()
        .expect("the command starts");
    let version = concat!("sanstone ", env!("CARGO_PKG_VERSION"));
    assert!(
        String::from_utf8_lossy(&output.stdout).starts_with(version),
        "{output:?}"
    );
}
