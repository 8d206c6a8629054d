//! `sanstone lab …`: measurements.

mod profiles;

use std::{net::ToSocketAddrs, path::PathBuf, time::Duration};

use ::lab::bench::{self, Other, Settings, file};
use anyhow::{Context, anyhow};
use clap::Subcommand;

use crate::{
    failure::Failure,
    log,
    output::{self, OutputFile},
};

#[derive(Subcommand)]
pub(crate) enum LabVerb {
    /// Run a profile on a volume, a file, a block device or an iSCSI disk, and report the findings.
    ///
    /// SIGINT ends it early and keeps what was measured; a second one ends it at once. A profile that writes
    /// refuses a disk that holds data, unless --overwrite is given.
    Run(profiles::RunCall),
    /// Compare two disks, in turn, under the loads of a profile, and report whether they differ.
    Compare(profiles::CompareCall),
    /// Report where the results changed in a series of runs of one profile.
    History(profiles::HistoryCall),
    /// List the built-in profiles, or print one.
    Profiles(profiles::ProfilesCall),
    /// Compare this target with tgt and with bare TCP: I/Os per second, latency, CPU per I/O.
    #[command(after_help = bench_loads())]
    Bench {
        /// How often to run each load on each target.
        #[arg(long, default_value_t = 10)]
        rounds: usize,
        /// How long to run a load each time.
        #[arg(long, default_value_t = 0.25)]
        seconds: f64,
        /// Run only the loads whose names contain this text, such as "128K".
        #[arg(long, value_name = "TEXT", default_value = "")]
        only: String,
        /// Write all samples to this file as JSON.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Append a summary to this Markdown file.
        #[arg(long, value_name = "FILE")]
        history: Option<PathBuf>,
        /// The directory for the files that are served, seven of 512 MiB, removed at the end.
        #[arg(long, value_name = "DIR", default_value = ".")]
        dir: PathBuf,
        /// Another running target to compare with: NAME=iscsi://HOST:PORT/TARGET/LUN,PID. Its disk is written to.
        #[arg(long, value_name = "TARGET")]
        with: Vec<String>,
        /// Write to disks of other targets that hold data: all of it may be lost.
        #[arg(long, requires = "with")]
        overwrite: bool,
    },
    /// Compare a `file` volume with fio on the same file, with direct I/O: throughput, CPU per I/O.
    #[command(after_help = file_loads())]
    BenchFile {
        /// Where to create the test file, on the disk to measure: 512 MiB, removed at the end.
        path: PathBuf,
        /// How many pairs of runs (this program, then fio) to make of each load.
        #[arg(long, default_value_t = 20)]
        pairs: usize,
        /// How long each run takes.
        #[arg(long, default_value_t = 0.5)]
        seconds: f64,
        /// Write all samples to this file as JSON.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// The other end of the benchmark's bare TCP.
    #[command(hide = true)]
    Floor,
}

fn bench_loads() -> String {
    format!(
        "Loads (--only selects some of them):\n  {}\n\nEach round runs each load on each target for \
         --seconds: about 10 minutes at the defaults, with tgt installed.",
        bench::names().join("\n  ")
    )
}

fn file_loads() -> String {
    format!(
        "Loads:\n  {}\n\nEach is run 2 × --pairs times for --seconds: about a minute and a half at the defaults.",
        file::names().join("\n  ")
    )
}

pub(crate) fn run(verb: LabVerb) -> Result<(), Failure> {
    match verb {
        LabVerb::Run(call) => profiles::run_profile(&call)?,
        LabVerb::Compare(call) => profiles::compare_two(&call)?,
        LabVerb::History(call) => profiles::tell_history(&call)?,
        LabVerb::Profiles(call) => profiles::list(&call)?,
        LabVerb::Floor => bench::serve_floor()?,
        LabVerb::Bench {
            rounds,
            seconds,
            only,
            json,
            history,
            dir,
            with,
            overwrite,
        } => {
            let with: Vec<Other> = with
                .iter()
                .map(|text| other(text))
                .collect::<Result<_, _>>()?;
            bench::check_only(&only)
                .map_err(|message| Failure::Wrong(format!("--only: {message}")))?;
            bench::check_others(&with)
                .map_err(|message| Failure::Wrong(format!("--with: {message}")))?;
            let settings = Settings {
                binary: std::env::current_exe().context("finding our own binary")?,
                rounds: at_least_one("--rounds", rounds)?,
                duration: duration(seconds)?,
                only,
                directory: dir,
                others: with,
                overwrite,
            };
            let json = json.as_deref().map(OutputFile::open).transpose()?;
            // Check it now; at the end the run is appended to the file as it is then.
            let history_at = history.as_deref();
            history_at.map(output::check_appendable).transpose()?;
            let report = bench::run(&settings, |line| log::say(line)).map_err(profiles::refused)?;
            output::print(report.table())?;
            write_json(json, &report.json())?;
            if let Some(path) = history {
                report.append_history(&path)?;
            }
        }
        LabVerb::BenchFile {
            path,
            pairs,
            seconds,
            json,
        } => {
            let settings = file::Settings {
                path,
                pairs,
                duration: duration(seconds)?,
            };
            let json = json.as_deref().map(OutputFile::open).transpose()?;
            let report = file::run(&settings, |line| log::say(line))?;
            output::print(report.table())?;
            write_json(json, &report.json())?;
        }
    }
    Ok(())
}

fn at_least_one(option: &str, count: usize) -> Result<usize, Failure> {
    match count {
        0 => Err(Failure::Wrong(format!("{option} 0: write 1 or more"))),
        count => Ok(count),
    }
}

fn duration(seconds: f64) -> Result<Duration, Failure> {
    if (0.01..=3600.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(Failure::Wrong(format!(
        "--seconds {seconds}: write 0.01 to 3600"
    )))
}

fn write_json(file: Option<OutputFile>, value: &serde_json::Value) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    file.write(&serde_json::to_string_pretty(value)?)
}

/// A target to compare with.
fn other(text: &str) -> Result<Other, Failure> {
    // What is before an @ may be a secret, so it is not repeated.
    if text.contains('@') {
        return Err(Failure::Wrong(
            "--with: this benchmark logs in without a user; leave out the part of the URL before the @".into(),
        ));
    }
    parsed(text).map_err(|error| Failure::Wrong(format!("--with {text}: {error:#}")))
}

fn parsed(text: &str) -> anyhow::Result<Other> {
    let parse = || {
        let (name, rest) = text.split_once('=')?;
        let (url, pid) = rest.rsplit_once(',')?;
        let (portal, path) = url
            .strip_prefix("iscsi://")
            .unwrap_or(url)
            .split_once('/')?;
        let (target, lun) = path.rsplit_once('/')?;
        Some((name, portal, target, lun.parse().ok()?, pid.parse().ok()?))
    };
    let (name, portal, target, lun, pid) =
        parse().ok_or_else(|| anyhow!("write NAME=iscsi://HOST:PORT/TARGET/LUN,PID"))?;
    let address = match engine::zone::parse(portal) {
        Some(address) => Some(address),
        None => portal
            .to_socket_addrs()
            .with_context(|| format!("{portal} is not HOST:PORT of a portal"))?
            .next(),
    };
    Ok(Other {
        name: name.into(),
        address: address.with_context(|| format!("{portal} has no address"))?,
        target: target.into(),
        lun,
        pid,
    })
}
