//! A virtual machine that boots a real Linux as a storage host: its kernel initiator, udev,
//! multipath and file systems against targets of this machine.
//!
//! `tools/guest` prepares the kernel and the initramfs; a second archive appended to it holds the scripts of
//! `tests/linux/guest` and the binary under test. QEMU emulates (KVM is not needed), and the guest reaches this
//! machine's 127.0.2.0/23 through QEMU's user network, under the same addresses. Commands go over a serial port, each
//! with a time limit; the kernel's console and all command output are in TARGET/guest/NAME.*.log. QEMU is started by a
//! thread that never ends, and the kernel kills it together with that thread: at the latest when the test process ends,
//! for whatever reason.

use crate::directory::Directory;
use crate::process::{find_program, program};
use crate::run::run;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The default time limit of a command; emulation on a busy machine is slow.
pub const USUAL: Duration = Duration::from_secs(300);
/// The time limit of a command that does much I/O, or boots the machine.
pub const LONG: Duration = Duration::from_secs(600);

/// The kernel's watchdogs must tolerate the pauses of an emulated processor. Idle processors keep their ticks: one of an
/// emulator may sleep through being woken for a task, which then waits for the next interrupt, for minutes.
const CMDLINE: &str = "console=ttyS0 loglevel=4 panic=-1 nohz=off watchdog_thresh=60 \
    rcupdate.rcu_cpu_stall_timeout=300 workqueue.watchdog_thresh=300";

/// A running virtual machine.
#[derive(Debug)]
pub struct Guest {
    name: String,
    pid: u32,
    commands: Mutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicU32,
}

type Waiting = Arc<Mutex<HashMap<String, mpsc::Sender<Said>>>>;

enum Said {
    Line(String),
    Ended(i32),
}

/// A command that runs in a guest.
#[derive(Debug)]
pub struct Running {
    command: String,
    said: mpsc::Receiver<Said>,
    begun: Instant,
    limit: Duration,
    console: PathBuf,
}

/// The result of a command in a guest.
#[derive(Debug)]
pub struct Done {
    /// The command, for messages.
    pub command: String,
    /// Its exit code; `None` if it did not end in time.
    pub code: Option<i32>,
    /// What it printed, both outputs together.
    pub text: String,
    /// How long it took.
    pub took: Duration,
}

/// Where `tools/guest` puts its output. Tests run from TARGET/PROFILE/deps, tools from TARGET/PROFILE.
///
/// # Panics
/// If the kernel is not there.
pub(crate) fn directory() -> PathBuf {
    let own = std::env::current_exe().expect("a running program has a path");
    let mut guests = own.ancestors().map(|above| above.join("guest"));
    let made = guests.find(|guest| guest.join("vmlinuz").is_file());
    made.unwrap_or_else(|| {
        panic!(
            "no guest/vmlinuz above {}: `tools/guest` makes it, which `make test` runs",
            own.display()
        )
    })
}

impl Guest {
    /// Whether guests can run on this architecture; if not, tests are skipped.
    pub fn is_possible() -> bool {
        cfg!(target_arch = "x86_64")
    }

    /// Boots a guest called `name` with the files of `scripts` and the binary under test, and waits until it accepts
    /// commands. `forwards` maps ports of 127.0.0.1 on the host to ports of the guest.
    ///
    /// # Panics
    /// If it does not come up; the message holds its console.
    pub fn boot(name: &str, scripts: &Path, binary: &Path, forwards: &[(u16, u16)]) -> Guest {
        let made = directory();
        let temporary = Directory::new();
        let initramfs = initramfs(&made, &temporary, scripts, binary);
        let console = made.join(format!("{name}.console.log"));
        let mut command = qemu(&made, &initramfs, CMDLINE);
        host(&mut command, &console, forwards);
        let (mut child, begun) = (start_in_own_thread(command), Instant::now());
        let waiting = Waiting::default();
        let guest = Guest {
            name: name.to_owned(),
            pid: child.id(),
            commands: Mutex::new(child.stdin.take().expect("stdin is piped")),
            waiting: waiting.clone(),
            next: AtomicU32::new(0),
        };
        let started = guest.running("start", "booting", LONG);
        let output = child.stdout.take().expect("stdout is piped");
        let log = made.join(format!("{name}.commands.log"));
        let log = File::create(&log).expect("the target directory can be written");
        thread::spawn(move || listen(output, log, &waiting));
        let done = started.finish();
        assert!(
            done.code == Some(0) && done.text.is_empty(),
            "{done}\n{}",
            std::fs::read_to_string(&console).unwrap_or_default()
        );
        println!("{name} is up after {:.1} s", begun.elapsed().as_secs_f64());
        guest
    }

