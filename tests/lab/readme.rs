//! The README that `make lab` leaves beside its results: published figures with ours beside them.

use std::{fs, path::Path, process::Command, time::Duration};

use harness::{directory::Directory, run::run};
use serde_json::{Value, json};

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
        "with 4 connections: not measured\n",
        "- a read: not measured\n",
        "| medium, one copy | – |",
        "All layers of our commit:\n\n```\nnot measured\n```",
    ] {
        assert!(readme.contains(part), "{part}: {readme}");
    }
    assert!(
        readme.ends_with("All runs, with their tables:\n\n"),
        "{readme}"
    );
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
    let queue = "Behind an adapter\n  adapter               I/Os/s  mean\n  32 a LUN, 128 in all  25,000  40 ms  1\n  254 a LUN, 1,024 in \
                 all  99,000  950 µs  1\n";
    directory.write("queue-distant.txt", queue);
    let fio = "Each load\n  no\n\nService times, from when an I/O is sent\n  load  service time  B / A       95 %\n  1 \
               outstanding  median  1.02×  0.97–1.06\n\nBy throughput\n";
    directory.write("beside-fio.txt", fio);

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
        &format!("| | | MariaDB, links of 250 Mbit/s: {gains} |"),
        "PostgreSQL, links of 250 Mbit/s: not measured",
        "SQLite, links of 1,000 Mbit/s: not measured",
        "interval: reads 4.00× (3.90–4.10), writes 3.00× (2.90–3.10) |",
        "beside the bare file: 99 on iscsi://h/t/0: 0.99× as many. |",
        "```\nWhere the time of a transaction went on ./plain.img\n  medium  265.5\n\nWhere the time of a \
         transaction went on iscsi://h/t/0\n  attach   96.4\n```",
        "```\n  layer  mean\n  wire   12.5\n  total  99.5\n```",
        "```\n  load  service time  B / A       95 %\n  1 outstanding  median  1.02×  0.97–1.06\n```",
        "behind 32 a LUN, 128 in all: 25,000 I/Os a second at 40 ms; behind 254 a LUN, 1,024 in all: 99,000 I/Os a second at 950 µs",
        "- [oltp](oltp.txt): MariaDB does 100 a minute",
    ] {
        assert!(readme.contains(part), "{part}: {readme}");
    }
}

/// The layers of a disk or of a run, as the lab writes them.
fn layers(layers: &[(&str, f64)]) -> Value {
    let layer =
        |&(name, mean_us): &(&str, f64)| json!({ "name": name, "mean_us": mean_us, "p50_us": 1.0 });
    layers.iter().map(layer).collect()
}

#[test]
fn the_difference_between_two_disks_is_told_layer_by_layer() {
    let directory = Directory::new();
    let site = |name: &str, of: &[(&str, f64)]| json!({ "name": name, "layers": layers(of), "rounds": [{ "name": "x" }], "total": { "mean_us": 9.0 } });
    let plain = [("database and file system", 3000.0), ("medium", 200.0)];
    let iscsi = [
        ("database and file system", 2900.0),
        ("attach", 90.0),
        ("initiator and wire: disk/iscsi", 150.4),
        ("medium: disk/file at the target", 220.0),
    ];
    let stripe = [("database and file system", 1.0), ("stripe", 2.0)];
    let sites = [
        site("./plain.img", &plain),
        site("stripe", &stripe),
        site("iscsi://h/t/0", &iscsi),
    ];
    let run = json!({ "answer": "Done.", "figures": { "sites": sites } });
    let text = serde_json::to_string_pretty(&run).expect("it is JSON");
    directory.write("oltp-few.json", text);
    let readme = written(&directory);
    let told = "with 4 connections: a transaction takes 160 µs (5 %) more on iscsi://h/t/0 than on ./plain.img, 94 % of it \
                in the row “initiator and wire”: database and file system −100 µs, attach +90 µs, initiator and wire \
                +150 µs, medium +20 µs.\n";
    assert!(readme.contains(told), "{readme}");
}

#[test]
fn commits_and_processor_time_stand_beside_the_published_rows() {
    let directory = Directory::new();
    let ours = [
        ("SQLite and its files", 15.04),
        ("volume", 20.0),
        ("initiator", 40.0),
        ("wire", 500.0),
        ("target", 40.0),
        ("medium", 800.0),
    ];
    let run = json!({ "answer": "Done.", "figures": { "nodes": [{ "mean_us": 7.0, "name": "wire" }] }, "layers": layers(&ours) });
    let text = serde_json::to_string_pretty(&run).expect("it is JSON");
    directory.write("commit-iscsi.json", text);
    for (name, each) in [("iscsi", "1,000"), ("tgt", "250"), ("file", "2,500")] {
        let answer = format!(
            "Each percent of a processor does {each} reads a second (9,000 in all) and 1 writes a second."
        );
        let run = json!({ "answer": answer, "figures": {} });
        let text = serde_json::to_string_pretty(&run).expect("it is JSON");
        directory.write(&format!("effectiveness-{name}.json"), text);
    }
    let readme = written(&directory);
    for part in [
        "| SQL and its code | 85 | SQLite and its files | 15.0 |\n",
        "| path to the storage | 94 | volume, initiator, wire, target | 600.0 |\n",
        "| | – | … wire | 500.0 |\n",
        "| replicated write, two copies | 164 | medium, one copy | 800.0 |\n",
        "| total | 385 | total | 1415.0 |\n",
        "- a read: tgt 40.0 µs, Sanstone 10.0 µs (4.00×; for 3.5× it would be 11.4 µs). The same on the file itself, load \
         generator included: 4.0 µs. The rest, about 6.0 µs, is iSCSI and TCP.\n",
    ] {
        assert!(readme.contains(part), "{part}: {readme}");
    }
}
