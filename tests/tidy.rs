//! The project's style rules as far as a program can check them: which crate may depend on which, how long a file may
//! be and how it must begin, where `unsafe` is allowed, and which words are forbidden. `circles` finds modules that use each
//! other, `names` types of one name. A permission that nobody needs is an error as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/names.rs"]
mod names;

/// Folders of crates, and which of our crates each depends on. Downwards only: the pure protocol crates and the engine
/// depend on none of our crates.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("crates/iscsi", &[]),
    ("crates/scsi", &[]),
    ("crates/nbd", &[]),
    ("crates/mirror", &[]),
    ("crates/set", &[]),
    ("crates/engine", &[]),
    ("crates/iscsi-stream", &["engine", "iscsi"]),
    (
        "crates/volume",
        &["engine", "iscsi", "iscsi-stream", "mirror", "scsi", "set"],
    ),
    ("crates/unit", &["volume", "engine", "scsi"]),
    ("crates/front", &["unit", "engine"]),
    (
        "crates/front-iscsi",
        &["front", "unit", "engine", "iscsi", "iscsi-stream", "scsi"],
    ),
    ("crates/front-nbd", &["front", "unit", "engine", "nbd"]),
    ("crates/front-fuse", &["front", "unit", "engine"]),
    (
        "crates/node",
        &["front", "front-iscsi", "unit", "volume", "engine"],
    ),
    ("crates/lab", &["volume", "engine"]),
    (
        "crates/sanstone",
        &[
            "lab",
            "node",
            "front",
            "front-fuse",
            "front-nbd",
            "volume",
            "engine",
        ],
    ),
    // The fuzz target `disk` runs an iscsi leaf in the simulated world.
    (
        "fuzz/bodies",
        &["front-fuse", "volume", "engine", "iscsi", "nbd", "scsi"],
    ),
    // It depends on none of our crates but the one inside it.
    ("fuzz", &["fuzz-bodies"]),
    (
        "sim",
        &[
            "node",
            "front-iscsi",
            "front-nbd",
            "unit",
            "volume",
            "engine",
            "iscsi",
            "iscsi-stream",
            "mirror",
            "scsi",
        ],
    ),
    ("bench", &["tests", "lab", "volume", "engine"]),
    ("tests", &["volume", "engine"]),
];

/// What a crate's tests depend on in addition.
const TESTS_MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    // Its tests enable a feature of the crate itself.
    ("crates/engine", &["engine"]),
    // Its tests plant bugs.
    ("crates/mirror", &["mirror"]),
    // They serve volumes, and reach them with our initiator.
    ("crates/front-iscsi", &["volume"]),
    // They serve a volume in memory.
    ("crates/front", &["volume"]),
    ("crates/front-fuse", &["volume"]),
    // They speak to the daemon with our initiator, and to a target of ours.
    ("tests", &["front-iscsi", "unit", "iscsi"]),
];

/// Where `unsafe` is allowed: the ring and its buffers, code that maps memory, SQLite's C interface, and the counting
/// allocators of tests.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/engine/",
    "crates/volume/src/kinds/ram",
    "crates/volume/tests/mirror_cost.rs",
    "crates/lab/src/sqlite",
    "crates/iscsi/tests/allocations.rs",
    "crates/front-iscsi/tests/cost.rs",
    "tests/src/bin/fsx.rs",
];

const LINES_MAX: usize = 700;

/// A file of the repository: its path from the root, and its text.
struct File {
    path: String,
    text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The text without the tests at its end. Those of a file beside it are no end.
    fn before_tests(&self) -> &str {
        let tests = self.text.split_once("\n#[cfg(test)]\nmod tests {");
        tests.map_or(&self.text, |(before, _)| before)
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the repository")
}

/// Every text file of the repository as git sees it: tracked or untracked, but not ignored.
fn files() -> Vec<File> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root())
        .output()
        .expect("git is here: the sources came with it");
    assert!(
        listed.status.success(),
        "{}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let listed = String::from_utf8(listed.stdout).expect("our paths are plain text");
    let files = listed.split_terminator('\0').filter_map(|path| {
        // Skips binary files, and files deleted but not yet committed.
        let text = std::fs::read_to_string(root().join(path)).ok()?;
        Some(File {
            path: path.to_owned(),
            text,
        })
    });
    let files: Vec<File> = files.collect();
    assert!(
        files.iter().any(File::is_rust),
        "no Rust file found below {}",
        root().display()
    );
    files
}

#[track_caller]
fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// Complaints about single lines, as `PATH:LINE: COMPLAINT`.
fn lines(files: &[File], complain: impl Fn(&File, &str) -> Option<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(complaint) = complain(file, line) {
                complaints.push(format!("{}:{}: {complaint}", file.path, index + 1));
            }
        }
    }
    complaints
}

