//! Deallocation: the file behind the disk shrinks, and discarded or zeroed blocks read as zeroes.

use crate::{Check, QUIET, host::Host};
use std::os::unix::fs::MetadataExt;

/// The space allocated to the file behind the disk, in bytes.
fn allocated_bytes(host: &Host) -> u64 {
    std::fs::metadata(host.image())
        .expect("it is served")
        .blocks()
        * 512
}

#[test]
fn discard_by_blkdiscard_gives_space_back() {
    let host = Host::serve("blkdiscard", &Host::file(64));
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    let node = host.node();
    check
        .run(&format!("login {node}; fill $(disk {node}) 32"))
        .success();
    let before = allocated_bytes(&host);
    assert!(before >= 32 << 20, "{before} bytes");
    check
        .run(&format!(
            "blkdiscard --offset 8M --length 16M $(disk {node})"
        ))
        .success();
    let after = allocated_bytes(&host);
    assert!(
        before.saturating_sub(after) >= 15 << 20,
        "{before}, then {after} bytes"
    );
    check
        .run(&format!(
            "filled $(disk {node}) 0 8 && zeroes $(disk {node}) 8 16 && filled $(disk {node}) 24 8"
        ))
        .success();
    check.end();
}

#[test]
fn discard_by_fstrim_gives_deleted_files_back() {
    let host = Host::serve("fstrim", &Host::file(128));
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    check
        .run(&format!(
            "login {0}; mkfs.ext4 -q $(disk {0}) && mkdir -p /mnt/t && mount $(disk {0}) /mnt/t",
            host.node()
        ))
        .success();
    check.run("fill /mnt/t/file 32; sync").success();
    let before = allocated_bytes(&host);
    let said = check
        .run("rm /mnt/t/file; sync; fstrim -v /mnt/t")
        .success();
    assert!(said.contains("trimmed"), "{said}");
    let after = allocated_bytes(&host);
    assert!(
        before.saturating_sub(after) >= 31 << 20,
        "{before}, then {after} bytes"
    );
    check.end();
}

#[test]
fn write_same_writes_zeroes_and_patterns() {
    let host = Host::serve("write-same", &Host::file(64));
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    let node = host.node();
    check
        .run(&format!("login {node}; fill $(disk {node}) 16"))
        .success();
    // The kernel's own zeroing, which is WRITE SAME 16 or 10, with UNMAP where that zeroes too.
    check
        .run(&format!(
            "blkdiscard --zeroout --offset 4M --length 4M $(disk {node})"
        ))
        .success();
    check
        .run(&format!(
            "filled $(disk {node}) 0 4 && zeroes $(disk {node}) 4 4 && filled $(disk {node}) 8 8"
        ))
        .success();
    let kernel = check.run(&format!("cat /sys/block/$(basename $(disk {node}))/device/scsi_disk/*/zeroing_mode /sys/block/$(basename $(disk {node}))/queue/write_zeroes_max_bytes")).success();
    println!("{kernel}");
    // A pattern by hand, both sizes of the command.
    for (argument, mib) in [("--10", 9), ("--16", 10)] {
        let lba = mib << 11;
        check.run(&format!("head -c 512 /dev/zero | tr '\\0' 'S' >/tmp/pattern; sg_write_same {argument} --lba={lba} --num=2048 --in=/tmp/pattern $(disk {node})")).success();
        check.run(&format!("equals pattern {} $(dd if=$(disk {node}) bs=1M skip={mib} count=1 iflag=direct 2>/dev/null | tr -d S | wc -c)", 0)).success();
    }
    check
        .run(&format!(
            "filled $(disk {node}) 8 1 && filled $(disk {node}) 11 5"
        ))
        .success();
    check.end();
}
