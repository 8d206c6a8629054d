//! Runs libiscsi's conformance suite and counts the outcomes.
//!
//! `iscsi-test-cu` reports skipped tests as passed, runs most tests two or three times, and a test that hangs blocks
//! the whole run. So each suite of its family `ALL`, which contains every test once, is run separately and killed when
//! it has been silent for too long; the tests after one that did not end are then run one by one.

use crate::process::program;
use crate::run::run_unless_silent;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

/// How one test of the suite came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every assertion held and nothing was skipped.
    Passed,
    /// The test found a reason not to run, given here, and no assertion failed.
    Skipped(String),
    /// An assertion failed, with what the test printed about it.
    Failed(String),
    /// It printed no verdict, because it hung, crashed or aborted; with what it had printed.
    NoEnd(String),
}

impl Outcome {
    /// The word for it in an expectation file.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Skipped(_) => "skipped",
            Outcome::Failed(_) => "failed",
            Outcome::NoEnd(_) => "no-end",
        }
    }

    /// The reason or the complaint, empty for a test that passed.
    pub fn detail(&self) -> &str {
        match self {
            Outcome::Passed => "",
            Outcome::Skipped(text) | Outcome::Failed(text) | Outcome::NoEnd(text) => text,
        }
    }
}

/// Outcomes by `Suite.Test`.
pub type Outcomes = BTreeMap<String, Outcome>;

/// How long a single test may be silent before it counts as hung. The slowest correct one polls once a minute whether a
/// sanitize has ended.
const SILENCE: Duration = Duration::from_secs(300);

/// What may be written in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destroys {
    /// The whole disk.
    Everything,
    /// Nothing, on a disk that must refuse writes: only the suite that tries this is allowed to write.
    OnlyWhatIsReadOnly,
}

/// Runs the tests of the suites in `only` (all if it is empty) on the disk at this URL. `arguments` are further
/// options, or the URL of a second path for the multipath tests.
///
/// # Panics
/// If iscsi-test-cu is missing.
pub fn run_suite(url: &str, arguments: &[&str], destroys: Destroys, only: &[&str]) -> Outcomes {
    let cu = program("iscsi-test-cu", "libiscsi-bin");
    let list = run_unless_silent(Command::new(&cu).arg("--list"), SILENCE, SILENCE).success();
    let mut suites: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in list.stdout.lines() {
        match *line.trim().split('.').collect::<Vec<_>>() {
            ["ALL", suite] => suites.push((suite, Vec::new())),
            ["ALL", suite, test] => match suites.last_mut() {
                Some((last, tests)) if *last == suite => tests.push(test),
                _ => suites.push((suite, vec![test])),
            },
            _ => {}
        }
    }
    let run_filter = |filter: &str| {
        let mut command = Command::new(&cu);
        if destroys == Destroys::Everything || filter.starts_with("ALL.ReadOnly") {
            command.arg("-d");
        }
        let of_all = arguments.iter().filter(|a| !a.starts_with("iscsi://"));
        let paths = arguments.iter().filter(|a| a.starts_with("iscsi://"));
        command.args(of_all).args(["-t", filter, url]);
        // A reservation that a test leaves on its second path would disturb the next test.
        if filter.starts_with("ALL.MultipathIO") {
            command.args(paths);
        }
        count(&run_unless_silent(&mut command, SILENCE, SILENCE * 10).text())
    };
    let mut outcomes = Outcomes::new();
    suites.retain(|(suite, _)| only.is_empty() || only.contains(suite));
    for (suite, tests) in suites {
        outcomes.extend(run_filter(&format!("ALL.{suite}")));
        for test in tests {
            let name = format!("{suite}.{test}");
            outcomes.entry(name.clone()).or_insert_with(|| {
                let alone = run_filter(&format!("ALL.{name}")).remove(&name);
                alone.unwrap_or_else(|| Outcome::NoEnd("did not run".into()))
            });
        }
    }
    outcomes
}

/// Merges the outcomes of several disks: a test passes if it passed on at least one disk and failed on none.
pub fn together(disks: &[Outcomes]) -> Outcomes {
    let mut all = Outcomes::new();
    for (name, outcome) in disks.iter().flatten() {
        let better = |old: &Outcome| match (old, outcome) {
            (Outcome::Passed, Outcome::Skipped(_)) => true,
            (Outcome::Skipped(_), Outcome::Passed) => false,
            _ => rank(old) >= rank(outcome),
        };
        if !all.get(name).is_some_and(better) {
            all.insert(name.clone(), outcome.clone());
        }
    }
    all
}

/// Parses the suite's output: one outcome per test, the worst if a test ran twice.
pub fn count(output: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut suite = "";
    let mut open: Option<(String, String)> = None;
    let mut close = |open: &mut Option<(String, String)>| {
        if let Some((name, text)) = open.take() {
            let outcome = judge(&text);
            let better = |old: &Outcome| rank(old) >= rank(&outcome);
            if !outcomes.get(&name).is_some_and(better) {
                outcomes.insert(name, outcome);
            }
        }
    };
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("Suite: ") {
            close(&mut open);
            suite = name.trim();
        } else if let Some((name, rest)) = line
            .trim_start()
            .strip_prefix("Test: ")
            .and_then(|line| line.split_once(" ..."))
        {
            close(&mut open);
            open = Some((format!("{suite}.{name}"), format!("{rest}\n")));
        } else if line.starts_with("Run Summary:") {
            close(&mut open);
        } else if let Some((_, text)) = &mut open {
            text.push_str(line);
            text.push('\n');
        }
    }
    close(&mut open);
    outcomes
}

