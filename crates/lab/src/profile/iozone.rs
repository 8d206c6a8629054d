//! `iozone`: IOzone's eight streams over file sizes and transfer sizes, with direct I/O and several transfers
//! in flight. Each stream transfers the whole file once, or as much as fits in its time; the time includes
//! flushing what was written.

use std::{collections::BTreeMap, time::Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use volume::config::{Size, Time};

use super::{
    Case, CaseWork, Experiment, Needs, OUTSTANDING_MAX, Runner, check_time, too_few, within,
    workload,
};
use crate::{
    LabResult,
    load::{Arrivals, Lun, Order, Workload},
    report::{Axis, Findings, FindingsTable, Marks, Plot, Score, short},
    statistics::{Comparison, Median},
};

/// Throughput within this fraction of the maximum counts as equally good.
const AS_GOOD: f64 = 0.95;
/// Longer transfers are worth advice if they are faster by this factor.
const FASTER: f64 = 1.5;

/// The settings of an `iozone` profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Iozone {
    about: String,
    file_sizes: Vec<Size>,
    transfer_sizes: Vec<Size>,
    outstanding: usize,
    streams: Vec<IozoneStream>,
    time: Time,
    #[serde(default = "one")]
    rounds: usize,
    #[serde(default)]
    verify: bool,
}

fn one() -> usize {
    1
}

/// One of IOzone's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum IozoneStream {
    /// The first write, to unwritten space.
    Write,
    /// The same range written again.
    Rewrite,
    Read,
    /// The same range read again.
    ReRead,
    RandomRead,
    RandomWrite,
    BackwardRead,
    StridedRead,
}

impl IozoneStream {
    fn name(self) -> &'static str {
        match self {
            IozoneStream::Write => "write",
            IozoneStream::Rewrite => "rewrite",
            IozoneStream::Read => "read",
            IozoneStream::ReRead => "re-read",
            IozoneStream::RandomRead => "random read",
            IozoneStream::RandomWrite => "random write",
            IozoneStream::BackwardRead => "backward read",
            IozoneStream::StridedRead => "strided read",
        }
    }

    fn order(self) -> Order {
        match self {
            IozoneStream::Write
            | IozoneStream::Rewrite
            | IozoneStream::Read
            | IozoneStream::ReRead => Order::Sequential,
            IozoneStream::RandomRead | IozoneStream::RandomWrite => Order::Random,
            IozoneStream::BackwardRead => Order::Backward,
            IozoneStream::StridedRead => Order::Strided,
        }
    }

    fn writes(self) -> bool {
        matches!(
            self,
            IozoneStream::Write | IozoneStream::Rewrite | IozoneStream::RandomWrite
        )
    }
}

/// The file that the streams transfer, at the beginning of every disk.
struct StreamFile {
    luns: Vec<Lun>,
    /// How much of it holds data, as far as is known.
    written_bytes: u64,
}

/// One run of a stream with one file size and one transfer size.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Speed {
    megabytes_per_s: f64,
    iops: f64,
    p50_us: f64,
    p99_us: f64,
}

/// A stream with one file size and one transfer size: the medians of all rounds.
#[derive(Clone, Debug, Serialize)]
struct Cell {
    stream: IozoneStream,
    file_bytes: u64,
    transfer_bytes: u64,
    #[serde(flatten)]
    median: Speed,
    rounds: Vec<Speed>,
}

impl Cell {
    fn of(
        stream: IozoneStream,
        (file, transfer): (Size, Size),
        rounds: Vec<Speed>,
    ) -> Option<Cell> {
        if rounds.is_empty() {
            return None;
        }
        let median = |of: fn(&Speed) -> f64| Median::of_each(&rounds, of).median;
        let median = Speed {
            megabytes_per_s: median(|speed| speed.megabytes_per_s),
            iops: median(|speed| speed.iops),
            p50_us: median(|speed| speed.p50_us),
            p99_us: median(|speed| speed.p99_us),
        };
        Some(Cell {
            stream,
            file_bytes: file.bytes(),
            transfer_bytes: transfer.bytes(),
            median,
            rounds,
        })
    }

    fn megabytes_per_s(&self) -> f64 {
        self.median.megabytes_per_s
    }
}

