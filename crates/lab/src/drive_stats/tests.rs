//! Tests the properties of a data set: seeded, the real mix of models, drives that fail and are replaced; and
//! the reader's errors for files that are not daily files.

use std::{
    collections::{HashMap, HashSet},
    io::Write,
    path::PathBuf,
};

use super::{models::MODELS, *};
use crate::LabError;

fn generated(rows: u64, seed: u64) -> Vec<Row> {
    RowSource::Generated { rows, seed }
        .open()
        .unwrap()
        .map(LabResult::unwrap)
        .collect()
}

fn date(text: &str) -> Date {
    text.parse().unwrap()
}

/// A temporary file of one test, removed at its end.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str, content: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("sanstone-lab-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    fn read(&self) -> LabResult<Vec<Row>> {
        self.read_days(None)
    }

    fn read_days(&self, days: Option<u32>) -> LabResult<Vec<Row>> {
        read(&[&self.0], days)
    }
}

/// The rows of these files, continued until they cover `days`.
fn read(paths: &[&PathBuf], days: Option<u32>) -> LabResult<Vec<Row>> {
    let paths: Vec<PathBuf> = paths.iter().map(|path| (*path).clone()).collect();
    let files = DailyFile::all_in(&paths)?;
    RowSource::Files {
        files,
        days,
        seed: 1,
    }
    .open()?
    .collect()
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const SMALL_DAY: &str = "\
date,serial_number,model,capacity_bytes,failure,smart_1_normalized,smart_1_raw,smart_9_raw,pod_id
2013-04-10,MJ0351YNG9Z0XA,Hitachi HDS5C3030ALA630,3000592982016,0,,0,4031,7
2013-04-10,9VS3JYRG,ST31500341AS,1500301910016,1,117,140000000,254189,
";

#[test]
fn the_same_seed_makes_the_same_rows() {
    assert_eq!(generated(5_000, 3), generated(5_000, 3));
    assert_ne!(generated(5_000, 3), generated(5_000, 4));
}

#[test]
fn a_full_fleet_has_exactly_the_real_mix() {
    let rows = RowSource::Generated {
        rows: 1_000_000,
        seed: 1,
    }
    .open()
    .unwrap()
    .take(21_195);
    let mut drives: HashMap<(String, i64), u64> = HashMap::new();
    for row in rows.map(LabResult::unwrap) {
        assert_eq!(row.date, date("2017-01-01"));
        *drives
            .entry((row.model.to_string(), row.capacity_bytes))
            .or_default() += 1;
    }
    for model in &MODELS {
        assert_eq!(
            drives[&(model.name.to_string(), model.capacity_bytes)],
            model.drives
        );
    }
}

#[test]
fn a_small_fleet_still_covers_january() {
    for rows in [45, 1_000, 20_000] {
        let all = generated(rows, 9);
        assert_eq!(all.len() as u64, rows);
        let (first, last) = (all[0].date, all.last().unwrap().date);
        assert_eq!(
            Month::first_full(first, last).unwrap().to_string(),
            "2017-01"
        );
    }
}

#[test]
fn drives_fail_at_a_realistic_rate_and_are_replaced_the_next_day() {
    let rows = generated(200_000, 5);
    let mut by_day: HashMap<Date, Vec<&Row>> = HashMap::new();
    for row in &rows {
        by_day.entry(row.date).or_default().push(row);
    }
    let mut failures = 0;
    for (day, fleet) in by_day.iter().filter(|(_, fleet)| fleet.len() == 4_444) {
        let serials: HashSet<_> = fleet.iter().map(|row| &row.serial_number).collect();
        assert_eq!(
            serials.len(),
            fleet.len(),
            "serial numbers are unique in a day"
        );
        let Some(tomorrow) = by_day.get(&day.plus_days(1)).filter(|f| f.len() == 4_444) else {
            continue;
        };
        for (slot, row) in fleet.iter().enumerate().filter(|(_, row)| row.failure) {
            failures += 1;
            assert_eq!(tomorrow[slot].model, row.model);
            assert_ne!(tomorrow[slot].serial_number, row.serial_number);
            assert!(
                tomorrow
                    .iter()
                    .all(|other| other.serial_number != row.serial_number)
            );
        }
    }
    // The mix's rate is near 5 % a year: 4,444 drives over 44 days lose about 27.
    assert!((12..45).contains(&failures), "{failures} drives failed");
}

#[test]
fn smart_values_evolve_and_running_hours_count() {
    let rows = generated(45 * 50, 2);
    let hours = rows[0].smart.len() / 2;
    assert_eq!(hours, 40);
    let schema = Schema::of_2013();
    let at = |attribute, raw| {
        schema
            .smart
            .iter()
            .position(|c| *c == SmartColumn { attribute, raw })
            .unwrap()
    };
    let drive: Vec<&Row> = rows
        .iter()
        .filter(|row| row.serial_number == rows[0].serial_number)
        .collect();
    assert!(drive.len() > 10);
    for days in drive.windows(2) {
        let value = |row: &Row, attribute| row.smart[at(attribute, true)].unwrap();
        assert_eq!(value(days[1], 9), value(days[0], 9) + 24);
        assert!((value(days[1], 194) - value(days[0], 194)).abs() <= 1);
        assert!(value(days[1], 5) >= value(days[0], 5));
    }
}

#[test]
fn columns_are_found_by_name_and_unknown_ones_are_left_out() {
    let file = TestFile::new("small.csv", SMALL_DAY.as_bytes());
    let rows = file.read().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].smart, [None, Some(0), Some(4031)]);
    assert_eq!(rows[1].smart, [Some(117), Some(140_000_000), Some(254_189)]);
    assert!(rows[1].failure && !rows[0].failure);
    assert_eq!(&*rows[1].serial_number, "9VS3JYRG");
}

