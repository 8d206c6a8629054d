//! The benchmark's history: appends a short summary of a run to a Markdown file, so that successive commits
//! can be compared line by line.

use std::{
    fmt::Write as _,
    fs::OpenOptions,
    io::Write as _,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use super::report::{Report, Row};
use crate::{Error, Result, machine::COMMIT, report::day};

/// Names the client that generated a row's load: our own initiator.
const OWN_CLIENT: &str = "own";

impl Report {
    /// Appends the summary to `path`, creating the file if it does not exist.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append_history(&self, path: &Path) -> Result<()> {
        let title = format!("{}, {}, {}", today(), commit(), self.machine("cpu"));
        let own = self.rows().map(|row| (OWN_CLIENT, row));
        let rows = self
            .libiscsi_rows()
            .into_iter()
            .map(|row| ("libiscsi", row));
        let text = section(&title, rows.chain(own), &self.remarks());
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|source| Error::File {
                path: path.to_owned(),
                source,
            })
    }
}

/// One run under its own heading: a row for each load, then remarks that do not fit in rows.
fn section(
    title: &str,
    rows: impl Iterator<Item = (&'static str, Row)>,
    remarks: &[String],
) -> String {
    let mut out = format!(
        "\n{title}\n\n\
         | client | load | medium | IOPS | target µs/IO | × tgt | × floor |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n"
    );
    // Not every load is run on every medium.
    for (client, row) in rows.filter(|(_, row)| row.iops.is_finite()) {
        let _ = writeln!(
            out,
            "| {client} | {} | {} | {:.0} | {:.2} µs | {} | {} |",
            row.name,
            row.medium,
            row.iops,
            row.target_us,
            times(row.times_tgt),
            times(row.times_floor),
        );
    }
    if !remarks.is_empty() {
        out.push('\n');
    }
    for remark in remarks {
        let _ = writeln!(out, "- {remark}");
    }
    out
}

/// Formats a multiple, or a dash if there was nothing to compare with.
pub(super) fn times(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.1}×")
    } else {
        "–".into()
    }
}

/// Today's date, in UTC.
fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    day(since.map_or(0, |since| since.as_secs() / 86_400))
}

/// The commit that this program was built from, or the version where that is not known.
fn commit() -> String {
    match COMMIT {
        "" => format!("version {}", env!("CARGO_PKG_VERSION")),
        commit => commit.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_a_line_for_each_load_and_each_remark() {
        let row = |name, iops, times_tgt| Row {
            name,
            medium: "memory",
            iops,
            target_us: 1.514,
            times_tgt,
            times_floor: 6.86,
        };
        let rows = [
            row("4K", 654_642.6, 4.16),
            row("128K", 654_642.6, f64::NAN),
            row("not run", f64::NAN, f64::NAN),
        ];
        let rows = rows.into_iter().map(|row| (OWN_CLIENT, row));
        let text = section("2026-11-22, abc", rows, &["deep: fine".into()]);
        let expected = "\n2026-11-22, abc\n\n\
            | client | load | medium | IOPS | target µs/IO | × tgt | × floor |\n\
            | --- | --- | --- | --- | --- | --- | --- |\n\
            | own | 4K | memory | 654643 | 1.51 µs | 4.2× | 6.9× |\n\
            | own | 128K | memory | 654643 | 1.51 µs | – | 6.9× |\n\
            \n- deep: fine\n";
        assert_eq!(text, expected);
    }
}
