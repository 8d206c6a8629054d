//! The README that `make lab` leaves beside its results: published figures with ours beside them.

use std::{fs, path::Path, process::Command, time::Duration};

use harness::{directory::Directory, run::run};

/// The README of the results in this directory.
#[track_caller]
fn written(directory: &Directory) -> String {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/lab-readme");
    let mut call = Command::new(tools);
    run(call.arg(directory.path()), Duration::from_secs(60)).success();
    fs::read_to_string(directory.join("README.md")).expect("it is there")
}

#[test]
fn what_was_not_measured_is_said() {
    let readme = written(&Directory::new());
    for part in [
        "beside the bare file: not measured |",
        "waits for its commits: not measured |",
        "nbdfuse): not measured |",
        "sessions each: not measured |",
        "layer by layer:\n\n```\nnot measured\n```",
        "without a replica:\n\n```\nnot measured\n```",
    ] {
        assert!(readme.contains(part), "{part}: {readme}");
    }
    assert!(readme.ends_with("All runs:\n\n"), "{readme}");
    assert!(!readme.contains("real data"), "{readme}");
}

#[test]
fn the_results_stand_beside_the_published_figures() {
    let directory = Directory::new();
    let result = |name: &str, answer: &str| {
        let json = format!("{{\n  \"answer\": \"{answer}\",\n  \"figures\": {{\n  }}\n}}\n");
        directory.write(&format!("{name}.json"), json);
    };
    let gains = "two: 2.03× (scans 1.98× to 2.01×); four: 3.86× (scans 3.95× to 4.08×)";
    let answer = format!("MariaDB: one scores 0.7 s; beside one with the same page; {gains}.");
    result("sql-mariadb-shares", &answer);
    let answer = "By throughput over all loads: b is 2.00× a. For each percent of a processor, b beside a: reads, as many as \
                  it can do 4.00× (3.90–4.10); writes, as many as it can do 3.00× (2.90–3.10).";
    result("effectiveness-beside", answer);
    let answer = "MariaDB does 100 a minute on ./plain.img; 90 on stripe: 0.9×; 99 on iscsi://h/t/0: 0.99× as many.";
    result("oltp", answer);
    let commit = "Where the time went\n  layer  mean\n  wire   12.5\n  total  99.5\n\nBeside a \
         published result\n  no\n";
    directory.write("commit-iscsi.txt", commit);
    let few = "Transactions\n  no\n\nWhere the time of a transaction went on ./plain.img\n  medium  265.5\n\nWhere the \
               time of a transaction went on iscsi://h/t/0\n  attach   96.4\n\nBeside published results\n  no\n";
    directory.write("oltp-few.txt", few);
    let queue = "Behind an adapter\n  adapter               I/Os/s\n  32 a LUN, 128 in all  25,000  40,000  1\n  254 a LUN, 1,024 in \
                 all  99,000  10,000  1\n";
    directory.write("queue-distant.txt", queue);

    let answer =
        "MariaDB does 80 a minute on ./stock; 120 on iscsi://h/t/0: 1.50× as many, each for 0.70×.";
    result("oltp-stock", answer);
    let answer = "SQLite: ./plain.img scores 2 s; beside ./plain.img with the same page; stripe: 1.01× (scans 0.98× to 1.02×).";
    // The settings have rows as well: those that would have been generated.
    let json = format!(
        "{{\n  \"answer\": \"{answer}\",\n  \"figures\": {{\n    \"sweep\": [\n      {{\n        \"rows\": 2543401,\n        \
         \"table_bytes\": 1\n      }}\n    ]\n  }},\n  \"settings\": {{\n    \"rows\": 400000\n  }}\n}}\n"
    );
    directory.write("sql-scan-data.json", json);

    let readme = written(&directory);
    for part in [
        "NBD server, nbdfuse): 120 on iscsi://h/t/0: 1.50× as many, each for 0.70×. |",
        "| | | SQLite on real data (2543401 rows), a stripe beside a file: stripe: 1.01× (scans 0.98× to 1.02×) |",
        &format!("| | | MariaDB: {gains} |"),
        "PostgreSQL: not measured",
        "interval: reads 4.00× (3.90–4.10), writes 3.00× (2.90–3.10) |",
        "beside the bare file: 99 on iscsi://h/t/0: 0.99× as many. |",
        "```\nWhere the time of a transaction went on ./plain.img\n  medium  265.5\n\nWhere the time of a \
         transaction went on iscsi://h/t/0\n  attach   96.4\n```",
        "```\n  layer  mean\n  wire   12.5\n  total  99.5\n```",
        "behind 32 a LUN, 128 in all: 25,000 I/Os a second at 40,000 µs; behind 254 a LUN, 1,024 in all: 99,000",
        "- [oltp](oltp.html) ([JSON](oltp.json)): MariaDB does 100 a minute",
    ] {
        assert!(readme.contains(part), "{part}: {readme}");
    }
}
