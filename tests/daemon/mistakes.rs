//! Mistakes that people really make in configurations: brackets, quotes, units, formats of other programs. Each message
//! has the line, the cause and what to write instead, and one run reports all mistakes.

use crate::configuration::{call_with, refused_at};
use harness::directory::Directory;
use harness::process::program;
use harness::run::run;
use harness::sanstone::{IQN, binary, call, target_table};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

#[test]
fn all_errors_that_do_not_follow_from_each_other_are_reported_in_order() {
    let directory = Directory::new();
    let broken = "memory = 64\n[volume.a]\nram = { size = \"1GiB\", sise = 1 }\n[volume.b]\n\
         file = { path = \"b.img\", size = \"1 banana\" }\n[volume.c]\nlanes = 2\n\
         ram = { size = \"1000B\" }\n";
    let table = target_table(3260, &["a", "b", "missing"]).replace("127.0.0.1:", "localhost:");
    let ran = call_with("check", &directory, &format!("{broken}{table}vip = true\n"));
    assert_eq!(ran.code(), Some(2), "{ran}");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    let expected = [
        (1, "a size is written in quotes"),
        (3, "unknown key `sise`; write `size`"),
        (5, "\"banana\" in \"1 banana\" is not a unit"),
        (7, "lanes belongs above the first [table]"),
        (8, "or \"512B\""),
        (11, "\"localhost:3260\" is a host name"),
        (12, "no volume called \"missing\""),
        (14, "unknown key `vip`"),
    ];
    assert_eq!(lines.len(), expected.len(), "{ran}");
    for (line, (number, said)) in lines.iter().zip(expected) {
        let place = format!("bad.toml:{number}:");
        assert!(
            line.contains(&place) && line.contains(said),
            "{place} {said}\n{ran}"
        );
    }
    let limits = "[limits]\nlogins = 0\ncommands = 5000\nlogin_time = \"1h\"\ntext = \"1KiB\"\n\
                  transfer = \"1KiB\"\n[volume.a]\nfile = { path = \"a.img\", size = \"1MiB\" }\n";
    let table = target_table(3260, &["a"]);
    let ran = call_with("check", &directory, &format!("{limits}{table}"));
    assert_eq!(ran.stderr.lines().count(), 5, "{ran}");
    // Errors that only the system can report are found in the same run.
    let missing =
        "[volume.a]\nfile = { path = \"a.img\" }\n[volume.b]\nfile = { path = \"b.img\" }\n";
    let table = target_table(3260, &["a", "b"]).replace("127.0.0.1:", "localhost:");
    let ran = call_with("check", &directory, &format!("{missing}{table}"));
    assert_eq!(ran.stderr.lines().count(), 3, "{ran}");
}

