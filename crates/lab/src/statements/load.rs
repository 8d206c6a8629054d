//! Creates the `drive_stats` table and fills it from a stream of rows, in one transaction.

use rusqlite::types::Null;

use crate::{
    LabError, LabResult,
    drive_stats::{Date, Month, Row, Rows, Schema},
    progress::Stage,
    sqlite::Database,
};

/// What was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Rows in the table.
    pub(crate) rows: u64,
    /// The data's first day.
    pub(crate) first: Date,
    /// The data's last day.
    pub(crate) last: Date,
    /// Its first full month, which DELETE removes.
    pub(crate) month: Month,
}

/// Creates and fills the table.
pub(crate) fn load(database: &Database, rows: &mut Rows, stage: &Stage) -> LabResult<Loaded> {
    let schema = rows.schema.clone();
    database.execute(&create_table(&schema))?;
    database.execute("BEGIN")?;
    let places = vec!["?"; schema.column_names().count()].join(",");
    let insert = format!("INSERT INTO drive_stats VALUES ({places})");
    let doing = "loading drive_stats";
    let mut statement = database.run(doing, |connection| connection.prepare(&insert))?;
    let mut span: Option<(Date, Date)> = None;
    let mut loaded = 0;
    for row in rows {
        let row = row?;
        database.run(doing, |_| {
            bind(&mut statement, &row).and_then(|()| statement.raw_execute())
        })?;
        let (first, last) = span.unwrap_or((row.date, row.date));
        span = Some((first.min(row.date), last.max(row.date)));
        loaded += 1;
        if loaded % 4096 == 0 {
            stage.set(loaded);
        }
    }
    drop(statement);
    database.execute("COMMIT")?;
    let (first, last) = span.ok_or_else(|| LabError::Unusable("it has no rows".into()))?;
    Ok(Loaded {
        rows: loaded,
        first,
        last,
        month: full_month(first, last)?,
    })
}

/// The first full month of the days `first..=last`.
pub(super) fn full_month(first: Date, last: Date) -> LabResult<Month> {
    Month::first_full(first, last).ok_or_else(|| {
        LabError::Unusable(format!(
            "it covers {first} to {last} but no full month, which the DELETE needs; give more files, \
             or continue the fleet with --days 60"
        ))
    })
}

/// The statement that creates the table.
pub(super) fn create_table(schema: &Schema) -> String {
    let column = |name: String| match name.as_str() {
        "date" | "serial_number" | "model" => format!("{name} TEXT"),
        _ => format!("{name} INTEGER"),
    };
    let columns: Vec<String> = schema.column_names().map(column).collect();
    format!("CREATE TABLE drive_stats ({})", columns.join(", "))
}

fn bind(statement: &mut rusqlite::Statement<'_>, row: &Row) -> rusqlite::Result<()> {
    statement.raw_bind_parameter(1, row.date.to_string())?;
    statement.raw_bind_parameter(2, &*row.serial_number)?;
    statement.raw_bind_parameter(3, &*row.model)?;
    statement.raw_bind_parameter(4, row.capacity_bytes)?;
    statement.raw_bind_parameter(5, i64::from(row.failure))?;
    for (place, value) in (6..).zip(&row.smart) {
        match value {
            Some(value) => statement.raw_bind_parameter(place, value)?,
            None => statement.raw_bind_parameter(place, Null)?,
        }
    }
    Ok(())
}
