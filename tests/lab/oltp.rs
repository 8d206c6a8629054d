//! Transactions on a database server: on an attached stripe, on a plain file and in a directory.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    directory::Directory,
    process::{find_program, signal},
    run::{Ran, run},
    sanstone::{Sanstone, call},
};
use serde_json::Value;

use crate::{Place, assert_gone, assert_told, begun, limit};

const LIMIT: Duration = Duration::from_secs(600);

/// Whether a server, its client and sysbench are installed; if not, the test is skipped.
pub(crate) fn has_packages() -> bool {
    let has = find_program("sysbench").is_some();
    if !has {
        harness::skip("sysbench is not installed");
    }
    has && has_mariadb()
}

/// Whether MariaDB and its client are installed; if not, the test is skipped.
pub(crate) fn has_mariadb() -> bool {
    let all = ["mariadbd", "mariadb"];
    let has = all.iter().all(|name| find_program(name).is_some());
    if !has {
        harness::skip("mariadb-server-core or mariadb-client is not installed");
    }
    has
}

/// The same for PostgreSQL.
pub(crate) fn has_postgresql() -> bool {
    let has = Path::new("/usr/lib/postgresql").exists();
    if !has {
        harness::skip("postgresql is not installed");
    }
    has
}

/// Whether volumes can be attached and file systems mounted here.
pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        harness::skip("it needs root, and /dev/fuse");
    }
    can
}

/// Few transactions on few rows.
pub(crate) fn short(database: &str) -> String {
    format!(
        "kind = \"oltp\"\nabout = \"A few transactions\"\nsize = \"512MiB\"\ndatabase = \"{database}\"\nmemory = \
         \"16MiB\"\ntables = 1\nrows = 200\nthreads = 2\ntransactions = 20\nrounds = 2\n"
    )
}

/// The stripe `db` over two files, large enough for a server's own files, and `other`, a file.
pub(crate) fn configuration(place: &Place) -> String {
    let text = r#"
state = "state"
[volume.db]
stripe = { unit = "64KiB", of = [
  { file = { path = "a.img", size = "320MiB" } },
  { file = { path = "b.img", size = "320MiB" } },
] }
[volume.other]
file = { path = "other.img", size = "640MiB" }
"#;
    let path = place.directory.write("volumes.toml", text);
    let path = path.to_string_lossy().into_owned();
    harness::sanstone::call(&["volume", "create", "-c", &path, "db"]).success();
    path
}

