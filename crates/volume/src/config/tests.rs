//! Configurations that parse, and the messages about those that are wrong.

use std::path::Path;

use engine::{Lane, LaneConfig};
use serde::Deserialize;

use super::*;
use crate::{
    graph::{Graph, NewStripe},
    scratch::Scratch,
};

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Whole {
    volume: Volumes,
}

fn read(text: &str) -> Result<Volumes, ConfigError> {
    let whole: Whole = toml::from_str(text)?;
    whole.volume.check()?;
    Ok(whole.volume)
}

fn kind<'a>(volumes: &'a Volumes, name: &str) -> &'a Kind {
    match &volumes.0[name].what {
        NodeForm::Inline(kind) => kind,
        NodeForm::Named(other) => panic!("{name} only names {other}"),
    }
}

#[test]
fn the_example_of_the_design_is_read() {
    let volumes = read(
        r#"
        [volume.log]
        file = { path = "/srv/log.img", size = "20GiB", cache = "write-through" }

        [volume.scratch]
        ram = { size = "1GiB" }

        [volume.db]
        cache = { size = "512MiB", of = { stripe = { unit = "64KiB", of = [
          { iscsi = { url = "iscsi://10.0.1.2/iqn.2026-11.io.sanstone:a/0" } },
          { throttle = { rate = "2.5Gbit/s", latency = "50us", of = "scratch" } },
        ] } } }
        "#,
    )
    .expect("it is right");
    let Kind::File(file) = kind(&volumes, "log") else {
        panic!("log is a file")
    };
    assert_eq!(file.cache, Caching::WriteThrough);
    assert_eq!(file.block_size.bytes(), 512);
    let Kind::Cache(cache) = kind(&volumes, "db") else {
        panic!("db is a cache")
    };
    let NodeForm::Inline(stripe) = &cache.of.what else {
        panic!("of a stripe")
    };
    assert_eq!(stripe.name(), "stripe");
    let [iscsi, throttle] = stripe.children() else {
        panic!("of two")
    };
    let (NodeForm::Inline(iscsi), NodeForm::Inline(throttle)) = (&iscsi.what, &throttle.what)
    else {
        panic!("both described in place")
    };
    let Kind::Iscsi(iscsi) = &**iscsi else {
        panic!("the first is iSCSI")
    };
    assert_eq!(iscsi.url.get_ref().port, 3260);
    assert_eq!(iscsi.request_timeout.get_ref().duration().as_secs(), 30);
    assert_eq!(iscsi.reconnect_timeout.get_ref().to_string(), "2min");
    assert_eq!(
        throttle.children()[0].what,
        NodeForm::Named("scratch".into())
    );
}

