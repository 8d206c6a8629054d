//! Failing paths: under multipath one of two paths is lost and comes back; a link is cut for a while under load; a disk
//! grows while its file system is in use. Applications see no error.

use crate::{Check, LOST, QUIET, ROUGH, host::Host};
use harness::forwarder::Forwarder;
use harness::guest::LONG;

/// The way to a host's first portal through this machine, as the guest's functions take it.
fn through(host: &Host) -> (Forwarder, String) {
    let forwarder = Forwarder::new("127.0.3.1", host.portals[0]);
    let node = format!("{} {}", host.iqn, forwarder.address());
    (forwarder, node)
}

#[test]
fn multipath_goes_on_with_one_of_two_sessions_and_takes_the_other_back() {
    let host = Host::serve("multipath", &Host::file(64));
    let (forwarder, node) = through(&host);
    let expected = [
        (
            "rejecting I/O to offline device",
            "the failed path, which multipath leaves",
        ),
        (
            "recovery timed out",
            "the path has failed for good, as replacement_timeout says",
        ),
        ("Reinstating path", "it is back"),
        ("Failing path", "that is multipath's part"),
        (
            "I/O error",
            "of the failed path; multipath repeats it on the other",
        ),
        (
            "transport error",
            "of the failed path; multipath repeats it on the other",
        ),
    ];
    let Some(check) = Check::begin(&ROUGH, crate::expecting(&expected, LOST)) else {
        return;
    };
    check.run(&format!("two_paths {node}")).success();
    check.run(&format!("paths_are {} 2 0", host.iqn)).success();
    let load = check.start(&format!("load $(map_of {})", host.iqn), LONG);
    load.wait_for("load: first round written");
    forwarder.break_oldest();
    check
        .run(&format!("until_true 200 paths_are {} 1 1", host.iqn))
        .success();
    check.run("another_round").success();
    forwarder.mend();
    check
        .run(&format!("until_true 200 paths_are {} 2 0", host.iqn))
        .success();
    check.run("another_round").success();
    check.run("last_round").success();
    load.finish().success();
    check.end();
}

#[test]
fn link_loss_under_load_is_a_pause_and_no_error() {
    let host = Host::serve("link", &Host::file(64));
    let (forwarder, node) = through(&host);
    let Some(check) = Check::begin(&ROUGH, LOST) else {
        return;
    };
    check
        .run(&format!(
            "login {node} $QUICK node.session.timeo.replacement_timeout=500"
        ))
        .success();
    let load = check.start(&format!("load $(disk {node})"), LONG);
    load.wait_for("load: first round written");
    forwarder.stall();
    // The kernel's pings go unanswered, and it gives the session up.
    check
        .run(&format!("until_true 200 not logged_in {} 1", host.iqn))
        .success();
    forwarder.mend();
    check
        .run(&format!("until_true 200 logged_in {} 1", host.iqn))
        .success();
    check.run("another_round").success();
    check.run("last_round").success();
    load.finish().success();
    check.end();
}

#[test]
fn resize_is_seen_by_a_mounted_file_system() {
    let volume = "[volume.disk]\nfile = { path = \"disk.img\", cache = \"write-back\" }\n";
    let host = Host::serve_file_of("resize", 32 << 20, volume);
    let told = (
        "Capacity data has changed",
        "the unit attention that is looked for",
    );
    let Some(check) = Check::begin(&QUIET, crate::expecting(&[told], &[])) else {
        return;
    };
    let node = host.node();
    check.run(&format!("login {node} && mkfs.ext4 -q $(disk {node}) && mkdir -p /mnt/r && mount $(disk {node}) /mnt/r && fill /mnt/r/file 4")).success();
    host.grow(80 << 20);
    host.signal("HUP");
    host.log_with("a disk has grown");
    // The next command gets the unit attention and is resent; nothing else changes.
    check
        .run("fill /mnt/r/next 1 && sync && filled /mnt/r/next 0 1")
        .success();
    check
        .run("dmesg | grep -q 'Capacity data has changed'")
        .success();
    check
        .run(&format!(
            "iscsiadm -m session -R && equals size {} $(blockdev --getsize64 $(disk {node}))",
            80 << 20
        ))
        .success();
    check.run(&format!("resize2fs $(disk {node}) && filled /mnt/r/file 0 4 && fill /mnt/r/more 40 && sync && filled /mnt/r/more 0 40")).success();
    let attentions = check
        .run("dmesg | grep -c 'Capacity data has changed'")
        .success();
    assert_eq!(attentions.trim(), "1", "it is told once");
    check.end();
}
