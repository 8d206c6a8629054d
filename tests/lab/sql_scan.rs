//! The statements of a published experiment, on a stripe and on a plain file.

use std::fs;

use harness::sanstone::Sanstone;
use serde_json::Value;

use crate::{
    Place, assert_gone, assert_told,
    oltp::{
        assert_nothing_left, can_mount, configuration, has_mariadb, has_postgresql, run_in_place,
    },
    ram_target,
};

/// One page, one cache, a scan and a deletion.
pub(crate) const SHORT: &str = r#"
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
    let ran = place
        .run(&place.beside("sql-scan", &configuration))
        .success();
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
    // What it leaves behind does not count as user data.
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
    assert!(ran.stderr.contains("use sql-scan"), "{ran}");
    // A disk that is too small is left unchanged.
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
        ran.stderr.contains("has 1 MiB, but these rows need"),
        "{ran}"
    );
    assert!(fs::read(&small).expect("it is there") == vec![0; 1 << 20]);
}

/// Runs the statements on a server: on a plain file, on a stripe and on another volume of the same configuration.
fn served(database: &str) {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (configuration, file) = (configuration(&place), place.path("made.img"));
    let mut call = place.beside(&format!("sql-{database}"), &configuration);
    call.extend(["--on".to_owned(), "other".to_owned()]);
    let ran = run_in_place(&place, &call).success();
    let json = assert_told(&place, &ran);
    let sweep = json["figures"]["sweep"].as_array().expect("a sweep");
    assert_eq!(sweep.len(), 1, "{json}");
    let sets = sweep[0]["sets"].as_array().expect("the disks");
    let names = sets.iter().map(|set| set["name"].as_str().expect("a name"));
    assert_eq!(names.collect::<Vec<_>>(), [&file, "db", "other"]);
    for set in sets {
        assert_score(set);
        let statements = set["statements"].as_array().expect("statements");
        assert_eq!(statements.len(), 5, "{set}");
        for statement in &statements[..2] {
            let read = statement["read_megabytes_per_s"].as_f64();
            assert!(
                read.expect("a rate") > 0.0,
                "it reads the disk: {statement}"
            );
            let attach = &statement["processors"]["attach_s"];
            assert_eq!(attach.is_null(), set["name"] == *file, "{statement}");
        }
    }
    assert_gone(&file);
    assert_nothing_left(&place);
    assert_no_copies(&place);
}

/// Checks that no copies of the configuration are left.
#[track_caller]
fn assert_no_copies(place: &Place) {
    let entries = fs::read_dir(place.directory.path()).expect("it is there");
    let names = entries.flatten().map(|entry| entry.file_name());
    let copies: Vec<_> = names
        .filter(|name| name.to_string_lossy().contains("sanstone-lab"))
        .collect();
    assert!(copies.is_empty(), "{copies:?}");
}

#[test]
fn volumes_that_a_daemon_has_served_without_a_state_of_their_own_are_measured_with_caches() {
    if !has_mariadb() || !can_mount() {
        return;
    }
    let place = Place::new();
    let volumes = "[volume.a]\nfile = { path = \"a.img\", size = \"768MiB\" }\n\
                   [volume.b]\nfile = { path = \"b.img\", size = \"768MiB\" }\n";
    drop(Sanstone::serve(
        place.directory.path(),
        volumes,
        &["a", "b"],
    ));
    let text = SHORT
        .replace(
            "pages = [\"64KiB\"]",
            "pages = [\"16KiB\"]\ndatabase = \"mariadb\"",
        )
        .replace("[\"0B\"]", "[\"0B\", \"16MiB\"]");
    let profile = place.directory.write("cached.toml", text);
    let configuration = place.path("sanstone.toml");
    let call = ["run", &*profile.to_string_lossy(), "-c", &configuration];
    let call = [&call[..], &["--on", "a", "--on", "b"]].concat();
    let json = assert_told(&place, &run_in_place(&place, &call).success());
    let sweep = json["figures"]["sweep"].as_array().expect("a sweep");
    assert_eq!(sweep.len(), 2, "{json}");
    for set in sweep
        .iter()
        .flat_map(|measured| &measured["sets"].as_array().expect("sets")[..])
    {
        assert_score(set);
    }
    assert_nothing_left(&place);
    assert_no_copies(&place);
}

#[test]
fn mariadb_on_a_stripe_beside_a_plain_file() {
    if has_mariadb() {
        served("mariadb");
    }
}

#[test]
fn postgresql_on_a_stripe_beside_a_plain_file() {
    if has_postgresql() {
        served("postgresql");
    }
}

#[test]
fn a_server_runs_real_rows_in_a_directory_and_refuses_pages_that_it_does_not_have() {
    if !has_mariadb() {
        return;
    }
    let place = Place::new();
    let directory = place.directory.join("here");
    fs::create_dir(&directory).expect("a fresh directory");
    let days = (1..=31).map(|day| format!("2013-04-{day:02}")).take(30);
    let rows: String = days
        .map(|day| {
            format!("{day},S\\1,MODEL X,4000787030016,0,\n{day},S2,MODEL Y,3000592982016,1,16\n")
        })
        .collect();
    let header = "date,serial_number,model,capacity_bytes,failure,smart_5_raw\n";
    let data = place.directory.write("data.csv", format!("{header}{rows}"));
    let text = SHORT.replace(
        "pages = [\"64KiB\"]",
        "pages = [\"16KiB\"]\ndatabase = \"mariadb\"",
    );
    let profile = place.directory.write("short.toml", &text);
    let (profile, data) = (profile.to_string_lossy(), data.to_string_lossy());
    let name = directory.to_string_lossy();
    let call = ["run", &profile, "--on", &name, "--data", &data];
    let json = assert_told(&place, &run_in_place(&place, &call).success());
    assert_eq!(json["figures"]["database"], "MariaDB", "{json}");
    assert_eq!(json["figures"]["sweep"][0]["rows"], 60, "{json}");
    assert_score(&json["figures"]["sweep"][0]["sets"][0]);
    let left = fs::read_dir(&directory).expect("it is there").count();
    assert_eq!(left, 0, "it leaves the directory as it was");
    let text = SHORT.replace("rows =", "database = \"postgresql\"\nrows =");
    let profile = place.directory.write("pages.toml", text);
    let ran = place.run(&["run", &*profile.to_string_lossy(), "--on", &name]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    let part = "pages: 64KiB is not a page size of PostgreSQL; write \"8KiB\"";
    assert!(ran.stderr.contains(part), "{ran}");
}

#[test]
fn a_cache_stands_before_a_disk_of_a_target_for_a_server() {
    if !has_mariadb() || !can_mount() {
        return;
    }
    let place = Place::new();
    let (_directory, target) = ram_target("768MiB");
    let pages = "pages = [\"16KiB\"]\ndatabase = \"mariadb\"";
    let text = SHORT
        .replace("pages = [\"64KiB\"]", pages)
        .replace("\"0B\"", "\"16MiB\"");
    let profile = place.directory.write("cached.toml", text);
    let call = ["run", &*profile.to_string_lossy(), "--on", &target.url(0)];
    let json = assert_told(&place, &run_in_place(&place, &call).success());
    let measured = &json["figures"]["sweep"][0];
    assert_eq!(measured["cache"], "16MiB", "{json}");
    assert_score(&measured["sets"][0]);
    assert_nothing_left(&place);
}
