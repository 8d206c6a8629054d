//! Commands, task management and data in random segments, against a model of SAM-5's task set. `SANSTONE_SEEDS=100000`
//! tries more cases than the default; a failing one is shrunk and printed with its history and the command that replays
//! it.

use engine::sim::seeds;
use sim::sam::{self, Counters, HARD_CASES, Script};

/// The default number of cases.
const CASES: u64 = 30_000;

fn judge(script: Script, counters: &mut Counters) {
    if let Some(failure) = sam::fails(&script, counters) {
        let (script, failure) = sam::shrink(script, failure);
        panic!("{script:#?}\n{failure}");
    }
}

#[test]
fn what_becomes_of_commands_is_what_a_task_set_allows() {
    let mut counters = Counters::new();
    let mut cases = 0;
    seeds(CASES, |seed| {
        cases += 1;
        judge(Script::draw(seed), &mut counters);
    });
    let times = |what: &str| counters.get(what).copied().unwrap_or(0);
    for what in HARD_CASES {
        println!("{:>7}  {what}", times(what));
    }
    let missed: Vec<&str> = HARD_CASES
        .into_iter()
        .filter(|what| times(what) == 0)
        .collect();
    // A few chosen seeds prove what they are chosen for.
    assert!(
        missed.is_empty() || cases < CASES,
        "it never occurred: {missed:?}"
    );
}

#[test]
fn errors_that_were_found_stay_mended() {
    seeds(50, |seed| {
        for (name, script) in sam::known(seed) {
            println!("{name}");
            judge(script, &mut Counters::new());
        }
    });
}