    /// The process that emulates it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Runs a command to its end, [`USUAL`] at most.
    pub fn run(&self, command: &str) -> Done {
        self.start(command, USUAL).finish()
    }

    /// Starts a command with a time limit. It is one line of shell, and may use the functions of lib.sh.
    ///
    /// # Panics
    /// If the guest has gone.
    pub fn start(&self, command: &str, limit: Duration) -> Running {
        assert!(!command.contains('\n') && command.len() < 3500, "one line");
        let id = format!("c{}", self.next.fetch_add(1, Ordering::Relaxed));
        let running = self.running(&id, command, limit);
        let mut commands = lock(&self.commands);
        writeln!(commands, "{id} {} {command}", limit.as_secs())
            .and_then(|()| commands.flush())
            .unwrap_or_else(|error| panic!("{} has gone: {error}", self.name));
        running
    }

    fn running(&self, id: &str, command: &str, limit: Duration) -> Running {
        let (sender, said) = mpsc::channel();
        lock(&self.waiting).insert(id.to_owned(), sender);
        Running {
            command: command.to_owned(),
            said,
            begun: Instant::now(),
            limit,
            console: directory().join(format!("{}.console.log", self.name)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    /// Waits for its end. Its output is copied to the test's output as it arrives, so that a hang shows where it
    /// happened.
    pub fn finish(self) -> Done {
        let (mut text, mut code) = (String::new(), None);
        println!("guest: {}", self.command);
        // The guest kills it at its limit; the extra time allows for the serial port.
        let deadline = self.begun + self.limit + Duration::from_secs(10);
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            match self.said.recv_timeout(left) {
                Ok(Said::Line(line)) => {
                    println!("guest:   {line}");
                    text.push_str(&line);
                    text.push('\n');
                }
                Ok(Said::Ended(with)) => {
                    code = Some(with);
                    break;
                }
                Err(_) => break,
            }
        }
        if code.is_none() {
            let console = std::fs::read_to_string(&self.console).unwrap_or_default();
            println!("the guest's console:\n{console}");
        }
        Done {
            command: self.command,
            code,
            text,
            took: self.begun.elapsed(),
        }
    }

    /// Waits until it prints a line that contains `what`.
    ///
    /// # Panics
    /// If it ends without printing it, or takes too long.
    #[track_caller]
    pub fn wait_for(&self, what: &str) {
        let deadline = self.begun + self.limit;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            match self.said.recv_timeout(left) {
                Ok(Said::Line(line)) => {
                    println!("guest:   {line}");
                    if line.contains(what) {
                        return;
                    }
                }
                Ok(Said::Ended(code)) => panic!("{} ended ({code}) first", self.command),
                Err(_) => break,
            }
        }
        panic!("{}: no {what:?} in time", self.command);
    }
}

impl Done {
    /// Returns what it printed if it ended with exit code 0.
    ///
    /// # Panics
    /// If it did not.
    #[track_caller]
    pub fn success(self) -> String {
        assert!(self.code == Some(0), "{self}");
        self.text
    }