#[test]
fn files_of_different_years_share_one_schema() {
    let old = TestFile::new("old.csv", SMALL_DAY.as_bytes());
    let new = TestFile::new(
        "new.csv",
        b"smart_22_raw,failure,date,model,serial_number,capacity_bytes,smart_9_raw\n\
          100,0,2017-01-01,X,S1,8,77\n",
    );
    let source = RowSource::Files {
        files: DailyFile::all_in(&[old.0.clone(), new.0.clone()]).unwrap(),
        days: None,
        seed: 0,
    };
    let rows = source.open().unwrap();
    let names: Vec<String> = rows.schema.column_names().skip(5).collect();
    assert_eq!(
        names,
        [
            "smart_1_normalized",
            "smart_1_raw",
            "smart_9_raw",
            "smart_22_raw"
        ]
    );
    let rows: Vec<Row> = rows.map(LabResult::unwrap).collect();
    assert_eq!(rows[0].smart, [None, Some(0), Some(4031), None]);
    assert_eq!(rows[2].smart, [None, None, Some(77), Some(100)]);
}

#[test]
fn gzip_is_known_by_its_content() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(SMALL_DAY.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    assert_eq!(TestFile::new("packed", &gzip).read().unwrap().len(), 2);

    let cut = TestFile::new("cut.gz", &gzip[..gzip.len() - 20])
        .read()
        .unwrap_err();
    assert!(cut.to_string().contains("is truncated"), "{cut}");
}

#[test]
fn a_wrong_file_is_named_with_its_line() {
    let wrong = |name: &str, content: &str| -> (u64, String) {
        match TestFile::new(name, content.as_bytes()).read() {
            Err(LabError::Data { line, what, .. }) => (line, what),
            other => panic!("{name}: {other:?}"),
        }
    };
    let (line, what) = wrong("no-model.csv", &SMALL_DAY.replace(",model,", ",kind,"));
    assert!(line == 1 && what.contains("no column `model`"), "{what}");
    let (line, what) = wrong("date.csv", &SMALL_DAY.replace("10,9VS", "31,9VS"));
    assert!(
        line == 3 && what.contains("`2013-04-31` is not a date"),
        "{what}"
    );
    let (line, what) = wrong("hours.csv", &SMALL_DAY.replace("4031", "many"));
    assert!(line == 2 && what.contains("`many`"), "{what}");
    let (line, what) = wrong("failure.csv", &SMALL_DAY.replace("016,1,", "016,2,"));
    assert!(line == 3 && what.contains("failure is `2`"), "{what}");
    let (line, what) = wrong("short.csv", &SMALL_DAY.replace(",4031,7", ""));
    assert!(
        line == 2 && what.contains("7 fields where the header has 9"),
        "{what}"
    );
    let missing = read(&[&"/none/such.csv".into()], None).unwrap_err();
    assert!(missing.to_string().contains("/none/such.csv"), "{missing}");
}

/// A zip archive of these files, each stored or deflated (APPNOTE.TXT 4.3.7, 4.3.12, 4.3.16).
fn zip(files: &[(&str, &[u8], bool)]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, content, is_deflated) in files {
        let mut crc = flate2::Crc::new();
        crc.update(content);
        let mut packed = content.to_vec();
        if *is_deflated {
            let fast = flate2::Compression::fast();
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), fast);
            encoder.write_all(content).unwrap();
            packed = encoder.finish().unwrap();
        }
        let at = archive.len() as u32;
        let method: u16 = if *is_deflated { 8 } else { 0 };
        let mut facts = vec![20, 0, 0, 0];
        facts.extend(method.to_le_bytes());
        facts.extend([0; 4]);
        facts.extend(crc.sum().to_le_bytes());
        facts.extend((packed.len() as u32).to_le_bytes());
        facts.extend((content.len() as u32).to_le_bytes());
        facts.extend((name.len() as u16).to_le_bytes());
        facts.extend([0; 2]);
        archive.extend(b"PK\x03\x04");
        archive.extend(&facts);
        archive.extend(name.as_bytes());
        archive.extend(&packed);
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&facts);
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let at = archive.len() as u32;
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend([files.len() as u16; 2].map(u16::to_le_bytes).concat());
    archive.extend((directory.len() as u32).to_le_bytes());
    archive.extend(at.to_le_bytes());
    archive.extend([0; 2]);
    archive
}