impl Iozone {
    fn workload(&self, stream: IozoneStream, file: Size, transfer: Size) -> Workload {
        let read_percent = if stream.writes() { 0 } else { 100 };
        Workload {
            order: stream.order(),
            arrivals: Arrivals::Closed {
                outstanding: self.outstanding.max(1),
            },
            ios_max: Some(file.bytes() / transfer.bytes().max(1)),
            ..workload(&transfer.into(), read_percent, file)
        }
    }

    fn run_once(
        &self,
        runner: &mut Runner<'_>,
        file: &mut StreamFile,
        stream: IozoneStream,
        (size, transfer): (Size, Size),
    ) -> LabResult<Option<Speed>> {
        let name = format!("{} of {size} by {transfer}", stream.name());
        runner.once(&name, |runner| {
            self.measure(runner, &name, file, stream, (size, transfer))
        })
    }

    /// The same, including the flush of written data.
    fn measure(
        &self,
        runner: &mut Runner<'_>,
        name: &str,
        file: &mut StreamFile,
        stream: IozoneStream,
        (size, transfer): (Size, Size),
    ) -> LabResult<Option<Speed>> {
        if runner.is_stopped() {
            return Ok(None);
        }
        match stream {
            IozoneStream::Write => file.discard(runner, size),
            _ => file.fill(runner, size)?,
        }
        let workload = self.workload(stream, size, transfer);
        let time = self.time.duration();
        let Some(step) = runner.load_at_once(name, &file.luns, &workload, time)? else {
            return Ok(None);
        };
        if stream == IozoneStream::Write && file.luns.len() == 1 {
            file.written_bytes = step.done.bytes;
        }
        let mut elapsed = step.done.elapsed;
        if stream.writes() {
            let began = Instant::now();
            runner.flush()?;
            elapsed += began.elapsed();
        }
        let seconds = elapsed.as_secs_f64().max(1e-9);
        Ok(Some(Speed {
            megabytes_per_s: step.done.bytes as f64 / 1e6 / seconds,
            iops: step.done.ios as f64 / seconds,
            p50_us: step.figures.p50_us,
            p99_us: step.figures.p99_us,
        }))
    }

    /// All streams with each size, `write` first: what it leaves unwritten of a file is then filled once for all the
    /// others.
    fn in_order(&self, file: Size, transfers: &[Size]) -> Vec<(IozoneStream, (Size, Size))> {
        let is_first = |stream: &&IozoneStream| **stream == IozoneStream::Write;
        let (first, others): (Vec<&IozoneStream>, Vec<&IozoneStream>) =
            self.streams.iter().partition(is_first);
        let mut all = Vec::new();
        for streams in [first, others] {
            for transfer in transfers {
                all.extend(streams.iter().map(|stream| (**stream, (file, *transfer))));
            }
        }
        all
    }

    fn largest(&self) -> Size {
        let largest = self.file_sizes.iter().max();
        largest.copied().unwrap_or(Size::from_bytes(0))
    }
}

impl StreamFile {
    /// So that the next write meets unallocated space.
    fn discard(&mut self, runner: &Runner<'_>, size: Size) {
        runner.discard(size.bytes());
        for ledger in self.luns.iter().flat_map(|lun| &lun.ledger) {
            ledger.forget(size.bytes());
        }
        self.written_bytes = 0;
    }

    /// Writes what the last `write` had no time for: reads of holes need no access to the disk, and a write to one is no
    /// rewrite.
    fn fill(&mut self, runner: &Runner<'_>, size: Size) -> LabResult<()> {
        let block = u64::from(self.luns[0].volume.shape().block_size_bytes);
        let end = size.bytes() - size.bytes() % block;
        if self.written_bytes < end {
            runner.stage.say(&format!("filling {size}"));
            runner.fill(&self.luns, self.written_bytes..end)?;
            self.written_bytes = end;
        }
        Ok(())
    }
}

impl Experiment for Iozone {
    fn about(&self) -> &str {
        &self.about
    }

    fn needs(&self) -> Needs {
        Needs {
            sessions: 1,
            size_bytes: self.largest().bytes(),
            writes: true,
            is_spread: false,
        }
    }

    fn steps(&self) -> usize {
        self.file_sizes.len() * self.transfer_sizes.len() * self.streams.len() * self.rounds
    }

