//! The order of the experiment: load once, copy to every set-up, then run the statements. Within each run of
//! each statement the set-ups alternate (A B C A B C …), so that drift in the machine's speed affects all
//! equally. Every timed run opens a new connection, so SQLite's cache is cold; copying, opening and reading
//! the schema are not timed.

use std::{fs::File, rc::Rc};

use super::{
    Statement, StatementKind,
    load::load,
    report::{DataReport, ExperimentReport, RunReport, SetReport, ShareReport, StatementReport},
    sampling::{SampledDisk, Sampler, Timed, Traffic},
};
use crate::{
    LabError, LabResult,
    drive_stats::RowSource,
    progress::{ProgressOutput, Stage},
    sqlite::{Database, DatabaseDisk, DatabaseStore, Image, Settings},
};

/// One way to reach the shares, to be compared with the others.
pub struct SetUp {
    /// Its name: "one share".
    pub name: String,
    /// Its volume. Set-ups are separate volumes: each holds a copy of the database.
    pub disk: Rc<dyn DatabaseDisk>,
    /// Which of [`Experiment::shares`] it uses, by index.
    pub shares: Vec<usize>,
}

/// One share, as far as the experiment needs it.
pub struct MeasuredShare {
    /// Its name.
    pub name: String,
    /// The traffic over its link so far, from all set-ups.
    pub traffic: Box<dyn Fn() -> Traffic>,
}

/// What to measure, and how.
pub struct Experiment {
    /// The set-ups; the others are compared with the first.
    pub set_ups: Vec<SetUp>,
    /// The shares.
    pub shares: Vec<MeasuredShare>,
    /// Each link's rate in each direction in bits per second, if it is limited.
    pub link_bits_per_s: Option<u64>,
    /// The data.
    pub source: RowSource,
    /// The database's settings, the same for all.
    pub settings: Settings,
    /// What to time, and how often. Each round of modifying statements starts with a fresh copy.
    pub statements: Vec<Statement>,
    /// An empty file for the loaded database, from which fresh copies are made.
    pub image: File,
    /// Waits until the links are idle; called before each timed run.
    pub settle: Box<dyn Fn()>,
    /// Called before each run; true ends the experiment with the results so far.
    pub is_over: Box<dyn Fn() -> bool>,
    /// Called with the next step: loading, then each run.
    pub told: Box<dyn Fn(&str)>,
    /// Introductory lines of the report: what was chosen, and what is wrong with this machine.
    pub notes: Vec<String>,
}

/// A set-up and its results so far.
struct MeasuredSetup {
    store: DatabaseStore,
    report: SetReport,
}

impl Experiment {
    /// Runs the experiment.
    ///
    /// # Errors
    /// Errors of the data, the disks or SQLite; a DELETE that deleted nothing, or a statement that returned
    /// different results on different set-ups.
    pub fn run(self, progress: ProgressOutput) -> LabResult<ExperimentReport> {
        let meters: Vec<_> = self
            .shares
            .into_iter()
            .map(|s| (s.name, s.traffic))
            .collect();
        let share_names: Vec<String> = meters.iter().map(|(name, _)| name.clone()).collect();
        let sampler = Sampler::new(Box::new(move || {
            meters.iter().map(|(_, traffic)| traffic()).collect()
        }));
        let mut measured = Vec::new();
        for set_up in self.set_ups {
            let disk = SampledDisk {
                inner: set_up.disk,
                sampler: sampler.clone(),
            };
            let report = SetReport {
                name: set_up.name,
                shares: set_up.shares,
                statements: Vec::new(),
            };
            measured.push(MeasuredSetup {
                store: DatabaseStore::format(Rc::new(disk))?,
                report,
            });
        }
        let Some(first) = measured.first() else {
            return Err(LabError::Unusable("there is no set-up to measure".into()));
        };

        let mut rows = self.source.open()?;
        (self.told)("load the table");
        let stage = progress.stage("load the table", rows.expected);
        let database = first.store.database(&self.settings)?;
        let loaded = load(&database, &mut rows, &stage)?;
        let settings = Settings::in_use(&database)?;
        drop(database);
        stage.done(&format!(
            "{} rows, {} to {}",
            loaded.rows, loaded.first, loaded.last
        ));
        let stage = progress.stage("copy it to every set-up", Some(measured.len() as u64));
        let image = Image::capture(&first.store, self.image)?;
        restore_all(&image, &measured, Some(&stage))?;
        stage.done(&format!("{} MiB each", image.bytes() >> 20));

        let of_month = |statement: Statement| statement.of_month(loaded.month);
        let statements: Vec<Statement> = self.statements.into_iter().map(of_month).collect();
        for set_up in &mut measured {
            set_up.report.statements = statements
                .iter()
                .cloned()
                .map(StatementReport::new)
                .collect();
        }
        let mut measurement = Measurement {
            settings: self.settings,
            sampler,
            settle: self.settle,
            is_over: self.is_over,
            told: self.told,
            measured,
            answers: Vec::new(),
        };
        for (index, statement) in statements.iter().enumerate() {
            if statement.kind == StatementKind::Scan {
                let stage = measurement.stage(progress, statement, statement.runs);
                for _ in 0..statement.runs {
                    measurement.run(index, statement, &stage)?;
                }
                stage.done("");
            }
        }
        let destructive: Vec<(usize, &Statement)> = statements
            .iter()
            .enumerate()
            .filter(|(_, s)| s.kind != StatementKind::Scan)
            .collect();
        let rounds = destructive.iter().map(|(_, statement)| statement.runs);
        let rounds = rounds.max().unwrap_or(0);
        for round in 1..=rounds {
            if (measurement.is_over)() {
                break;
            }
            restore_all(&image, &measurement.measured, None)?;
            for (index, statement) in destructive.iter().filter(|(_, s)| round <= s.runs) {
                let stage = measurement.stage(progress, statement, 1);
                measurement.run(*index, statement, &stage)?;
                stage.done(&format!("round {round} of {rounds}"));
            }
        }
        Ok(ExperimentReport {
            notes: self.notes,
            link_bits_per_s: self.link_bits_per_s,
            settings,
            data: DataReport {
                rows: loaded.rows,
                first_day: loaded.first.to_string(),
                last_day: loaded.last.to_string(),
                deleted_month: loaded.month.to_string(),
                table_bytes: image.bytes(),
            },
            shares: share_names
                .into_iter()
                .map(|name| ShareReport { name })
                .collect(),
            sets: measurement
                .measured
                .into_iter()
                .map(|set_up| set_up.report)
                .collect(),
        })
    }
}