/// Dependency tables of a manifest: for what is built, and for tests only.
const BUILT: &[&str] = &["dependencies", "build-dependencies"];
const TESTS: &[&str] = &["dev-dependencies"];

/// Our crates in the manifest's dependency tables of these `kinds`, without the prefix.
fn own_dependencies(manifest: &str, kinds: &[&str]) -> BTreeSet<String> {
    let manifest: toml::Table = manifest.parse().expect("cargo has read it before us");
    let per_target = manifest
        .get("target")
        .and_then(toml::Value::as_table)
        .into_iter();
    let tables = per_target
        .flat_map(|targets| targets.values())
        .filter_map(toml::Value::as_table);
    tables
        .chain([&manifest])
        .flat_map(|table| kinds.iter().map(|kind| table.get(*kind)))
        .filter_map(|table| table?.as_table())
        .flat_map(|table| table.keys())
        .filter_map(|name| name.strip_prefix("sanstone-").map(str::to_owned))
        .collect()
}

#[test]
fn dependencies_point_downwards() {
    let allowed = |table: &[(&str, &'static [&'static str])], folder: &str| {
        let row = table.iter().find(|(name, _)| *name == folder);
        row.map(|(_, allowed)| *allowed)
    };
    let mut complaints = Vec::new();
    for file in files() {
        let Some(folder) = file.path.strip_suffix("/Cargo.toml") else {
            continue;
        };
        let Some(built) = allowed(MAY_DEPEND_ON, folder) else {
            complaints.push(format!(
                "{}: say in tests/tidy.rs what it may depend on",
                file.path
            ));
            continue;
        };
        let tests = allowed(TESTS_MAY_DEPEND_ON, folder).unwrap_or_default();
        for (kinds, needed, allowed) in [
            (BUILT, built, built.to_vec()),
            (TESTS, tests, [built, tests].concat()),
        ] {
            let depends_on = own_dependencies(&file.text, kinds);
            for dependency in &depends_on {
                if !allowed.contains(&dependency.as_str()) {
                    complaints.push(format!("{}: must not depend on {dependency}", file.path));
                }
            }
            for dependency in needed
                .iter()
                .filter(|needed| !depends_on.contains(**needed))
            {
                complaints.push(format!(
                    "tests/tidy.rs: {folder} need not be allowed {dependency}"
                ));
            }
        }
    }
    none(complaints);
}

#[test]
fn no_dependency_table_hides_a_crate() {
    let manifest = "[dependencies]\nsanstone-a = \"1\"\n[dev-dependencies]\nsanstone-b = \"1\"\n\
        [target.'cfg(unix)'.dependencies]\nsanstone-c.workspace = true\nserde = \"1\"\n";
    let named = |kinds| own_dependencies(manifest, kinds).into_iter();
    assert_eq!(named(BUILT).collect::<String>(), "ac");
    assert_eq!(named(TESTS).collect::<String>(), "b");
}

/// The table must have a row for each crate, `| `name` | what it is | `used`, … |`, and the picture a box.
#[test]
fn the_architecture_shows_the_crates_that_there_are() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    let picture = text.split("```").nth(1).expect("it begins with a picture");
    let quoted = |cell: &str| -> BTreeSet<String> {
        let names = cell.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect()
    };
    let rows: BTreeMap<String, BTreeSet<String>> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix('|')?.trim_end_matches('|').split('|');
            let name = quoted(cells.next()?).pop_first()?;
            Some((name, quoted(cells.next_back()?)))
        })
        .collect();
    let crates = std::fs::read_dir(root().join("crates")).expect("it is there");
    let mut complaints = Vec::new();
    for entry in crates {
        let name = entry.expect("it can be listed").file_name();
        let name = name.to_str().expect("our paths are plain text");
        if !picture.contains(&format!("│ {name} ")) {
            complaints.push(format!("ARCHITECTURE.md: the picture has no box {name}"));
        }
    }
    for (folder, allowed) in MAY_DEPEND_ON.iter().filter(|(folder, _)| *folder != "fuzz") {
        if !root().join(folder).is_dir() {
            complaints.push(format!("tests/tidy.rs: there is no {folder}"));
        }
        let name = match folder.strip_prefix("crates/") {
            Some(name) => name.to_owned(),
            None => format!("{}/", folder.trim_end_matches("/bodies")),
        };
        let allowed = allowed.iter().map(ToString::to_string).collect();
        if rows.get(&name) != Some(&allowed) {
            complaints.push(format!(
                "ARCHITECTURE.md: the table has {:?} for {name}, tests/tidy.rs has {allowed:?}",
                rows.get(&name)
            ));
        }
    }
    none(complaints);
}