    fn run(&self, runner: &mut Runner<'_>) -> LabResult<Findings> {
        let mut on_disk = StreamFile {
            luns: runner.luns(1)?,
            written_bytes: 0,
        };
        let shape = on_disk.luns[0].volume.shape().clone();
        let (block, len) = (u64::from(shape.block_size_bytes), shape.len_bytes());
        let mut all: Vec<(IozoneStream, (Size, Size), Vec<Speed>)> = Vec::new();
        let mut left_out = Vec::new();
        for file in &self.file_sizes {
            let mut transfers = Vec::new();
            for transfer in &self.transfer_sizes {
                let fits = file.bytes() <= len && transfer.bytes() <= file.bytes();
                if !fits || transfer.bytes() % block != 0 {
                    left_out.push(format!("{file} by {transfer}"));
                    continue;
                }
                transfers.push(*transfer);
            }
            let loads = self.in_order(*file, &transfers).into_iter();
            all.extend(loads.map(|(stream, sizes)| (stream, sizes, Vec::new())));
        }
        for _ in 0..self.rounds {
            for (stream, sizes, rounds) in &mut all {
                rounds.extend(self.run_once(runner, &mut on_disk, *stream, *sizes)?);
            }
        }
        let cells: Vec<Cell> = all
            .into_iter()
            .filter_map(|(stream, sizes, rounds)| Cell::of(stream, sizes, rounds))
            .collect();
        let mut findings = Findings {
            answer: answer(&cells),
            advice: advice(&cells).into_iter().collect(),
            scores: self
                .streams
                .iter()
                .filter_map(|s| score(*s, &cells))
                .collect(),
            figures: json!({ "cells": cells }),
            ..Findings::default()
        };
        if !left_out.is_empty() {
            findings.notes.push(format!(
                "left out, because this disk has blocks of {block} bytes and is {} long: {}",
                Size::from_bytes(len),
                left_out.join(", ")
            ));
        }
        for stream in &self.streams {
            let of_stream: Vec<&Cell> = cells.iter().filter(|c| c.stream == *stream).collect();
            if !of_stream.is_empty() {
                let (table, plot) = shown(*stream, &of_stream);
                findings.tables.push(table);
                findings.plots.push(plot);
            }
        }
        Ok(findings)
    }

    fn cases(&self) -> Vec<Case> {
        let file = self.largest();
        let of = |transfer: &Size| {
            let case = |stream: &IozoneStream| Case {
                name: format!("{} by {transfer}", stream.name()),
                work: CaseWork::Load(Workload {
                    ios_max: None,
                    ..self.workload(*stream, file, *transfer)
                }),
                time: self.time,
            };
            [
                IozoneStream::Read,
                IozoneStream::Rewrite,
                IozoneStream::RandomRead,
                IozoneStream::RandomWrite,
            ]
            .map(|s| case(&s))
        };
        let ends = [self.transfer_sizes.first(), self.transfer_sizes.last()];
        ends.into_iter().flatten().flat_map(of).collect()
    }

    fn verifies(&self) -> bool {
        self.verify
    }

    fn check(&self) -> std::result::Result<(), String> {
        within("outstanding", self.outstanding, 1..=OUTSTANDING_MAX)?;
        within("rounds", self.rounds, 1..=1000)?;
        within("the number of streams", self.streams.len(), 1..=64)?;
        within("the number of file sizes", self.file_sizes.len(), 1..=64)?;
        within(
            "the number of transfer sizes",
            self.transfer_sizes.len(),
            1..=64,
        )?;
        check_time(self.time)
    }
}

/// The figure that a history tracks: the maximum of a stream.
fn score(stream: IozoneStream, cells: &[Cell]) -> Option<Score> {
    let of_stream = cells.iter().filter(|cell| cell.stream == stream);
    let most = of_stream.map(Cell::megabytes_per_s).reduce(f64::max)?;
    Some(Score::more(
        format!("MB/s at the most, {}", stream.name()),
        most,
    ))
}

