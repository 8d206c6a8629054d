//! Measures what this machine moves when nothing limits it, by running the experiment itself, small and
//! without link limits, on the stripe. That way everything takes part that matters later: SQLite and its
//! files, the initiator, loopback, the targets and their files.

use super::{
    DemoOptions, Directory,
    link::Machine,
    volumes::{Client, Plan},
};
use crate::{
    LabResult,
    drive_stats::RowSource,
    load::Stop,
    progress::ProgressOutput,
    statements::{Experiment, RunReport, Survey, Traffic, statements},
};

/// Rows for this measurement: some 50 MiB, several times the client's memory.
const ROWS: u64 = 300_000;
/// Runs of each statement. The fastest counts, because the question is what the machine can move when nothing
/// else uses it.
const RUNS: u32 = 3;

/// Runs the measurement, in one or two seconds.
pub(super) fn measure(options: &DemoOptions, directory: &Directory) -> LabResult<Machine> {
    let source = RowSource::Generated {
        rows: ROWS,
        seed: 1,
    };
    let survey = Survey::of(&source, &Stop::default(), ProgressOutput::Silent)?;
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
    .run(ProgressOutput::Silent)?;
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

/// What all shares together moved in the busier direction, in bytes per second.
fn moved_bytes_per_s(run: &RunReport) -> f64 {
    let all = run.traffic.iter();
    let all = all.fold(Traffic::default(), |sum, share| sum.plus(*share));
    all.read_bytes.max(all.written_bytes) as f64 / run.seconds
}
