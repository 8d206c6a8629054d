//! `sanstone lab run` and `lab compare` from outside: every built-in profile in its quick form on a file and
//! on a stripe, what they write and what they never write, and how they end.

mod beside;
mod browser;
mod calls;
mod compared;
mod devtools;
mod ends;
mod history;
mod oltp;
mod planted;
mod profiles;
mod readme;
mod resumed;
mod sql_scan;
mod stopped;
mod surroundings;
mod tool;

use std::{
    ffi::OsStr,
    fs,
    io::{self, BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use harness::{
    directory::Directory,
    run::Ran,
    sanstone::{Sanstone, binary, call},
};
use serde_json::Value;

/// A directory for the outputs of one run.
struct Place {
    directory: Directory,
}

impl Place {
    fn new() -> Place {
        Place {
            directory: Directory::new(),
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).to_string_lossy().into_owned()
    }

    /// The command `lab` with these arguments, writing both output files.
    fn command(&self, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(binary());
        command.arg("lab").args(arguments);
        command.args(["--json", &self.path("lab.json")]);
        command.args(["--report", &self.path("lab.html")]);
        command
    }

    fn run(&self, arguments: &[impl AsRef<OsStr>]) -> Ran {
        harness::run::run(&mut self.command(arguments), limit(arguments))
    }

    fn json(&self) -> Value {
        let text = fs::read_to_string(self.directory.join("lab.json")).expect("it is there");
        serde_json::from_str(&text).expect("it is JSON")
    }

    /// The JSON written so far by a run that may still be in progress.
    fn kept(&self) -> Option<Value> {
        let text = fs::read_to_string(self.directory.join("lab.json")).ok()?;
        (!text.is_empty()).then(|| serde_json::from_str(&text).expect("it is whole"))
    }

    /// The HTML page, which must be self-contained.
    fn page(&self) -> String {
        let page = fs::read_to_string(self.directory.join("lab.html")).expect("it is there");
        for outside in ["http://", "https://", " src=", "@import", "url("] {
            assert!(!page.contains(outside), "the page has {outside}");
        }
        page
    }

    /// The arguments for a profile's quick form on the file `made.img`, which it creates, and on `db`.
    fn beside(&self, profile: &str, configuration: &str) -> Vec<String> {
        let file = self.path("made.img");
        let call = ["run", profile, "--quick", "-c", configuration];
        let on = ["--on", &file, "--on", "db"];
        call.iter()
            .chain(&on)
            .map(|&word| word.to_owned())
            .collect()
    }

    /// A configuration with the stripe `db` over two files, and `slow`, a file behind 5 ms.
    fn configuration(&self) -> String {
        let text = r#"
[volume.db]
stripe = { unit = "64KiB", of = [
  { file = { path = "a.img", size = "48MiB" } },
  { file = { path = "b.img", size = "48MiB" } },
] }

[volume.fast]
ram = { size = "8MiB" }

[volume.slow]
throttle = { rate = "100Gbit/s", latency = "5ms", of = { ram = { size = "8MiB" } } }
"#;
        let path = self.directory.write("volumes.toml", text);
        let path = path.to_string_lossy().into_owned();
        call(&["volume", "create", "-c", &path, "db"]).success();
        path
    }
}

/// How long a call may take. `--quick` promises a minute on an idle machine; here other tests run beside it, and the
/// binary is not optimised.
fn limit(arguments: &[impl AsRef<OsStr>]) -> Duration {
    let is_quick = arguments.iter().any(|word| word.as_ref() == "--quick");
    Duration::from_secs(if is_quick { 180 } else { 600 })
}

/// A target with the RAM disk `v` of this size, and the directory it runs in.
fn ram_target(size: &str) -> (Directory, Sanstone) {
    let directory = Directory::new();
    let volume = format!("[volume.v]\nram = {{ size = \"{size}\" }}\n");
    let target = Sanstone::serve(directory.path(), &volume, &["v"]);
    (directory, target)
}

/// A run that is killed when its test ends, however it ends.
struct Lab(Child);

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks common to all profiles: an answer, figures, and a page that shows them.
#[track_caller]
fn assert_told(place: &Place, ran: &Ran) -> Value {
    let json = place.json();
    let answer = json["answer"].as_str().expect("an answer");
    assert!(ran.stdout.contains(answer), "{ran}");
    assert_ne!(answer, "Nothing was measured.", "{ran}");
    assert_eq!(json["format"], 1);
    assert!(json["figures"].is_object(), "{json}");
    let page = place.page();
    for part in [
        "class=\"answer\"",
        "<svg",
        "data-tip=",
        "prefers-color-scheme: dark",
        "@media print",
    ] {
        assert!(page.contains(part), "the page has no {part}");
    }
    assert_adds_up(&json);
    json
}

/// Checks that the layers a profile shows add up to the whole: at the mean, at the median and at the 99th percentile.
#[track_caller]
fn assert_adds_up(json: &Value) {
    let Some(layers) = json["layers"].as_array() else {
        return;
    };
    for at in ["mean_us", "p50_us", "p99_us"] {
        let of = |times: &Value| times[at].as_f64().expect("a time");
        let parts: f64 = layers.iter().map(of).sum();
        let total = of(&json["total"]);
        assert!(
            (parts / total - 1.0).abs() < 0.05,
            "{at}: {parts} of {total}: {json}"
        );
    }
}

/// Checks that nothing is left of a file created for a run.
#[track_caller]
fn assert_gone(path: &str) {
    assert!(!Path::new(path).exists(), "{path} was left");
}

/// Starts `lab`, and waits until it has printed a line that contains `told`.
fn begun(mut lab: Command, told: &str) -> Child {
    let mut lab = lab
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(lab.stderr.take().expect("it is piped")).lines();
    let is_it = |line: &io::Result<String>| line.as_ref().is_ok_and(|line| line.contains(told));
    // This test must not leave anything behind either.
    if !lines.any(|line| is_it(&line)) {
        let _ = (lab.kill(), lab.wait());
        panic!("it never told of {told}");
    }
    thread::spawn(move || lines.for_each(drop));
    lab
}