#[test]
fn what_people_write_wrongly_comes_with_its_line_and_the_mend() {
    let volume = "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\" }\n";
    let table = target_table(3260, &["disk"]);
    let whole = format!("{volume}{table}");
    let with = |from: &str, to: &str| {
        assert!(whole.contains(from), "{from}");
        whole.replacen(from, to, 1)
    };
    for (line, configuration, said) in [
        (
            6,
            with("[\"disk\"]", "[\"disk\""),
            "this [ is never closed; write its ]",
        ),
        (2, with(" }\n", "\n"), "this { is never closed; write its }"),
        (1, with("disk]", "disk"), "this [ has no ] on its line"),
        (
            6,
            with("[\"disk\"]", "[\"disk\"]]"),
            "this ] closes nothing; remove it",
        ),
        (
            2,
            with("disk.img\"", "disk.img"),
            "this text has no closing \"",
        ),
        (
            4,
            with(&format!("\"{IQN}\""), IQN),
            "put the name in quotes: [target.\"iqn.2026-11.io.sanstone:test\"]",
        ),
        (
            4,
            with(&format!("\"{IQN}\""), "iqn.2026-11.test"),
            "put the name in quotes: [target.\"iqn.2026-11.test\"]",
        ),
        (
            7,
            with("\"*\"", "iqn.1993-08.org.debian:01:db"),
            "put the name in quotes: \"iqn.1993-08.org.debian:01:db\"",
        ),
        (
            3,
            format!("{volume}memory = \"64MiB\"\n{table}"),
            "memory belongs above the first [table]",
        ),
        (
            8,
            format!("{whole}memory = \"64MiB\"\n"),
            "memory belongs above the first [table]",
        ),
        (
            2,
            with("\"16MiB\"", "16MiB"),
            "text needs quotes; write \"16MiB\"",
        ),
        (
            2,
            with("16MiB", "16mib"),
            "is not a unit of a size; write \"16MiB\"",
        ),
        (
            2,
            with("\"disk.img\"", "“disk.img”"),
            "“ is a typographic quote; write a plain one: \"",
        ),
        (
            2,
            with("disk.img", "C:\\data"),
            "as \\\\, or put the text in '…'",
        ),
        (
            2,
            with("file =", "file:"),
            "a value follows =, not a colon; write file = …",
        ),
        (
            2,
            with(", size", " size"),
            "a comma is missing before this; add one",
        ),
        (
            2,
            with("path =", "path =="),
            "this = is one too many; remove it",
        ),
        (1, with("[volume.disk]", "[volume.disk] ="), "remove the ="),
        (
            1,
            with("[volume.disk]", "[volume disk]"),
            "write [volume.disk]",
        ),
        (
            1,
            with("[volume.disk]", "[[volume]]"),
            "write each as [volume.NAME], in single brackets",
        ),
        (
            1,
            with("volume.disk", "volumes.disk"),
            "unknown key `volumes`; write `volume`",
        ),
        (
            2,
            with(
                "file = { path = \"disk.img\", size = \"16MiB\" }",
                "path = \"disk.img\"",
            ),
            "path is a setting of a kind of volume; write file = { path = \"…\" }",
        ),
        (2, with("disk.img", "~/disk.img"), "write the full path"),
        (
            5,
            with("portals", "portal"),
            "unknown key `portal`; write `portals`",
        ),
        (
            5,
            with("3260", "326000"),
            "has no valid port behind its address; write one from 1 to 65535",
        ),
        (
            8,
            format!("{whole}allow = [\"*\"]\n"),
            "allow appears twice; write it once",
        ),
        (
            8,
            format!("{whole}foo\n"),
            "this key has no value; write KEY = VALUE",
        ),
        (
            8,
            format!("{whole}\0"),
            "the character '\\0' is not allowed here",
        ),
        (
            6,
            with("luns", "lun").replace('\n', "\r\n"),
            "unknown key `lun`; write `luns`",
        ),
        (
            1,
            format!("\u{feff}lanes = 99999999999999999999999\n{whole}"),
            "is too large; write a smaller number",
        ),
        (
            1,
            format!("digests = False\n{whole}"),
            "write false instead of False",
        ),
        (
            1,
            format!("commands = 4\n{whole}"),
            "`commands` belongs in the table [limits]",
        ),
        (
            2,
            format!("[limits]\nlogin = \"5s\"\n{whole}"),
            "unknown key `login`; write `login_time` for how long a login may take",
        ),
        (
            2,
            format!("[limits]\nlogin_timeout = \"5s\"\n{whole}"),
            "unknown key `login_timeout`; write `login_time`",
        ),
        (
            8,
            format!("{whole}limits = {{ logins = 9 }}\n"),
            "limits belongs above the first [table], or in a table [limits] of its own",
        ),
        (6, with("[\"disk\"]", "\"disk\""), "write it as [\"disk\"]"),
        (
            2,
            with(
                "file = { path = \"disk.img\", size = \"16MiB\" }",
                "type = \"file\"",
            ),
            "instead of type = \"file\" and path = \"…\" write file = { path = \"…\" }",
        ),
        (
            2,
            with(
                "file = { path = \"disk.img\", size = \"16MiB\" }",
                "iscsi = { url = \"iscsi://fd00::1/iqn.x:y/0\" }",
            ),
            "an IPv6 address without brackets, as in iscsi://[fd00::1]:3260/",
        ),
        (
            2,
            with(
                "file = { path = \"disk.img\", size = \"16MiB\" }",
                "iscsi = { url = \"iscsi://10.0.1.2/IQN.x:y/0\" }",
            ),
            "a target name that begins in upper case",
        ),
        (
            1,
            format!("memory = \"2048KiB\"\n{whole}"),
            "memory = \"2048KiB\" is too little",
        ),
        (
            1,
            format!("state = \"\"\n{whole}"),
            "the path of the state directory is empty; write one such as \"/var/lib/sanstone\", or \
             remove the line",
        ),
        (
            1,
            format!("state = \"a\\u0000b\"\n{whole}"),
            "the path of the state directory contains a NUL character",
        ),
        (
            2,
            with("disk.img", "disk\\u0000.img"),
            "the path contains a NUL character; write the file's path",
        ),
        (
            2,
            format!("lanes = 1000\nmemory = \"32MiB\"\n{whole}"),
            "32 MiB of memory is too little for 1000 lanes",
        ),
        (
            2,
            with("16MiB", "0B"),
            "a volume of 0 bytes cannot hold data; write \"512B\" or more",
        ),
        (
            2,
            with("16MiB", "1000B"),
            "a size of 1000 bytes is not a whole number of blocks of 512 bytes; write \"1KiB\", or \
             \"512B\", which leaves out the last 488 bytes",
        ),
        (
            2,
            with(
                "file = { path = \"disk.img\", size = \"16MiB\" }",
                "fault = { rules = [{ hang = true, skip = -1 }], of = { ram = { size = \"1MiB\" } } }",
            ),
            "-1 is not a number of requests; write 0 or more",
        ),
        (
            2,
            with(
                "file = { path = \"disk.img\", size = \"16MiB\" }",
                "stripe = { of = [{ iscsi = { url = \"iscsi://10.0.1.2/iqn.x:y/0\" } }, \
                 { iscsi = { url = \"iscsi://10.0.1.2/iqn.x:y/0\" } }] }",
            ),
            "appears twice in \"disk\", whose parts would overwrite each other; name each disk once",
        ),
        (
            1,
            "{ \"volume\": {} }\n".to_owned(),
            "this looks like JSON; a configuration is TOML",
        ),
        (
            1,
            "volume:\n  disk:\n".to_owned(),
            "this looks like YAML; a configuration is TOML",
        ),
    ] {
        refused_at(line, &configuration, &[said]);
    }
    let directory = Directory::new();
    let utf_16: Vec<u8> = [0xff, 0xfe].into_iter().chain([b'a', 0]).collect();
    let file = directory.write("bad.toml", utf_16);
    for (path, said) in [
        (
            file.as_path(),
            "bad.toml:1: this is UTF-16; save the file as UTF-8",
        ),
        (
            directory.path(),
            "is a directory; name the configuration file in it",
        ),
        (
            &directory.join("none.toml"),
            "none.toml: No such file or directory (os error 2); check the path given with -c",
        ),
    ] {
        let ran = call(&["check", "-c", &path.to_string_lossy()]);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains(said), "{ran}");
    }
}