/// Restores a fresh copy on every set-up.
fn restore_all(image: &Image, measured: &[MeasuredSetup], stage: Option<&Stage>) -> LabResult<()> {
    for (index, set_up) in (1..).zip(measured) {
        image.restore(&set_up.store)?;
        if let Some(stage) = stage {
            stage.set(index);
        }
    }
    Ok(())
}

/// Runs statements on the set-ups in turn.
struct Measurement {
    settings: Settings,
    sampler: Rc<Sampler>,
    settle: Box<dyn Fn()>,
    is_over: Box<dyn Fn() -> bool>,
    told: Box<dyn Fn(&str)>,
    measured: Vec<MeasuredSetup>,
    /// The result of each statement, by its index.
    answers: Vec<(usize, ResultDigest)>,
}

impl Measurement {
    fn stage(&self, progress: ProgressOutput, statement: &Statement, runs: u32) -> Stage {
        progress.stage(
            &statement.sql,
            Some(u64::from(runs) * self.measured.len() as u64),
        )
    }

    /// Runs a statement once on each set-up, unless the experiment is over.
    fn run(&mut self, index: usize, statement: &Statement, stage: &Stage) -> LabResult<()> {
        for set_up in &mut self.measured {
            if (self.is_over)() {
                return Ok(());
            }
            stage.say(&set_up.report.name);
            (self.told)(&format!("{}: {}", set_up.report.name, statement.name));
            let database = set_up.store.database(&self.settings)?;
            // Reads the schema, which every statement needs and none should be charged for.
            database.execute("SELECT count(*) FROM sqlite_schema")?;
            (self.settle)();
            self.sampler.begin();
            let answer = answer(&database, statement);
            let Timed {
                seconds,
                traffic,
                samples,
            } = self.sampler.end();
            if answer.is_err() && (self.is_over)() {
                return Ok(());
            }
            let answer = answer?;
            if statement.kind == StatementKind::Delete && answer.changed == 0 {
                return Err(LabError::Meaningless(format!(
                    "{} deleted no rows",
                    statement.sql
                )));
            }
            let known = self.answers.iter().find(|(of, _)| *of == index);
            match known.map(|(_, known)| known) {
                None => self.answers.push((index, answer)),
                Some(known) if *known == answer => {}
                Some(known) => {
                    return Err(LabError::Meaningless(format!(
                        "{} answered {answer} on \"{}\", but {known} before: the volume returned wrong \
                         data",
                        statement.sql, set_up.report.name
                    )));
                }
            }
            let run = RunReport {
                seconds,
                traffic,
                samples,
            };
            set_up.report.statements[index].runs.push(run);
            stage.step();
        }
        Ok(())
    }
}

/// The part of a statement's result that must be the same everywhere.
#[derive(Debug, PartialEq, Eq)]
struct ResultDigest {
    rows: u64,
    /// CRC-32C over all values as text.
    checksum: u32,
    changed: u64,
}

impl std::fmt::Display for ResultDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            rows,
            checksum,
            changed,
        } = self;
        write!(f, "{rows} rows ({checksum:08x}), {changed} deleted")
    }
}

/// Runs a statement to its last row.
fn answer(database: &Database, statement: &Statement) -> LabResult<ResultDigest> {
    database.run(&statement.sql, |connection| {
        let before = connection.total_changes();
        let mut prepared = connection.prepare(&statement.sql)?;
        let mut rows = prepared.query([])?;
        let (mut count, mut checksum) = (0, 0);
        while let Some(row) = rows.next()? {
            count += 1;
            let value = row.get_ref(0)?;
            let text = match value {
                rusqlite::types::ValueRef::Integer(number) => number.to_string(),
                other => other.as_str().unwrap_or_default().to_string(),
            };
            checksum = crc32c::crc32c_append(checksum, text.as_bytes());
        }
        let changed = connection.total_changes() - before;
        Ok(ResultDigest {
            rows: count,
            checksum,
            changed,
        })
    })
}
