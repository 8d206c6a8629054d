//! Tests the layout's guarantee against power cuts. A recording disk logs writes and flushes while
//! transactions run. Then, for many points of the log, a disk is built as a power cut there could have left
//! it: flushed data is present, and of unflushed data any subset of its 512-byte sectors. SQLite opens it and
//! must find an intact database with every committed transaction. Some recoveries are themselves cut. The
//! same test on a disk whose flush does nothing must fail, or it proves nothing.

use std::{cell::RefCell, io, rc::Rc};

use engine::random::SplitMix64;

use super::{disk::checked_range, *};

const SECTOR_BYTES: usize = 512;

enum RecordedOperation {
    Write(u64, Vec<u8>),
    Flush,
    /// The transaction with this number was committed and acknowledged to the application.
    Committed(i64),
}

/// Records every write and flush since its `start`.
struct RecordingDisk {
    now: MemoryDisk,
    start: Vec<u8>,
    log: RefCell<Vec<RecordedOperation>>,
    /// Whether it acknowledges flushes without performing them.
    lies: bool,
}

impl RecordingDisk {
    fn new(start: Vec<u8>, lies: bool) -> Rc<Self> {
        let now = MemoryDisk::new(start.len() as u64);
        now.write_at(0, &start).unwrap();
        Rc::new(Self {
            now,
            start,
            log: RefCell::default(),
            lies,
        })
    }

    fn committed(&self, transaction: i64) {
        self.log
            .borrow_mut()
            .push(RecordedOperation::Committed(transaction));
    }

