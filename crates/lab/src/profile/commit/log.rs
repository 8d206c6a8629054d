//! How long a commit of MariaDB or PostgreSQL would take on the same disk. Both append what a transaction has changed to a
//! log and flush that once; the tables are written later. SQLite, whose rollback journal has to be durable before its
//! database and gone after it, flushes several times, and how much longer that takes depends on the disk.

use std::time::{Duration, Instant};

use engine::Payload;
use serde_json::{Value, json};
use volume::Durability;

use super::super::{
    Runner,
    layers::{self, TimeSpent},
};
use crate::{
    LabError, LabResult,
    report::{FindingsTable, Layers, time_us},
};

/// How much a small transaction appends; InnoDB and PostgreSQL need some hundred bytes for a row.
const RECORD_BYTES: u64 = 512;
/// How much of the log is written at once: the page of the kernel's cache in which the record ends. The next record is
/// often in the same.
const BLOCK_BYTES: u64 = 4096;
/// The log's length. Like those of the databases it exists beforehand, and is used again from its beginning.
const LOG_BYTES: u64 = 16 << 20;

/// The time of one commit, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Appended {
    write_ns: u64,
    flush_ns: u64,
}

const WRITE: layers::LayerRow<Appended> = ("writing the end of the log", |of| of.write_ns);
const FLUSH: layers::LayerRow<Appended> = ("flushing it", |of| of.flush_ns);

/// The commits of a log.
pub(super) struct Log {
    commits: usize,
    times: Layers,
}

impl Log {
    /// Commits on target number `target`, `most` times or for `time`. The log replaces what is on the disk. `None`: the
    /// user asked to stop.
    pub(super) fn measure(
        runner: &Runner<'_>,
        target: usize,
        most: usize,
        time: Duration,
    ) -> LabResult<Option<Log>> {
        let target = &runner.targets[target];
        let log_bytes = LOG_BYTES.min(target.len_bytes()) / BLOCK_BYTES * BLOCK_BYTES;
        runner.fill(&target.luns(1, None)?, 0..log_bytes)?;
        let data = Payload::from(engine::Buf::zeroed(BLOCK_BYTES as usize));
        let volume = target.volume();
        let deadline = Instant::now() + time;
        let mut all = Vec::new();
        while all.len() < most && Instant::now() < deadline && !runner.is_stopped() {
            let end = all.len() as u64 * RECORD_BYTES;
            let at = end / BLOCK_BYTES * BLOCK_BYTES % log_bytes;
            let began = Instant::now();
            let committed = runner.lane.block_on(async {
                volume.write(at, data.clone(), Durability::Cached).await?;
                let write = began.elapsed();
                volume.flush().await.map(|()| write)
            });
            let whole = began.elapsed();
            let failed = |error| LabError::Target(format!("{}: {error}", target.name));
            let write = committed.map_err(failed)?;
            all.push(Appended {
                write_ns: write.as_nanos() as u64,
                flush_ns: (whole - write).as_nanos() as u64,
            });
        }
        Ok((!all.is_empty() && !runner.is_stopped()).then(|| Log::of(&all)))
    }

    fn of(all: &[Appended]) -> Log {
        let total_ns = |of: &Appended| of.write_ns + of.flush_ns;
        Log {
            commits: all.len(),
            times: layers::layers(all, total_ns, &[WRITE, FLUSH], |_| TimeSpent::default()),
        }
    }

    /// What it is for, as a sentence.
    pub(super) fn sentence(&self) -> String {
        let total = self.times.total;
        format!(
            "A MariaDB or PostgreSQL commit would take about {} at the median and {} at the 99th percentile: it appends to \
             a log and flushes once.",
            time_us(total.p50_us),
            time_us(total.p99_us),
        )
    }

    pub(super) fn table(&self) -> FindingsTable {
        FindingsTable {
            title: "A commit with one flush, as of MariaDB and PostgreSQL".into(),
            about: format!(
                "{} times 512 bytes were appended to a log on the same disk, each durable before the next. What the \
                 database itself does for a transaction comes on top.",
                self.commits
            ),
            ..self.times.table()
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "commits": self.commits, "total": self.times.total, "layers": self.times.layers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_is_of_one_write_and_one_flush() {
        let commit = |flush_us: u64| Appended {
            write_ns: 100_000,
            flush_ns: flush_us * 1000,
        };
        let mut all = vec![commit(4000); 990];
        all.extend([commit(20_000); 30]);
        let told = Log::of(&all).sentence();
        let start = "A MariaDB or PostgreSQL commit would take about 4.1 ms at the median and 20.1 ms at the 99th";
        assert!(told.starts_with(start), "{told}");
    }
}
