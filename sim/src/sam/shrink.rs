//! Runs scripts and shrinks those that fail, by leaving out one step after the other as long as the rest still fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    check::check,
    counters::{Counters, count},
    run::run,
    script::Script,
};

/// Runs `script`; the rules that were broken and what happened, if any were.
pub fn fails(script: &Script, counters: &mut Counters) -> Option<String> {
    let judged = catch_unwind(AssertUnwindSafe(|| {
        let history = run(script);
        let history = history.lock();
        count(script, &history, counters);
        let faults = check(&script.setup, &history);
        (!faults.is_empty()).then(|| {
            let (faults, trace) = (faults.join("\n  "), history.trace.join("\n"));
            format!("{trace}\n\nbroken rules:\n  {faults}")
        })
    }));
    judged.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or(panic.downcast_ref::<&str>().copied());
        Some(format!("it panics: {}", said.unwrap_or("without words")))
    })
}

/// The smallest failing script found by leaving out steps of `script`, with its failure.
pub fn shrink(mut script: Script, mut failure: String) -> (Script, String) {
    loop {
        let before = script.steps.len();
        let mut index = before;
        while index > 0 {
            index -= 1;
            let mut smaller = script.clone();
            smaller.steps.remove(index);
            if let Some(still) = fails(&smaller, &mut Counters::new()) {
                (script, failure) = (smaller, still);
            }
        }
        if script.steps.len() == before {
            return (script, failure);
        }
    }
}
