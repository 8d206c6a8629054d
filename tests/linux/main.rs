//! The real Linux initiator, in virtual machines: its kernel, open-iscsi, multipath-tools, file systems and sg3-utils
//! against `sanstone serve` on this machine, its NBD client against `sanstone attach`, and the daemon, the demo and a
//! volume as a file running on that kernel.
//!
//! Two machines boot once and side by side. On the `quiet` one nothing is ever interrupted, so its kernel has nothing
//! to complain about; on the `rough` one links fail and daemons restart. A check has a machine to itself, leaves it
//! unchanged, and ends by examining the kernel's log: the check must list every warning and error as expected, with the
//! reason.

mod access;
mod counted;
mod discard;
mod disks;
mod fuse;
mod host;
mod inside;
mod moved;
mod nbd;
mod paths;
mod reservations;

use harness::guest::{Done, Guest};
use harness::sanstone::binary;
use std::ops::Deref;
use std::path::Path;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

type Machine = LazyLock<Mutex<Guest>>;

static QUIET: Machine = LazyLock::new(|| boot("quiet"));
static ROUGH: Machine = LazyLock::new(|| boot("rough"));

fn boot(name: &str) -> Mutex<Guest> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("linux/guest");
    Mutex::new(Guest::boot(name, &scripts, &binary(), &[]))
}

/// Part of an expected line of the kernel's log, and why it is harmless.
type Expected = (&'static str, &'static str);

/// Lines that any check may find.
const ALWAYS: &[Expected] = &[
    (
        "Power-on or device reset occurred",
        "the unit attention that SAM-5 has every new nexus get first; Linux logs it for any target",
    ),
    (
        "sched: RT throttling activated",
        "multipathd runs before all others, on a processor that is slow",
    ),
    (
        "clocksource: ",
        "two of the emulated machine's clocks, read with a pause between",
    ),
    (
        "hrtimer: interrupt took",
        "the emulated processor had to wait for a busy real one",
    ),
    (
        "Login/Text in progress. Cannot start new task",
        "an answer came before the thread that had sent the request let go of it, so iscsid could \
         not send the next and logged in anew (open-iscsi issue 424); that login must succeed",
    ),
    (
        "workqueue: WQ_MEM_RECLAIM iscsi_ctrl_",
        "Linux 6.1 warns of its own order of work, once, when a session's end removes a sleeping disk",
    ),
];

/// Lines that a check may find if its connection is lost or its target is away for a while.
const LOST: &[Expected] = &[
    (
        "ping timeout of",
        "the kernel's NOP-Out had no answer: that is how it notices",
    ),
    ("detected conn error", "it gives the connection up"),
    ("iscsi: cmd", "a command in flight that it will send again"),
];

/// Two lists in one. A check's list lives as long as the program.
fn expecting(some: &[Expected], others: &[Expected]) -> &'static [Expected] {
    [some, others].concat().leak()
}

/// A machine for one check. Create it after the hosts that it uses, so that it logs out before they end.
struct Check {
    guest: MutexGuard<'static, Guest>,
    expected: &'static [Expected],
    ended: bool,
}

impl Check {
    /// Takes the machine for a check with these lines in the kernel's log; `None`, and it says so,
    /// where there can be none.
    fn begin(machine: &'static Machine, expected: &'static [Expected]) -> Option<Check> {
        if !Guest::is_possible() {
            harness::skip("the guest's packages are for x86-64");
            return None;
        }
        let guest = machine.lock().unwrap_or_else(PoisonError::into_inner);
        guest.run("dmesg -c >/dev/null").success();
        Some(Check {
            guest,
            expected,
            ended: false,
        })
    }

    /// Leaves all disks and judges the kernel's log.
    #[track_caller]
    fn end(mut self) {
        self.ended = true;
        self.guest.run("tidy").success();
        let log = self.guest.run("dmesg -r -c").success();
        let complaints = complaints(&log, self.expected);
        assert!(
            complaints.is_empty(),
            "the kernel complained:\n{complaints}"
        );
    }
}