/// A wrong configuration, the text that its reported place must begin with, and a part of the message.
#[test]
fn what_is_wrong_is_said_with_its_place_and_the_mend() {
    for (text, place, part) in [
        (
            r#"volume.a.ram = { size = "1GiB", sise = 2 }"#,
            "sise",
            "unknown field `sise`",
        ),
        (
            r#"volume.a.ramm = { size = "1GiB" }"#,
            "",
            "\"ramm\" is not a kind of volume; the kinds are ram, file",
        ),
        (r#"volume.a.ram = { }"#, "", "missing field `size`"),
        (r#"volume.a.ram = { size = "64" }"#, "\"64\"", "has no unit"),
        (r#"volume.a.ram = { size = 64 }"#, "64", "written in quotes"),
        (
            r#"volume.a.ram = { size = "1000B" }"#,
            "\"1000B\"",
            "not a whole number of blocks of 512 bytes; write \"1KiB\", or \"512B\"",
        ),
        (
            r#"volume.a.ram = { size = "1MiB", block_size = 1024 }"#,
            "1024",
            "write 512 or 4096",
        ),
        (
            r#"volume.a.file = { path = "x", cache = "none" }"#,
            "\"none\"",
            "unknown variant `none`, expected one of `direct`",
        ),
        (
            r#"volume.a.file = { path = "" }"#,
            "\"\"",
            "the path is empty",
        ),
        (
            r#"volume.a.throttle = { rate = "1Gbit", of = "a" }"#,
            "\"1Gbit\"",
            "the units are bit/s",
        ),
        (
            r#"volume.a.throttle = { rate = "1Gbit/s", of = "b" }"#,
            "\"b\"",
            "no volume called \"b\"; there is only \"a\"",
        ),
        (
            r#"volume.a.throttle = { rate = "1Gbit/s", of = 7 }"#,
            "7",
            "expected a volume: its name",
        ),
        (
            r#"volume.a.throttle = { rate = "1Gbit/s", of = { ram = { size = "1MiB" }, file = { path = "x" } } }"#,
            "{ ram",
            "a volume has one kind, but this one has \"file\" and \"ram\"",
        ),
        (
            r#"volume.a.throttle = { rate = "1Gbit/s", of = { } }"#,
            "{ }",
            "needs a kind",
        ),
        (
            r#"volume = { a = { stats = { of = "b" } }, b = { stats = { of = "c" } }, c = { stats = { of = "b" } } }"#,
            "\"b\" } } }",
            "would contain itself (b of c of b)",
        ),
        (
            r#"volume = { a = { ram = { size = "1MiB" } }, s = { stripe = { of = ["a", "a"] } } }"#,
            "\"a\"] }",
            "\"a\" appears twice",
        ),
        (r#"volume.s.stripe = { of = [] }"#, "[]", "name 1 to 64"),
        (
            r#"volume.s.stripe = { unit = "1000B", of = ["s"] }"#,
            "\"1000B\"",
            "a power of two from 4KiB",
        ),
        (
            r#"volume.a.iscsi = { url = "10.0.0.1" }"#,
            "\"10.0.0.1\"",
            "write iscsi://HOST",
        ),
        (
            r#"volume.a.iscsi = { url = "iscsi://h/iqn.x:y/z" }"#,
            "\"iscsi",
            "no LUN from 0 to 16383",
        ),
        (
            r#"volume.a.iscsi = { url = "iscsi://h/iqn.x:y/0", request_timeout = "0s" }"#,
            "\"0s\"",
            "leaves no time",
        ),
        (
            r#"volume.a.iscsi = { url = "iscsi://h/iqn.x:y/0", ping_timeout = "0s" }"#,
            "\"0s\"",
            "leaves no time",
        ),
        (
            r#"volume.a.iscsi = { url = "iscsi://h/iqn.x:y/0", initiator = "foo bar" }"#,
            "\"foo bar\"",
            "initiator = \"foo bar\" is not an iSCSI name",
        ),
        (
            r#"volume.a.iscsi = { url = "iscsi://h/iqn.x:y/0", initiator = "" }"#,
            "\"\" }",
            "or remove it to use this host's own name",
        ),
        (
            r#"volume.a.recorder = { of = { file = { path = "x" } } }"#,
            "",
            "\"recorder\" is not a kind of volume",
        ),
        (
            r#"volume.a.fault = { rules = [{ on = "read" }], of = { ram = { size = "1MiB" } } }"#,
            "{ on",
            "a fault rule does exactly one thing",
        ),
        (
            r#"volume."a b".ram = { size = "1MiB" }"#,
            "",
            "\"a b\" is not a valid volume name",
        ),
    ] {
        let error = read(text).expect_err(text);
        let message = error.message();
        assert!(message.contains(part), "{text}\n  says: {message}");
        let span = error.span().unwrap_or_else(|| panic!("{text}: no place"));
        assert!(
            text[span.start..].starts_with(place),
            "{text}\n  points to: {}",
            &text[span.start..]
        );
    }
}

#[test]
fn a_cache_is_refused_where_others_may_write() {
    let disk = "iscsi = { url = \"iscsi://10.0.1.2/iqn.2026-11.io.sanstone:a/0\" }";
    let named = format!("volume.far.{disk}\nvolume.");
    for (below, is_right) in [
        (format!("{{ {disk} }}"), false),
        ("\"far\"".to_owned(), false),
        (
            "{ throttle = { rate = \"1Gbit/s\", of = \"far\" } }".to_owned(),
            false,
        ),
        (
            "{ cache = { size = \"1MiB\", only_writer = true, of = \"far\" } }".to_owned(),
            false,
        ),
        (format!("{{ stripe = {{ of = [{{ {disk} }}] }} }}"), true),
        (
            "{ stats = { of = { stripe = { of = [\"far\"] } } } }".to_owned(),
            true,
        ),
        ("{ file = { path = \"x\" } }".to_owned(), true),
        ("{ ram = { size = \"1MiB\" } }".to_owned(), true),
    ] {
        let cache =
            |word: &str| format!("{named}db.cache = {{ size = \"1MiB\", {word}of = {below} }}");
        let said = read(&cache("only_writer = true, ")).err();
        assert_eq!(said, None, "the user gave his word: {below}");
        let text = cache("");
        let Err(error) = read(&text) else {
            assert!(is_right, "{below}");
            continue;
        };
        assert!(!is_right, "{below}: {error}");
        let message = error.message();
        for part in [
            "iscsi://10.0.1.2",
            "only_writer = true",
            "a stripe of one disk",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let place = &text[error.span().expect("a place").start..];
        assert!(place.starts_with("\"1MiB\", of"), "{place}");
    }
    // A stripe above claims its children, but the cache in between is not told when the claim is lost.
    let text = format!(
        "volume.db.stripe = {{ of = [{{ cache = {{ size = \"1MiB\", of = {{ {disk} }} }} }}] }}"
    );
    read(&text).expect_err("the cache is below the claim");
}

#[test]
fn a_volume_that_another_one_reaches_by_two_ways_is_refused() {
    let text = r#"
        volume.disk.file = { path = "x" }
        volume.quick.cache = { size = "1MiB", of = "disk" }
        volume.slow.throttle = { rate = "1Gbit/s", of = { stats = { of = "disk" } } }
        volume.db.stripe = { of = ["quick", "slow"] }
    "#;
    let error = read(text).expect_err("two ways");
    let message = error.message();
    assert!(
        message.contains("\"db\" reaches \"disk\" in two ways"),
        "{message}"
    );
    read(&text.replace("[\"quick\", \"slow\"]", "[\"quick\"]")).expect("one way");
}

#[test]
fn a_place_is_shown_as_line_and_column() {
    let text = "# größer\n[volume.a]\nram = { size = \"ö1MiB\" }\n";
    let error = read(text).expect_err("no size");
    let shown = error.located(Path::new("x.toml"), text).to_string();
    assert!(
        shown.starts_with("x.toml:3:16: \"ö1MiB\" is not a size"),
        "{shown}"
    );
}

#[test]
fn configurations_are_equal_when_they_mean_the_same() {
    let text = r#"
        [volume.log]
        file = { path = "/srv/log.img", size = "1GiB" }
        [volume.far]
        iscsi = { url = "iscsi://10.0.1.2/iqn.2026-11.io.sanstone:a/0" }
        [volume.db]
        cache = { size = "512MiB", of = { stripe = { of = [{ throttle = { rate = "1Gbit/s", of = "far" } }, "log"] } } }
        [volume.bad]
        fault = { rules = [{ on = "write", fail = "medium" }], of = { stats = { of = { ram = { size = "1MiB" } } } } }
    "#;
    let elsewhere = r#"# The same in other words, in other places.
        [volume]
        bad = { fault = { of = { stats = { of = { ram = { block_size = 512, size = "1024KiB" } } } }, rules = [{ fail = "medium", on = "write", skip = 0 }] } }
        db = { cache = { of = { stripe = { of = [
            { throttle = { of = "far", rate = "1000Mbit/s", latency = "0s" } },
            "log",
        ] } }, size = "0.5GiB" } }
        [volume.far.iscsi]
        request_timeout = "0.5min"
        url = "iscsi://10.0.1.2:3260/iqn.2026-11.io.sanstone:a/0"
        [volume.log.file]
        size = "1024MiB"
        cache = "direct"
        read_only = false
        path = "/srv/log.img"
    "#;
    let volumes = read(text).expect("it is right");
    assert_eq!(volumes, read(elsewhere).expect("it is right"));
    for (from, to) in [
        ("log.img", "log2.img"),
        ("\"1GiB\"", "\"2GiB\""),
        ("a/0", "a/1"),
        ("512MiB", "511MiB"),
        ("1Gbit/s", "2Gbit/s"),
        ("of = \"far\"", "of = \"log\""),
        (", \"log\"]", "]"),
        ("\"write\"", "\"flush\""),
        ("medium", "no-space"),
        ("volume.far", "volume.distant"),
        ("\"1MiB\"", "\"1MiB\", block_size = 4096"),
    ] {
        assert!(text.contains(from), "{from}");
        let other = text.replace(from, to);
        let other: Whole = toml::from_str(&other).expect(to);
        assert_ne!(volumes, other.volume, "{from} and {to} are different");
    }
}

#[test]
fn the_superblocks_of_a_stripe_are_read_once_for_all_that_is_asked_of_them() {
    let volumes = read(
        r#"
        [volume.db.stripe]
        of = [{ file = { path = "a", size = "4MiB" } }, { file = { path = "b", size = "4MiB" } }]
        "#,
    )
    .expect("it can be meant");
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let scratch = Scratch::new();
    let uuid = uuid::Uuid::from_u128(7);
    lane.block_on(async {
        let new = NewStripe {
            uuid,
            created_unix_s: 1,
            force: false,
            from: None,
        };
        let mut graph = Graph::new(volumes.clone(), scratch.path()).expect("it can be meant");
        let created = graph.create_stripe("db", &lane.handle(), &new).await;
        created.expect("it is created");
    });
    let asked = |starts: &Starts| {
        let carried = volumes.carried(&volumes.0["db"], scratch.path(), starts);
        let errors = volumes.look_at_children("db", scratch.path(), starts, false);
        (carried, errors.len())
    };
    let starts = Starts::default();
    assert_eq!(asked(&starts), (Some(uuid), 0));
    for name in ["a", "b"] {
        std::fs::remove_file(scratch.path().join(name)).expect("it was there");
    }
    assert_eq!(asked(&starts), (Some(uuid), 0));
    assert_eq!(asked(&Starts::default()), (None, 2));
}