#[test]
fn a_volume_that_only_the_call_names_has_no_line() {
    let directory = Directory::new();
    let volume = "[volume.disk]\nram = { size = \"16MiB\" }\n";
    let file = directory.write("bad.toml", volume);
    let ran = call(&["volume", "create", "-c", &file.to_string_lossy(), "dsik"]);
    let said = "bad.toml: there is no volume called \"dsik\"; there is only \"disk\"";
    assert!(ran.code() == Some(1) && ran.stderr.contains(said), "{ran}");
}

#[test]
fn a_file_that_is_no_text_is_told_with_its_line() {
    let directory = Directory::new();
    let file = directory.write("bad.toml", b"lanes = 1\n# gr\xfc\xdfe\n");
    let ran = call(&["check", "-c", &file.to_string_lossy()]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(
        ran.stderr.contains("bad.toml:2: ") && ran.stderr.contains("save the file as UTF-8"),
        "{ran}"
    );
}

#[test]
fn a_take_over_makes_no_file_and_wants_a_stripe() {
    let directory = Directory::new();
    let port = harness::free_port();
    let stripe = "[volume.v]\nstripe = { of = [{ file = { path = \"k1\", size = \"8MiB\" } }, { file = { path = \"k2\", size = \"8MiB\" } }] }\n\
                  [volume.plain]\nfile = { path = \"p\", size = \"1MiB\" }\n";
    let file = directory.write("c.toml", format!("{stripe}{}", target_table(port, &["v"])));
    let config = file.to_string_lossy().into_owned();
    let created = call(&["volume", "create", "-c", &config, "v"]);
    assert_eq!(created.code(), Some(0), "{created}");
    let second = directory.path().join("k2");
    std::fs::rename(&second, directory.path().join("away")).expect("a file");
    let refused = call(&["volume", "take-over", "-c", &config, "v"]);
    assert_ne!(refused.code(), Some(0), "{refused}");
    assert!(
        refused
            .stderr
            .contains("it does not exist, or is empty, and would be created blank"),
        "{refused}"
    );
    assert!(!second.exists(), "{refused}");
    std::fs::rename(directory.path().join("away"), &second).expect("a file");
    let refused = call(&["volume", "take-over", "-c", &config, "plain"]);
    assert_ne!(refused.code(), Some(0), "{refused}");
    assert!(
        refused
            .stderr
            .contains("\"plain\" contains no stripe, concat or mirror"),
        "{refused}"
    );
    assert!(!directory.path().join("p").exists(), "{refused}");
}

#[test]
fn a_refused_create_leaves_no_file_behind() {
    let directory = Directory::new();
    let child = |name: &str| format!("{{ file = {{ path = \"{name}\", size = \"8MiB\" }} }}");
    let stripe = |names: [&str; 2]| {
        let children = names.map(child).join(", ");
        let volume = format!("[volume.v]\nstripe = {{ of = [{children}] }}\n");
        let target = target_table(harness::free_port(), &["v"]);
        let file = directory.write("c.toml", format!("{volume}{target}"));
        file.to_string_lossy().into_owned()
    };
    let create = |config: &str| call(&["volume", "create", "-c", config, "v"]);
    directory.write("full", harness::noise(1, 8 << 20));
    let refused = create(&stripe(["new", "full"]));
    assert_eq!(refused.code(), Some(1), "{refused}");
    assert!(!directory.join("new").exists(), "{refused}");
    // A stripe of which one child is missing.
    let config = stripe(["a", "b"]);
    create(&config).success();
    let lost = directory.join("b");
    std::fs::rename(&lost, directory.join("away")).expect("a file");
    let refused = create(&config);
    assert_eq!(refused.code(), Some(1), "{refused}");
    assert!(!lost.exists(), "{refused}");
    // What used to work still works.
    std::fs::rename(directory.join("away"), &lost).expect("a file");
    create(&stripe(["c", "d"])).success();
    assert!(directory.join("c").exists() && directory.join("d").exists());
}

#[test]
fn a_check_reads_all_of_the_state_directory() {
    for name in ["ports.toml", "owner.toml", "volumes.toml"] {
        let directory = Directory::new();
        let state = directory.join("bad.state");
        std::fs::create_dir(&state).expect("a directory");
        std::fs::write(state.join(name), "versi").expect("a file");
        let volume = "[volume.disk]\nram = { size = \"16MiB\" }\n";
        let table = target_table(3260, &["disk"]);
        let ran = call_with("check", &directory, &format!("{volume}{table}"));
        assert_eq!(ran.code(), Some(1), "{ran}");
        let said = format!("{name} is damaged: ");
        assert!(ran.stderr.contains(&said), "{ran}");
    }
}

#[test]
fn a_check_finds_a_state_directory_that_cannot_be_written() {
    let directory = Directory::new();
    let state = directory.join("bad.state");
    std::fs::create_dir(&state).expect("a directory");
    std::fs::set_permissions(&state, Permissions::from_mode(0o555)).expect("its mode");
    let volume = "[volume.disk]\nram = { size = \"16MiB\" }\n";
    let table = target_table(3260, &["disk"]);
    let file = directory.write("bad.toml", format!("{volume}{table}"));
    let open = Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).expect("its mode");
    // Root may write to every directory.
    let mut check = match rustix::process::geteuid().is_root() {
        true => {
            let mut check = Command::new(program("setpriv", "util-linux"));
            check.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            check.arg(binary());
            check
        }
        false => Command::new(binary()),
    };
    check.args(["check", "-c"]).arg(file);
    let ran = run(&mut check, Duration::from_secs(60));
    if ran.stderr.contains("failed to execute") {
        return harness::skip("only root may run the binary where it is");
    }
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(
        ran.stderr.contains("bad.state cannot be written: ")
            && ran.stderr.contains("state = \"…\""),
        "{ran}"
    );
}