    /// Returns what it printed if it ended with a non-zero exit code.
    ///
    /// # Panics
    /// If it succeeded or did not end.
    #[track_caller]
    pub fn failure(self) -> String {
        assert!(self.code.is_some_and(|code| code != 0), "{self}");
        self.text
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = match self.code {
            Some(code) => format!("exit code {code}"),
            None => "no end in time".to_owned(),
        };
        let seconds = self.took.as_secs_f64();
        write!(
            f,
            "{}\n{end} after {seconds:.1} s\n{}",
            self.command, self.text
        )
    }
}

/// The programs' archive followed by one with the scripts, the binary without its debug information, and whatever is
/// below `tree` in the temporary directory already.
pub(crate) fn initramfs(
    made: &Path,
    temporary: &Directory,
    scripts: &Path,
    binary: &Path,
) -> PathBuf {
    let shell = r#"set -eu
        mkdir -p "$4/tree/tests" "$4/tree/bin"
        cp "$2"/* "$4/tree/tests/"
        mv "$4/tree/tests/init" "$4/tree/init"
        chmod 755 "$4/tree/init"
        strip --strip-debug -o "$4/tree/bin/sanstone" "$3" || cp "$3" "$4/tree/bin/sanstone"
        cp "$1/initramfs.cpio" "$4/initramfs"
        cd "$4/tree"
        find . | "$1/busybox" cpio -o -H newc >>"$4/initramfs""#;
    let mut command = Command::new("sh");
    command.args(["-c", shell, "sh"]);
    command.args([made, scripts, binary, temporary.path()]);
    run(&mut command, LONG).success();
    temporary.join("initramfs")
}

/// QEMU with the guest's kernel, without a processor, a serial port or a network.
pub(crate) fn qemu(made: &Path, initramfs: &Path, cmdline: &str) -> Command {
    let mut command = Command::new(find_program("setpriv").unwrap_or_else(|| "setpriv".into()));
    command.args(["--pdeathsig", "KILL", "--"]);
    command.arg(program("qemu-system-x86_64", "qemu-system-x86"));
    command.args(["-m", "1024", "-nodefaults", "-no-reboot"]);
    command.args(["-display", "none", "-monitor", "none"]);
    command.arg("-kernel").arg(made.join("vmlinuz"));
    command.arg("-initrd").arg(initramfs);
    command.args(["-append", cmdline]);
    command
}

/// Adds two processors, the console, the port for commands and the network.
fn host(command: &mut Command, console: &Path, forwards: &[(u16, u16)]) {
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]);
    command
        .arg("-serial")
        .arg(format!("file:{}", console.display()));
    command.args(["-chardev", "stdio,id=commands,signal=off"]);
    command.args(["-device", "isa-serial,chardev=commands"]);
    let mut network = "user,id=net".to_owned();
    for (here, inside) in forwards {
        network.push_str(&format!(",hostfwd=tcp:127.0.0.1:{here}-:{inside}"));
    }
    command.args(["-netdev", &network]);
    command.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
}

/// The kernel kills a child together with the thread that started it, so this thread lives as long as the process.
fn start_in_own_thread(mut command: Command) -> Child {
    let (sender, child) = mpsc::channel();
    thread::spawn(move || {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let _ = sender.send(child);
        loop {
            thread::park();
        }
    });
    child.recv().expect("QEMU starts")
}

/// Delivers each line from the guest to whoever waits for it.
fn listen(output: ChildStdout, mut log: File, waiting: &Waiting) {
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        let _ = writeln!(log, "{line}");
        let Some(at) = line.find(['|', '=']) else {
            continue;
        };
        let (id, rest) = (&line[..at], &line[at + 1..]);
        let mut waiting = lock(waiting);
        // The waiter may have given up; the output is in the log anyway.
        if line[at..].starts_with('|') {
            if let Some(to) = waiting.get(id) {
                let _ = to.send(Said::Line(rest.to_owned()));
            }
        } else if let Some(to) = waiting.remove(id) {
            let _ = to.send(Said::Ended(rest.parse().unwrap_or(-1)));
        }
    }
    // Tells remaining waiters that nothing more will come.
    lock(waiting).clear();
}
