//! Two things in turn.

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