#[test]
fn a_name_does_not_reach_the_terminal_raw() {
    let directory = Directory::new();
    let text = "[volume.\"a\\u001b[31mred\\nb\"]\nram = { size = \"1MiB\" }\n";
    let text = format!("{text}{}", target_table(3260, &["db"]));
    let ran = call_with("check", &directory, &text);
    assert_eq!(ran.code(), Some(2), "{ran}");
    let shown = "\"a\\u{1b}[31mred\\nb\"";
    for said in [
        format!("{shown} is not a valid volume name"),
        format!("there is only {shown}"),
    ] {
        assert!(ran.stderr.contains(&said), "{said}: {ran}");
    }
    assert!(
        !ran.stderr.contains('\u{1b}') && ran.stderr.lines().count() == 2,
        "{ran}"
    );
}

#[test]
fn nesting_that_is_too_deep_is_told_with_the_mend() {
    let directory = Directory::new();
    let (open, close) = ("stats = { of = { ".repeat(100), " } }".repeat(100));
    let text = format!("[volume.v]\n{open}ram = {{ size = \"1MiB\" }}{close}\n");
    let ran = call_with("check", &directory, &text);
    let said = "nested too deeply here; write the inner volumes as tables of their own";
    assert!(ran.code() == Some(2) && ran.stderr.contains(said), "{ran}");
}

