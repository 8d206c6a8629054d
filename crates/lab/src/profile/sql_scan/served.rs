//! Runs the statements on a database server, alternating between all disks. The server's page cache is small,
//! and the kernel's is dropped before each statement, so that reads come from the disk, as with SQLite.

use std::{
    cell::Cell,
    io::{self, Write},
    rc::Rc,
    time::{Duration, Instant},
};

use super::sweep::{MeasuredSet, MeasuredStatement, Processors, Sweep, SweepPoint};
use crate::{
    LabError, LabResult,
    databases::{Answered, Bed, DatabaseServer, Namespace, ServerKind, Stack, escaped},
    drive_stats::{Row, Schema},
    load::Stop,
    machine::machine_ns,
    others::Others,
    profile::Runner,
    statements::{Statement, StatementKind, Survey, Traffic, score_s},
};

/// The table's name, as in the published experiment.
const TABLE: &str = "drive_stats";

/// Loading checks after this many rows whether the user asked to stop.
const LOOK: usize = 4096;

/// Time for a server to reap its exited processes, after which it accounts for their processor time.
const ENDED: Duration = Duration::from_millis(20);

/// A server with the table. It is dropped before its storage.
struct TableSite {
    name: String,
    server: DatabaseServer,
    stack: Stack,
}

/// One run of a statement.
struct StatementRun {
    seconds: f64,
    traffic: Traffic,
    processors: Processors,
}

impl TableSite {
    /// Recreates the table. `None`: the user asked to stop.
    fn load(&self, sweep: &Sweep, kind: ServerKind, stop: &Stop) -> LabResult<Option<()>> {
        let mut rows = sweep.source.open()?;
        let drop_it = format!("DROP TABLE IF EXISTS {TABLE}");
        let make = create_table(&rows.schema);
        let made = self.server.execute(&self.stack, &[&drop_it, &make], stop)?;
        if made.is_none() {
            return Ok(None);
        }
        let filled = self.server.fill(&self.stack, TABLE, stop, |to| {
            write_rows(to, &mut rows, stop)
        })?;
        if filled.is_none() {
            return Ok(None);
        }
        let settled = self.server.execute(&self.stack, settle(kind), stop)?;
        Ok(settled.map(drop))
    }

    fn run(
        &self,
        statement: &Statement,
        sql: &str,
        stop: &Stop,
    ) -> LabResult<Option<(StatementRun, StatementAnswer)>> {
        self.stack.forget_pages()?;
        let before = self.counted();
        let answered = self.server.timed(&self.stack, sql, stop)?;
        std::thread::sleep(ENDED);
        let after = self.counted();
        let Some(Answered { seconds, rows }) = answered else {
            return Ok(None);
        };
        let answer = match statement.kind {
            StatementKind::Scan => StatementAnswer::of(rows),
            // The count that the server reports differs between servers; what remains in the table does not.
            StatementKind::Delete | StatementKind::Vacuum => {
                let count = format!("SELECT count(*) FROM {TABLE}");
                match self.server.execute(&self.stack, &[&count], stop)? {
                    Some(rows) => StatementAnswer::of(rows),
                    None => return Ok(None),
                }
            }
        };
        let run = StatementRun {
            seconds,
            traffic: after.0.since(before.0),
            processors: after.1.since(before.1),
        };
        Ok(Some((run, answer)))
    }

    fn counted(&self) -> (Traffic, Processors) {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let processors = Processors {
            machine_s: seconds(machine_ns()),
            server_s: seconds(self.server.cpu_ns()),
            attach_s: self.stack.attach_ns().map(seconds),
        };
        (self.stack.traffic().unwrap_or_default(), processors)
    }
}

/// The part of a statement's result that must be the same everywhere. Without ORDER BY, rows come in any
/// order.
#[derive(Debug, PartialEq, Eq)]
struct StatementAnswer {
    rows: Vec<String>,
}

impl StatementAnswer {
    fn of(mut rows: Vec<String>) -> StatementAnswer {
        rows.sort_unstable();
        StatementAnswer { rows }
    }
}

