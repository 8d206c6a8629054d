//! A wrong configuration gets one clear message that names the file, the line where there is one, and the value or key
//! at fault; the exit code is 2, and nothing is served.

use harness::directory::Directory;
use harness::run::Ran;
use harness::sanstone::{IQN, Sanstone, call, target_table};

const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";

/// Writes the configuration to a file and runs `sanstone VERB -c` on it.
#[track_caller]
pub(crate) fn call_with(verb: &str, directory: &Directory, configuration: &str) -> Ran {
    let file = directory.write("bad.toml", configuration);
    call(&[verb, "-c", &file.to_string_lossy()])
}

/// Both `check` and `serve` must refuse it with code 2 and a message that has all these words.
#[track_caller]
fn refused(configuration: &str, words: &[&str]) {
    for verb in ["check", "serve"] {
        let directory = Directory::new();
        let ran = call_with(verb, &directory, configuration);
        assert_eq!(
            ran.code(),
            Some(2),
            "{ran}\n--- configuration\n{configuration}"
        );
        for word in words.iter().chain(&["bad.toml"]) {
            assert!(
                ran.stderr.contains(word),
                "no {word:?} in the message\n{ran}\n{configuration}"
            );
        }
        assert!(!ran.stderr.contains("panicked"), "{ran}");
        assert!(
            ran.stderr.trim().lines().count() <= 12,
            "more than one message?\n{ran}"
        );
    }
}

/// The message must also name this line of the file, as `bad.toml:3` or `line 3`.
#[track_caller]
pub(crate) fn refused_at(line: usize, configuration: &str, words: &[&str]) {
    refused(configuration, words);
    let directory = Directory::new();
    let ran = call_with("check", &directory, configuration);
    let ways = [format!("bad.toml:{line}"), format!("line {line}")];
    assert!(
        ways.iter().any(|way| ran.stderr.contains(way)),
        "line {line} is not named\n{ran}"
    );
}

#[test]
fn a_valid_configuration_passes_the_check() {
    let directory = Directory::new();
    let configuration = format!("{RAM}{}", target_table(3260, &["disk"]));
    let ran = call_with("check", &directory, &configuration);
    assert_eq!(ran.code(), Some(0), "{ran}");
    let said = "bad.toml is valid: 1 volume, 1 target\n";
    assert!(ran.stdout.ends_with(said), "{ran}");
    let ran = call_with("check", &directory, RAM);
    assert_eq!(ran.code(), Some(0), "{ran}");
    assert!(
        ran.stderr
            .contains("there is no target: its volumes are for `attach`; `serve` needs one"),
        "{ran}"
    );
}

#[test]
fn an_unknown_key_is_an_error_on_its_line() {
    let volume = "[volume.disk]\nram = { size = \"16MiB\", colour = \"red\" }\n";
    refused_at(
        2,
        &format!("{volume}{}", target_table(3260, &["disk"])),
        &["colour"],
    );
    let line = RAM.lines().count() + 6;
    refused_at(
        line,
        &format!("{RAM}{}vip = true\n", target_table(3260, &["disk"])),
        &["vip"],
    );
}

#[test]
fn an_unknown_kind_of_volume_is_an_error_on_its_line() {
    let volume = "[volume.disk]\ntape = { size = \"16MiB\" }\n";
    refused_at(
        2,
        &format!("{volume}{}", target_table(3260, &["disk"])),
        &["tape"],
    );
}

#[test]
fn broken_toml_is_an_error_on_its_line() {
    refused_at(2, "[volume.disk]\nram = { size = \n", &[]);
}

#[test]
fn a_size_that_is_none_is_quoted() {
    for size in ["12 bananas", "-1", "", "0"] {
        let volume = format!("[volume.disk]\nram = {{ size = \"{size}\" }}\n");
        refused(
            &format!("{volume}{}", target_table(3260, &["disk"])),
            &["size", size],
        );
    }
}

#[test]
fn an_unknown_caching_mode_names_the_right_ones() {
    let volume = "[volume.disk]\nfile = { path = \"a.img\", size = \"1MiB\", cache = \"turbo\" }\n";
    let words = [
        "turbo",
        "direct",
        "direct-sync",
        "write-through",
        "write-back",
    ];
    refused(
        &format!("{volume}{}", target_table(3260, &["disk"])),
        &words,
    );
}

