//! Two things in turn.

use harness::process::find_program;

use crate::{Place, assert_told};

/// One load of 4 KiB reads, for a moment each.
const SHORT: &str = r#"
kind = "queue"
about = "A few reads"
size = "8MiB"
block = "4KiB"
luns = 1
outstanding = [4]
time = "60ms"
"#;

#[test]
fn a_delay_is_found_and_named() {
    let place = Place::new();
    let configuration = place.configuration();
    let profile = place.directory.write("short.toml", SHORT);
    let profile = profile.to_string_lossy();
    let arguments = [
        "compare",
        "fast",
        "slow",
        "-c",
        &configuration,
        "--profile",
        &profile,
    ];
    let ran = place.run(&arguments).success();
    let json = assert_told(&place, &ran);
    let throughput = &json["figures"]["throughput"];
    assert_eq!(throughput["pairs"], 12);
    // 5 ms beside microseconds, whatever else this machine does.
    assert!(
        throughput["ratio"].as_f64().expect("a ratio") < 0.5,
        "{throughput}"
    );
    let answer = json["answer"].as_str().expect("an answer");
    assert!(
        answer.contains("slow is 0.") && answer.contains("× fast"),
        "{answer}"
    );
    assert!(
        answer.contains("95 % interval") && answer.contains("12 pairs"),
        "{answer}"
    );
    let load = &json["figures"]["loads"][0];
    for side in ["a", "b"] {
        assert_eq!(
            load[side].as_array().map(Vec::len),
            Some(12),
            "all samples are kept"
        );
    }
    assert!(ran.stdout.contains("Each load"), "{ran}");
}

#[test]
fn files_and_disks_of_targets_are_compared_as_well() {
    let place = Place::new();
    let profile = place.directory.write("short.toml", SHORT);
    let (a, b) = (place.path("a.img"), place.path("b.img"));
    let profile = profile.to_string_lossy();
    let ran = place
        .run(&["compare", &a, &b, "--profile", &profile, "--pairs", "6"])
        .success();
    let json = assert_told(&place, &ran);
    assert_eq!(json["figures"]["throughput"]["pairs"], 6);
    crate::assert_gone(&a);
    crate::assert_gone(&b);
}

#[test]
fn our_generator_is_compared_with_fio_in_closed_and_open_loops() {
    if find_program("fio").is_none() {
        return harness::skip("fio is not installed");
    }
    let place = Place::new();
    let profile = SHORT.replace("time =", "rates = [200.0]\ntime =");
    let profile = place.directory.write("short.toml", profile);
    let profile = profile.to_string_lossy();
    let file = place.path("a.img");
    let call = [
        "compare",
        &file,
        "--with",
        "fio",
        "--profile",
        &profile,
        "--pairs",
        "6",
    ];
    let ran = place.run(&call).success();
    let json = assert_told(&place, &ran);
    assert_eq!(json["figures"]["b"], "fio");
    let loads = json["figures"]["loads"].as_array().expect("loads");
    let names: Vec<&str> = loads
        .iter()
        .filter_map(|load| load["name"].as_str())
        .collect();
    assert_eq!(names, ["4 outstanding", "200 arrivals a second"]);
    for load in loads {
        assert_eq!(load["b"].as_array().map(Vec::len), Some(6), "{load}");
        assert!(
            load["b"][0]["p50_us"].as_f64().expect("a time") > 0.0,
            "{load}"
        );
    }
    crate::assert_gone(&file);

    let refused = |call: &[&str], part: &str| {
        let ran = place.run(call);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains(part), "{ran}");
    };
    let url = "iscsi://127.0.0.1/iqn.2026-11.io.sanstone:a/0";
    refused(
        &["compare", "./a", url, "--with", "fio", "--profile", "queue"],
        "cannot be used",
    );
    refused(&["compare", "./a", "--profile", "queue"], "<B>");
    refused(
        &["compare", "./a", "--with", "fio", "--profile", "commit"],
        "fio has none of the loads of commit",
    );
    let configuration = place.configuration();
    let call = [
        "compare",
        "fast",
        "-c",
        &configuration,
        "--with",
        "fio",
        "--profile",
        &profile,
    ];
    refused(&call, "fast is neither");
}