/// The circles of modules in each crate, whether it is a library or a program.
fn circles_in(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        let Some((src, root @ ("lib.rs" | "main.rs"))) = file.path.rsplit_once('/') else {
            continue;
        };
        if !src.ends_with("/src") {
            continue;
        }
        let sources = files.iter().filter(|file| file.is_rust());
        let sources: BTreeMap<&str, &str> = sources
            .filter_map(|file| {
                let path = file.path.strip_prefix(src)?.strip_prefix('/')?;
                Some((path, file.text.as_str()))
            })
            .collect();
        let circles = circles::circles(root, &sources).into_iter();
        complaints.extend(circles.map(|circle| format!("{src}: {circle}")));
    }
    complaints
}

#[test]
fn modules_use_each_other_in_one_direction() {
    none(circles_in(&files()));
}

#[test]
fn a_circle_is_found_in_every_crate_of_the_repository() {
    let files = files();
    let crates: BTreeSet<&str> = files
        .iter()
        .filter_map(|file| Some(file.path.split_once("/src/")?.0))
        .collect();
    assert!(crates.contains("crates/sanstone") && crates.contains("fuzz/bodies"));
    for folder in crates {
        let root = |name: &&str| {
            files
                .iter()
                .any(|f| f.path == format!("{folder}/src/{name}"))
        };
        let root = ["lib.rs", "main.rs"].into_iter().find(root);
        let planted = |name: &str, text: &str| File {
            path: format!("{folder}/src/{name}"),
            text: text.to_owned(),
        };
        let planted = [
            planted(root.expect("a library or a program"), "mod a; mod b;"),
            planted("a.rs", "use crate::b::B;"),
            planted("b.rs", "use crate::a::A;"),
        ];
        let found = circles_in(&planted);
        assert!(found.len() == 1 && found[0].contains("a, b"), "{found:?}");
    }
}

#[test]
fn files_are_short_enough_to_be_one_idea() {
    let limited = |path: &str| {
        let extension = Path::new(path).extension().unwrap_or_default();
        path.starts_with("tools/")
            || ["rs", "sh", "toml", "md"]
                .iter()
                .any(|one| extension == *one)
    };
    let long = |file: &File| file.text.lines().count() > LINES_MAX;
    let files = files()
        .into_iter()
        .filter(|file| limited(&file.path) && long(file));
    none(
        files
            .map(|file| format!("{}: more than {LINES_MAX} lines", file.path))
            .collect(),
    );
}

#[test]
fn every_rust_file_says_what_it_is_for() {
    let mute = |file: &File| file.is_rust() && !file.text.starts_with("//! ");
    let files = files().into_iter().filter(mute);
    none(
        files
            .map(|file| format!("{}: does not begin with a //! paragraph", file.path))
            .collect(),
    );
}

#[test]
fn nothing_is_left_for_later() {
    // Written in two halves, so that this file does not match itself.
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("dbg", "!("),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
    ];
    let sources = files()
        .into_iter()
        .filter(|f| f.is_rust() || f.path.starts_with("tools/"));
    none(lines(&sources.collect::<Vec<_>>(), |_, line| {
        let word = words.iter().find(|word| line.contains(**word))?;
        Some(format!("{word} is left"))
    }));
}

#[test]
fn unsafe_code_stays_where_it_is_needed() {
    let files = files();
    let has = |file: &File| file.is_rust() && file.text.lines().any(has_unsafe);
    let gone = UNSAFE_ALLOWED.iter().filter(|start| {
        let mut within = files.iter().filter(|file| file.path.starts_with(**start));
        !within.any(has)
    });
    let gone = gone.map(|start| format!("tests/tidy.rs: no unsafe is left in {start}"));
    let mut complaints = lines(&files, |file, line| {
        let allowed = UNSAFE_ALLOWED
            .iter()
            .any(|start| file.path.starts_with(start));
        (file.is_rust() && !allowed && has_unsafe(line))
            .then(|| "unsafe is not for this file".into())
    });
    complaints.extend(gone);
    none(complaints);
}

/// Whether a line of code contains the keyword outside of comments and strings.
fn has_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let code: String = code.split('"').step_by(2).collect();
    let of_a_name = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c| !of_a_name(c))
        .any(|word| word == concat!("un", "safe"))
}

#[test]
fn the_keyword_is_told_from_the_word() {
    let keyword = concat!("un", "safe");
    assert!(has_unsafe(&format!("    let x = {keyword} {{ y() }};")));
    assert!(!has_unsafe(&format!("#![forbid({keyword}_code)]")));
    assert!(!has_unsafe(&format!("    // {keyword} here")));
    assert!(!has_unsafe(&format!("    say(\"{keyword}\")")));
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    let words = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!(".int", "ernal/"),
    ];
    none(lines(&files(), |_, line| {
        let word = words.iter().find(|word| line.contains(**word))?;
        Some(format!("{word} is a place on somebody's machine"))
    }));
}

