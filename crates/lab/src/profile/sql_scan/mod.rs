//! `sql-scan`: five statements over `drive_stats`, as a published experiment timed them on one iSCSI share
//! and on a stripe of two. It varies the database's page size and cache and alternates between all disks. The
//! statements run in SQLite directly on the disks (`sweep`), or in a database server on a file system
//! (`served`).

mod findings;
mod served;
mod sweep;

use std::{cell::OnceCell, ops::RangeInclusive};

use serde::Deserialize;
use volume::config::{Size, Time};

pub(crate) use sweep::Sweep;

use super::{Case, CaseWork, Experiment, Needs, Runner, check_time, within};
use crate::{
    LabError, LabResult,
    databases::ServerKind,
    drive_stats::RowSource,
    load::Stop,
    progress::ProgressOutput,
    report::Findings,
    sqlite::{DatabaseStore, Settings},
    statements::{Statement, StatementKind, Survey, check, statements},
    target::MeasuredDisk,
};

/// Maximum generated rows; a database of some 17 GiB. Generating more would take hours before anything is
/// measured.
const ROWS_MAX: u64 = 100_000_000;
/// Maximum size of a generated row in the database, in bytes.
const ROW_BYTES: u64 = 200;
/// Space that a server and a file system need for themselves, in bytes, regardless of the table.
const SERVER_BYTES: u64 = 640 << 20;
/// Disk space per row on a server, including its rewritten copy and its log, in bytes.
const SERVED_ROW_BYTES: u64 = 1536;

/// The settings of a `sql-scan` profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SqlScan {
    about: String,
    #[serde(default)]
    database: Database,
    rows: u64,
    pages: Vec<Size>,
    caches: Vec<Size>,
    memory: Size,
    time: Time,
    statements: Vec<Chosen>,
    /// Data that replaces generated rows.
    #[serde(skip)]
    data: Option<RowSource>,
    /// The result of the first pass over the data.
    #[serde(skip)]
    survey: OnceCell<Survey>,
}

/// The database that runs the statements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Database {
    /// Directly on the disk.
    #[default]
    Sqlite,
    Mariadb,
    Postgresql,
}

impl Database {
    fn server(self) -> Option<ServerKind> {
        match self {
            Database::Sqlite => None,
            Database::Mariadb => Some(ServerKind::Mariadb),
            Database::Postgresql => Some(ServerKind::Postgresql),
        }
    }

    /// The page sizes it supports.
    fn pages(self) -> RangeInclusive<Size> {
        let (least, most) = match self {
            Database::Sqlite => (512, 65_536),
            Database::Mariadb => (4096, 65_536),
            // Fixed at compile time.
            Database::Postgresql => (8192, 8192),
        };
        Size::from_bytes(least)..=Size::from_bytes(most)
    }

    fn name(self) -> &'static str {
        self.server().map_or("SQLite", ServerKind::name)
    }
}

/// A statement of the experiment by its name, or one of the user's own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Chosen {
    name: String,
    runs: u32,
    weight: Option<f64>,
    sql: Option<String>,
}

impl Chosen {
    /// The statement to run.
    fn statement(&self) -> std::result::Result<Statement, String> {
        let name = &self.name;
        let known = statements().into_iter().find(|known| known.name == *name);
        let statement = match (known, &self.sql, self.weight) {
            (Some(_), Some(_), _) => {
                return Err(format!(
                    "statement \"{name}\" belongs to the experiment: leave out sql, or give yours \
                     another name"
                ));
            }
            (Some(known), None, weight) => Statement {
                weight: weight.unwrap_or(known.weight),
                ..known
            },
            (None, Some(sql), Some(weight)) => Statement {
                name: name.clone(),
                sql: sql.clone(),
                kind: StatementKind::Scan,
                weight,
                runs: 1,
                paper_s: None,
            },
            (None, _, _) => {
                let names = statements().map(|known| known.name).join(", ");
                return Err(format!(
                    "there is no statement \"{name}\": write one of {names}, or define it with sql = \
                     \"SELECT …\" and weight = 0.25"
                ));
            }
        };
        Ok(statement.repeated(self.runs))
    }
}

impl SqlScan {
    pub(super) fn set_data(&mut self, source: RowSource) {
        self.data = Some(source);
        self.survey = OnceCell::new();
    }

    fn source(&self) -> RowSource {
        let made = RowSource::Generated {
            rows: self.rows,
            seed: 1,
        };
        self.data.clone().unwrap_or(made)
    }

    /// All combinations of page sizes and caches.
    fn sweeps(&self) -> Vec<Sweep> {
        let statements = self.statements.iter().map(Chosen::statement);
        // They have already been checked.
        let statements: Vec<Statement> = statements.filter_map(std::result::Result::ok).collect();
        let all = self
            .caches
            .iter()
            .flat_map(|cache| self.pages.iter().map(move |page| (*page, *cache)));
        let server = self.database.server().zip(self.survey.get().copied());
        let sweep = |(page, cache)| Sweep {
            server,
            page,
            cache,
            settings: settings(page, self.memory),
            source: self.source(),
            statements: statements.clone(),
            time: self.time,
        };
        all.map(sweep).collect()
    }

