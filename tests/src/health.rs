//! What a running `serve` or `attach` says about how it is. A trouble counts as shown when `status`, `show` and `top` have its
//! line at the same time, and as over when none of them has it.

use crate::run::Ran;
use crate::sanstone::call;
use serde_json::Value;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a line may take to come or go on a busy machine. What is promised is [`volume::SHOWN_WITHIN`], five seconds: the
/// limits that make it so are bound to it where they are set, since a test must not depend on a clock.
const LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);

/// The three who say it, of the process with this state directory.
#[derive(Debug)]
pub struct Health {
    state: String,
}

/// What they say at one time.
#[derive(Debug)]
struct Said {
    status: Ran,
    show: Ran,
    top: Value,
}

impl Health {
    /// Of the process with this state directory.
    pub fn of(state: &Path) -> Health {
        let state = state.to_str().expect("our paths are plain text");
        Health {
            state: state.to_owned(),
        }
    }

    /// Waits until `status` ends with this exit code, and all three have a line with `part`; returns that line. Every line
    /// has a mend.
    ///
    /// # Panics
    /// If that does not happen.
    #[track_caller]
    pub fn shows(&self, code: i32, part: &str) -> String {
        let said = self.until(part, |said| said.has_all(code, part));
        let line = said.status.stdout.lines().find(|line| line.contains(part));
        let line = line.expect("it has it").trim_start();
        for reason in said.reasons() {
            let has = |field: &str| reason[field].as_str().is_some_and(|text| !text.is_empty());
            assert!(["of", "what", "mend"].into_iter().all(has), "{reason}");
        }
        line.to_owned()
    }

    /// Waits until none of them has a line with `part`.
    ///
    /// # Panics
    /// If that does not happen.
    #[track_caller]
    pub fn ends(&self, part: &str) {
        self.until(&format!("end of {part}"), |said| said.has_none(part));
    }

    /// Waits until all three say that all is well.
    ///
    /// # Panics
    /// If that does not happen.
    #[track_caller]
    pub fn is_ok(&self) {
        self.until("ok", Said::is_ok);
    }

    /// The next interval of `top`.
    ///
    /// # Panics
    /// If there is none.
    pub fn top(&self) -> Value {
        let once = ["top", "--interval", "0.1", "--once", "--json", "-"];
        let ran = call(&[&once, &["--state", &self.state][..]].concat()).success();
        serde_json::from_str(&ran.stdout).expect("it is JSON")
    }

    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn(&Said) -> bool) -> Said {
        let deadline = Instant::now() + LIMIT;
        loop {
            let said = Said {
                status: call(&["status", "--state", &self.state]),
                top: self.top(),
                show: call(&["show", "--state", &self.state]).success(),
            };
            if is_so(&said) {
                return said;
            }
            assert!(Instant::now() < deadline, "no {what}: {said:#?}");
            sleep(PAUSE);
        }
    }
}

impl Said {
    fn reasons(&self) -> impl Iterator<Item = &Value> {
        self.top["verdict"]["reasons"]
            .as_array()
            .into_iter()
            .flatten()
    }

    /// The health according to each, and whether it has a line with `part`.
    fn of(&self, part: &str) -> [(String, bool); 3] {
        let has = |text: &str| text.lines().any(|line| line.contains(part));
        let word = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        let (_, shown) = self
            .show
            .stdout
            .split_once("health        ")
            .unwrap_or_default();
        let (shown, _) = shown.split_once("\n\n").unwrap_or((shown, ""));
        let reasons = self.reasons().map(|reason| {
            let of = |field: &str| reason[field].as_str().unwrap_or_default();
            format!("{}: {}; {}", of("of"), of("what"), of("mend"))
        });
        let top = self.top["verdict"]["health"].as_str().unwrap_or_default();
        [
            (word(&self.status.stdout), has(&self.status.stdout)),
            (word(shown), has(shown)),
            (top.to_owned(), has(&reasons.collect::<Vec<_>>().join("\n"))),
        ]
    }

    fn has_all(&self, code: i32, part: &str) -> bool {
        let said = self.of(part);
        let is_same = |(word, has): &(String, bool)| *has && *word == said[0].0;
        self.status.code() == Some(code) && said.iter().all(is_same)
    }

    fn has_none(&self, part: &str) -> bool {
        self.of(part).iter().all(|(_, has)| !has)
    }

    fn is_ok(&self) -> bool {
        let is_ok = |(word, _): &(String, bool)| word == "ok";
        self.status.code() == Some(0) && self.of("").iter().all(is_ok)
    }
}
