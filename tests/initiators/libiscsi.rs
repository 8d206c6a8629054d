//! libiscsi's command-line tools: discovery, inquiry, capacity and a bounded load of reads.

use harness::disk::{Disk, Target};
use harness::process::program;
use harness::run::{Ran, run};
use std::process::Command;
use std::time::Duration;

const DISK_BYTES: u64 = 64 << 20;

#[track_caller]
fn tool(name: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new(program(name, "libiscsi-bin"));
    run(command.args(arguments), Duration::from_secs(120)).success()
}

#[test]
fn iscsi_ls_discovers_the_target_and_lists_its_disk() {
    if Target::chosen() == Target::Istgt {
        return harness::skip("iscsi-ls -s waits for ever for istgt's LUN list");
    }
    let disk = Disk::new(DISK_BYTES);
    let ran = tool("iscsi-ls", &["-s", &disk.portal]);
    let (target, lun) = disk.target_and_lun();
    let expected = format!("Target:{target} Portal:{},1", disk.address());
    assert!(ran.stdout.contains(&expected), "no {expected:?} in\n{ran}");
    let expected = format!("Lun:{lun:<4} Type:DIRECT_ACCESS");
    assert!(ran.stdout.contains(&expected), "no {expected:?} in\n{ran}");
}

#[test]
fn iscsi_inq_reads_standard_inquiry_and_the_vital_product_pages() {
    let disk = Disk::new(DISK_BYTES);
    let ran = tool("iscsi-inq", &[&disk.url]);
    for expected in ["Peripheral Device Type:DIRECT_ACCESS", "CmdQue:1", "iSCSI"] {
        assert!(ran.stdout.contains(expected), "no {expected:?} in\n{ran}");
    }
    for page in ["0x00", "0x80", "0x83", "0xb0", "0xb1", "0xb2"] {
        if Target::chosen() == Target::Istgt && page.starts_with("0xb") {
            continue; // older than these pages
        }
        // popt, which reads the arguments, takes the page in C's notation.
        tool("iscsi-inq", &["-e", "1", "-c", page, &disk.url]);
    }
}

#[test]
fn iscsi_readcapacity16_sees_the_configured_size() {
    let disk = Disk::new(DISK_BYTES);
    let ran = tool("iscsi-readcapacity16", &[&disk.url]);
    for expected in [
        format!("RETURNED LOGICAL BLOCK ADDRESS:{}", DISK_BYTES / 512 - 1),
        "LOGICAL BLOCK LENGTH IN BYTES:512".to_owned(),
        format!("Total size:{DISK_BYTES}"),
    ] {
        assert!(ran.stdout.contains(&expected), "no {expected:?} in\n{ran}");
    }
}

#[test]
fn iscsi_perf_reads_for_its_time_without_an_error() {
    let disk = Disk::new(DISK_BYTES);
    let random_4k: &[&str] = &["-r", "-b", "8", "-m", "32"];
    let sequential_128k: &[&str] = &["-b", "256", "-m", "8"];
    for load in [random_4k, sequential_128k] {
        // For two seconds; reconnecting would hide an error of ours, so -x 0 forbids it.
        let all = [load, &["-t", "2", "-x", "0", &*disk.url]].concat();
        let ran = tool("iscsi-perf", &all);
        assert!(ran.stdout.contains("finished."), "{ran}");
        let average = ran
            .stdout
            .rsplit("iops average")
            .next()
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        assert!(
            average.is_some_and(|iops| iops > 100),
            "no plausible average in\n{ran}"
        );
    }
}