#[test]
fn a_lun_without_its_volume_is_named() {
    refused(
        &format!("{RAM}{}", target_table(3260, &["dsik"])),
        &["dsik", IQN],
    );
}

#[test]
fn a_number_is_there_once_however_it_is_written() {
    let table = target_table(3260, &["disk"]);
    let spare = "[volume.spare]\nram = { size = \"16MiB\" }\n";
    for (one, other, number) in [("0", "00", 0), ("01", "1", 1), ("7", "+7", 7)] {
        let luns = format!("luns = {{ {one} = \"disk\", \"{other}\" = \"spare\" }}");
        refused_at(
            8,
            &format!("{RAM}{spare}{}", table.replace("luns = [\"disk\"]", &luns)),
            &[&format!("LUN {number} appears twice"), one, other],
        );
    }
    let portals = "portals = [\"127.0.0.1:3260\"]";
    let groups = "portal_groups = { 1 = [\"127.0.0.1:3260\"], 01 = [\"127.0.0.2:3260\"] }";
    refused_at(
        5,
        &format!("{RAM}{}", table.replace(portals, groups)),
        &["portal group 1 appears twice", "\"01\""],
    );
}

#[test]
fn a_portal_that_is_no_address_is_quoted() {
    let table = target_table(3260, &["disk"]).replace("127.0.0.1:3260", "localhorst");
    refused_at(
        5,
        &format!("{RAM}{table}"),
        &["\"localhorst\" is a host name", "`getent hosts localhorst`"],
    );
}

#[test]
fn a_target_name_that_is_no_iscsi_name_is_quoted() {
    let table = target_table(3260, &["disk"]).replace(IQN, "my disk");
    refused(&format!("{RAM}{table}"), &["my disk"]);
}

#[test]
fn a_share_whose_file_is_missing_is_an_error_at_start() {
    let volume = "[volume.disk]\nfile = { path = \"not-there.img\", cache = \"write-through\" }\n";
    refused(
        &format!("{volume}{}", target_table(3260, &["disk"])),
        &["not-there.img"],
    );
}

#[test]
fn a_share_whose_file_is_too_small_is_an_error_at_start() {
    let directory = Directory::new();
    directory.sparse("small.img", 1 << 20);
    let volume = "[volume.disk]\nfile = { path = \"small.img\", size = \"2MiB\" }\n";
    let configuration = format!("{volume}{}", target_table(harness::free_port(), &["disk"]));
    let ran = call_with("serve", &directory, &configuration);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("small.img"), "{ran}");
}

#[test]
fn a_share_that_another_process_serves_is_an_error_at_start() {
    let directory = Directory::new();
    let path = directory.join("shared.img");
    let volume = format!("[volume.disk]\nfile = {{ path = {path:?}, size = \"2MiB\" }}\n");
    let _first = Sanstone::serve(directory.path(), &volume, &["disk"]);
    let configuration = format!("{volume}{}", target_table(harness::free_port(), &["disk"]));
    let elsewhere = Directory::new();
    let ran = call_with("serve", &elsewhere, &configuration);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr.contains("shared.img"), "{ran}");
}

#[test]
fn a_port_in_use_is_an_error_at_start() {
    let directory = Directory::new();
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let volume = "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\" }\n";
    let configuration = format!("{volume}{}", target_table(port, &["disk"]));
    for supervised in [false, true] {
        let file = directory.write("bad.toml", &configuration);
        let file = file.to_string_lossy();
        let arguments = ["serve", "-c", &file, "--supervised"];
        let ran = call(&arguments[..if supervised { 4 } else { 3 }]);
        assert_eq!(ran.code(), Some(1), "{ran}");
        let place = format!("bad.toml:5:12: cannot listen on 127.0.0.1:{port}: ");
        assert!(
            ran.stderr.contains(&place) && ran.stderr.contains("stop it, or choose another port"),
            "{ran}"
        );
        let made = std::fs::read_dir(directory.path()).expect("a directory");
        let made: Vec<_> = made
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        assert_eq!(made, ["bad.toml"], "nothing is made for nobody");
    }
}

