//! The main experiment: shares served by separate processes, each behind a rate-limited link, with SQLite on
//! one share and on a stripe of all of them, and the five statements timed on both.
//!
//! `share` starts and stops the processes, `volumes` writes their configuration and ours and opens our end,
//! `machine` measures what this machine moves without a limit, `link` chooses the rate from that, and [`run`]
//! coordinates everything. The calling thread is the client's only lane: it runs SQLite and, while SQLite
//! waits, the initiator.

mod directory;
mod link;
mod machine;
mod share;
mod volumes;

use std::path::PathBuf;

pub use self::{
    directory::Directory,
    link::{LINKS_BITS_PER_S, ShareLimit},
    share::SHARES_MAX,
};
use self::{
    link::{Choice, choose},
    volumes::{CACHING, Client, Plan, READ_AHEAD_BYTES, SMALL_CACHE_BYTES},
};
use crate::{
    IN_FLIGHT_BYTES, LabResult,
    drive_stats::RowSource,
    progress::ProgressOutput,
    sqlite::Settings,
    statements::{Experiment, ExperimentReport, Statement, StatementKind, Survey, statements},
};

/// Timed runs of DELETE and VACUUM; scans run as often as in the paper.
const DESTRUCTIVE_RUNS: u32 = 3;

/// The experiment's options.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// The `sanstone` program, whose `serve` is a share.
    pub binary: PathBuf,
    /// Shares in the stripe: 1 to [`SHARES_MAX`].
    pub shares: usize,
    /// What limits each share.
    pub link: ShareLimit,
    /// Bytes placed on one share before the stripe moves on to the next.
    pub stripe_unit_bytes: u32,
    /// The rows.
    pub source: RowSource,
    /// SQLite's settings.
    pub settings: Settings,
}

/// Runs the experiment in `directory` on the data that `survey` describes.
///
/// # Errors
/// Too little space, a share that does not start, and the errors of [`Experiment::run`].
pub fn run(
    options: &DemoOptions,
    survey: &Survey,
    directory: &Directory,
    progress: ProgressOutput,
) -> LabResult<ExperimentReport> {
    let database_bytes = survey.database_bytes(&options.settings);
    let plan = Plan::experiment(options.shares, options.stripe_unit_bytes, database_bytes);
    directory.require(plan.disk_bytes())?;
    let choice = match options.link {
        ShareLimit::Unlimited => Choice::default(),
        ShareLimit::Limited { bits_per_s } => Choice::given(bits_per_s),
        ShareLimit::Measured => {
            let stage = progress.stage("measure this machine without links", None);
            let machine = machine::measure(options, directory)?;
            let choice = choose(&machine, options.shares);
            stage.done(&choice.reason());
            choice
        }
    };
    let stage = progress.stage("start the shares", None);
    let client = Client::open(&plan, choice.bits_per_s, &options.binary, directory)?;
    let image = directory.nameless_file()?;
    // From here on no file has a name, so nothing is left behind however this ends.
    directory.remove()?;
    stage.done(&format!("{} processes", options.shares));
    let mut report = Experiment {
        set_ups: client.set_ups()?,
        shares: client.shares(),
        settle: Box::new(client.settle()),
        link_bits_per_s: choice.bits_per_s,
        source: options.source.clone(),
        settings: options.settings,
        statements: statements().map(repeated).into(),
        is_over: Box::new(|| false),
        told: Box::new(|_| ()),
        image,
        notes: notes(&plan, &choice),
    }
    .run(progress)?;
    report.settings.extend(conditions(options, &plan, &choice));
    Ok(report)
}

fn repeated(statement: Statement) -> Statement {
    match statement.kind {
        StatementKind::Scan => statement,
        StatementKind::Delete | StatementKind::Vacuum => statement.repeated(DESTRUCTIVE_RUNS),
    }
}

/// Caveats that a reader must know before the figures.
fn notes(plan: &Plan, choice: &Choice) -> Vec<String> {
    choice
        .note(plan.shares())
        .into_iter()
        .chain(plan.note())
        .collect()
}

/// The conditions other than the data, by name, for people.
fn conditions(options: &DemoOptions, plan: &Plan, choice: &Choice) -> Vec<(String, String)> {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let pairs = [
        (
            "shares",
            format!("{} processes on 127.0.0.1", options.shares),
        ),
        ("each link", choice.reason()),
        (
            "shares' files",
            format!("{CACHING} (WCE 1): a sync is a SYNCHRONIZE CACHE is an fdatasync"),
        ),
        (
            "stripe unit",
            format!("{} KiB", options.stripe_unit_bytes >> 10),
        ),
        (
            "read-ahead",
            format!("{}, the same in all set-ups", mib(READ_AHEAD_BYTES)),
        ),
        (
            "client memory",
            format!(
                "{}, and {} with the cache",
                mib(SMALL_CACHE_BYTES),
                mib(plan.large_cache_bytes())
            ),
        ),
        (
            "writes in flight",
            format!("up to {} until a sync", mib(IN_FLIGHT_BYTES as u64)),
        ),
        ("CPUs", cpus.to_string()),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).into()
}
