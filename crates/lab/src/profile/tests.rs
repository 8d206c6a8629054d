//! Tests the built-in profiles, and the mistakes a user may make in a copy.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::{
    load::Stop,
    on::On,
    run::{close, lane},
    speed::Speed,
    target::{MeasuredDisk, Opening},
};

/// Runs a profile on a new file, which is sparse. Returns also how many bytes of it are allocated afterwards.
pub(super) fn run_on_made_file(profile: &str) -> (Findings, u64) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made.img");
    let profile = Profile::parse("short", profile, false).expect("a profile");
    let experiment = profile.experiment();
    let lane = lane().expect("a ring");
    let on: On = path.to_string_lossy().parse().expect("never refused");
    let opening = Opening {
        sessions: 1,
        made_bytes: experiment.needs().size_bytes,
        writes: true,
        overwrite: false,
        is_watched: false,
    };
    let home = lane.handle();
    let target = lane.block_on(MeasuredDisk::open(&on, None, &home, opening));
    let stage = ProgressOutput::Silent.stage("short", None);
    let targets = vec![target.expect("it opens")];
    let mut runner = Runner::new(&lane, targets, Stop::default(), stage);
    runner.verified = experiment.verifies().then_some(opening.made_bytes);
    let findings = experiment.run(&mut runner).expect("it runs");
    let allocated = std::fs::metadata(&path).expect("it is there").blocks() * 512;
    close(&lane, runner.targets);
    (findings, allocated)
}

#[test]
fn a_sample_says_which_arrivals_are_missing_from_its_latencies() {
    let figures = runner::Figures {
        not_begun: 7,
        ..runner::Figures::example(1.0, 1000.0)
    };
    assert_eq!(Speed::from(&figures).not_begun, Some(7));
}

#[test]
fn every_load_of_a_queue_runs_in_every_round() {
    let profile = r#"
kind = "queue"
about = "A few reads"
size = "1MiB"
block = "4KiB"
luns = 1
outstanding = [1, 2]
rounds = 3
time = "5ms"
rates_percent = [50]
rates = [1000.0]
adapter_outstanding = 2
adapters = [{ name = "one at a time", per_lun = 1, total = 1 }]
"#;
    let (findings, _) = run_on_made_file(profile);
    let lists = ["outstanding", "rates", "adapters"].map(|name| &findings.figures[name]);
    for list in lists {
        for load in list.as_array().expect("a list") {
            let runs = load["runs"].as_array().expect("runs").len() as u64;
            let again = load["again"].as_u64().unwrap_or(0);
            assert_eq!(runs - again, 3, "{load}");
            assert!(again == 0 || again == 3, "{load}");
        }
    }
}

#[test]
fn every_built_in_profile_can_be_meant_in_both_forms() {
    for (name, text) in BUILT_IN {
        for quick in [false, true] {
            let profile = Profile::load(name, quick).expect(name);
            assert!(!profile.about().is_empty());
            assert!(profile.experiment().steps() > 0, "{name}");
            let is_compared = !profile.experiment().cases().is_empty();
            assert_eq!(is_compared, profile.experiment().opens_volumes(), "{name}");
        }
        assert!(text.starts_with('#'), "{name} begins with what it is for");
    }
    let [quick, full] = [true, false].map(|quick| {
        let profile = Profile::load("queue", quick).expect("it is there");
        profile.experiment().needs().size_bytes
    });
    assert!(quick < full);
}

/// As planned: a tenth of each load's time is its warm-up, and the rest of the minute is for creating files, loading
/// tables and starting servers. The tests in `tests/lab` have a limit for the whole call.
#[test]
fn the_quick_forms_end_within_a_minute() {
    for (name, _) in BUILT_IN {
        let profile = Profile::load(name, true).expect(name);
        let Some(time) = profile.text["time"].as_str() else {
            // A fixed number of transactions, of which even a slow disk does 50 a second.
            let count = |key: &str| profile.text[key].as_u64().expect("a number");
            assert!(count("transactions") * count("rounds") <= 200, "{name}");
            continue;
        };
        let time: Time = time.parse().expect("it was parsed before");
        let all = time.duration() * profile.experiment().steps() as u32 * 11 / 10;
        assert!(all.as_secs() < 45, "{name} takes {all:?}");
    }
}

#[track_caller]
fn refused(text: &str, part: &str) {
    let error = Profile::parse("mine", text, false)
        .expect_err("it is wrong")
        .to_string();
    assert!(
        error.contains("profile mine") && error.contains(part),
        "{error}"
    );
}

#[test]
fn the_kinds_that_a_refusal_names_are_kinds() {
    let of_kind = |kind: &str| {
        let text = format!("kind = \"{kind}\"");
        let error = Profile::parse("mine", &text, false).expect_err("it says nothing else");
        error.to_string()
    };
    let refusal = of_kind("sql-mariadb");
    let (_, named) = refusal.split_once("write one of ").expect("it names them");
    let named: Vec<&str> = named
        .split(", ")
        .map(|kind| kind.trim_matches('"'))
        .collect();
    assert_eq!(named, KINDS);
    for kind in KINDS {
        let error = of_kind(kind);
        assert!(error.contains("missing field"), "{error}");
    }
}