#[test]
fn a_blank_child_of_a_stripe_is_refused_by_serve_and_named() {
    let directory = Directory::new();
    for name in ["a.img", "b.img"] {
        directory.sparse(name, 16 << 20);
    }
    let volume = "[volume.disk]\nstripe = { unit = \"64KiB\", of = [\n  \
        { file = { path = \"a.img\" } },\n  { file = { path = \"b.img\" } },\n] }\n";
    let configuration = format!("{volume}{}", target_table(harness::free_port(), &["disk"]));
    for verb in ["check", "serve"] {
        let ran = call_with(verb, &directory, &configuration);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains("a.img"), "{ran}");
        let file = directory.join("bad.toml");
        let mend = format!("`sanstone volume create -c {} disk`", file.display());
        assert!(
            ran.stderr.contains(&mend),
            "the message does not say what to do\n{ran}"
        );
    }
    let untouched = std::fs::read(directory.join("a.img")).expect("it was there");
    assert!(
        untouched.iter().all(|&byte| byte == 0),
        "serve wrote to a blank child"
    );
}

/// A configuration with a concat `db` of these files in `directory`, which is created.
fn concat_of(directory: &Directory, children: [&str; 2]) -> String {
    let configuration = concat_text(children);
    let file = directory.write("bad.toml", &configuration);
    call(&["volume", "create", "-c", &file.to_string_lossy(), "db"]).success();
    configuration
}

fn concat_text(children: [&str; 2]) -> String {
    let children =
        children.map(|name| format!("{{ file = {{ path = \"{name}\", size = \"4MiB\" }} }}"));
    let volume = format!(
        "[volume.db]\nconcat = {{ of = [{}] }}\n",
        children.join(", ")
    );
    format!("{volume}{}", target_table(harness::free_port(), &["db"]))
}

#[test]
fn children_that_do_not_belong_together_are_told_by_check_and_nothing_is_made() {
    let directory = Directory::new();
    let whole = concat_of(&directory, ["a", "b"]);
    concat_of(&directory, ["x", "y"]);
    std::fs::copy(directory.join("a"), directory.join("copy")).expect("room");
    directory.write("foreign", harness::noise(1, 4 << 20));
    call_with("check", &directory, &whole).success();
    for (children, said) in [
        (["a", "x"], "it belongs to concat"),
        (["a", "copy"], "both claim to be child 0 of 2"),
        (["a", "foreign"], "other than a Sanstone superblock"),
        (["a", "lost"], "it does not exist, or is empty"),
    ] {
        let text = concat_text(children);
        for verb in ["check", "serve"] {
            let ran = call_with(verb, &directory, &text);
            assert_eq!(ran.code(), Some(2), "{ran}");
            assert!(ran.stderr.contains(said), "{ran}");
        }
    }
    let one = whole.replace(", { file = { path = \"b\", size = \"4MiB\" } }", "");
    let ran = call_with("check", &directory, &one);
    assert!(ran.stderr.contains("child 1 is missing"), "{ran}");
    assert!(!directory.join("lost").exists());
    assert!(!directory.join("bad.state").exists());
}

