//! Persistent reservations with sg_persist, from two sessions of one host, which are two nexuses.

use crate::{Check, QUIET, ROUGH, host::Host};

const CONFLICT: (&str, &str) = (
    "reservation conflict",
    "the write that a reservation has to keep out",
);
const NEXUS_ERROR: (&str, &str) = (
    "critical nexus error",
    "how older kernels put the same to the block layer",
);
const SUPPRESSED: (&str, &str) = (
    "callbacks suppressed",
    "the same line so often that the kernel counts it instead",
);

#[test]
fn reservations_keep_the_second_session_out_until_it_preempts() {
    let host = Host::serve("reservations", &Host::file(16));
    let expected = [
        CONFLICT,
        NEXUS_ERROR,
        SUPPRESSED,
        (
            "Parameters changed",
            "the unit attention RESERVATIONS or REGISTRATIONS PREEMPTED in Linux's words",
        ),
    ];
    let Some(check) = Check::begin(&QUIET, crate::expecting(&expected, &[])) else {
        return;
    };
    check
        .run(&format!("two_sessions {}", host.node()))
        .success();
    check
        .run(&format!("set -- $(disks {}); reserve_from $1 $2", host.iqn))
        .success();
    check
        .run(&format!("set -- $(disks {}); preempt_from $2 $1", host.iqn))
        .success();
    check.end();
}

#[test]
fn reservations_outlive_the_daemon_with_aptpl() {
    let mut host = Host::serve("aptpl", &Host::file(16));
    let expected = [CONFLICT, NEXUS_ERROR, SUPPRESSED];
    let Some(check) = Check::begin(&ROUGH, crate::expecting(&expected, crate::LOST)) else {
        return;
    };
    check
        .run(&format!("two_sessions {}", host.node()))
        .success();
    check
        .run(&format!(
            "set -- $(disks {}); reserve_from $1 $2 --param-aptpl",
            host.iqn
        ))
        .success();
    host.kill_and_restart();
    check
        .run(&format!("until_true 200 logged_in {} 2", host.iqn))
        .success();
    check
        .run(&format!(
            "set -- $(disks {}); still_reserved_from $1 $2",
            host.iqn
        ))
        .success();
    check.end();
}
