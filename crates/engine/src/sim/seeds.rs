//! Runs a test under many seeds and prints how to replay the one that failed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};

/// Runs `run` with the seeds 0 to `n` - 1.
///
/// `SANSTONE_SEED=17` runs only seed 17 (decimal, or hexadecimal after `0x`), `SANSTONE_SEEDS=5000`
/// sets the number of seeds. If a seed fails, the command to replay it is printed and the panic
/// continues.
pub fn seeds(n: u64, mut run: impl FnMut(u64)) {
    let only = number("SANSTONE_SEED");
    let n = number("SANSTONE_SEEDS").unwrap_or(n);
    let range = only.map_or(0..n, |seed| seed..seed + 1);
    for seed in range {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("seed {seed} failed; replay it with\n    {}", replay(seed));
            resume_unwind(panic);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(number) => Some(number),
        Err(_) => panic!("{variable}={text} is not a number: write it as 17 or 0x11"),
    }
}

/// The command that runs the current test with `seed` alone.
pub fn replay(seed: u64) -> String {
    SeededRun::current(seed).replay()
}

/// One run of a test: what it takes to name it, and to repeat it.
#[derive(Clone, Debug)]
pub(super) struct SeededRun {
    pub(super) seed: u64,
    /// `None` outside of tests.
    test: Option<String>,
}

impl SeededRun {
    /// The run of the current test with `seed`.
    pub(super) fn current(seed: u64) -> SeededRun {
        // The test harness names each test's thread after the test.
        let thread = std::thread::current();
        let test = thread.name().filter(|name| *name != "main");
        let test = test.map(str::to_owned);
        SeededRun { seed, test }
    }

    /// The command that repeats it.
    fn replay(&self) -> String {
        let package =
            std::env::var("CARGO_PKG_NAME").map_or(String::new(), |name| format!(" -p {name}"));
        // With another profile everything would be compiled again.
        let program = std::env::current_exe().unwrap_or_default();
        let profile =
            profile_of(&program).map_or(String::new(), |name| format!(" --profile {name}"));
        let test = self.test.as_ref();
        let test = test.map_or(String::new(), |name| format!(" {name} -- --exact"));
        let seed = self.seed;
        format!("SANSTONE_SEED={seed} cargo test{package}{profile}{test}")
    }

    /// The message that it has failed because of `what`.
    pub(super) fn failed(&self, what: &str) -> String {
        let of = self.test.as_ref();
        let of = of.map_or(String::new(), |name| format!(" of {name}"));
        let (seed, replay) = (self.seed, self.replay());
        format!("seed {seed}{of}, {what}\nreplay it with\n    {replay}")
    }
}

/// The profile that a test program was built with, unless it is the default one: `target/PROFILE/deps/PROGRAM`.
fn profile_of(program: &Path) -> Option<&str> {
    let mut parents = program.ancestors().skip(1);
    let deps = parents.next()?.file_name()?;
    let profile = parents.next()?.file_name()?.to_str()?;
    (deps == "deps" && profile != "debug").then_some(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_seed_is_named_by_a_command_and_the_panic_goes_on() {
        let mut tried = Vec::new();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            seeds(10, |seed| {
                tried.push(seed);
                assert!(seed < 3, "as the test wants it");
            });
        }));
        assert!(panic.is_err());
        if std::env::var("SANSTONE_SEED").is_err() {
            assert_eq!(tried, [0, 1, 2, 3]);
        }
        let command = replay(3);
        assert!(
            command.starts_with("SANSTONE_SEED=3 cargo test"),
            "{command}"
        );
    }

    #[test]
    fn the_command_names_the_profile_that_the_test_was_built_with() {
        let profile = |path| profile_of(Path::new(path));
        assert_eq!(
            profile("/src/target/tested/deps/scenarios-1"),
            Some("tested")
        );
        assert_eq!(profile("/src/target/release/deps/x-1"), Some("release"));
        assert_eq!(profile("/src/target/debug/deps/scenarios-1"), None);
        assert_eq!(profile("scenarios-1"), None);
    }
}