#[test]
fn a_stripe_with_a_child_in_memory_is_refused_before_it_is_created() {
    let stripe = "[volume.db]\nstripe = { of = [\n  { file = { path = \"a.img\", size = \"16MiB\" } },\n  \
        { throttle = { rate = \"1Gbit/s\", of = \"disk\" } },\n] }\n";
    let configuration = format!("{RAM}{stripe}{}", target_table(3260, &["db"]));
    let words = ["in memory", "name a file or an iSCSI disk"];
    refused_at(6, &configuration, &words);
    let directory = Directory::new();
    let file = directory.write("bad.toml", &configuration);
    let ran = call(&["volume", "create", "-c", &file.to_string_lossy(), "db"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(words.iter().all(|word| ran.stderr.contains(word)), "{ran}");
    assert!(!directory.join("a.img").exists(), "{ran}");
}

/// The TOML examples of a page.
fn examples(page: &str) -> impl Iterator<Item = &str> {
    let examples = page.split("```toml\n").skip(1);
    examples.filter_map(|rest| rest.split("```").next())
}

/// Whether a check has found nothing but addresses of other machines.
fn is_right(ran: &Ran) -> bool {
    let mut errors = ran
        .stderr
        .lines()
        .filter(|line| line.starts_with("sanstone:"));
    errors.all(|line| line.contains("does not have that address"))
}

#[test]
fn the_first_examples_of_the_readme_and_the_guide_are_whole() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    for page in ["README.md", "docs/guide/configuration.md"] {
        let text = std::fs::read_to_string(format!("{root}/{page}")).expect("a page");
        let first = examples(&text).next().expect("an example");
        let open = ["0.0.0.0", "[::]", "\"*\"]\n"];
        assert!(!open.iter().any(|wide| first.contains(wide)), "{first}");
        let directory = Directory::new();
        let ran = call_with("check", &directory, &first.replace("/srv/", ""));
        assert!(is_right(&ran), "{page}: {ran}");
    }
}

#[test]
fn the_targets_of_the_guide_may_be_copied() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide");
    let pages = std::fs::read_dir(guide).expect("the guide");
    let text = |page: std::fs::DirEntry| std::fs::read_to_string(page.path()).expect("a page");
    let pages: Vec<String> = pages.map(|page| text(page.expect("a page"))).collect();
    let examples = pages.iter().flat_map(|page| examples(page));
    let targets: Vec<&str> = examples.filter(|toml| toml.contains("[target.")).collect();
    assert!(targets.len() >= 5, "{} examples", targets.len());
    for target in targets {
        let directory = Directory::new();
        for name in ["dbhost.secret", "esx.secret", "t0.secret"] {
            let path = directory.write(name, format!("the secret in {name}\n"));
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(path, private).expect("its mode");
        }
        let missing =
            ["db", "log"].map(|name| match target.contains(&format!("[volume.{name}]")) {
                true => String::new(),
                false => RAM.replace("disk", name),
            });
        let volumes = missing.concat();
        std::fs::create_dir(directory.join("sanstone")).expect("room");
        // Wherever the tests run there is room for so much.
        let example = target.replace("/srv/", "").replace("20GiB", "20MiB");
        // After it: what it says before its first table belongs to none.
        let ran = call_with("check", &directory, &format!("{example}\n{volumes}"));
        assert!(is_right(&ran), "{ran}");
    }
}

#[test]
fn a_state_directory_that_is_none_is_told_with_its_line() {
    let directory = Directory::new();
    let table = target_table(harness::free_port(), &["disk"]);
    let configuration = format!("lanes = 1\nstate = \"/etc/passwd\"\n{RAM}{table}");
    for verb in ["check", "serve"] {
        let ran = call_with(verb, &directory, &configuration);
        assert_eq!(ran.code(), Some(1), "{ran}");
        assert!(
            ran.stderr.contains("bad.toml:2:9: reading /etc/passwd/"),
            "{ran}"
        );
        let mend =
            "something else exists at this path: move it away, or name another state directory";
        assert!(ran.stderr.contains(mend), "{ran}");
    }
}