/// CUnit's verdict is a word at the end of a line; `[FAILED]` and `[SKIPPED]` are libiscsi's own messages.
fn judge(text: &str) -> Outcome {
    // Messages from the suite's cleanup may follow the verdict of its last test.
    let ends_with = |word: &str| {
        let talk = format!("{word}    ");
        text.lines().any(|line| {
            line.split(' ').next_back() == Some(word) || line.trim_start().starts_with(&talk)
        })
    };
    let said = |mark: &str| {
        text.lines()
            .filter(|line| !line.trim_start().starts_with("passed    "))
            .find_map(|line| line.split_once(mark))
            .map(|(_, why)| why.trim().to_owned())
    };
    // Some tests do not check whether they may write, and fail when they are refused.
    let refused_itself = text.contains("--dataloss flag is not set in");
    if refused_itself {
        Outcome::Skipped("--dataloss flag is not set".to_owned())
    } else if ends_with("FAILED") {
        Outcome::Failed(said("[FAILED]").unwrap_or_else(|| "an assertion failed".to_owned()))
    } else if let Some(reason) = said("[SKIPPED]") {
        Outcome::Skipped(reason)
    } else if ends_with("passed") {
        Outcome::Passed
    } else {
        Outcome::NoEnd(
            text.trim()
                .lines()
                .last()
                .unwrap_or("printed nothing")
                .trim()
                .to_owned(),
        )
    }
}

fn rank(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Passed => 0,
        Outcome::Skipped(_) => 1,
        Outcome::NoEnd(_) => 2,
        Outcome::Failed(_) => 3,
    }
}

/// `230 tests: 159 passed, 62 skipped, 8 failed, 1 without an end`
pub fn summary(outcomes: &Outcomes) -> String {
    let of = |word| {
        outcomes
            .values()
            .filter(|outcome| outcome.word() == word)
            .count()
    };
    format!(
        "{} tests: {} passed, {} skipped, {} failed, {} without an end",
        outcomes.len(),
        of("passed"),
        of("skipped"),
        of("failed"),
        of("no-end")
    )
}

/// The outcomes as an expectation file holds them: a line for each test, sorted by name.
pub fn expectation(outcomes: &Outcomes) -> String {
    outcomes
        .iter()
        .fold(String::new(), |mut text, (name, outcome)| {
            let _ = writeln!(text, "{name} {}", outcome.word());
            text
        })
}

/// The differences from an expectation file, one line each, with the test's own message.
pub fn differences(expected: &str, outcomes: &Outcomes) -> Vec<String> {
    let expected: BTreeMap<&str, &str> = expected
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .collect();
    let mut differences = Vec::new();
    for (name, outcome) in outcomes {
        let before = expected.get(&**name).copied().unwrap_or("not listed");
        if before != outcome.word() {
            let (now, detail) = (outcome.word(), outcome.detail());
            differences.push(format!("{name}: expected {before}, now {now}: {detail}"));
        }
    }
    for (name, before) in expected {
        if !outcomes.contains_key(name) {
            differences.push(format!("{name}: expected {before}, now it did not run"));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\nSuite: Read10\n  Test: Simple ...passed\n  \
        Test: BeyondEol ...    [FAILED] READ10 successful but should have failed\nFAILED\n    \
        1. test.c:38  - CU_ASSERT_EQUAL(_r,0)\n  \
        Test: Async ...    [SKIPPED] too small\n    [SKIPPED] too small\npassed\n  \
        Test: Control ...    [WARNING] BUSY_TIMEOUT_PERIOD is undefined.\npassed\n\
        Suite: Write10\n  Test: Hung ...    Sending\n";

    #[test]
    fn each_kind_of_outcome_is_told_apart() {
        let outcomes = count(OUTPUT);
        let words: Vec<_> = outcomes
            .iter()
            .map(|(name, o)| (&**name, o.word()))
            .collect();
        assert_eq!(
            words,
            [
                ("Read10.Async", "skipped"),
                ("Read10.BeyondEol", "failed"),
                ("Read10.Control", "passed"),
                ("Read10.Simple", "passed"),
                ("Write10.Hung", "no-end"),
            ]
        );
        let said = outcomes["Read10.BeyondEol"].detail();
        assert_eq!(said, "READ10 successful but should have failed");
        assert_eq!(
            summary(&outcomes),
            "5 tests: 2 passed, 1 skipped, 1 failed, 1 without an end"
        );
    }

    #[test]
    fn talk_behind_the_verdict_does_not_hide_it() {
        let output = "Suite: Reserve6\n  Test: LUNReset ...passed    [FAILED] PRIN command: \
            failed with sense.\n\nRun Summary:    Type\n";
        assert_eq!(count(output)["Reserve6.LUNReset"], Outcome::Passed);
    }

    #[test]
    fn a_test_that_ran_twice_counts_once_with_its_worse_outcome() {
        let twice = format!("{OUTPUT}Suite: Read10\n  Test: Simple ...FAILED\n{OUTPUT}");
        let outcomes = count(&twice);
        assert_eq!(
            (outcomes.len(), outcomes["Read10.Simple"].word()),
            (5, "failed")
        );
    }

    #[test]
    fn a_change_in_either_direction_is_a_difference() {
        let outcomes = count(OUTPUT);
        assert!(differences(&expectation(&outcomes), &outcomes).is_empty());
        let expected = expectation(&outcomes)
            .replace("BeyondEol failed", "BeyondEol passed")
            .replace("Hung no-end", "Gone passed");
        assert_eq!(differences(&expected, &outcomes).len(), 3);
    }
}
