//! `sanstone demo`: the main experiment on this machine, from the command line to the table and the report.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use ::lab::{
    LabError,
    demo::{self, Directory, LINKS_BITS_PER_S, SHARES_MAX, ShareLimit},
    drive_stats::{DEFAULT_ROWS, DailyFile, RowSource},
    load::Stop,
    progress::ProgressOutput,
    report,
    sqlite::Settings,
    statements::Survey,
};
use anyhow::Context;
use clap::{Args, builder::PossibleValuesParser};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};
use volume::config::Size;

use crate::{
    failure::VerbFailure,
    log,
    output::{self, OutputFile},
};

/// Maximum generated rows; a database of some 17 GiB. Generating more would take hours before anything is
/// measured.
const ROWS_MAX: u64 = 100_000_000;

/// What the table's columns are.
pub(crate) const COLUMNS: &str = "\
Columns of the table:
  run 1, run 2, …   the seconds that each run of the statement took
  average           their mean
  weight            how much the statement counts in the score
  weighted          average × weight
  speed-up          the average on one share divided by the average here
  paper             the speed-up in the published experiment that this repeats
  of the link       what each share moved, in percent of its link (MB/s with --no-limit);
                    statements that write have r for read and w for written
The score is the mean of the weighted averages, in seconds: less is better.";

#[derive(Args)]
pub(crate) struct DemoCall {
    /// The number of shares in the stripe.
    #[arg(long, value_name = "N", default_value_t = 2)]
    shares: usize,
    /// The rate of each share's link in each direction, in Gbit/s. The default is the highest of these
    /// that this machine can fill, found by measuring.
    #[arg(long, value_name = "GBIT", value_parser = PossibleValuesParser::new(["1", "2.5", "10"]))]
    link: Option<String>,
    /// Do not limit the links.
    #[arg(long, conflicts_with = "link")]
    no_limit: bool,
    /// The stripe unit: how much goes to one share before the next.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    stripe_unit: Size,
    /// How many rows to generate without --data; a scan of the default 1,600,000 moves 275 MiB.
    #[arg(long, value_name = "N", conflicts_with = "data")]
    rows: Option<u64>,
    /// Load Backblaze's daily CSV files instead, in the order of their dates: plain, .gz or in .zip archives as published.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    data: Vec<PathBuf>,
    /// Extend the data to this many days by ageing the drives of the last file.
    #[arg(long, value_name = "N", requires = "data")]
    days: Option<u32>,
    /// The seed of the generated rows: the same seed gives the same rows.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write all figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report with charts to this file.
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    report: PathBuf,
    /// Where to keep the shares' files while it runs; the default is the system's temporary directory.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(call: DemoCall) -> Result<(), VerbFailure> {
    let options = options(&call)?;
    let progress = ProgressOutput::for_stderr();
    // Opened now, because generating the rows takes a while and an unwritable file should be reported before
    // that.
    let mut outputs = vec![OutputFile::open(&call.report)?];
    if let Some(json) = &call.json {
        outputs.push(OutputFile::open(json)?);
    }
    let parent = call.dir.clone().unwrap_or_else(std::env::temp_dir);
    // Done first, so that a signal that arrives early stays pending.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("catching signals")?;
    let directory = Directory::new_in(&parent).map_err(wrong)?;
    remove_when_interrupted(signals, directory.path())?;
    // Bad data is reported as an error of the call.
    let survey = Survey::of(&options.source, &Stop::default(), progress).map_err(wrong)?;
    let report = demo::run(&options, &survey, &directory, progress)?;
    output::print(report::table(&report))?;
    let texts = [
        report::page(&report.findings()),
        serde_json::to_string_pretty(&report::json(&report))?,
    ];
    for (output, text) in outputs.into_iter().zip(texts) {
        let written = format!("wrote {}", output.path().display());
        output.write(&text)?;
        log::say(written);
    }
    Ok(())
}

fn options(call: &DemoCall) -> Result<demo::DemoOptions, VerbFailure> {
    if !(1..=SHARES_MAX).contains(&call.shares) {
        let message = format!("--shares {}: write 1 to {SHARES_MAX}", call.shares);
        return Err(VerbFailure::Wrong(message));
    }
    if let Some(rows) = call.rows.filter(|rows| *rows > ROWS_MAX) {
        let message = format!("--rows {rows}: write at most {ROWS_MAX}");
        return Err(VerbFailure::Wrong(message));
    }
    let unit = call.stripe_unit.bytes();
    if !unit.is_power_of_two() || !(4096..=4 << 20).contains(&unit) {
        let given = call.stripe_unit;
        let message = format!("--stripe-unit {given}: write a power of two from 4KiB to 4MiB");
        return Err(VerbFailure::Wrong(message));
    }
    let link = match &call.link {
        _ if call.no_limit => ShareLimit::Unlimited,
        None => ShareLimit::Measured,
        Some(gigabits) => ShareLimit::Limited {
            bits_per_s: gigabits
                .parse::<f64>()
                .map_or(LINKS_BITS_PER_S[0], |gigabits| (gigabits * 1e9) as u64),
        },
    };
    let source = if call.data.is_empty() {
        RowSource::Generated {
            rows: call.rows.unwrap_or(DEFAULT_ROWS),
            seed: call.seed,
        }
    } else {
        RowSource::Files {
            files: DailyFile::all_in(&call.data).map_err(wrong)?,
            days: call.days,
            seed: call.seed,
        }
    };
    Ok(demo::DemoOptions {
        binary: std::env::current_exe().context("finding our own binary")?,
        shares: call.shares,
        link,
        stripe_unit_bytes: unit as u32,
        source,
        settings: Settings::default(),
    })
}

fn wrong(error: LabError) -> VerbFailure {
    VerbFailure::Wrong(error.to_string())
}

/// When a signal ends this process, removes `directory` first. The shares end with us.
fn remove_when_interrupted(mut signals: Signals, directory: &Path) -> Result<(), VerbFailure> {
    let directory = directory.to_owned();
    let watch = move || {
        for signal in signals.forever() {
            remove_for_good(&directory);
            let _ = emulate_default_handler(signal);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(watch)?;
    Ok(())
}

/// Removes a directory in which shares may still be starting and creating files. Once it is gone, no share
/// can create anything in it.
fn remove_for_good(directory: &Path) {
    const TRIES: u32 = 100;
    for _ in 0..TRIES {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                thread::sleep(Duration::from_millis(5));
            }
            _ => return,
        }
    }
}
