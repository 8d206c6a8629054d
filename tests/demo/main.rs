//! `sanstone demo` from outside: its figures, its files, its exit codes, and that it leaves nothing behind, however it
//! ends.

mod calls;
mod ends;
mod figures;

use harness::{directory::Directory, run::Ran, sanstone::binary};
use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// A directory for the shares' files, empty at the beginning, and one for what is kept.
struct Place {
    shares: Directory,
    kept: Directory,
}

impl Place {
    fn new() -> Place {
        Place {
            shares: Directory::new(),
            kept: Directory::new(),
        }
    }

    /// The call with these arguments.
    fn call(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("demo").args(arguments);
        for (option, path) in [
            ("--dir", self.shares.path().to_owned()),
            ("--report", self.kept.join("report.html")),
            ("--json", self.kept.join("demo.json")),
        ] {
            if !arguments.contains(&option) {
                command.arg(option).arg(path);
            }
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        harness::run::run(&mut self.call(arguments), Duration::from_secs(120))
    }

    fn json(&self) -> serde_json::Value {
        let text = fs::read_to_string(self.kept.join("demo.json")).expect("the figures are there");
        serde_json::from_str(&text).expect("they are JSON")
    }

    /// The running shares: the processes whose configuration lies in this place.
    fn share_processes(&self) -> Vec<u32> {
        let of_ours = |pid: &u32| {
            let call = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let call = String::from_utf8_lossy(&call);
            call.contains("serve") && call.contains(&*self.shares.path().to_string_lossy())
        };
        let all = fs::read_dir("/proc").expect("/proc is there");
        let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(of_ours).collect()
    }

    /// Fails unless all processes and files are gone within a minute, which a busy machine may need.
    #[track_caller]
    fn assert_nothing_is_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.share_processes().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let processes = self.share_processes();
        assert!(processes.is_empty(), "left running: {processes:?}");
        let files = names(self.shares.path());
        assert!(files.is_empty(), "left in the shares' directory: {files:?}");
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the directory is there");
    entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect()
}