#[test]
fn a_call_without_its_file_is_an_error_of_the_call() {
    assert_eq!(call(&["serve"]).code(), Some(2));
    let ran = call(&["check", "-c", "/nowhere/at-all.toml"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("/nowhere/at-all.toml"), "{ran}");
}

#[test]
fn what_serde_finds_comes_with_the_mend() {
    let table = target_table(3260, &["disk"]);
    let without = table.replace("allow = [\"*\"]\n", "");
    refused(
        &format!("{RAM}{without}"),
        &["`allow` is missing; write allow = [\"iqn.…\"] with the names of the initiators"],
    );
    let star = table.replace("[\"*\"]", "\"*\"");
    refused_at(7, &format!("{RAM}{star}"), &["write a list, as [\"*\"]"]);
    refused_at(
        1,
        &format!("lanes = \"two\"\n{RAM}{table}"),
        &["a whole number"],
    );
    refused_at(
        1,
        &format!("connections = 99999999999\n{RAM}{table}"),
        &["connections = 99999999999 is not allowed; write 1 to 65536"],
    );
    let file = RAM
        .replace("{ size = \"16MiB\" }", "\"a.img\"")
        .replace("ram", "file");
    refused_at(
        2,
        &format!("{file}{table}"),
        &["write it as { path = \"a.img\" }"],
    );
    refused_at(
        2,
        &format!("lanes = 1\nlanes = 2\n{RAM}{table}"),
        &["write it once"],
    );
}

/// Two volumes on these files.
fn two(first: &str, second: &str) -> String {
    let table = target_table(3260, &["a"]);
    let file = |path: &str| format!("file = {{ path = \"{path}\", size = \"1MiB\" }}\n");
    format!(
        "[volume.a]\n{}[volume.b]\n{}{table}",
        file(first),
        file(second)
    )
}

#[test]
fn two_volumes_on_one_file_are_told_by_name() {
    let words = ["used by \"a\"", "\"b\" would overwrite it"];
    refused(&two("one.img", "./one.img"), &words);
    let directory = Directory::new();
    let (one, other) = (
        directory.sparse("one.img", 1 << 20),
        directory.join("other.img"),
    );
    std::fs::hard_link(&one, &other).expect("a second name");
    refused(
        &two(&one.to_string_lossy(), &other.to_string_lossy()),
        &words,
    );
}

#[test]
fn what_is_no_file_is_called_what_it_is() {
    let directory = Directory::new();
    let pipe = directory.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    for (path, kind) in [
        (&*pipe.to_string_lossy(), "is a pipe"),
        ("/dev/null", "is a character device"),
        ("/tmp", "is a directory"),
    ] {
        let volume = format!("[volume.disk]\nfile = {{ path = \"{path}\" }}\n");
        let words = [path, kind, "name a regular file or a block device"];
        refused(
            &format!("{volume}{}", target_table(3260, &["disk"])),
            &words,
        );
    }
}

#[test]
fn a_file_that_may_not_be_made_or_holds_no_block_says_so() {
    let table = target_table(3260, &["disk"]);
    let leaf = |rest: &str| format!("[volume.disk]\nfile = {{ {rest} }}\n{table}");
    refused(
        &leaf("path = \"a.img\", size = \"1MiB\", read_only = true"),
        &["a.img", "with read_only = true, no file is created"],
    );
    let directory = Directory::new();
    let short = directory.sparse("short.img", 100);
    refused(
        &leaf(&format!("path = \"{}\"", short.display())),
        &["100 bytes", "less than one block of 512"],
    );
}

#[test]
fn a_port_that_cannot_be_known_or_bound_is_told_with_the_mend() {
    let at = |portal: &str| {
        let table = target_table(3260, &["disk"]);
        format!("{RAM}{}", table.replace("127.0.0.1:3260", portal))
    };
    refused(&at("127.0.0.1:0"), &["127.0.0.1:0", "127.0.0.1:3260"]);
    refused(
        &at("255.255.255.255:3260"),
        &["255.255.255.255", "not a portal"],
    );
    let ran = call_with("serve", &Directory::new(), &at("192.0.2.1:3260"));
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(
        ran.stderr.contains("bad.toml:5:12: ") && ran.stderr.contains("does not have that address"),
        "{ran}"
    );
}

#[test]
fn a_disk_larger_than_the_memory_it_is_in_is_refused() {
    let directory = Directory::new();
    let volume = "[volume.disk]\nram = { size = \"4000TiB\" }\n";
    let configuration = format!("{volume}{}", target_table(harness::free_port(), &["disk"]));
    for command in ["check", "serve"] {
        let ran = call_with(command, &directory, &configuration);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(
            ran.stderr.contains(":2:") && ran.stderr.contains("\"4000TiB\" is more than"),
            "{ran}"
        );
    }
}

#[test]
fn a_size_that_the_file_system_does_not_take_leaves_no_file_behind() {
    let directory = Directory::new();
    let volume = "[volume.disk]\nfile = { path = \"a.img\", size = \"8000000TiB\", cache = \"write-back\" }\n";
    let configuration = format!("{volume}{}", target_table(harness::free_port(), &["disk"]));
    let ran = call_with("serve", &directory, &configuration);
    // 2: the check knows the limit of this file system.
    assert!(matches!(ran.code(), Some(1 | 2)), "{ran}");
    assert!(
        ran.stderr.contains("a.img") && ran.stderr.contains("write a smaller size"),
        "{ran}"
    );
    assert!(
        !directory.join("a.img").exists(),
        "an empty file is left behind"
    );
    // A file that existed before is kept.
    directory.write("a.img", "");
    let again = call_with("serve", &directory, &configuration);
    assert!(matches!(again.code(), Some(1 | 2)), "{again}");
    assert!(directory.join("a.img").exists());
}

#[test]
fn volumes_that_share_one_are_not_served_beside_each_other() {
    let volumes = "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\" }\n\
         [volume.other]\nfile = { path = \"other.img\", size = \"16MiB\" }\n\
         [volume.cache]\ncache = { size = \"8MiB\", of = \"disk\" }\n\
         [volume.slow]\nthrottle = { rate = \"1Gbit/s\", of = \"disk\" }\n\
         [volume.whole]\nstripe = { of = [\"other\", \"slow\"] }\n\
         [volume.twice]\nstats = { of = { cache = { size = \"8MiB\", of = \"whole\" } } }\n";
    let serve = |first: &str, second: &str| {
        format!(
            "{volumes}[target.\"{IQN}\"]\nallow = [\"*\"]\nluns = [{first}]\n\
             [target.\"{IQN}-2\"]\nallow = [\"*\"]\nportals = [\"127.0.0.1:3261\"]\nluns = [{second}]\n"
        )
    };
    let mend = "serve one of them, or write both like";
    for (first, second, line, words) in [
        (
            "\"disk\", \"cache\"",
            "\"disk\"",
            15,
            "\"cache\" is made of \"disk\"",
        ),
        ("\"cache\"", "\"disk\"", 19, "\"cache\" is made of \"disk\""),
        (
            "\"other\"",
            "\"whole\"",
            19,
            "\"whole\" is made of \"other\"",
        ),
        ("\"slow\"", "\"twice\"", 19, "\"twice\" is made of \"slow\""),
        (
            "\"cache\", \"other\"",
            "\"slow\"",
            19,
            "\"cache\" and \"slow\" are made of \"disk\"",
        ),
        (
            "{ volume = \"disk\", read_only = true }",
            "\"cache\"",
            19,
            "\"cache\" is made of \"disk\"",
        ),
        (
            "{ volume = \"cache\", read_only = true }",
            "{ volume = \"slow\", read_only = true }, \"disk\"",
            19,
            "\"cache\" is made of \"disk\"",
        ),
    ] {
        refused_at(line, &serve(first, second), &[words, mend]);
    }
    for (first, second) in [
        ("\"disk\", \"other\"", "\"other\", \"disk\""),
        (
            "\"cache\"",
            "{ volume = \"cache\", read_only = true }, \"other\"",
        ),
        (
            "{ volume = \"cache\", read_only = true }",
            "{ volume = \"disk\", read_only = true }",
        ),
    ] {
        let directory = Directory::new();
        call_with("check", &directory, &serve(first, second)).success();
    }
}

#[test]
fn mirrors_with_their_registers_on_one_disk_are_served_beside_each_other_and_it_is_not() {
    let disk = |name: &str| {
        let url = format!("iscsi://10.0.1.2/iqn.2026-11.io.sanstone:{name}/0");
        format!("[volume.{name}]\niscsi = {{ url = \"{url}\" }}\n")
    };
    let disks = ["a", "b", "c", "d", "r"].map(disk).concat();
    let volumes = format!(
        "{disks}[volume.one]\nmirror = {{ of = [\"a\", \"b\"], register = \"r\" }}\n\
         [volume.two]\nmirror = {{ of = [\"c\", \"d\"], register = \"r\" }}\n"
    );
    let serve =
        |luns: &str| format!("{volumes}[target.\"{IQN}\"]\nallow = [\"*\"]\nluns = [{luns}]\n");
    let directory = Directory::new();
    call_with("check", &directory, &serve("\"one\", \"two\"")).success();
    for luns in [
        "\"one\", \"r\"",
        "\"r\", \"two\"",
        "\"one\", \"two\", \"r\"",
    ] {
        refused_at(17, &serve(luns), &["made of \"r\"", "and both are served"]);
    }
}

#[test]
fn a_start_tells_what_will_be_lost_and_leaves_advice_to_check() {
    let volumes = "[volume.a]\nram = { size = \"1MiB\" }\n\
                   [volume.b]\nfile = { path = \"b.img\", size = \"1MiB\", cache = \"write-back\" }\n";
    let directory = Directory::new();
    let mut server = Sanstone::serve(directory.path(), volumes, &["b"]);
    let log = server.daemon().log_with("\"a\" is in memory");
    assert_eq!(log.matches("is in memory").count(), 1, "{log}");
    assert!(!log.contains("page cache"), "{log}");
    let file = directory.join("sanstone.toml");
    let ran = call(&["check", "-c", &file.to_string_lossy()]).success();
    for part in [
        "\"a\" is in memory",
        "b.img goes through this machine's page cache",
    ] {
        assert_eq!(ran.stderr.matches(part).count(), 1, "{ran}");
    }
}
