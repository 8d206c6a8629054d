//! Sanstone itself on that kernel, whose io_uring is older than most developers': the daemon serves
//! the kernel initiator of the same machine, and the demo runs to its table.

use crate::{Check, ROUGH};
use harness::guest::LONG;

#[test]
fn serve_runs_on_that_kernel() {
    let Some(check) = Check::begin(&ROUGH, &[]) else {
        return;
    };
    check.run("serve_inside").success();
    let io = "write_and_verify $(disk $INSIDE) 4k libaio";
    check.start(io, LONG).finish().success();
    check.run("discard_inside").success();
    check.run("logout $INSIDE; stop_inside").success();
    check.end();
}

#[test]
fn demo_runs_on_that_kernel() {
    let Some(check) = Check::begin(&ROUGH, &[]) else {
        return;
    };
    let said = check.start("demo_inside", LONG).finish().success();
    assert!(said.contains("speedup") || said.contains("×"), "{said}");
    check.end();
}
