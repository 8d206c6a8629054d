//! What a command reads: files, and what its caller has handed to it open. A pipe that has a name in a file system is
//! neither: nobody may ever write to it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use harness::directory::Directory;
use harness::process::program;
use harness::run::{Ran, run};
use harness::sanstone::{IQN, binary};

const LIMIT: Duration = Duration::from_secs(120);
const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";

fn call(arguments: &[&str]) -> Ran {
    run(Command::new(binary()).args(arguments), LIMIT)
}

fn make_pipe(directory: &Directory, name: &str) -> String {
    let path = directory.join(name);
    run(
        Command::new(program("mkfifo", "coreutils")).arg(&path),
        LIMIT,
    )
    .success();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    path.display().to_string()
}

#[test]
fn a_named_pipe_is_refused_wherever_a_file_is_read() {
    let directory = Directory::new();
    let pipe = make_pipe(&directory, "pipe");
    let profile = make_pipe(&directory, "pipe.toml");
    let file = directory.write("ram.toml", RAM).display().to_string();
    let certificate = directory.write("cert.pem", "").display().to_string();
    let chap = format!(
        "{RAM}[target.\"{IQN}\"]\nportals = [\"127.0.0.1:{}\"]\nluns = [\"disk\"]\nallow = [\"*\"]\n\
         chap = {{ user = \"u\", secret_file = \"pipe\" }}\n",
        harness::free_port()
    );
    let chap = directory.write("chap.toml", chap).display().to_string();
    let attach = ["attach", "-c", &*file, "disk", "--nbd", "127.0.0.1:0"];
    let with = |options: &[&'static str], files: &[&str]| -> Vec<String> {
        let pairs = options
            .iter()
            .zip(files)
            .flat_map(|(option, file)| [*option, *file]);
        attach
            .iter()
            .copied()
            .chain(pairs)
            .map(str::to_owned)
            .collect()
    };
    let calls = [
        vec!["serve", "-c", &pipe],
        vec!["check", "-c", &pipe],
        vec!["show", "-c", &pipe],
        vec!["top", "-c", &pipe, "--once"],
        vec!["apply", "-c", &pipe],
        vec!["attach", "-c", &pipe, "disk", "--nbd", "127.0.0.1:0"],
        vec!["volume", "create", "-c", &pipe, "disk"],
        vec!["volume", "take-over", "-c", &pipe, "disk"],
        vec!["check", "-c", &chap],
        vec!["serve", "-c", &chap],
        vec![
            "discover",
            "127.0.0.1:9",
            "--chap-user",
            "u",
            "--chap-secret-file",
            &pipe,
        ],
        vec!["lab", "run", &profile, "--on", "x.img"],
        vec!["lab", "run", "queue", "--quick", "-c", &pipe],
        vec!["lab", "history", &pipe, &pipe],
    ];
    let calls = calls.map(|call| call.into_iter().map(str::to_owned).collect());
    let tls: [Vec<String>; 3] = [
        with(&["--tls-certificate", "--tls-key"], &[&pipe, &certificate]),
        with(&["--tls-certificate", "--tls-key"], &[&certificate, &pipe]),
        with(
            &["--tls-certificate", "--tls-key", "--tls-client-ca"],
            &[&certificate, &certificate, &pipe],
        ),
    ];
    for arguments in calls.iter().chain(&tls) {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ran = call(&arguments);
        assert_ne!(ran.code(), Some(0), "{arguments:?}\n{ran}");
        // An empty certificate is complained about before the files after it are read.
        if !arguments.contains(&"--tls-certificate") || arguments.contains(&"--tls-client-ca") {
            continue;
        }
        assert!(
            ran.stderr.contains("pem") || ran.stderr.contains("pipe"),
            "{ran}"
        );
    }
    for arguments in &calls {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ran = call(&arguments);
        let says = ran.stderr.contains("pipe") && ran.stderr.contains("not a file");
        assert!(says, "{arguments:?}\n{ran}");
    }
}

#[test]
fn what_a_shell_hands_over_open_is_read() {
    let directory = Directory::new();
    let file = directory.write("ram.toml", RAM);
    let script = |script: &str| {
        let mut bash = Command::new(program("bash", "bash"));
        bash.args(["-c", script]).arg(binary()).arg(&file);
        run(&mut bash, LIMIT)
    };
    for read in [
        "\"$0\" check -c <(cat \"$1\")",
        "cat \"$1\" | \"$0\" check -c /dev/stdin",
        "\"$0\" check -c /dev/stdin <\"$1\"",
        "\"$0\" check -c /proc/self/fd/7 7<\"$1\"",
    ] {
        let ran = script(read).success();
        assert!(ran.stdout.contains("1 volume"), "{read}\n{ran}");
    }
}
