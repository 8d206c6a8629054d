//! `sanstone lab run`, `lab compare`, `lab profiles` and `lab history`: run a profile once or on two things
//! alternately, list the profiles, or analyse a series of runs.

use std::path::{Path, PathBuf};

use ::lab::{
    Configured, On,
    compare::{self, compare},
    drive_stats::{DailyFile, RowSource},
    history::history,
    input,
    load::Stop,
    profile::{BUILT_IN, Profile},
    progress::ProgressOutput,
    report::{Findings, page},
    run,
};
use anyhow::Context;
use clap::Args;
use node::{Config, Measuring};
use serde_json::Value;

use crate::{
    descriptors,
    discover::Account,
    failure::VerbFailure,
    log,
    output::{self, OutputFile},
};

use super::stop::stopped_by_signals;

/// `sanstone lab history`.
#[derive(Args)]
pub(crate) struct HistoryCall {
    /// The JSON files of the runs, oldest first.
    #[arg(required = true, value_name = "FILE")]
    runs: Vec<PathBuf>,
    /// Write all figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report, one HTML page, to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// What both calls have.
#[derive(Args)]
struct Common {
    /// The configuration file that has the volumes.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Run the profile's quick form, which ends within a minute.
    #[arg(long)]
    quick: bool,
    /// Write to disks that hold data: all of it may be lost.
    #[arg(long)]
    overwrite: bool,
    /// What to log in as to the disks named by an iSCSI URL.
    #[command(flatten)]
    account: Account,
    /// Load Backblaze's daily CSV files in the order of their dates, plain, .gz or in .zip archives as published; for
    /// sql-scan.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    data: Vec<PathBuf>,
    /// Extend the data to this many days by ageing the drives of the last file.
    #[arg(long, value_name = "N", requires = "data")]
    days: Option<u32>,
    /// Write all figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report, one HTML page, to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// `sanstone lab run`.
#[derive(Args)]
pub(crate) struct RunCall {
    /// A profile: a name that `lab profiles` lists, or a TOML file.
    profile: String,
    /// What to run it on: a volume of the configuration, a file or block device, or an iSCSI URL. A path that
    /// does not exist becomes a file, which is removed at the end. May be given several times.
    #[arg(long, value_name = "VOLUME|PATH|URL")]
    on: Vec<On>,
    #[command(flatten)]
    common: Common,
    /// Also measure the processor time of this process, such as the target's.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Run each load with fio as well, on the same file or device.
    #[arg(long, value_name = "TOOL", value_parser = ["fio"])]
    with: Option<String>,
    /// Continue the run that wrote the --json file, if it was interrupted.
    #[arg(long, requires = "json", conflicts_with = "with")]
    resume: bool,
}

/// `sanstone lab compare`.
#[derive(Args)]
pub(crate) struct CompareCall {
    /// A volume of the configuration, a file or block device, or an iSCSI URL.
    a: On,
    /// What to compare it with.
    #[arg(required_unless_present = "with")]
    b: Option<On>,
    /// Compare with fio under the same loads on the same file or device, instead of with a second disk.
    #[arg(long, value_name = "TOOL", value_parser = ["fio"], conflicts_with = "b")]
    with: Option<String>,
    /// The profile whose loads to run on both.
    #[arg(long, value_name = "PROFILE")]
    profile: String,
    /// How many pairs of runs to make of each load.
    #[arg(long, value_name = "N", default_value_t = 12)]
    pairs: usize,
    /// Also compare what each percent of a processor does: the processes of A and of B, in that order, such as two
    /// targets.
    #[arg(long, num_args = 2, value_names = ["PID_OF_A", "PID_OF_B"], conflicts_with = "with")]
    pids: Option<Vec<u32>>,
    #[command(flatten)]
    common: Common,
}

/// `sanstone lab profiles`.
#[derive(Args)]
pub(crate) struct ProfilesCall {
    /// Print this profile, for you to copy and change.
    name: Option<String>,
}

pub(crate) fn run_profile(call: &RunCall) -> Result<(), VerbFailure> {
    let profile = call.common.profile(&call.profile)?;
    check_process("--pid", call.pid)?;
    let login = call.common.account.settings()?;
    let options = run::Options {
        on: call
            .on
            .iter()
            .map(|on| on.clone().logging_in(&login))
            .collect(),
        overwrite: call.common.overwrite,
        pid: call.pid,
        with_fio: call.with.is_some(),
        binary: std::env::current_exe().context("finding our own binary")?,
        resume: call.earlier()?,
    };
    call.common.keep_apart(&options.on)?;
    let config = call.common.config()?;
    let volumes = config.as_ref().map(volume_names);
    if let Some(answer) = run::finished(&profile, &options, volumes.as_deref()).map_err(refused)? {
        log::say("this run is already finished: remove the --json file to repeat it");
        return Ok(output::print(answer + "\n")?);
    }
    let work = |configured: Option<&Configured<'_>>, stop: &Stop, progress, keep: run::Keep<'_>| {
        run::run(&profile, &options, configured, stop, progress, keep)
    };
    call.common.carry_out(config.as_ref(), work)
}

fn check_process(option: &str, pids: impl IntoIterator<Item = u32>) -> Result<(), VerbFailure> {
    let is_gone = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
    match pids.into_iter().find(is_gone) {
        Some(pid) => Err(VerbFailure::Wrong(format!(
            "{option} {pid}: there is no such process"
        ))),
        None => Ok(()),
    }
}

impl RunCall {
    /// The JSON of the run to resume, if there is one.
    fn earlier(&self) -> Result<Option<Value>, VerbFailure> {
        let path = self.common.json.as_ref().filter(|_| self.resume);
        let text = path.map(|path| input::read(path));
        match text {
            Some(Ok(text)) if !text.trim().is_empty() => {
                let json = serde_json::from_str(&text);
                json.map(Some).map_err(|error| {
                    let path = self.common.json.as_deref().unwrap_or(Path::new(""));
                    VerbFailure::Wrong(format!(
                        "--resume: {}: {error}; name the file of an interrupted run with --json",
                        path.display()
                    ))
                })
            }
            // The first run finds no file, or an empty one.
            _ => Ok(None),
        }
    }
}

pub(crate) fn tell_history(call: &HistoryCall) -> Result<(), VerbFailure> {
    let open = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::open).transpose();
    let findings = history(&call.runs).map_err(refused)?;
    tell(&findings, open(&call.json)?, open(&call.report)?)
}

pub(crate) fn compare_two(call: &CompareCall) -> Result<(), VerbFailure> {
    let profile = call.common.profile(&call.profile)?;
    let pids = call.pids.as_deref().and_then(|pids| pids.try_into().ok());
    check_process("--pids", pids.into_iter().flatten())?;
    let login = call.common.account.settings()?;
    let options = compare::CompareOptions {
        a: call.a.clone().logging_in(&login),
        b: call.b.clone().map(|b| b.logging_in(&login)),
        pairs: call.pairs,
        pids,
        overwrite: call.common.overwrite,
    };
    let both = [Some(&options.a), options.b.as_ref()];
    let both: Vec<On> = both.into_iter().flatten().cloned().collect();
    call.common.keep_apart(&both)?;
    let config = call.common.config()?;
    let work = |configured: Option<&Configured<'_>>, stop: &Stop, progress, keep: run::Keep<'_>| {
        compare(&profile, &options, configured, stop, progress, keep)
    };
    call.common.carry_out(config.as_ref(), work)
}

pub(crate) fn list(call: &ProfilesCall) -> Result<(), VerbFailure> {
    let Some(name) = &call.name else {
        for (name, _) in BUILT_IN {
            let profile = Profile::load(name, false).map_err(refused)?;
            output::print(format!("{name:<14} {}\n", profile.about()))?;
        }
        return Ok(());
    };
    match BUILT_IN.iter().find(|(built_in, _)| built_in == name) {
        Some((_, text)) => Ok(output::print(text)?),
        None => {
            let names = BUILT_IN.map(|(name, _)| name).join(", ");
            Err(VerbFailure::Wrong(format!(
                "there is no profile \"{name}\": write one of {names}"
            )))
        }
    }
}

impl Common {
    /// Refuses one file in two roles: measured twice, or both measured and written to as output.
    fn keep_apart(&self, on: &[On]) -> Result<(), VerbFailure> {
        for (index, one) in on.iter().enumerate() {
            let is_twice = |other: &&On| match (one, *other) {
                (On::Name(one), On::Name(other)) => {
                    output::is_same_file(Path::new(one), Path::new(other))
                }
                (one, other) => one == other,
            };
            if let Some(other) = on[..index].iter().find(is_twice) {
                return Err(VerbFailure::Wrong(format!(
                    "{} and {} are the same: name two different disks",
                    other.name(),
                    one.name()
                )));
            }
        }
        let outputs = [("--json", &self.json), ("--report", &self.report)];
        for (option, output) in outputs {
            let Some(path) = output else { continue };
            let same = |on: &&On| matches!(on, On::Name(name) if output::is_same_file(path, Path::new(name)));
            if let Some(on) = on.iter().find(same) {
                return Err(VerbFailure::Wrong(format!(
                    "{option} {}: this would overwrite what is measured, {}: name another file",
                    path.display(),
                    on.name()
                )));
            }
        }
        Ok(())
    }

