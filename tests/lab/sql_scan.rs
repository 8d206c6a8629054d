//! The statements of a published experiment, on a stripe and on a plain file.

use std::fs;

use serde_json::Value;

use crate::{Place, assert_gone, assert_told};

/// One page, one cache, a scan and a deletion.
const SHORT: &str = r#"
kind = "sql-scan"
about = "Two statements"
rows = 20000
pages = ["64KiB"]
caches = ["0B"]
memory = "1MiB"
time = "10min"
statements = [
  { name = "failed-drives", runs = 2 },
  { name = "delete-month", runs = 1 },
]
"#;

#[test]
fn sql_scan_on_a_stripe_beside_a_plain_file() {
    let place = Place::new();
    let configuration = place.configuration();
    let file = place.path("made.img");
    let call = [
        "run",
        "sql-scan",
        "-c",
        &configuration,
        "--on",
        &file,
        "--on",
        "db",
        "--quick",
    ];
    let ran = place.run(&call).success();
    let json = assert_told(&place, &ran);
    let sweep = json["figures"]["sweep"].as_array().expect("a sweep");
    assert_eq!(sweep.len(), 4, "two pages with and without a cache: {json}");
    for measured in sweep {
        let sets = measured["sets"].as_array().expect("both disks");
        assert_eq!(sets.len(), 2, "{measured}");
        for set in sets {
            let statements = set["statements"].as_array().expect("statements");
            assert_eq!(statements.len(), 5, "{set}");
            assert_score(set);
        }
    }
    assert_gone(&file);
    // What it has left is nobody's data.
    let profile = place.directory.write("short.toml", SHORT);
    let profile = profile.to_string_lossy();
    let again = ["run", &profile, "-c", &configuration, "--on", "db"];
    let json = assert_told(&place, &place.run(&again).success());
    let statements = &json["figures"]["sweep"][0]["sets"][0]["statements"];
    let runs = |statement: usize| statements[statement]["runs_s"].as_array().map(Vec::len);
    assert_eq!((runs(0), runs(1)), (Some(2), Some(1)), "{json}");
}

/// The mean of the weighted averages.
#[track_caller]
fn assert_score(set: &Value) {
    let statements = set["statements"].as_array().expect("statements");
    let number = |value: &Value| value.as_f64().expect("a number");
    let weighted = statements
        .iter()
        .map(|s| number(&s["average_s"]) * number(&s["weight"]));
    let expected = weighted.sum::<f64>() / statements.len() as f64;
    let score = number(&set["score_s"]);
    assert!((score / expected - 1.0).abs() < 1e-9, "{set}");
}

#[test]
fn real_data_is_loaded_and_a_user_s_own_statement_runs_on_it() {
    let place = Place::new();
    let header = "date,serial_number,model,capacity_bytes,failure,smart_5_raw\n";
    let rows = (0..2000).map(|n| format!("2013-04-10,S{n},ST4000,4000787030016,0,{}\n", n % 7));
    let data = header.to_owned() + &rows.collect::<String>();
    let data = place.directory.write("day.csv", data);
    let own = SHORT.replace(
        "{ name = \"failed-drives\", runs = 2 }",
        "{ name = \"models\", runs = 2, weight = 1.0, sql = \"SELECT model, max(smart_5_raw) FROM drive_stats \
         GROUP BY model\" }",
    );
    let profile = place.directory.write("own.toml", own);
    let file = place.path("made.img");
    let call = [
        "run",
        &profile.to_string_lossy(),
        "--on",
        &file,
        "--data",
        &data.to_string_lossy(),
        "--days",
        "60",
    ];
    let json = assert_told(&place, &place.run(&call).success());
    let measured = &json["figures"]["sweep"][0];
    assert!(
        measured["rows"].as_u64().expect("rows") > 100_000,
        "{measured}"
    );
    let set = &measured["sets"][0];
    assert_eq!(set["statements"][0]["name"], "models", "{set}");
    assert_score(set);
    assert_gone(&file);
}

#[test]
fn what_cannot_be_run_is_named_with_the_mend_before_anything_is_made() {
    let refused = |text: &str, more: &[&str], part: &str| {
        let place = Place::new();
        let profile = place.directory.write("mine.toml", text);
        let (profile, file) = (profile.to_string_lossy(), place.path("made.img"));
        let call = [&["run", &profile, "--on", &file], more].concat();
        let ran = place.run(&call);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains(part), "{ran}");
        assert_gone(&file);
    };
    let unknown = SHORT.replace("failed-drives", "failed-drive");
    refused(
        &unknown,
        &[],
        "no statement \"failed-drive\": write one of count-serials, failed-drives",
    );
    let own = |sql: &str| {
        let own = format!("name = \"mine\", weight = 1.0, sql = \"{sql}\"");
        SHORT.replace("name = \"failed-drives\"", &own)
    };
    refused(
        &own("SELECT modle FROM drive_stats"),
        &[],
        "statement \"mine\": no such column: modle",
    );
    refused(&own("DROP TABLE drive_stats"), &[], "write one SELECT");
    refused(&SHORT.replace("64KiB", "5KiB"), &[], "pages: 5KiB");
    refused(SHORT, &["--data", "/nowhere/day.csv"], "/nowhere/day.csv");
    let place = Place::new();
    let ran = place.run(&["run", "queue", "--on", "./f", "--data", "day.csv"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("sql-scan does"), "{ran}");
    // A disk that is too small keeps what it has.
    let small = place.directory.write("small.img", vec![0; 1 << 20]);
    let profile = place.directory.write("short.toml", SHORT);
    let call = [
        "run",
        &profile.to_string_lossy(),
        "--on",
        &small.to_string_lossy(),
    ];
    let ran = place.run(&call);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(
        ran.stderr.contains("has 1 MiB, and these rows need"),
        "{ran}"
    );
    assert!(fs::read(&small).expect("it is there") == vec![0; 1 << 20]);
}
