//! A volume as a file of that kernel, whose FUSE is older than most developers'.

use crate::{Check, ROUGH};
use harness::guest::LONG;

#[test]
fn fuse_of_that_kernel_reads_what_it_wrote_and_keeps_what_it_synced() {
    let no_zeroes = (
        "operation not supported error, dev loop",
        "mkfs asks whether the backing's own backing, a file in memory, can write zeroes",
    );
    let Some(check) = Check::begin(&ROUGH, crate::expecting(&[no_zeroes], &[])) else {
        return;
    };
    if check.run("has_module fuse").code != Some(0) {
        harness::skip("the guest's kernel has no FUSE");
        return check.end();
    }
    check.run("fuse_begin").success();
    let verify = "SIZE=8M fio_job /tmp/fuse/disk 4k --rw=randrw --bsrange=512-64k --ioengine=libaio --iodepth=16";
    check.start(verify, LONG).finish().success();
    let flushes = |options: &str| -> u32 {
        let ran = check.run(&format!("fuse_flushes fuse_write {options}"));
        let printed = ran.success();
        printed.trim().parse().expect("a number")
    };
    // Its backing's file system may flush for itself now and then.
    let none = flushes("");
    assert!(none < 16, "{none} for writes that nobody has synced");
    // fio syncs between its 32 writes and not after the last.
    for (options, least) in [
        ("--fdatasync=1", 31),
        ("--sync=dsync", 32),
        ("--sync=dsync --direct=1", 32),
    ] {
        let some = flushes(options);
        assert!(some >= least, "{some} of {least} with {options}");
    }
    check.run("fuse_end").success();
    check.end();
}