    /// The disk after a power cut at position `at` of the log, and the last transaction committed before it.
    fn cut(&self, at: usize, random: &mut SplitMix64) -> (Vec<u8>, i64) {
        let log = &self.log.borrow()[..at];
        let mut disk = self.start.clone();
        let mut last = 0;
        let flushed = log
            .iter()
            .rposition(|operation| matches!(operation, RecordedOperation::Flush));
        // How much of the unflushed data survived: none, little, half, most, all.
        let chance = [0, 1, 4, 7, 8][random.below(5) as usize];
        for (place, operation) in log.iter().enumerate() {
            let durable = flushed.is_some_and(|flushed| place < flushed);
            match operation {
                RecordedOperation::Write(offset, bytes) => {
                    for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                        if durable || random.below(8) < chance {
                            let start = *offset as usize + index * SECTOR_BYTES;
                            disk[start..start + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
                RecordedOperation::Flush => {}
                RecordedOperation::Committed(transaction) => last = *transaction,
            }
        }
        (disk, last)
    }
}

impl DatabaseDisk for RecordingDisk {
    fn len_bytes(&self) -> u64 {
        self.now.len_bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.now.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        checked_range(self.len_bytes(), offset, bytes.len())?;
        self.log
            .borrow_mut()
            .push(RecordedOperation::Write(offset, bytes.to_vec()));
        self.now.write_at(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        if !self.lies {
            self.log.borrow_mut().push(RecordedOperation::Flush);
        }
        Ok(())
    }
}

const ACCOUNTS: i64 = 600;

/// SQL for `len` characters that no other transaction writes.
fn filler(number: i64, len: u64) -> String {
    format!("substr(replace(hex(zeroblob({len})), '00', '{number}.'), 1, {len})")
}

/// Moves money between accounts, so that the sum never changes, and records transaction `number` in a ledger;
/// occasionally a large change, a rollback or a VACUUM.
fn transact(database: &Database, number: i64, random: &mut SplitMix64) {
    let (from, to) = (random.between(1, ACCOUNTS), random.between(1, ACCOUNTS));
    let amount = random.between(1, 50);
    let mut sql = format!(
        "BEGIN;
         UPDATE account SET money = money - {amount} WHERE id = {from};
         UPDATE account SET money = money + {amount} WHERE id = {to};
         INSERT INTO ledger VALUES ({number}, {});",
        filler(number, random.below(3_000))
    );
    if random.one_in(6) {
        // Far larger than the cache, so pages are written to the database before the commit.
        sql += &format!("UPDATE account SET filler = {};", filler(number, 1_800));
    }
    if random.one_in(5) {
        sql += "UPDATE ledger SET filler = '' WHERE number % 3 = 0;";
    }
    if random.one_in(7) {
        database
            .execute("BEGIN; DELETE FROM account; DELETE FROM ledger; ROLLBACK;")
            .unwrap();
    }
    database.execute(&(sql + "COMMIT;")).unwrap();
    if random.one_in(9) {
        database.execute("VACUUM").unwrap();
    }
}

fn set_up(database: &Database) {
    database
        .execute(&format!(
            "CREATE TABLE account (id INTEGER PRIMARY KEY, money INTEGER, filler TEXT);
             CREATE TABLE ledger (number INTEGER, filler TEXT);
             WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < {ACCOUNTS})
             INSERT INTO account SELECT n, 100, {} FROM up;",
            filler(0, 800)
        ))
        .unwrap();
}

/// Opens the database on `disk` and returns what is wrong with it.
fn examine(
    disk: Rc<dyn DatabaseDisk>,
    settings: &Settings,
    last: i64,
) -> std::result::Result<(), String> {
    let said = |error: crate::LabError| error.to_string();
    let store = DatabaseStore::open(disk).map_err(said)?;
    let database = store.database(settings).map_err(said)?;
    let verdict: String = database
        .run("check", |c| {
            c.query_row("PRAGMA integrity_check", [], |row| row.get(0))
        })
        .map_err(said)?;
    if verdict != "ok" {
        return Err(verdict);
    }
    let one = |sql: &str| -> std::result::Result<i64, String> {
        database
            .run(sql, |c| c.query_row(sql, [], |row| row.get(0)))
            .map_err(said)
    };
    let (newest, entries) = (
        one("SELECT coalesce(max(number), 0) FROM ledger")?,
        one("SELECT count(DISTINCT number) FROM ledger")?,
    );
    let money = one("SELECT sum(money) FROM account")?;
    // One more may be present: committed, but cut before the acknowledgement.
    if newest != entries || !(last..=last + 1).contains(&newest) || money != 100 * ACCOUNTS {
        return Err(format!(
            "{last} transactions were committed; {entries} are there, the newest {newest}, and the \
             accounts hold {money}"
        ));
    }
    Ok(())
}

/// Runs transactions, examines `cuts` power cuts and returns the errors found.
fn trial(seed: u64, page_bytes: u32, cuts: usize, lies: bool) -> Vec<String> {
    let settings = Settings {
        page_bytes,
        cache_bytes: 64 << 10,
    };
    let mut random = SplitMix64::new(seed);
    let blank = MemoryDisk::new(12 << 20);
    let disk = Rc::new(blank);
    let store = DatabaseStore::format(disk.clone()).unwrap();
    set_up(&store.database(&settings).unwrap());
    let mut start = vec![0; 12 << 20];
    disk.read_at(0, &mut start).unwrap();

    let disk = RecordingDisk::new(start, lies);
    let store = DatabaseStore::open(disk.clone()).unwrap();
    let mut database = store.database(&settings).unwrap();
    for number in 1..=40 {
        transact(&database, number, &mut random);
        disk.committed(number);
        if random.one_in(10) {
            drop(database);
            database = store.database(&settings).unwrap();
        }
    }
    let operations = disk.log.borrow().len() as u64;
    let mut wrong = Vec::new();
    for _ in 0..cuts {
        let at = random.below(operations + 1) as usize;
        let (image, last) = disk.cut(at, &mut random);
        let after = RecordingDisk::new(image, lies);
        let mut outcome = examine(after.clone(), &settings, last);
        if outcome.is_ok() && random.one_in(3) {
            let at = random.below(after.log.borrow().len() as u64 + 1) as usize;
            let (image, _) = after.cut(at, &mut random);
            outcome = examine(RecordingDisk::new(image, lies), &settings, last)
                .map_err(|error| format!("recovery cut at its operation {at}: {error}"));
        }
        if let Err(error) = outcome {
            wrong.push(format!(
                "seed {seed}, cut at operation {at} of {operations}: {error}"
            ));
        }
    }
    wrong
}

#[test]
fn a_power_cut_at_any_point_leaves_every_committed_transaction() {
    for (seed, page_bytes) in [(1, 4096), (2, 16_384), (3, 65_536), (4, 4096), (5, 1024)] {
        let wrong = trial(seed, page_bytes, 60, false);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn a_disk_whose_flush_does_nothing_is_found_out() {
    let wrong = trial(1, 4096, 40, true);
    assert!(
        wrong.len() > 10,
        "only {} of 40 cuts were found to lose something",
        wrong.len()
    );
}