impl Deref for Check {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        if !self.ended {
            let _: [Done; 2] = ["dmesg", "tidy"].map(|command| self.guest.run(command));
        }
    }
}

/// The unexpected warnings and errors in a raw kernel log. The lines between "cut here" and "end trace" count as one,
/// which is expected if any of them is.
fn complaints(log: &str, expected: &[Expected]) -> String {
    let is_expected = |lines: &[&str]| {
        let mut expected = ALWAYS.iter().chain(expected);
        expected.any(|(part, _)| lines.iter().any(|line| line.contains(part)))
    };
    let mut complaints = Vec::new();
    let mut trace: Option<Vec<&str>> = None;
    for line in log.lines().filter(|line| level(line) <= WARNING) {
        if line.contains("[ cut here ]") {
            complaints.extend(trace.replace(Vec::new()).into_iter().flatten());
        }
        match &mut trace {
            Some(lines) if level(line) == WARNING => lines.push(line),
            _ if is_expected(&[line]) => {}
            _ => complaints.push(line),
        }
        if line.contains("[ end trace ") {
            let ended = trace.take().unwrap_or_default();
            complaints.extend(ended.iter().filter(|_| !is_expected(&ended)));
        }
    }
    // A trace without an end cannot be judged, so none of it is expected.
    complaints.extend(trace.into_iter().flatten());
    complaints.join("\n")
}

const WARNING: u32 = 4;

/// The level of a line of a raw log, `<PRIORITY>text`: the low three bits, less is worse.
fn level(line: &str) -> u32 {
    let priority = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    priority
        .and_then(|(number, _)| number.parse::<u32>().ok())
        .map_or(0, |priority| priority % 8)
}

#[test]
fn kernel_log_is_judged_by_level_and_expectation() {
    let log = "<6>[    1.0] scsi host0: iSCSI Initiator over TCP/IP\n\
        <4>[    1.1] sd 0:0:0:0: Power-on or device reset occurred\n\
        <3>[    1.2] blk_update_request: I/O error, dev sda\n\
        <4>[    1.3] connection1:0: detected conn error (1022)\n";
    let error = "<3>[    1.2] blk_update_request: I/O error, dev sda";
    assert_eq!(complaints(log, &[("conn error", "it was cut")]), error);
    assert!(complaints(log, &[]).contains("conn error"));
}

#[test]
fn kernel_log_counts_a_trace_as_one() {
    let trace = "<4>[ 1.0] ------------[ cut here ]------------\n\
        <4>[ 1.1] WARNING: CPU: 0 PID: 43 at kernel/workqueue.c:2635\n\
        <3>[ 1.2] I/O error, dev sda\n\
        <4>[ 1.3] ---[ end trace 0000000000000000 ]---\n";
    let error = "<3>[ 1.2] I/O error, dev sda";
    assert_eq!(complaints(trace, &[("workqueue.c:2635", "known")]), error);
    assert_eq!(complaints(trace, &[]).lines().count(), 4);
    let endless = trace.replace("end trace", "more");
    let found = complaints(&endless, &[("workqueue.c:2635", "known")]);
    assert_eq!(found.lines().count(), 4);
}

#[test]
fn kernel_log_of_the_guest_reaches_the_judge() {
    let Some(check) = Check::begin(&QUIET, &[("a warning that", "this check writes it")]) else {
        return;
    };
    let write = "echo '<4>sd 9:9:9:9: a warning that is expected' >/dev/kmsg";
    check.run(write).success();
    check
        .run("echo '<3>sd 9:9:9:9: an error that is not' >/dev/kmsg")
        .success();
    let log = check.run("dmesg -r -c").success();
    let found = complaints(&log, check.expected);
    assert!(found.contains("an error that is not") && !found.contains("is expected"));
    check.end();
}