#[test]
fn what_cannot_be_meant_is_named() {
    let queue = BUILT_IN[0].1;
    refused(&queue.replace("block =", "blok ="), "blok");
    refused(
        &queue.replace("kind = \"queue\"", "kind = \"quue\""),
        "quue",
    );
    refused(
        &queue.replace("size = \"1GiB\"", "size = \"1000B\""),
        "whole blocks of 4 KiB",
    );
    refused("block = ", "line 1");
    refused(
        &queue.replace("[1, 2,", "[0, 2,"),
        "outstanding: 0 is out of range; write 1 to",
    );
    refused(&queue.replace("luns = 4", "luns = 4000"), "luns: 4000");
    let rates = "rates_percent = [25, 50, 75, 90, 110]";
    for (wrong, part) in [
        (
            "rates_percent = [0, -5]",
            "rates_percent: invalid value: integer `-5`",
        ),
        ("rates_percent = [0]", "rates_percent: 0 is out of range"),
    ] {
        refused(&queue.replace(rates, wrong), part);
    }
    for (wrong, part) in [
        ("rates = [0.5]", "rates: 0.5 is out of range"),
        ("rates = \"fast\"", "rates: invalid type"),
    ] {
        refused(&queue.replace("rates = []", wrong), part);
    }
    let total = "per_lun = 254, total = 1024";
    for (wrong, part) in [
        (
            "per_lun = 0, total = 0",
            "adapters[1].per_lun: 0 is out of range",
        ),
        (
            "per_lun = 1, total = 0",
            "adapters[1].total: 0 is out of range",
        ),
        (
            "per_lun = 1, total = -1",
            "adapters.total: invalid value: integer `-1`",
        ),
        ("per_lun = 1", "adapters: missing field `total`"),
        (
            "per_lun = 1, total = 1, all = 1",
            "adapters.all: unknown field `all`",
        ),
    ] {
        refused(&queue.replace(total, wrong), part);
    }
    for (wrong, part) in [
        ("8", "block: "),
        ("{ \"8KB\" = 1 }", "block: 8KB is no whole number of blocks"),
        ("\"2GiB\"", "block: 2GiB is longer than size = \"1GiB\""),
        ("{ \"4KiB\" = 0 }", "block: \"4KiB\" = 0: a share is"),
        ("{ \"4KiB\" = 3, \"64K\" = 1 }", "block: \"K\" in \"64K\""),
        ("{}", "block: no size is given"),
    ] {
        let block = format!("block = {wrong}");
        refused(&queue.replace("block = \"8KiB\"", &block), part);
        let effectiveness = BUILT_IN[2].1;
        refused(&effectiveness.replace("block = \"4KiB\"", &block), part);
    }
    refused(&queue.replace("luns = 4", ""), "missing field `luns`");
    refused("about = \"x\"", "write kind = with one of \"queue\"");
    refused(
        &queue.replace("time = \"1s\"", "time = \"0s\""),
        "milliseconds: 0",
    );
    let effectiveness = BUILT_IN[2].1;
    refused(&effectiveness.replace("2000,", "-5.0,"), "rates: -5");
    let commit = BUILT_IN[3].1;
    refused(&commit.replace("\"4KiB\"", "\"5KiB\""), "5KiB");
    refused(&commit.replace("100000 ", "-1 "), "commits: invalid value");
    let error = Profile::load("quue", false)
        .expect_err("there is none")
        .to_string();
    assert!(
        error.contains(
            "queue, iozone, effectiveness, commit, sql-scan, sql-mariadb, sql-postgresql, oltp"
        ),
        "{error}"
    );
}

#[test]
fn a_mix_of_blocks_becomes_the_loads_of_a_profile() {
    for (built_in, block) in [(0, "8KiB"), (2, "4KiB")] {
        let (name, text) = BUILT_IN[built_in];
        let mix = "block = { \"4KiB\" = 3, \"64KiB\" = 1 }";
        let text = text.replace(&format!("block = \"{block}\""), mix);
        let profile = Profile::parse(name, &text, true).expect("it is one");
        for case in profile.experiment().cases() {
            let CaseWork::Load(load) = case.work else {
                panic!("{name} has loads");
            };
            assert_eq!(load.sizes, [(4096, 3), (65_536, 1)], "{name}");
        }
    }
}

#[test]
fn the_profile_of_the_page_about_slow_databases_is_one() {
    let page = include_str!("../../../../docs/guide/slow-database.md");
    let text = page
        .split_once("cat >one.toml <<'END'\n")
        .and_then(|(_, rest)| rest.split_once("    END\n"));
    let (text, _) = text.expect("it is there");
    let profile = Profile::parse("one", text, false).expect("it is a profile");
    assert!(!profile.experiment().needs().writes, "it only reads");
}