/// What `serve` would refuse, `check` refuses in the same words.
#[test]
fn what_serve_would_refuse_check_refuses() {
    let directory = Directory::new();
    directory.write("odd.img", vec![7; 4_000_001]);
    let long = "a".repeat(300);
    let file = |settings: &str| format!("[volume.v]\nfile = {{ {settings} }}\n");
    for (text, said) in [
        (file("path = \"odd.img\""), "(truncate -s 4000256 "),
        (
            file(&format!("path = \"{long}\", size = \"1MiB\"")),
            "File name too long (os error 36); write a shorter name",
        ),
        (
            file("path = \"odd.img/disk\", size = \"1MiB\""),
            "Not a directory (os error 20); correct the path",
        ),
        (
            file("path = \"/proc/self/mem\", size = \"1MiB\""),
            "/proc/self/mem is in procfs",
        ),
        (
            format!(
                "state = \"/\"\n{}",
                file("path = \"d.img\", size = \"1MiB\"")
            ),
            "the state directory / is the root of the file system",
        ),
        (
            format!(
                "state = \"/tmp/..\"\n{}",
                file("path = \"d.img\", size = \"1MiB\"")
            ),
            "is the root of the file system",
        ),
    ] {
        let port = harness::free_port();
        let text = format!("{text}{}", target_table(port, &["v"]));
        let path = directory.write("c.toml", text);
        for verb in ["check", "serve"] {
            let ran = call(&[verb, "-c", &path.to_string_lossy()]);
            let is_refused = matches!(ran.code(), Some(1 | 2)) && ran.stderr.contains(said);
            assert!(is_refused, "{verb}, {said}: {ran}");
        }
    }
    assert!(!directory.path().join("c.state").exists());
    assert!(!directory.path().join("d.img").exists());
}