fn answer(cells: &[Cell]) -> String {
    let best = |writes: bool| {
        let of_kind = cells.iter().filter(|cell| cell.stream.writes() == writes);
        of_kind.max_by(|a, b| a.megabytes_per_s().total_cmp(&b.megabytes_per_s()))
    };
    let told = |cell: &Cell| {
        format!(
            "{} MB/s ({} of {} by {})",
            short(cell.megabytes_per_s()),
            cell.stream.name(),
            Size::from_bytes(cell.file_bytes),
            Size::from_bytes(cell.transfer_bytes)
        )
    };
    match (best(false), best(true)) {
        (Some(read), Some(written)) => {
            format!("Reads reach {}, writes {}.", told(read), told(written))
        }
        (Some(only), None) | (None, Some(only)) => format!("It reaches {}.", told(only)),
        (None, None) => "Nothing was measured.".into(),
    }
}

/// The transfer size beyond which sequential reads of the largest file gain nothing, if the rounds show that they gain
/// until there.
fn advice(cells: &[Cell]) -> Option<String> {
    let largest = cells.iter().map(|cell| cell.file_bytes).max()?;
    let reads = cells
        .iter()
        .filter(|cell| cell.stream == IozoneStream::Read && cell.file_bytes == largest);
    let by_size: BTreeMap<u64, &Cell> = reads.map(|cell| (cell.transfer_bytes, cell)).collect();
    let speeds = by_size.values().map(|cell| cell.megabytes_per_s());
    let most = speeds.fold(0.0, f64::max);
    let is_enough = |cell: &&Cell| cell.megabytes_per_s() >= AS_GOOD * most;
    let (enough, there) = by_size.iter().find(|(_, cell)| is_enough(cell))?;
    let (least, first) = by_size.first_key_value()?;
    let of_each = |cell: &Cell| -> Vec<f64> {
        let rounds = cell.rounds.iter();
        rounds.map(|round| round.megabytes_per_s).collect()
    };
    let compared = Comparison::of(&of_each(first), &of_each(there));
    if enough <= least
        || compared.ratio < FASTER
        || compared.interval.is_some_and(|(low, _)| low < 1.0)
    {
        return None;
    }
    let certain = match compared.interval {
        Some((low, high)) => format!(
            " ({:.2}×, 95 % interval {low:.2}–{high:.2}, {} rounds)",
            compared.ratio, compared.pairs
        ),
        None => too_few(first.rounds.len()),
    };
    Some(format!(
        "sequential reads do {} MB/s in transfers of {} and {} MB/s from {} on{certain}: let scans read {} at once \
         (`read_ahead` of a cache, innodb_read_ahead_threshold, effective_io_concurrency)",
        short(first.megabytes_per_s()),
        Size::from_bytes(*least),
        short(there.megabytes_per_s()),
        Size::from_bytes(*enough),
        Size::from_bytes(*enough),
    ))
}

/// The table and the surface plot of a stream.
fn shown(stream: IozoneStream, cells: &[&Cell]) -> (FindingsTable, Plot) {
    let mut by_file: BTreeMap<u64, BTreeMap<u64, f64>> = BTreeMap::new();
    let mut transfers = BTreeMap::new();
    for cell in cells {
        transfers.insert(cell.transfer_bytes, ());
        let row = by_file.entry(cell.file_bytes).or_default();
        row.insert(cell.transfer_bytes, cell.megabytes_per_s());
    }
    let size = |bytes: &u64| Size::from_bytes(*bytes).to_string();
    let columns: Vec<String> = transfers.keys().map(size).collect();
    let value = |row: &BTreeMap<u64, f64>, transfer: &u64| row.get(transfer).copied();
    let mut heads = vec!["file"];
    heads.extend(columns.iter().map(String::as_str));
    let mut table = FindingsTable::new(
        &format!("{}, MB/s", stream.name()),
        "By file size (rows) and transfer size (columns); medians of all rounds.",
        &heads,
    );
    let mut rows = Vec::new();
    for (file, row) in &by_file {
        let values: Vec<Option<f64>> = transfers.keys().map(|t| value(row, t)).collect();
        let cells = values.iter().map(|v| v.map_or(String::new(), short));
        table
            .rows
            .push([size(file)].into_iter().chain(cells).collect());
        rows.push((size(file), values));
    }
    let axis = |label: &str| Axis {
        label: label.into(),
        is_logarithmic: true,
    };
    let plot = Plot {
        title: format!("{}, MB/s", stream.name()),
        about: "The stronger the colour, the faster.".into(),
        x: axis("transfer size"),
        y: axis("file size"),
        marks: Marks::Field {
            columns,
            rows,
            unit: "MB/s".into(),
        },
    };
    (table, plot)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::run_on_made_file, *};

    const SHORT: &str = r#"
