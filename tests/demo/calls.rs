//! Calls that are wrong end with code 2 before anything is started, and say what to write; a run with a meaningless
//! result ends with code 1.

use crate::Place;

#[track_caller]
fn refused(arguments: &[&str], code: i32, part: &str) {
    let place = Place::new();
    let ran = place.run(arguments);
    assert_eq!(ran.code(), Some(code), "{ran}");
    assert!(ran.stderr.contains(part), "{ran}");
    place.assert_nothing_is_left();
    let json = std::fs::read_to_string(place.kept.join("demo.json")).unwrap_or_default();
    assert_eq!(json, "", "no figures without a run");
}

#[test]
fn a_wrong_call_is_refused_with_what_to_write() {
    refused(&["--shares", "0"], 2, "write 1 to 16");
    refused(&["--link", "3"], 2, "2.5");
    refused(&["--link", "1", "--no-limit"], 2, "--no-limit");
    refused(&["--stripe-unit", "1000B"], 2, "a power of two");
    refused(&["--days", "60"], 2, "--data");
    refused(&["--rows", "20"], 2, "no full month");
    refused(&["--rows", "99999999999"], 2, "write at most 100000000");
    refused(
        &["--rows", "20000", "--report", "/nowhere/r.html"],
        2,
        "/nowhere/r.html",
    );
    // Also before the rows are made, whose number is wrong here.
    for option in ["--report", "--dir"] {
        let place = "/nowhere/there";
        refused(&["--rows", "20", option, place], 2, "/nowhere");
    }
    refused(&["--data", "/nowhere/day.csv"], 2, "/nowhere/day.csv");
    refused(&["--rows", "20000", "--dir", "/nowhere"], 2, "/nowhere");
}

#[test]
fn a_run_that_deletes_no_row_is_an_error() {
    let place = Place::new();
    let day = |name: &str, date: &str| {
        let header = "date,serial_number,model,capacity_bytes,failure\n";
        let row = format!("{date},S1,ST3000DM001,3000592982016,0\n");
        place.kept.write(name, format!("{header}{row}"))
    };
    // January lies between them, and has no row.
    let files = [day("a.csv", "2016-12-31"), day("b.csv", "2017-02-01")];
    let files = files.map(|file| file.to_string_lossy().into_owned());
    refused(
        &["--no-limit", "--data", &files[0], &files[1]],
        1,
        "deleted no row",
    );
}
