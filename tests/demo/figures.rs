//! What the demo measures and how it reports it.

use crate::Place;
use std::fs;

#[test]
fn a_stripe_divides_the_work_and_every_form_of_the_report_says_so() {
    let place = Place::new();
    let ran = place.run(&["--rows", "230000", "--link", "1"]).success();
    place.assert_nothing_is_left();

    let json = place.json();
    assert_eq!(json["data"]["rows"], 230_000);
    assert_eq!(json["link_bits_per_s"], 1_000_000_000u64);
    assert_eq!(json["settings"]["journal_mode"], "DELETE");
    assert_eq!(json["settings"]["stripe unit"], "64 KiB");
    let sets = json["sets"].as_array().expect("sets");
    let names: Vec<_> = sets.iter().map(|set| set["name"].as_str()).collect();
    let expected = ["one share", "stripe of 2", "stripe of 2 + cache"];
    assert_eq!(names, expected.map(Some));
    for set in sets {
        assert!(set["weighted_score_s"].as_f64().expect("a score") > 0.0);
        let statements = set["statements"].as_array().expect("statements");
        let runs: Vec<usize> = statements
            .iter()
            .map(|statement| {
                let runs = statement["runs_s"].as_array().expect("runs");
                let sum: f64 = runs.iter().filter_map(serde_json::Value::as_f64).sum();
                let average = statement["average_s"].as_f64().expect("an average");
                assert!((sum / runs.len() as f64 - average).abs() < 1e-9);
                assert!(statement["name"].is_string() && statement["speedup"].is_number());
                runs.len()
            })
            .collect();
        assert_eq!(runs, [4, 4, 3, 3, 4]);
    }
    // How much faster the stripe is, is for `make demo` to tell: the machine that runs the tests may
    // be busy. It is faster because each share carries half of every scan, and none of it with a
    // cache; and one share cannot read faster than its link.
    assert_eq!(sets[0]["speedup"], 1.0);
    assert!(sets.iter().all(|set| set["speedup"].is_number()));
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    for scan in [0, 1, 4] {
        let carried = |set: usize| -> Vec<f64> {
            let statement = &sets[set]["statements"][scan];
            let shares = statement["shares"].as_array().expect("shares").iter();
            shares
                .map(|share| number(&share["read_bytes_per_s"]) * number(&statement["average_s"]))
                .collect()
        };
        let [whole] = carried(0)[..] else {
            panic!("{ran}")
        };
        let least = 230_000.0 * 150.0;
        assert!(whole > least, "a scan of {whole} bytes");
        let scan_s = number(&sets[0]["statements"][scan]["average_s"]);
        assert!(scan_s > least / 125e6, "a scan in {scan_s} s");
        let halves = carried(1);
        let is_half = |&part: &f64| (0.45..0.55).contains(&(part / whole));
        assert!(
            halves.len() == 2 && halves.iter().all(is_half),
            "{halves:?} of {whole}"
        );
        let cached = carried(2);
        assert!(
            cached.iter().all(|part| part / whole < 0.05),
            "{cached:?} of {whole}"
        );
    }

    assert!(
        ran.stdout.contains("stripe of 2 + cache") && ran.stdout.contains("1.22×"),
        "{ran}"
    );
    let page = fs::read_to_string(place.kept.join("report.html")).expect("a report");
    assert!(page.contains("<svg") && page.contains("stripe of 2 + cache"));
    for foreign in ["http://", "https://", " src=", "<link", "@import", "url("] {
        let there = page.match_indices(foreign).next();
        assert_eq!(there, None, "the report must need nothing else");
    }
}

#[test]
fn daily_files_are_loaded_and_continued() {
    let place = Place::new();
    let mut text = String::from("date,serial_number,model,capacity_bytes,failure,smart_9_raw\n");
    for drive in 0..100 {
        text += &format!("2013-04-10,S{drive:05},ST3000DM001,3000592982016,0,{drive}\n");
    }
    let file = place.kept.write("2013-04-10.csv", text);
    let file = file.to_string_lossy();
    // Without a limit that is a second's work; of three shares, to have an odd number.
    let call = [
        "--no-limit",
        "--shares",
        "3",
        "--data",
        &file,
        "--days",
        "60",
    ];
    let ran = place.run(&call).success();
    place.assert_nothing_is_left();
    let json = place.json();
    assert_eq!(json["data"]["rows"], 6000);
    assert_eq!(json["data"]["deleted_month"], "2013-05");
    assert_eq!(json["link_bits_per_s"], serde_json::Value::Null);
    assert_eq!(json["shares"].as_array().map(Vec::len), Some(3));
    assert!(ran.stdout.starts_with("TOO FEW ROWS"), "{ran}");
}
