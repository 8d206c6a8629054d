//! Checks user-written statements before anything is loaded: like a scan, each must be a single read-only
//! statement.

use rusqlite::Connection;

use super::load::create_table;
use crate::drive_stats::Schema;

/// Returns what is wrong with `sql` as a scan of a table with these columns.
pub(crate) fn check(sql: &str, schema: &Schema) -> std::result::Result<(), String> {
    let empty = Connection::open_in_memory().and_then(|connection| {
        connection.execute_batch(&create_table(schema))?;
        Ok(connection)
    });
    let empty = empty.map_err(|error| error.to_string())?;
    let prepared = empty.prepare(sql);
    match prepared {
        Ok(statement) if !statement.readonly() || statement.column_count() == 0 => {
            Err("it is not a query: write one SELECT".into())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "{error}; the table is drive_stats, with the columns of Backblaze's files"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_reads_columns_that_are_there() {
        let said = |sql| check(sql, &Schema::of_2013());
        assert_eq!(said("SELECT model FROM drive_stats"), Ok(()));
        let columns = said("SELECT modle FROM drive_stats").expect_err("a slip");
        assert!(columns.contains("modle"), "{columns}");
        for writes in [
            "DELETE FROM drive_stats",
            "VACUUM",
            "",
            "PRAGMA page_size = 512",
        ] {
            assert!(said(writes).is_err(), "{writes}");
        }
        assert!(said("SELECT 1; SELECT 2").is_err());
    }
}