kind = "iozone"
about = "A write that its time ends"
file_sizes = ["32MiB"]
transfer_sizes = ["4KiB"]
outstanding = 1
streams = ["write", "read"]
time = "1ms"
"#;

    #[test]
    fn a_slow_write_leaves_no_hole_to_read() {
        let file_bytes = 32 << 20;
        for profile in [SHORT.to_owned(), format!("{SHORT}verify = true\n")] {
            let (_, allocated) = run_on_made_file(&profile);
            assert!(allocated >= file_bytes, "{allocated}");
            let (_, allocated) = run_on_made_file(&profile.replace(", \"read\"", ""));
            assert!(allocated < file_bytes, "the write was slow: {allocated}");
        }
    }

    fn cell_of(stream: IozoneStream, transfer_bytes: u64, rounds: &[f64]) -> Cell {
        let speed = |megabytes_per_s: &f64| Speed {
            megabytes_per_s: *megabytes_per_s,
            iops: 1.0,
            p50_us: 1.0,
            p99_us: 1.0,
        };
        let sizes = (1 << 20, transfer_bytes);
        let sizes = (Size::from_bytes(sizes.0), Size::from_bytes(sizes.1));
        Cell::of(stream, sizes, rounds.iter().map(speed).collect()).expect("a round")
    }

    fn cell(stream: IozoneStream, transfer_bytes: u64, megabytes_per_s: f64) -> Cell {
        cell_of(stream, transfer_bytes, &[megabytes_per_s])
    }

    #[test]
    fn advice_comes_with_the_interval_over_rounds_and_not_if_there_may_be_no_gain() {
        let read = |transfer, rounds: [f64; 6]| cell_of(IozoneStream::Read, transfer, &rounds);
        let slow = || read(4096, [100.0, 101.0, 99.0, 100.0, 102.0, 98.0]);
        let cells = [
            slow(),
            read(65536, [200.0, 210.0, 190.0, 205.0, 195.0, 200.0]),
        ];
        let told = advice(&cells).expect("it rises in every round");
        assert!(
            told.contains("(2.00×, 95 % interval 1.9") && told.contains(", 6 rounds)"),
            "{told}"
        );
        let unsteady = [
            slow(),
            read(65536, [900.0, 20.0, 800.0, 30.0, 700.0, 600.0]),
        ];
        assert_eq!(advice(&unsteady), None);
        let once = [
            cell(IozoneStream::Read, 4096, 100.0),
            cell(IozoneStream::Read, 65536, 200.0),
        ];
        let told = advice(&once).expect("it rises");
        assert!(told.contains("one round"), "{told}");
        let twice = cell_of(IozoneStream::Read, 4096, &[100.0, 300.0, 120.0]);
        assert_eq!(twice.megabytes_per_s(), 120.0, "the median");
    }

    #[test]
    fn advice_needs_a_figure_that_supports_it() {
        let read = |transfer, mb| cell(IozoneStream::Read, transfer, mb);
        let rising = [read(4096, 100.0), read(65536, 390.0), read(1 << 20, 400.0)];
        let told = advice(&rising).expect("it rises");
        assert!(
            told.contains("100 MB/s in transfers of 4KiB and 390 MB/s from 64KiB"),
            "{told}"
        );
        let flat = [read(4096, 390.0), read(65536, 400.0)];
        assert_eq!(advice(&flat), None);
        assert_eq!(advice(&[]), None);
    }

    #[test]
    fn the_answer_names_the_best_of_both_directions() {
        let cells = [
            cell(IozoneStream::Rewrite, 4096, 50.0),
            cell(IozoneStream::RandomRead, 65536, 200.0),
            cell(IozoneStream::Read, 4096, 100.0),
        ];
        assert_eq!(
            answer(&cells),
            "Reads reach 200 MB/s (random read of 1MiB by 64KiB), writes 50 MB/s (rewrite of 1MiB by 4KiB)."
        );
    }
}
