//! Runs SQL through the whole stack on a disk in memory: correct results for every page size, temporary files
//! on the disk, a full disk and a failing disk reported as SQL errors, and fresh copies.

use std::{cell::Cell, io, rc::Rc};

use super::*;

fn settings(page_bytes: u32) -> Settings {
    // A tiny cache, so that everything spills to disk.
    Settings {
        page_bytes,
        cache_bytes: 256 << 10,
    }
}

fn count(database: &Database, sql: &str) -> i64 {
    database
        .run(sql, |c| c.query_row(sql, [], |row| row.get(0)))
        .unwrap()
}

fn fill(database: &Database, rows: i64) {
    database
        .execute(&format!(
            "CREATE TABLE t (n INTEGER, text TEXT);
             WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < {rows})
             INSERT INTO t SELECT n, printf('%0200d', n * 7919 % 65537) FROM up;"
        ))
        .unwrap();
}

fn image_file() -> std::fs::File {
    crate::nameless::nameless_file(&std::env::temp_dir()).unwrap()
}

#[test]
fn statements_give_what_sqlite_promises_for_every_page_size() {
    for page_bytes in [512, 4096, 16_384, 65_536] {
        let disk = Rc::new(MemoryDisk::new(64 << 20));
        let store = DatabaseStore::format(disk.clone()).unwrap();
        let database = store.database(&settings(page_bytes)).unwrap();
        fill(&database, 20_000);
        assert_eq!(count(&database, "SELECT count(*) FROM t"), 20_000);
        // A sort larger than the cache uses temporary files.
        let sorted = "SELECT sum(n = wanted) FROM (
                        SELECT n, row_number() OVER (ORDER BY text, n) AS wanted FROM (
                          SELECT n * 31 % 20011 AS n, printf('%0300d', n * 31 % 20011) AS text FROM t)
                        WHERE n <= 20000)";
        assert!(count(&database, sorted) >= 19_000);
        database.execute("DELETE FROM t WHERE n % 3 = 0").unwrap();
        let before = store.database_bytes();
        database.execute("VACUUM").unwrap();
        assert!(store.database_bytes() < before * 3 / 4);
        assert_eq!(
            count(&database, "SELECT sum(n) FROM t WHERE n % 3 = 0 OR n < 5"),
            7
        );
        database.execute("BEGIN; DELETE FROM t; ROLLBACK").unwrap();
        drop(database);
        let again = DatabaseStore::open(disk)
            .unwrap()
            .database(&settings(page_bytes))
            .unwrap();
        assert_eq!(count(&again, "SELECT count(*) FROM t"), 13_334);
        let verdict: String = again
            .run("check", |c| {
                c.query_row("PRAGMA integrity_check", [], |row| row.get(0))
            })
            .unwrap();
        assert_eq!(verdict, "ok");
    }
}

#[test]
fn settings_are_read_back_as_they_were_set() {
    let store = DatabaseStore::format(Rc::new(MemoryDisk::new(8 << 20))).unwrap();
    let database = store.database(&Settings::default()).unwrap();
    let in_use = Settings::in_use(&database).unwrap();
    let value = |name: &str| &in_use.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!(value("journal_mode"), "DELETE");
    assert_eq!(value("synchronous"), "FULL");
    assert_eq!(value("temp_store"), "FILE");
    assert_eq!(value("page_size"), "65536 bytes");
    assert_eq!(value("cache_size"), "16 MiB");
}

#[test]
fn a_database_is_open_once() {
    let store = DatabaseStore::format(Rc::new(MemoryDisk::new(8 << 20))).unwrap();
    let first = store.database(&settings(4096)).unwrap();
    first.execute("CREATE TABLE t (n)").unwrap();
    assert!(store.database(&settings(4096)).is_err());
    drop(first);
    store
        .database(&settings(4096))
        .unwrap()
        .execute("INSERT INTO t VALUES (1)")
        .unwrap();
}

#[test]
fn a_full_disk_is_an_error_and_leaves_the_database_whole() {
    let store = DatabaseStore::format(Rc::new(MemoryDisk::new(8 << 20))).unwrap();
    let database = store.database(&settings(4096)).unwrap();
    fill(&database, 1_000);
    let too_much = "INSERT INTO t SELECT a.n, a.text FROM t a, t b LIMIT 100000";
    let error = database.execute(too_much).unwrap_err().to_string();
    assert!(error.contains("full"), "{error}");
    assert_eq!(count(&database, "SELECT count(*) FROM t"), 1_000);
}