impl Sweep {
    /// Measures the sweep with a server of this kind. `None`: the user asked to stop before anything was
    /// measured.
    pub(super) fn serve(
        &self,
        runner: &Runner<'_>,
        kind: ServerKind,
        survey: &Survey,
        told: &dyn Fn(&str),
    ) -> LabResult<Option<SweepPoint>> {
        let namespace = Namespace::of_beds(&runner.beds)?;
        let mut sites = Vec::new();
        for (name, bed) in &runner.beds {
            if runner.is_stopped() {
                return Ok(None);
            }
            told(&format!("{name}: load the table"));
            let created = self.create(runner, kind, (name, bed), namespace.as_ref());
            let site = match created {
                Err(LabError::Stopped) => return Ok(None),
                created => created?,
            };
            if site.load(self, kind, &runner.stop)?.is_none() {
                return Ok(None);
            }
            site.server.pause();
            sites.push(site);
        }
        // Loading a table may take longer than measuring, so the time starts here.
        let deadline = Instant::now() + self.time.duration();
        let is_over = || runner.is_stopped() || Instant::now() >= deadline;
        let statements: Vec<Statement> = self
            .statements
            .iter()
            .map(|statement| statement.clone().of_month(survey.month))
            .collect();
        let measurement = Measurement {
            sweep: self,
            kind,
            runner,
            sites: &sites,
            told,
            is_over: &is_over,
            is_first: Cell::new(true),
        };
        let mut runs: Vec<Vec<Vec<StatementRun>>> = Vec::new();
        for _ in &sites {
            runs.push(statements.iter().map(|_| Vec::new()).collect());
        }
        measurement.run(&statements, &mut runs)?;
        let table_bytes = survey.database_bytes(&self.settings);
        Ok(Some(self.served(
            &statements,
            &sites,
            &runs,
            survey,
            table_bytes,
        )))
    }

    /// The server and its storage, without the table.
    fn create(
        &self,
        runner: &Runner<'_>,
        kind: ServerKind,
        (name, bed): (&str, &Bed),
        namespace: Option<&Rc<Namespace>>,
    ) -> LabResult<TableSite> {
        let stop = &runner.stop;
        let stack = Stack::new(name, bed, namespace, self.cache.bytes(), stop)?;
        let page = (kind == ServerKind::Mariadb).then_some(self.page.bytes());
        let server = DatabaseServer::create(kind, &stack, self.settings.cache_bytes, page, stop)?;
        Ok(TableSite {
            name: name.to_owned(),
            server,
            stack,
        })
    }

    fn served(
        &self,
        statements: &[Statement],
        sites: &[TableSite],
        runs: &[Vec<Vec<StatementRun>>],
        survey: &Survey,
        table_bytes: u64,
    ) -> SweepPoint {
        let sets = sites.iter().zip(runs).map(|(site, runs)| {
            let measured = statements.iter().zip(runs);
            let measured: Vec<MeasuredStatement> = measured
                .map(|(statement, runs)| of_runs(statement, runs))
                .collect();
            let all_ran = measured.iter().all(|s| !s.runs_s.is_empty());
            let score = || score_s(measured.iter().map(|s| (s.weight, s.average_s)));
            MeasuredSet {
                name: site.name.clone(),
                score_s: all_ran.then(score),
                statements: measured,
            }
        });
        SweepPoint {
            name: self.name(),
            page: self.page.to_string(),
            cache: self.cache.to_string(),
            rows: survey.rows,
            table_bytes,
            sets: sets.collect(),
            others: Others::default(),
        }
    }
}

/// Runs the statements, one after the other, on all sites.
struct Measurement<'a> {
    sweep: &'a Sweep,
    kind: ServerKind,
    runner: &'a Runner<'a>,
    sites: &'a [TableSite],
    told: &'a dyn Fn(&str),
    is_over: &'a dyn Fn() -> bool,
    /// Whether no modifying statement has run yet.
    is_first: Cell<bool>,
}

impl Measurement<'_> {
    fn run(&self, statements: &[Statement], runs: &mut [Vec<Vec<StatementRun>>]) -> LabResult<()> {
        let mut answers: Vec<Option<StatementAnswer>> = statements.iter().map(|_| None).collect();
        let writes = |statement: &Statement| statement.kind != StatementKind::Scan;
        for (index, statement) in statements.iter().enumerate() {
            if writes(statement) {
                continue;
            }
            for _ in 0..statement.runs {
                self.run_on_all(index, statement, runs, &mut answers[index])?;
            }
        }
        let rounds = statements.iter().filter(|s| writes(s)).map(|s| s.runs);
        for round in 1..=rounds.max().unwrap_or(0) {
            self.renew()?;
            for (index, statement) in statements.iter().enumerate() {
                if writes(statement) && round <= statement.runs {
                    self.run_on_all(index, statement, runs, &mut answers[index])?;
                }
            }
        }
        Ok(())
    }

    /// Every round of modifying statements starts with a freshly loaded table.
    fn renew(&self) -> LabResult<()> {
        if self.is_first.replace(false) {
            return Ok(());
        }
        for site in self.sites {
            if (self.is_over)() {
                return Ok(());
            }
            (self.told)(&format!("{}: load the table again", site.name));
            site.server.go_on();
            site.load(self.sweep, self.kind, &self.runner.stop)?;
            site.server.pause();
        }
        Ok(())
    }

    fn run_on_all(
        &self,
        index: usize,
        statement: &Statement,
        runs: &mut [Vec<Vec<StatementRun>>],
        known: &mut Option<StatementAnswer>,
    ) -> LabResult<()> {
        let sql = sql(statement, self.kind);
        for (site, runs) in self.sites.iter().zip(runs) {
            if (self.is_over)() {
                return Ok(());
            }
            (self.told)(&format!("{}: {}", site.name, statement.name));
            site.server.go_on();
            let ran = site.run(statement, &sql, &self.runner.stop);
            site.server.pause();
            let Some((run, answer)) = ran? else {
                return Ok(());
            };
            match known {
                Some(known) if *known != answer => {
                    return Err(LabError::Meaningless(format!(
                        "{sql} returned another answer on {} than before: the volume returned wrong \
                         data",
                        site.name
                    )));
                }
                Some(_) => {}
                None => *known = Some(answer),
            }
            runs[index].push(run);
            self.runner.stage.step();
        }
        Ok(())
    }
}

