//! An idle server leaves the processor alone, also with many sessions open and after it was busy.

use harness::disk::Disk;
use harness::process::program;
use harness::procfs::cpu_time;
use harness::run::run;
use harness::wire::Session;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

#[test]
fn an_idle_server_uses_less_than_one_percent_of_a_core() {
    let disk = Disk::new(64 << 20);
    let (target, lun) = disk.target_and_lun();
    let sessions = (1..=64).map(|number| {
        let mut session =
            Session::login(disk.address(), target, lun, number, &[]).expect("a login");
        session.wait_until_ready().expect("a ready disk");
        session
    });
    let _sessions: Vec<Session> = sessions.collect();
    let mut load = Command::new(program("iscsi-perf", "libiscsi-bin"));
    run(load.args(["-t", "1", &disk.url]), Duration::from_secs(120)).success();
    sleep(Duration::from_secs(1)); // whatever polls adaptively has gone to sleep by now
    let (begin, used) = (Instant::now(), cpu_time(disk.pid));
    sleep(Duration::from_secs(5));
    let used = cpu_time(disk.pid) - used;
    let share_percent = 100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64();
    println!("idle: {share_percent:.3} % of a core");
    assert!(
        share_percent < 1.0,
        "idle, it uses {share_percent:.2} % of a core"
    );
}
