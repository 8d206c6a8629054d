//! The usual life of a disk: discovery, login, a file system, and data that must survive.

use crate::{Check, QUIET, host::Host};
use harness::guest::LONG;

#[test]
fn boot_brings_up_a_kernel_of_6_1_or_newer() {
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    let release = check.run("uname -r").success();
    println!("Linux {release}");
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    assert!(
        (numbers.next(), numbers.next()) >= (Some(6), Some(1)),
        "{release}"
    );
    check.end();
}

#[test]
fn discovery_lists_the_target_at_both_portals() {
    let host = Host::serve("discovery", &Host::file(16));
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    let [one, two] = host.portals;
    let found = check.run(&format!("iscsiadm -m discovery -t sendtargets -p {one}"));
    let mut lines: Vec<String> = found.success().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(
        lines,
        [one, two].map(|portal| format!("{portal},1 {}", host.iqn))
    );
    check.end();
}

#[test]
fn login_shows_a_disk_of_the_right_size_and_identity() {
    let host = Host::serve("login", &Host::file(96));
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    let node = host.node();
    let portal = host.portals[0];
    let discovery = format!("iscsiadm -m discovery -t sendtargets -p {portal}");
    let login = format!("iscsiadm -m node -T {} -p {portal} --login", host.iqn);
    check.run(&format!("{discovery} && {login}")).success();
    let facts = check.run(&format!("facts $(disk {node})")).success();
    let fact = |name: &str| {
        let found = facts
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}=")));
        found
            .unwrap_or_else(|| panic!("no {name} in\n{facts}"))
            .trim()
    };
    assert_eq!(fact("size"), (96 << 20).to_string());
    assert_eq!((fact("logical"), fact("physical")), ("512", "4096"));
    assert_eq!((fact("vendor"), fact("model")), ("SANSTONE", "VOLUME"));
    assert_eq!(
        (fact("cache"), fact("fua"), fact("ro")),
        ("write back", "1", "0")
    );
    // The names that multipath and /dev/disk/by-id are made of: SPC-4 7.8.5, an NAA of 16 bytes
    // from the same UUID as the serial number.
    let (wwid, serial) = (fact("wwid"), fact("serial"));
    assert_eq!(serial.len(), 32, "{facts}");
    assert!(wwid.starts_with("naa.6") && wwid.len() == 36, "{facts}");
    assert_eq!(fact("by-id"), format!("3{}", &wwid[4..]));
    check.end();
}

#[test]
fn ext4_keeps_what_it_was_given() {
    let host = Host::serve("ext4", &Host::file(512));
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    check
        .start(&format!("files ext4 {}", host.node()), LONG)
        .finish()
        .success();
    check.end();
}

#[test]
fn xfs_on_blocks_of_4096_bytes_keeps_what_it_was_given() {
    let volume = "[volume.disk]\nfile = { path = \"disk.img\", size = \"512MiB\", \
        cache = \"direct\", block_size = 4096 }\n";
    let host = Host::serve("xfs", volume);
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    check
        .start(&format!("files xfs {}", host.node()), LONG)
        .finish()
        .success();
    check.end();
}

#[test]
fn digests_of_headers_and_data_are_on_and_right() {
    let host = Host::serve("digests", &Host::file(64));
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    let settings = "node.conn[0].iscsi.HeaderDigest=CRC32C node.conn[0].iscsi.DataDigest=CRC32C";
    check
        .run(&format!("login {} {settings}", host.node()))
        .success();
    let digests = "cat /sys/class/iscsi_connection/connection*/header_digest \
        /sys/class/iscsi_connection/connection*/data_digest";
    let both = check.run(digests).success();
    assert_eq!(both, "1\n1\n");
    let io = format!("write_and_verify $(disk {}) 64k libaio", host.node());
    check.run(&io).success();
    check.end();
}
