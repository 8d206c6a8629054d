//! Runs the whole experiment on disks in memory: what is measured, in which order, and that a volume
//! returning wrong data is detected.

use std::{cell::Cell, io, rc::Rc};

use super::*;
use crate::{
    drive_stats::RowSource,
    nameless::nameless_file,
    progress::ProgressOutput,
    report,
    sqlite::{DatabaseDisk, MemoryDisk, Settings},
};

/// A memory disk that counts, and that can return wrong bytes for one late read.
struct CountingDisk {
    inner: MemoryDisk,
    traffic: Rc<Cell<Traffic>>,
    wrong_after_bytes: Option<u64>,
}

impl DatabaseDisk for CountingDisk {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)?;
        let mut traffic = self.traffic.get();
        traffic.read_bytes += buffer.len() as u64;
        self.traffic.set(traffic);
        if self
            .wrong_after_bytes
            .is_some_and(|bytes| traffic.read_bytes > bytes)
        {
            // The last cell of a page, so that a row changes rather than the page's structure.
            let end = buffer.len();
            buffer[end - 120..].fill(b'7');
        }
        Ok(())
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut traffic = self.traffic.get();
        traffic.written_bytes += bytes.len() as u64;
        self.traffic.set(traffic);
        self.inner.write_at(offset, bytes)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Scans run as often as in the paper, all other statements three times.
fn three_rewrites(statement: Statement) -> Statement {
    match statement.kind {
        StatementKind::Scan => statement,
        StatementKind::Delete | StatementKind::Vacuum => statement.repeated(3),
    }
}

fn experiment(rows: u64, wrong_after_bytes: Option<u64>) -> Experiment {
    let mut set_ups = Vec::new();
    let mut shares = Vec::new();
    for (index, wrong_after_bytes) in [None, wrong_after_bytes].into_iter().enumerate() {
        let traffic = Rc::new(Cell::new(Traffic::default()));
        let inner = MemoryDisk::new(64 << 20);
        let disk = Rc::new(CountingDisk {
            inner,
            traffic: traffic.clone(),
            wrong_after_bytes,
        });
        set_ups.push(SetUp {
            name: format!("set-up {index}"),
            disk,
            shares: vec![index],
        });
        let name = format!("share {index}");
        shares.push(MeasuredShare {
            name,
            traffic: Box::new(move || traffic.get()),
        });
    }
    Experiment {
        set_ups,
        shares,
        link_bits_per_s: Some(1_000_000_000),
        source: RowSource::Generated { rows, seed: 1 },
        settings: Settings {
            page_bytes: 65_536,
            cache_bytes: 1 << 20,
        },
        statements: statements().map(three_rewrites).into(),
        image: nameless_file(&std::env::temp_dir()).unwrap(),
        settle: Box::new(|| ()),
        is_over: Box::new(|| false),
        told: Box::new(|_| ()),
        notes: Vec::new(),
    }
}

#[test]
fn every_statement_runs_on_every_set_up_and_scans_read_the_whole_table() {
    let report = experiment(20_000, None)
        .run(ProgressOutput::Silent)
        .unwrap();
    assert_eq!(report.data.rows, 20_000);
    assert_eq!(report.data.deleted_month, "2017-01");
    assert_eq!(report.sets.len(), 2);
    for (index, set) in report.sets.iter().enumerate() {
        for statement in &set.statements {
            let scan = statement.statement.kind == StatementKind::Scan;
            assert_eq!(statement.runs.len(), if scan { 4 } else { 3 });
            for run in &statement.runs {
                assert!(run.seconds > 0.0 && !run.samples.is_empty());
                let moved = run.traffic[index];
                assert_eq!(
                    run.traffic[1 - index],
                    Traffic::default(),
                    "only its own share"
                );
                assert!(moved.read_bytes >= report.data.table_bytes / 3);
                if scan {
                    assert!(moved.read_bytes >= report.data.table_bytes * 9 / 10);
                    assert_eq!(moved.written_bytes, 0);
                }
                let sampled = run
                    .samples
                    .iter()
                    .map(|sample| sample.shares[index].read_bytes);
                assert_eq!(sampled.sum::<u64>(), moved.read_bytes);
            }
        }
    }
    assert!(report::table(&report).contains("set-up 1"));
}

#[test]
fn data_without_a_full_month_is_refused() {
    // Twenty rows are one drive for twenty days.
    let error = experiment(20, None)
        .run(ProgressOutput::Silent)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("2017-01-01 to 2017-01-20 but no full month"),
        "{error}"
    );
}

#[test]
fn a_volume_that_returns_wrong_rows_is_found_out() {
    // Reads of the second set-up return wrong data after its first scan.
    let error = experiment(20_000, Some(7 << 20))
        .run(ProgressOutput::Silent)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("wrong data") || error.contains("malformed"),
        "{error}"
    );
}

#[test]
fn the_papers_scores_are_its_totals() {
    let [one, two] = paper_scores_s();
    assert!((one - 21.159_95).abs() < 1e-9 && (two - 17.300_425).abs() < 1e-9);
    assert!(score_s([]).abs() < f64::EPSILON);
}