    /// The profile of this name or file, with the data given on the command line.
    fn profile(&self, name: &str) -> Result<Profile, VerbFailure> {
        let mut profile = Profile::load(name, self.quick).map_err(refused)?;
        if !self.data.is_empty() {
            let source = || {
                Ok(RowSource::Files {
                    files: DailyFile::all_in(&self.data)?,
                    days: self.days,
                    seed: 1,
                })
            };
            profile.set_data(source).map_err(refused)?;
        }
        Ok(profile)
    }

    /// The configuration, if one is named.
    fn config(&self) -> Result<Option<Config>, VerbFailure> {
        Ok(self.config.as_deref().map(Config::load).transpose()?)
    }

    /// Opens the output files, makes SIGINT end the work early, runs the work and reports the findings.
    fn carry_out(
        &self,
        config: Option<&Config>,
        work: impl FnOnce(
            Option<&Configured<'_>>,
            &Stop,
            ProgressOutput,
            run::Keep<'_>,
        ) -> ::lab::LabResult<Findings>,
    ) -> Result<(), VerbFailure> {
        // Opened first, because an unwritable file should be reported before the work.
        let open = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::open).transpose();
        let (json, report) = (open(&self.json)?, open(&self.report)?);
        descriptors::raise(0);
        let stop = stopped_by_signals()?;
        let progress = ProgressOutput::for_stderr();
        let path = self.config.clone().unwrap_or_default();
        let keep = |value: &Value| {
            let kept = json.as_ref().map(|json| json.keep(&pretty(value)));
            // The run continues and tries again after the next step.
            if let Some(Err(error)) = kept {
                log::say(format!("cannot save what was measured so far: {error:#}"));
            }
        };
        let found = match config {
            None => work(None, &stop, progress, &keep),
            Some(config) => {
                let measuring = Measuring::new(config);
                let graph = |name: &str| {
                    let graph = measuring.graph(name);
                    graph.map_err(|error| ::lab::LabError::Call(error.to_string()))
                };
                let configured = Configured {
                    path: &path,
                    names: volume_names(config),
                    graph: &graph,
                    located: &|error| config.located(error).to_string(),
                };
                work(Some(&configured), &stop, progress, &keep)
            }
        };
        tell(&found.map_err(refused)?, json, report)
    }
}

fn volume_names(config: &Config) -> Vec<String> {
    config.volume_names().cloned().collect()
}

fn tell(
    findings: &Findings,
    json: Option<OutputFile>,
    report: Option<OutputFile>,
) -> Result<(), VerbFailure> {
    output::print(findings.text())?;
    if let Some(file) = json {
        file.write(&pretty(&findings.json()))?;
    }
    if let Some(file) = report {
        let written = format!("wrote {}", file.path().display());
        file.write(&page(findings))?;
        log::say(written);
    }
    Ok(())
}

fn pretty(json: &Value) -> String {
    format!("{json:#}")
}

/// Invalid calls are the user's error, not a failure.
pub(super) fn refused(error: ::lab::LabError) -> VerbFailure {
    match error {
        ::lab::LabError::Call(message) => VerbFailure::Wrong(message),
        error => error.into(),
    }
}