#[test]
fn an_archive_as_published_is_its_days_in_their_order() {
    let day = |day: &str| SMALL_DAY.replace("2013-04-10", day);
    let (first, second) = (day("2013-04-10"), day("2013-04-11"));
    let files: [(&str, &[u8], bool); 4] = [
        ("data/2013-04-11.csv", second.as_bytes(), true),
        ("data/2013-04-10.csv", first.as_bytes(), false),
        ("data/README.txt", b"no rows", false),
        ("__MACOSX/data/._2013-04-10.csv", b"\0\x05", false),
    ];
    let archive = zip(&files);
    let rows = TestFile::new("days.zip", &archive).read().unwrap();
    let days: Vec<String> = rows.iter().map(|row| row.date.to_string()).collect();
    assert_eq!(
        days,
        ["2013-04-10", "2013-04-10", "2013-04-11", "2013-04-11"]
    );
    assert_eq!(
        rows[..2],
        TestFile::new("day.csv", first.as_bytes()).read().unwrap()[..]
    );

    let mut wrong = archive.clone();
    let place = archive.windows(6).position(|six| six == b"Hitach").unwrap();
    wrong[place] = b'h';
    let error = TestFile::new("wrong.zip", &wrong).read().unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
    let cut = TestFile::new("cut.zip", &archive[..archive.len() / 2]).read();
    let cut = cut.unwrap_err().to_string();
    assert!(cut.contains("zip archive cannot be read"), "{cut}");
    let none = TestFile::new("none.zip", &zip(&files[2..]))
        .read()
        .unwrap_err();
    assert!(none.to_string().contains("no .csv file"), "{none}");
}

#[test]
fn what_is_packed_otherwise_is_named_with_what_unpacks_it() {
    for (start, unpack) in [
        (&b"\x28\xb5\x2f\xfd...."[..], "unpack it first: zstd -d "),
        (b"\xfd7zXZ\0..", "unpack it first: xz -d "),
        (b"BZh91AY&", "unpack it first: bzip2 -d "),
    ] {
        let error = TestFile::new("packed.csv", start).read().unwrap_err();
        assert!(error.to_string().contains(unpack), "{error}");
    }
}

#[test]
fn a_pipe_is_read_as_often_as_a_file() {
    let pipe = std::env::temp_dir().join(format!("sanstone-lab-pipe-{}", std::process::id()));
    let made = rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU);
    made.unwrap();
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, SMALL_DAY)
    });
    let files = DailyFile::all_in(std::slice::from_ref(&pipe)).unwrap();
    writer.join().unwrap().unwrap();
    std::fs::remove_file(&pipe).unwrap();
    let source = RowSource::Files {
        files,
        days: None,
        seed: 1,
    };
    for _ in 0..2 {
        assert_eq!(source.open().unwrap().count(), 2);
    }
    assert!(format!("{source:?}").contains("sanstone-lab-pipe-"));
}

#[test]
fn a_day_without_rows_is_a_day() {
    let head = SMALL_DAY.lines().next().unwrap();
    let empty = TestFile::new("empty.csv", format!("{head}\n").as_bytes());
    let day = TestFile::new("full.csv", SMALL_DAY.as_bytes());
    assert_eq!(read(&[&empty.0, &day.0, &empty.0], None).unwrap().len(), 2);
    assert_eq!(
        read(&[&empty.0, &day.0, &empty.0], Some(2)).unwrap().len(),
        4
    );
    assert_eq!(empty.read().unwrap(), []);
}

#[test]
fn a_day_that_went_through_a_spreadsheet_is_read() {
    let odd = SMALL_DAY
        .replace("2013-04-10", "2/25/18")
        .replace("3000592982016", "3.00059E+12")
        .replace('\n', "\r\n");
    let rows = TestFile::new("odd.csv", odd.as_bytes()).read().unwrap();
    assert_eq!(rows[0].date, date("2018-02-25"));
    assert_eq!(rows[0].capacity_bytes, 3_000_590_000_000);
    assert_eq!(rows[1].capacity_bytes, 1_500_301_910_016);
}

#[test]
fn a_real_day_is_continued_with_its_own_drives() {
    let file = TestFile::new("days.csv", SMALL_DAY.as_bytes());
    let rows = file.read_days(Some(60)).unwrap();
    assert_eq!(rows.len(), 120);
    assert_eq!(
        rows[0],
        file.read().unwrap()[0],
        "the real rows come unchanged"
    );
    assert_eq!(rows.last().unwrap().date, date("2013-06-08"));
    assert_eq!(rows[2].date, date("2013-04-11"));
    assert_eq!(rows[2].serial_number, rows[0].serial_number);
    assert_eq!(rows[2].smart, [None, Some(0), Some(4055)]);
    // The second drive failed on the real day, so another one replaces it, with the same columns.
    assert_eq!(rows[3].model, rows[1].model);
    assert_ne!(rows[3].serial_number, rows[1].serial_number);
    assert!(rows[3].smart.iter().all(Option::is_some));
    assert_eq!(
        rows[3].smart[2],
        Some(0),
        "a new drive's hours start at zero"
    );
    // Days already covered need no continuation.
    assert_eq!(file.read_days(Some(1)).unwrap().len(), 2);
}
