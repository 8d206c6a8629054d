//! What this machine moves when nothing limits it: the experiment itself, small and without links,
//! on the stripe. So everything takes part that will take part later: SQLite and its files, the
//! initiator, loopback, the targets and their files.

use super::{
    Directory, Options,
    link::Machine,
    volumes::{Client, Plan},
};
use crate::{
    Result,
    drive_stats::Source,
    progress::Progress,
    report::RunReport,
    statements::{Experiment, Survey, Traffic, statements},
};

/// Rows that it is measured with: some 50 MiB, several times what the client's memory holds.
const ROWS: u64 = 300_000;
/// Runs of each statement. The fastest counts: what the machine can move is asked for, not what
/// it moves while something else has it.
const RUNS: u32 = 3;

/// Measures it, in one or two seconds.
pub(super) fn measure(options: &Options, directory: &Directory) -> Result<Machine> {
    let source = Source::Generated {
        rows: ROWS,
        seed: 1,
    };
    let survey = Survey::of(&source, Progress::Silent)?;
    let plan = Plan::stripe(
        options.shares,
        options.stripe_unit_bytes,
        survey.database_bytes(&options.settings),
    );
    let client = Client::open(&plan, None, &options.binary, directory)?;
    let image = directory.nameless_file()?;
    directory.clear()?;
    let report = Experiment {
        set_ups: client.set_ups()?,
        shares: client.shares(),
        settle: Box::new(client.settle()),
        link_bits_per_s: None,
        source,
        settings: options.settings,
        statements: statements().map(|s| s.repeated(RUNS)).into(),
        is_over: Box::new(|| false),
        told: Box::new(|_| ()),
        image,
        notes: Vec::new(),
    }
    .run(Progress::Silent)?;
    let set = report.sets.first();
    let statements = set.into_iter().flat_map(|set| &set.statements);
    let bytes_per_s = statements.map(|statement| {
        let fastest = statement.runs.iter().map(moved_bytes_per_s);
        (
            statement.statement.name.clone(),
            fastest.fold(0.0, f64::max),
        )
    });
    Ok(Machine {
        bytes_per_s: bytes_per_s.collect(),
    })
}

/// What all shares together moved in the direction in which they moved more.
fn moved_bytes_per_s(run: &RunReport) -> f64 {
    let all = run.traffic.iter();
    let all = all.fold(Traffic::default(), |sum, share| sum.plus(*share));
    all.read_bytes.max(all.written_bytes) as f64 / run.seconds
}