    /// Maximum size of the database, in bytes.
    fn database_bytes(&self) -> u64 {
        let Some(survey) = self.survey.get() else {
            return self.rows * ROW_BYTES;
        };
        let of_page = |page: &Size| survey.database_bytes(&settings(*page, self.memory));
        self.pages.iter().map(of_page).max().unwrap_or(0)
    }
}

fn settings(page: Size, memory: Size) -> Settings {
    Settings {
        page_bytes: u32::try_from(page.bytes()).unwrap_or(u32::MAX),
        cache_bytes: memory.bytes(),
    }
}

impl Experiment for SqlScan {
    fn about(&self) -> &str {
        &self.about
    }

    fn survey(&self, stop: &Stop, progress: ProgressOutput) -> LabResult<()> {
        // Bad data is reported as an error of the call.
        let wrong = |error: LabError| match error {
            LabError::Stopped => LabError::Stopped,
            error => LabError::Call(error.to_string()),
        };
        let schema = self.source().open().map_err(wrong)?.schema;
        for chosen in &self.statements {
            let sql = chosen.sql.as_ref().map(|sql| check(sql, &schema));
            let name = &chosen.name;
            sql.unwrap_or(Ok(()))
                .map_err(|what| LabError::Call(format!("statement \"{name}\": {what}")))?;
        }
        let survey = Survey::of(&self.source(), stop, progress).map_err(wrong)?;
        let _ = self.survey.set(survey);
        self.database.server().map_or(Ok(()), ServerKind::check)
    }

    fn opens_volumes(&self) -> bool {
        self.database == Database::Sqlite
    }

    fn needs(&self) -> Needs {
        let bytes = match self.database {
            Database::Sqlite => DatabaseStore::disk_bytes_for(self.database_bytes()),
            Database::Mariadb | Database::Postgresql => {
                let rows = self.survey.get().map_or(self.rows, |survey| survey.rows);
                SERVER_BYTES + rows * SERVED_ROW_BYTES
            }
        };
        Needs::of_database(bytes.next_multiple_of(1 << 20))
    }

    fn steps(&self) -> usize {
        self.pages.len() * self.caches.len()
    }

    fn check_disks(&self, targets: &[MeasuredDisk]) -> LabResult<()> {
        for target in targets {
            let (name, is) = (&target.name, target.len_bytes());
            if is < DatabaseStore::disk_bytes_for(self.database_bytes()) {
                return Err(LabError::Call(format!(
                    "{name} has {} MiB, but these rows need {} MiB with everything created from them: \
                     name a larger disk, or load fewer (rows = {})",
                    is >> 20,
                    self.needs().size_bytes >> 20,
                    self.rows / 2
                )));
            }
        }
        Ok(())
    }

    fn run(&self, runner: &mut Runner<'_>) -> LabResult<Findings> {
        let disks = runner.targets.len().max(runner.beds.len());
        // Each combination is loaded once, then runs on every disk.
        let runs = self.statements.iter().map(|chosen| u64::from(chosen.runs));
        let each = 1 + runs.sum::<u64>() * disks as u64;
        runner.stage.expect(self.steps() as u64 * each);
        let mut all = Vec::new();
        for sweep in self.sweeps() {
            all.extend(sweep.measure(runner)?);
        }
        Ok(findings::findings(&all, self.database.name()))
    }

    fn cases(&self) -> Vec<Case> {
        if !self.opens_volumes() {
            return Vec::new();
        }
        let case = |sweep: Sweep| Case {
            name: sweep.name(),
            time: sweep.time,
            work: CaseWork::Statements(sweep.once()),
        };
        self.sweeps().into_iter().map(case).collect()
    }

    fn verifies(&self) -> bool {
        false
    }

    fn check(&self) -> std::result::Result<(), String> {
        within("rows", self.rows, 10_000..=ROWS_MAX)?;
        within("memory, in bytes", self.memory.bytes(), 65_536..=1 << 40)?;
        for page in &self.pages {
            let can_be = self.database.pages();
            if !page.bytes().is_power_of_two() || !can_be.contains(page) {
                let (least, most) = (can_be.start(), can_be.end());
                let mend = match least == most {
                    true => format!("\"{most}\""),
                    false => format!("powers of two from \"{least}\" to \"{most}\""),
                };
                let name = self.database.name();
                return Err(format!(
                    "pages: {page} is not a page size of {name}; write {mend}"
                ));
            }
        }
        for cache in self.caches.iter().filter(|cache| cache.bytes() != 0) {
            within("caches, in bytes", cache.bytes(), 1 << 20..=1 << 40)?;
        }
        if self.pages.is_empty() || self.caches.is_empty() || self.statements.is_empty() {
            return Err(
                "pages, caches and statements need at least one entry each; caches = [\"0B\"] means no \
                 cache"
                    .into(),
            );
        }
        for chosen in &self.statements {
            within("runs", chosen.runs, 1..=1000)?;
            let weight = chosen.statement()?.weight;
            within("weight", weight, 0.0..=1e6)?;
        }
        let names = || self.statements.iter().map(|chosen| &chosen.name);
        for (index, name) in names().enumerate() {
            if names().take(index).any(|before| before == name) {
                return Err(format!(
                    "statement \"{name}\" appears twice: set how often it runs with runs"
                ));
            }
        }
        check_time(self.time)
    }
}
