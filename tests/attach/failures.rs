//! A volume that fails: programs are told each time, and the log now and then.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::attached::{Attached, can_attach};

#[test]
fn a_read_that_fails_over_and_over_does_not_fill_the_log() {
    /// So many lines would take minutes at the rate of the log.
    const LINES_MAX: usize = 500;
    const READS: usize = 5_000;
    if !can_attach() {
        return;
    }
    let failing = "[volume.db]\nfault = { rules = [{ on = \"read\", fail = \"medium\" }], of = \"disk\" }\n\
         [volume.disk]\nram = { size = \"1MiB\" }\n";
    let mut attached = Attached::start(failing);
    let file = fs::File::open(&attached.path).expect("it can be opened");
    for _ in 0..READS {
        let read = file.read_exact_at(&mut [0; 4096], 0);
        read.expect_err("it fails every time");
    }
    drop(file);
    let log = attached.daemon.log();
    let said = log.matches("an I/O failed").count();
    assert!((1..LINES_MAX).contains(&said), "{said} lines\n{log}");
    attached.stop();
}