/// The statement in the server's SQL dialect.
fn sql(statement: &Statement, kind: ServerKind) -> String {
    match (statement.kind, kind) {
        (StatementKind::Vacuum, ServerKind::Mariadb) => format!("OPTIMIZE TABLE {TABLE}"),
        (StatementKind::Vacuum, ServerKind::Postgresql) => format!("VACUUM FULL {TABLE}"),
        _ => statement.sql.trim_end_matches(';').to_owned(),
    }
}

/// Statements that finish deferred writes to the table after loading, so that they do not count in the first
/// statement's time.
fn settle(kind: ServerKind) -> &'static [&'static str] {
    match kind {
        // Returns only after the table's pages were written to the disk.
        ServerKind::Mariadb => &["FLUSH TABLES drive_stats FOR EXPORT", "UNLOCK TABLES"],
        // Otherwise the first scan would mark the rows on each page as visible to all.
        ServerKind::Postgresql => &["VACUUM (FREEZE) drive_stats", "CHECKPOINT"],
    }
}

fn create_table(schema: &Schema) -> String {
    let column = |name: String| match name.as_str() {
        "date" | "serial_number" | "model" => format!("{name} VARCHAR(64)"),
        _ => format!("{name} BIGINT"),
    };
    let columns: Vec<String> = schema.column_names().map(column).collect();
    format!("CREATE TABLE {TABLE} ({})", columns.join(", "))
}

fn write_rows(
    to: &mut dyn Write,
    rows: impl Iterator<Item = LabResult<Row>>,
    stop: &Stop,
) -> LabResult<()> {
    for (number, row) in rows.enumerate() {
        if number % LOOK == 0 && stop.is_asked() {
            return Ok(());
        }
        let written = write_row(to, &row?);
        written.map_err(|error| LabError::Target(format!("its client: {error}")))?;
    }
    Ok(())
}

fn write_row(to: &mut dyn Write, row: &Row) -> io::Result<()> {
    let [serial, model] = [&row.serial_number, &row.model].map(|text| escaped(text));
    let failure = u8::from(row.failure);
    write!(
        to,
        "{}\t{serial}\t{model}\t{}\t{failure}",
        row.date, row.capacity_bytes
    )?;
    for value in &row.smart {
        match value {
            Some(value) => write!(to, "\t{value}")?,
            None => to.write_all(b"\t\\N")?,
        }
    }
    to.write_all(b"\n")
}

fn of_runs(statement: &Statement, runs: &[StatementRun]) -> MeasuredStatement {
    let runs_s: Vec<f64> = runs.iter().map(|run| run.seconds).collect();
    let total_s: f64 = runs_s.iter().sum();
    let count = runs.len().max(1) as f64;
    let moved = runs
        .iter()
        .fold(Traffic::default(), |sum, run| sum.plus(run.traffic));
    let per_s = |bytes: u64| bytes as f64 / 1e6 / total_s.max(1e-9);
    let all = runs
        .iter()
        .fold(None, |sum: Option<Processors>, run| match sum {
            Some(sum) => Some(sum.plus(run.processors)),
            None => Some(run.processors),
        });
    MeasuredStatement {
        name: statement.name.clone(),
        sql: statement.sql.clone(),
        weight: statement.weight,
        average_s: total_s / count,
        runs_s,
        read_megabytes_per_s: per_s(moved.read_bytes),
        written_megabytes_per_s: per_s(moved.written_bytes),
        paper_s: statement.paper_s,
        processors: all.map(|all| all.divided_by(count)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_row_is_written_as_both_servers_read_it() {
        let row = Row {
            date: "2017-01-02".parse().expect("a day"),
            serial_number: Arc::from("Z\tS"),
            model: Arc::from("ST4000DM000"),
            capacity_bytes: -1,
            failure: true,
            smart: vec![Some(7), None],
        };
        let mut written = Vec::new();
        write_row(&mut written, &row).expect("memory");
        let expected = "2017-01-02\tZ\\tS\tST4000DM000\t-1\t1\t7\t\\N\n";
        assert_eq!(String::from_utf8_lossy(&written), expected);
    }
}