/// Checks that nothing started for this place is left: no process names it, no mount or loop device uses it.
#[track_caller]
pub(crate) fn assert_nothing_left(place: &Place) {
    let of_place = place.directory.path().to_string_lossy().into_owned();
    let mounts = fs::read_to_string("/proc/mounts").expect("/proc is there");
    assert!(!mounts.contains(&of_place), "{mounts}");
    let loops: Ran = run(Command::new("losetup").arg("--list"), LIMIT);
    assert!(!loops.stdout.contains(&of_place), "{loops}");
    let temporary = place.directory.join("tmp");
    let left: Vec<_> = fs::read_dir(&temporary)
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The command, with its temporary files in the place.
fn prepared(place: &Place, arguments: &[impl AsRef<OsStr>]) -> Command {
    let temporary = place.directory.join("tmp");
    fs::create_dir_all(&temporary).expect("a fresh directory");
    // So that the server's user can enter.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(place.directory.path(), open).expect("it is ours");
    let mut command = place.command(arguments);
    command.env("TMPDIR", &temporary);
    command
}

/// Runs a profile that starts servers, to its end.
pub(crate) fn run_in_place(place: &Place, arguments: &[impl AsRef<OsStr>]) -> Ran {
    run(&mut prepared(place, arguments), limit(arguments))
}

#[track_caller]
fn assert_sites(json: &Value, names: &[&str], rounds: usize) {
    let sites = json["figures"]["sites"].as_array().expect("sites");
    assert_eq!(sites.len(), names.len(), "{json}");
    for (site, name) in sites.iter().zip(names) {
        assert_eq!(site["name"], *name);
        let all = site["rounds"].as_array().expect("rounds");
        assert_eq!(all.len(), rounds, "{site}");
        for round in all {
            for figure in ["per_minute", "seconds", "p99_ms", "cpu_us"] {
                assert!(
                    round[figure].as_f64().expect("a figure") > 0.0,
                    "{figure}: {round}"
                );
            }
        }
    }
    assert_eq!(
        json["scores"].as_array().map(Vec::len),
        Some(2 * names.len()),
        "{json}"
    );
}

/// Checks that the layers of a disk add up to its total. They are of rounds, and named so.
#[track_caller]
fn assert_rounds_add_up(site: &Value) {
    for at in ["mean_us", "median_round_us", "slowest_round_us"] {
        let of = |times: &Value| times[at].as_f64().expect("a time");
        let layers = site["layers"].as_array().expect("layers").iter();
        let parts: f64 = layers.map(of).sum();
        let total = of(&site["total"]);
        assert!(
            (parts / total - 1.0).abs() < 0.05,
            "{at}: {parts} of {total}"
        );
    }
}

/// Checks that the layers of a site add up, and returns their names.
#[track_caller]
fn layers_of(site: &Value) -> Vec<&str> {
    assert_rounds_add_up(site);
    let layers = site["layers"].as_array().expect("layers");
    let names = layers.iter().map(|layer| layer["name"].as_str());
    names.map(|name| name.expect("a name")).collect()
}

#[test]
fn oltp_on_an_attached_stripe_beside_a_plain_file() {
    if !has_packages() || !can_mount() {
        return;
    }
    let place = Place::new();
    let (configuration, file) = (configuration(&place), place.path("made.img"));
    let ran = run_in_place(&place, &place.beside("oltp", &configuration)).success();
    let json = assert_told(&place, &ran);
    assert_sites(&json, &[&file, "db"], 1);
    for site in 0..2 {
        // Counted in ticks of 10 ms, so a few transactions may show none.
        let round = &json["figures"]["sites"][site]["rounds"][0];
        let of_load = round["load_cpu_us"].as_f64().expect("a figure");
        assert!(of_load > 0.0, "{round}");
    }
    let attached = &json["figures"]["sites"][1]["rounds"][0];
    assert!(
        attached["attach_cpu_us"].as_f64().expect("its side") > 0.0,
        "{attached}"
    );
    assert!(
        attached["ios"].as_f64().expect("its I/Os") > 0.0,
        "{attached}"
    );
    let sites = &json["figures"]["sites"];
    let database = "database and file system";
    assert_eq!(layers_of(&sites[0]), [database, "medium"]);
    let layers = [
        database,
        "loop device",
        "attach",
        "tree: db/stripe",
        "medium: db/stripe/0/file",
        "medium: db/stripe/1/file",
    ];
    assert_eq!(layers_of(&sites[1]), layers);
    // At the top are those of the disk that shows most of itself.
    let means = |layers: &Value| -> Vec<Value> {
        let layers = layers.as_array().expect("layers").iter();
        layers.map(|layer| layer["mean_us"].clone()).collect()
    };
    assert_eq!(means(&json["layers"]), means(&sites[1]["layers"]), "{json}");
    let heading = "Where the time of a transaction went on db\n";
    assert!(ran.stdout.contains(heading), "{ran}");
    // These are not of single transactions, and both the page and the JSON say so.
    let page = place.page();
    for words in ["median round", "slowest round", "not single transactions"] {
        assert!(page.contains(words), "the page has no {words}");
    }
    let of = json["figures"]["layers_are_of"].as_str().expect("words");
    assert!(of.contains("p99_us the slowest round"), "{of}");
    assert!(
        ran.stderr.contains("round 1 of 1"),
        "it prints as it goes: {ran}"
    );
    assert_gone(&file);
    assert_nothing_left(&place);
    // What it leaves on the volume does not count as user data.
    let profile = place.directory.write("short.toml", short("mariadb"));
    let again = [
        "run",
        &profile.to_string_lossy(),
        "-c",
        &configuration,
        "--on",
        "db",
    ];
    let ran = run_in_place(&place, &again).success();
    assert_sites(&assert_told(&place, &ran), &["db"], 2);
    assert_nothing_left(&place);
}

#[test]
fn oltp_with_postgresql_on_an_attached_stripe_beside_a_plain_file() {
    if !has_packages() || !has_postgresql() || !can_mount() {
        return;
    }
    let place = Place::new();
    let (configuration, file) = (configuration(&place), place.path("made.img"));
    let printed = call(&["lab", "profiles", "oltp"]).success().stdout;
    let text = printed.replace("database = \"mariadb\"", "database = \"postgresql\"");
    let profile = place.directory.write("postgresql.toml", text);
    let on = place.beside(&profile.to_string_lossy(), &configuration);
    let json = assert_told(&place, &run_in_place(&place, &on).success());
    assert_eq!(json["figures"]["database"], "PostgreSQL", "{json}");
    assert_sites(&json, &[&file, "db"], 1);
    assert_eq!(
        layers_of(&json["figures"]["sites"][0]),
        ["database and file system", "medium"]
    );
    let site = &json["figures"]["sites"][1];
    let layers = layers_of(site);
    for layer in ["loop device", "attach", "tree: db/stripe"] {
        assert!(layers.contains(&layer), "{layers:?}");
    }
    let ios = site["rounds"][0]["ios"].as_f64().expect("its I/Os");
    assert!(ios > 0.0, "{site}");
    assert_gone(&file);
    assert_nothing_left(&place);
}

/// A running `tools/stock`, which ends with its input.
struct Stock(Child);

impl Drop for Stock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn oltp_over_the_iscsi_of_others_beside_a_plain_file() {
    if !has_packages() || !can_mount() {
        return;
    }
    let place = Place::new();
    let served = place.directory.sparse("served.img", 512 << 20);
    let disk = place.path("stock");
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/stock");
    let mut command = Command::new(tool);
    command.arg(&served).arg(&disk);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stock = Stock(command.spawn().expect("it is there"));
    let mut told = String::new();
    let output = stock.0.stdout.take().expect("it is piped");
    BufReader::new(output).read_line(&mut told).expect("text");
    if told != "ready\n" {
        let ended = stock.0.wait().expect("a child of ours");
        assert_eq!(ended.code(), Some(3), "{told:?}");
        return harness::skip("tgt, qemu-utils, qemu-block-extra or libnbd-bin is not installed");
    }
    let file = place.path("made.img");
    let profile = place.directory.write("short.toml", short("mariadb"));
    let call = [
        "run",
        &*profile.to_string_lossy(),
        "--on",
        &disk,
        "--on",
        &file,
    ];
    let ran = run_in_place(&place, &call).success();
    let json = assert_told(&place, &ran);
    assert_sites(&json, &[&disk, &file], 2);
    let written = fs::read(&served).expect("it is there");
    assert!(written.iter().any(|byte| *byte != 0), "it was not used");
    drop(stock);
    assert_gone(&disk);
    assert_gone(&file);
    assert_nothing_left(&place);
}

#[test]
fn oltp_in_a_directory_leaves_it_as_it_was() {
    if !has_packages() {
        return;
    }
    let place = Place::new();
    let directory = place.directory.join("here");
    fs::create_dir(&directory).expect("a fresh directory");
    fs::write(directory.join("mine"), "data").expect("it is ours");
    let name = directory.to_string_lossy();
    let databases = match Path::new("/usr/lib/postgresql").exists() {
        true => vec!["mariadb", "postgresql"],
        false => vec!["mariadb"],
    };
    for database in databases {
        let profile = place.directory.write("short.toml", short(database));
        let ran =
            run_in_place(&place, &["run", &profile.to_string_lossy(), "--on", &name]).success();
        let json = assert_told(&place, &ran);
        assert_sites(&json, &[&name], 2);
        let all = "database, file system and medium: not visible apart";
        assert_eq!(layers_of(&json["figures"]["sites"][0]), [all]);
        let left: Vec<_> = fs::read_dir(&directory)
            .expect("it is there")
            .flatten()
            .collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_nothing_left(&place);
    }
}

/// Too long to be noise, and short enough for a server to start behind it.
const DELAY_MS: u64 = 10;

/// The time of a request at each place of a site, with its name, over all rounds.
fn request_times(site: &Value) -> Vec<(String, f64)> {
    let rounds = site["rounds"].as_array().expect("rounds");
    let rows = rounds
        .iter()
        .flat_map(|round| round["spent"]["rows"].as_array().expect("rows"));
    let mut sums: Vec<(String, f64, f64)> = Vec::new();
    for row in rows {
        let of = |what: &str| row[what].as_f64().expect("a figure");
        let name = format!("{}: {}", row["layer"], row["place"]);
        let at = sums.iter().position(|(known, _, _)| *known == name);
        let at = at.unwrap_or_else(|| {
            sums.push((name, 0.0, 0.0));
            sums.len() - 1
        });
        sums[at].1 += of("own_us");
        sums[at].2 += of("requests");
    }
    let times = sums.into_iter();
    times
        .map(|(name, us, requests)| (name, us / requests))
        .collect()
}

/// Checks that a request is slower on `late` than on `plain` by the delay in this row, and in each other row below the
/// database by less than half of it. The database's row has the waits of connections for each other's flushes.
#[track_caller]
fn assert_planted_in(plain: &Value, late: &Value, planted: &str) {
    let delay_us = 1e3 * DELAY_MS as f64;
    let (before, after) = (request_times(plain), request_times(late));
    assert_eq!(before.len(), after.len(), "{before:?} {after:?}");
    for ((_, before), (name, after)) in before.iter().zip(&after).skip(1) {
        let grown_us = after - before;
        let is_right = match name.contains(planted) {
            // Half of it more for the processors' other work: a sleeper wakes when one is free.
            true => (0.9..1.5).contains(&(grown_us / delay_us)),
            false => grown_us.abs() < delay_us / 2.0,
        };
        assert!(is_right, "{name} by {grown_us} µs: {plain} {late}");
    }
    assert!(
        after.iter().any(|(name, _)| name.contains(planted)),
        "{after:?}"
    );
}

#[test]
fn a_delay_in_a_node_is_in_its_row_and_in_no_other() {
    if !has_packages() || !can_mount() {
        return;
    }
    let directory = Directory::new();
    let volumes = "lanes = 1\n[volume.v]\nram = { size = \"512MiB\" }\n[volume.w]\nram = { size = \"512MiB\" }\n";
    let target = Sanstone::serve(directory.path(), volumes, &["v", "w"]);
    let place = Place::new();
    let volume = |name: &str, ms: u64, lun: u32| {
        format!(
            "[volume.{name}]\nthrottle = {{ rate = \"100Gbit/s\", latency = \"{ms}ms\", of = {{ iscsi = {{ url = \
             \"{}\" }} }} }}\n",
            target.url(lun)
        )
    };
    let text = format!(
        "lanes = 1\n{}{}",
        volume("plain", 0, 0),
        volume("late", DELAY_MS, 1)
    );
    let volumes = place.directory.write("volumes.toml", text);
    let profile = place.directory.write("short.toml", short("mariadb"));
    let (volumes, profile) = (volumes.to_string_lossy(), profile.to_string_lossy());
    let on = [
        "run",
        &profile,
        "-c",
        &volumes,
        "--on",
        "plain",
        "--on",
        "late",
        "--pid",
        &target.pid().to_string(),
    ];
    let json = assert_told(&place, &run_in_place(&place, &on).success());
    let sites = &json["figures"]["sites"];
    assert_planted_in(&sites[0], &sites[1], "late/throttle\"");
    let layers = [
        "database and file system",
        "loop device",
        "attach",
        "tree: late/throttle",
        "initiator and wire: late/throttle/iscsi",
        "target: w",
        "medium: w/ram at the target",
    ];
    assert_eq!(layers_of(&sites[1]), layers);
    assert_nothing_left(&place);
}

#[test]
fn what_cannot_be_run_is_named_with_the_mend() {
    if !has_packages() {
        return;
    }
    let refused = |text: &str, parts: &[&str]| {
        let place = Place::new();
        let profile = place.directory.write("mine.toml", text);
        let mut command = place.command(&["run", &profile.to_string_lossy(), "--on", "/tmp"]);
        // There is nothing to be found in that PATH, and little in /usr/sbin.
        let ran = run(command.env("PATH", place.directory.path()), LIMIT);
        assert_eq!(ran.code(), Some(2), "{ran}");
        for part in parts {
            assert!(ran.stderr.contains(part), "{ran}");
        }
    };
    refused(
        &short("mariadb"),
        &[
            "database = \"mariadb\"",
            "install the package mariadb-server-core",
            "\"postgresql\"",
        ],
    );
    refused(&short("oracle"), &["oracle", "mariadb", "postgresql"]);
    refused(
        &short("mariadb").replace("threads = 2", "threads = 0"),
        &["threads: 0"],
    );
}

/// Starts a run of hours on a plain file, and waits until its first round is over.
fn begun_for_hours(place: &Place, file: &str) -> Child {
    let long = short("mariadb").replace("rounds = 2", "rounds = 1000");
    let profile = place.directory.write("long.toml", long);
    let call = ["run", &profile.to_string_lossy(), "--on", file];
    begun(prepared(place, &call), "round 1 of 1000")
}

#[test]
fn an_interrupt_keeps_the_rounds_and_ends_all_that_was_started() {
    if !has_packages() || !can_mount() {
        return;
    }
    let place = Place::new();
    let file = place.path("made.img");
    let mut lab = begun_for_hours(&place, &file);
    signal(i64::from(lab.id()), "INT");
    let ended = lab.wait().expect("a child of ours");
    assert!(ended.success(), "{ended}");
    let json = place.json();
    assert_eq!(json["interrupted"], true, "{json}");
    let rounds = json["figures"]["sites"][0]["rounds"]
        .as_array()
        .map_or(0, Vec::len);
    assert!((1..1000).contains(&rounds), "{json}");
    assert_gone(&file);
    assert_nothing_left(&place);
}

#[test]
fn what_a_killed_run_has_started_ends_with_it() {
    if !has_packages() || !can_mount() {
        return;
    }
    let place = Place::new();
    let file = place.path("made.img");
    let mut lab = begun_for_hours(&place, &file);
    lab.kill().expect("it runs");
    lab.wait().expect("a child of ours");
    let deadline = Instant::now() + Duration::from_secs(120);
    let is_left = || {
        let of_place = place.directory.path().to_string_lossy().into_owned();
        let loops = run(Command::new("losetup").arg("--list"), LIMIT);
        let processes = fs::read_dir("/proc").expect("it is there").flatten();
        let mut commands =
            processes.filter_map(|p| fs::read_to_string(p.path().join("cmdline")).ok());
        loops.stdout.contains(&of_place) || commands.any(|command| command.contains(&of_place))
    };
    while is_left() {
        assert!(Instant::now() < deadline, "something of it is left");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn data_on_a_disk_is_not_lost_unless_that_is_said() {
    if !has_packages() || !can_mount() {
        return;
    }
    let place = Place::new();
    let data = harness::noise(3, 1 << 20);
    let file = place.directory.write("data.img", &data);
    let profile = place.directory.write("short.toml", short("mariadb"));
    let ran = run_in_place(
        &place,
        &[
            "run",
            &profile.to_string_lossy(),
            "--on",
            &file.to_string_lossy(),
        ],
    );
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("holds data"), "{ran}");
    assert!(
        fs::read(&file).expect("it is there") == data,
        "the file was changed"
    );
    assert_nothing_left(&place);
}