/// Fails every I/O of the enabled kinds.
struct FailingDisk {
    inner: MemoryDisk,
    reads: Cell<bool>,
    writes: Cell<bool>,
    flushes: Cell<bool>,
}

fn fail_if(on: &Cell<bool>, what: &str) -> io::Result<()> {
    if on.get() {
        Err(io::Error::other(format!("the {what} failed on purpose")))
    } else {
        Ok(())
    }
}

impl DatabaseDisk for FailingDisk {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        fail_if(&self.reads, "read")?;
        self.inner.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        fail_if(&self.writes, "write")?;
        self.inner.write_at(offset, bytes)
    }
    fn flush(&self) -> io::Result<()> {
        fail_if(&self.flushes, "flush")
    }
}

#[test]
fn errors_of_the_disk_become_errors_of_the_statement_with_their_cause() {
    let off = || Cell::new(false);
    let inner = MemoryDisk::new(64 << 20);
    let disk = Rc::new(FailingDisk {
        inner,
        reads: off(),
        writes: off(),
        flushes: off(),
    });
    let store = DatabaseStore::format(disk.clone()).unwrap();
    let database = store.database(&settings(4096)).unwrap();
    fill(&database, 5_000);
    let cases: [(&Cell<bool>, &str, &str); 3] = [
        (
            &disk.reads,
            "SELECT sum(length(text)) FROM t",
            "the read failed on purpose",
        ),
        (
            &disk.writes,
            "UPDATE t SET n = n + 1",
            "the write failed on purpose",
        ),
        (
            &disk.flushes,
            "UPDATE t SET n = n + 1",
            "the flush failed on purpose",
        ),
    ];
    for (switch, sql, cause) in cases {
        switch.set(true);
        let run = |c: &rusqlite::Connection| {
            let mut statement = c.prepare(sql)?;
            let mut rows = statement.query([])?;
            while rows.next()?.is_some() {}
            Ok(())
        };
        let error = database.run(sql, run).unwrap_err().to_string();
        assert!(error.starts_with(sql) && error.contains(cause), "{error}");
        switch.set(false);
    }
    // The failed statement was rolled back.
    assert_eq!(count(&database, "SELECT sum(n) FROM t"), 5_000 * 5_001 / 2);
}

#[test]
fn a_fresh_copy_is_the_loaded_database_and_writes_only_what_changed() {
    let (one, two) = (MemoryDisk::new(64 << 20), MemoryDisk::new(64 << 20));
    let (one, two) = (
        DatabaseStore::format(Rc::new(one)).unwrap(),
        DatabaseStore::format(Rc::new(two)).unwrap(),
    );
    fill(&one.database(&settings(65_536)).unwrap(), 50_000);
    let image = Image::capture(&one, image_file()).unwrap();
    assert!(image.bytes() > 10 << 20);
    assert_eq!(image.restore(&one).unwrap(), 0, "nothing had changed");
    assert_eq!(
        image.restore(&two).unwrap(),
        image.bytes(),
        "nothing was there"
    );
    for store in [&one, &two] {
        let database = store.database(&settings(65_536)).unwrap();
        database
            .execute("DELETE FROM t WHERE n < 1000; UPDATE t SET n = 0 WHERE n = 45000")
            .unwrap();
        assert!(image.restore(store).is_err(), "the database is open");
        drop(database);
        let written = image.restore(store).unwrap();
        assert!(written > 0 && written < image.bytes() / 2, "{written}");
        let database = store.database(&settings(65_536)).unwrap();
        assert_eq!(
            count(&database, "SELECT sum(n) FROM t"),
            50_000 * 50_001 / 2
        );
        database
            .execute("DELETE FROM t WHERE n > 10; VACUUM")
            .unwrap();
        drop(database);
        image.restore(store).unwrap();
        let database = store.database(&settings(65_536)).unwrap();
        assert_eq!(
            count(&database, "SELECT sum(n) FROM t"),
            50_000 * 50_001 / 2
        );
    }
    // Another image of the same store must not inherit the first one's change tracking.
    let database = two.database(&settings(65_536)).unwrap();
    database.execute("DELETE FROM t WHERE n <= 40000").unwrap();
    drop(database);
    let smaller = Image::capture(&two, image_file()).unwrap();
    image.restore(&two).unwrap();
    smaller.restore(&two).unwrap();
    let database = two.database(&settings(65_536)).unwrap();
    assert_eq!(count(&database, "SELECT count(*) FROM t"), 10_000);
}