/// Whoever starts a program decides what of the user's environment reaches it: nothing does, in one place.
#[test]
fn programs_are_started_in_one_place() {
    let starts = concat!("Command", "::new(");
    let complaints = files().into_iter().filter_map(|file| {
        let is_built = file.path.starts_with("crates/") && file.path.contains("/src/");
        if !is_built || file.path == "crates/engine/src/programs.rs" {
            return None;
        }
        // Tests may do as they like.
        let mut built = file.before_tests().lines();
        let line = built.position(|line| line.contains(starts))? + 1;
        Some(format!(
            "{}:{line}: programs are started by engine::programs",
            file.path
        ))
    });
    none(complaints.collect());
}

/// Code that only tests use is behind a feature, and no crate in the binary enables such a feature.
#[test]
fn what_ships_is_built_without_what_only_tests_use() {
    let tree = |package: &str, edges: &str| {
        let tree = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--locked", "--edges", edges])
            .args(["--prefix", "none", "--format", "{p} [{f}]"])
            .args(["--package", package])
            .current_dir(root())
            .output()
            .expect("cargo runs this");
        let complaint = String::from_utf8_lossy(&tree.stderr).into_owned();
        assert!(tree.status.success(), "{complaint}");
        String::from_utf8_lossy(&tree.stdout).into_owned()
    };
    let features = |tree: &str| -> BTreeSet<String> {
        let ours = tree.lines().filter(|line| line.starts_with("sanstone"));
        let features = ours.filter_map(|line| line.split(['[', ']']).nth(1));
        let names = features.flat_map(|names| names.split(','));
        names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let (simulated, shipped) = (
        features(&tree("sanstone-sim", "normal,dev")),
        features(&tree("sanstone", "no-dev")),
    );
    for feature in ["sim", "testing"] {
        assert!(
            simulated.contains(feature),
            "the simulator's tests are built without `{feature}`"
        );
        assert!(
            !shipped.contains(feature),
            "sanstone is built with `{feature}`"
        );
    }
}

#[test]
fn every_locked_package_comes_from_crates_io() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock is kept");
    let sources = lock
        .lines()
        .filter_map(|line| line.strip_prefix("source = "));
    let known = "\"registry+https://github.com/rust-lang/crates.io-index\"";
    none(
        sources
            .filter(|source| *source != known)
            .map(str::to_owned)
            .collect(),
    );
}

#[test]
fn every_test_program_has_its_stage() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("a file of ours");
    let (manifest, stages) = (read("tests/Cargo.toml"), read("tools/test"));
    let programs: Vec<&str> = manifest
        .split("[[test]]")
        .skip(1)
        .filter_map(|table| table.split('"').nth(1))
        .collect();
    assert!(programs.contains(&"tidy"), "{programs:?}");
    for program in programs {
        let has_stage = stages
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("tests_of "))
            .any(|line| line.split(' ').next() == Some(program));
        assert!(has_stage, "tools/test has no stage that runs {program}");
    }
}

/// The last cell of each row of docs/internals/conformance.md names tests: `file.rs::function`,
/// where the file may be named by the end of its path, and suites or single tests of libiscsi.
#[test]
fn every_test_that_the_conformance_tables_name_exists() {
    let suite = include_str!("conformance/expected-sanstone-thin.txt");
    let of_libiscsi = |name: &str| {
        let is = |line: &str| line.split([' ', '.']).next() == Some(name);
        let alone = |line: &str| line.split(' ').next() == Some(name);
        suite.lines().any(|line| is(line) || alone(line))
    };
    let files = files();
    let holds = |path: &str, function: &str| {
        let path = format!("/{path}");
        let definition = format!("fn {function}(");
        let named = files
            .iter()
            .filter(|file| format!("/{}", file.path).ends_with(&path));
        named
            .into_iter()
            .any(|file| file.text.contains(&definition))
    };
    let document = "docs/internals/conformance.md";
    let text = std::fs::read_to_string(root().join(document)).expect("the tables are there");
    let mut named = 0;
    let mut missing = Vec::new();
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let tests = row
            .trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default();
        for name in tests.split('`').skip(1).step_by(2) {
            named += 1;
            let exists = match name.split_once("::") {
                Some((path, function)) => holds(path, function),
                None => of_libiscsi(name),
            };
            if !exists {
                missing.push(format!("{document}: there is no test {name}"));
            }
        }
    }
    assert!(named > 100, "only {named} tests are named");
    none(missing);
}
