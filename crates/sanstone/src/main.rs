//! The `sanstone` command: parses the call, runs one verb, and turns its outcome into an exit
//! code: 0 done, 1 it failed, 2 the call or the configuration is wrong.
#![forbid(unsafe_code)]

use std::{borrow::Cow, path::PathBuf, process::ExitCode, sync::Arc};

use clap::{CommandFactory, Parser, Subcommand};
use signal_hook::{consts::SIGXFSZ, flag};

mod accounts;
mod admin;
mod apply;
mod attach;
mod check;
mod create;
mod demo;
mod descriptors;
mod diary;
mod discover;
mod failure;
mod inspect;
mod kernel;
mod lab;
mod lanes;
mod log;
mod log_level;
mod mirror_compare;
mod mirror_status;
mod output;
mod pages;
mod probe;
mod quantity;
mod requests;
mod serve;
mod service;
mod show;
mod signals;
mod status;
mod take_over;
mod top;

use failure::VerbFailure;

/// What every verb says by its exit code, unless its own help says otherwise.
const EXIT_CODES: &str = "Exit codes: 0 done, 1 it failed, 2 the call or the configuration is wrong. \
                          `status`: 0 ok, 1 degraded, 2 down.";

/// Block storage for databases over iSCSI: serve, compose, prove.
#[derive(Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Call {
    #[command(subcommand)]
    verb: Verb,
    /// What to log to standard error: a level, or levels by part, such as `info` or
    /// `front_iscsi=debug,volume=warn`.
    #[arg(long, global = true, value_name = "FILTER", default_value = "info")]
    log: String,
    /// How lines of the log are written: `text`, or `json`, an object on each line.
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    log_format: log::LogFormat,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve the targets of a configuration.
    ///
    /// SIGTERM or SIGINT: finish the accepted commands, then exit. A second one, at least a second later: exit
    /// at once.
    ///
    /// SIGHUP: use the space that files and devices have grown by. The configuration is not reread.
    ///
    /// SIGUSR1: log the time that commands spent in each stage, by volume and by initiator.
    Serve {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// For a program that starts this one: write each portal's address to standard output when
        /// it serves, and stop when standard input closes, as it does when that program ends.
        #[arg(long, hide = true)]
        supervised: bool,
    },
    /// Attach a volume to this machine: as a file that any program can open, or to NBD clients.
    ///
    /// Runs until SIGTERM or SIGINT and until nobody uses the volume any more, or until the file is unmounted: then
    /// it flushes the volume and exits. The log names who uses it. A second SIGTERM or SIGINT, at least a second later,
    /// ends it at once. What a killed one has left is removed: its mount at the path, and with --mount its loop device
    /// and its file system on the directory.
    ///
    /// SIGHUP: use the space that files and devices have grown by. The configuration is not reread: `sanstone apply` changes
    /// what concerns the volume.
    ///
    /// `sanstone show` and `top` look at it while it runs.
    Attach(attach::AttachCall),
    /// List the targets and disks that any iSCSI portal offers.
    ///
    /// Prints part of a configuration: a volume for each disk, with all of its portals as paths; the rest is
    /// comments. No disk is reserved or written to.
    Discover(discover::DiscoverCall),
    /// Check a configuration: report every error, open nothing.
    Check(check::CheckCall),
    /// Have a running `serve` or `attach` take another configuration.
    ///
    /// Prints what changes. Sessions that are not affected continue undisturbed. A change that cannot be made
    /// while the daemon serves is refused before anything is done. Of an `attach`, its volume changes: paths, time limits,
    /// secrets, the size of a cache, growth.
    Apply(apply::ApplyCall),
    /// Show what a running `serve` or `attach` serves, to whom, and how much I/O it has done.
    ///
    /// The configuration file, or the state directory, finds it: only one at a time uses a state directory.
    Show(show::ShowCall),
    /// Say how a running `serve` or `attach` is: ok, degraded or down, with a line for each reason and its mend.
    ///
    /// Exit code 0: ok. 1: degraded: everything is served, but something hangs, is missing a spare, or soon ends. 2: down:
    /// something is not served, or the daemon does not answer.
    Status(status::StatusCall),
    /// Say what a running `serve` or `attach` logs, or have it log more or less while it runs.
    ///
    /// The change holds until the process ends: then `--log` decides again.
    LogLevel(log_level::LogLevelCall),
    /// Watch a running `serve` or `attach`: IOPS, MB/s, queue and times of every node and every initiator.
    ///
    /// q quits. The queue of an initiator counts the commands that the daemon is working on, but not those
    /// that wait for their data or for their answers to be taken.
    Top(top::TopCall),
    /// Create volumes.
    Volume {
        #[command(subcommand)]
        verb: VolumeVerb,
    },
    /// Run SQL on one share and on a stripe of several, and compare them.
    ///
    /// Each share is a process on this machine behind a link of limited rate. Prints a table and writes
    /// report.html. Needs no root and leaves nothing else behind; takes one to two minutes at 1 Gbit/s.
    #[command(after_long_help = demo::COLUMNS)]
    Demo(demo::DemoCall),
    /// Write the man pages and the shells' completions that a package contains.
    #[command(hide = true)]
    Pages(pages::PagesCall),
    /// Measure: volumes, files, devices and disks of any iSCSI target.
    Lab {
        #[command(subcommand)]
        verb: Box<lab::LabVerb>,
    },
}

#[derive(Subcommand)]
enum VolumeVerb {
    /// Create a stripe, concat or mirror: write to each of its children what it is.
    ///
    /// The data on the children is lost. A child whose first MiB is not all zeroes is refused; data beyond the
    /// first MiB is not looked for. A mirror keeps its own in the last MiB of each copy, and with --from
    /// the data of one of them.
    Create {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// The name of the volume in the configuration.
        name: String,
        /// For a mirror: keep the data of this copy, numbered from 0, and copy it to the other.
        #[arg(long, value_name = "COPY")]
        from: Option<usize>,
        /// Overwrite children that hold data or belong to another volume.
        #[arg(long)]
        force: bool,
    },
    /// Give a stripe, concat or mirror the length that its children have now, or a concat more children.
    ///
    /// Extend the disks below it first, with nobody using the volume. A stripe or mirror takes as much of each child as the
    /// smallest has; of a concat only the last child may have grown. A concat also takes new children that its list ends with.
    Grow {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// The name of the volume in the configuration.
        name: String,
    },
    /// Take over a stripe, concat or mirror from an owner that is gone for good: one that was not stopped cleanly and
    /// whose state directory is lost, or that ran on another machine. The old owner is fenced off where the
    /// children's targets support it, as those of a mirror's copies must.
    TakeOver {
        /// The configuration file of the new owner.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// The volume's name in it.
        name: String,
        /// Take over even where the old owner cannot be fenced off, or is a process that runs on this machine: it is
        /// off for certain, or is to lose the volume now. A mirror whose register is lost: even if a copy cannot be
        /// asked, and what it alone holds is lost.
        #[arg(long)]
        force: bool,
    },
    /// Say what a disk is: which stripe, concat or mirror it belongs to and as which part, who owns that, and what is on it.
    /// Nothing is claimed or written, and whoever uses the disk notices nothing.
    Inspect(inspect::InspectCall),
    /// Tell whether the copies of a mirror are in sync, as the program that uses it knows. Exit code 0: they are and all is
    /// well, 1: the volume is served, but a copy is not or something else limps, 2: it is down.
    Status(mirror_status::StatusCall),
    /// Put another disk in the place of a copy that is gone: the one that the configuration now lists there. It has to be
    /// blank, and is filled when the mirror is next served. The daemon that uses the mirror has to be stopped.
    Replace {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// The name of the volume in the configuration.
        name: String,
        /// The copy, by its place in the list, from 0.
        copy: usize,
        /// Overwrite what the disk holds.
        #[arg(long)]
        force: bool,
    },
    /// Read all copies of a mirror, while it is used, and print where they differ. What is being written is waited for. Exit
    /// code 0: they are equal, 1: they differ, 2: they could not be compared.
    Compare(mirror_status::StatusCall),
}

fn main() -> ExitCode {
    accounts::hide_those_in(std::env::args_os().skip(1));
    let call = match Call::try_parse() {
        Ok(call) => call,
        Err(error) => return not_understood(&error),
    };
    let begun = log::start(&call.log, call.log_format);
    let (code, message) = match begun.and_then(|()| run(call.verb)) {
        Ok(code) => (code, None),
        Err(VerbFailure::Wrong(message)) => (2, Some(message)),
        Err(VerbFailure::Failed(error)) => (1, Some(failure::in_a_line(&error))),
    };
    for line in message.iter().flat_map(|message| message.lines()) {
        log::complain(format_args!("sanstone: {line}"));
    }
    log::flush();
    ExitCode::from(code)
}

/// Says what is wrong with the call, or prints the help that it asks for. clap quotes what it does not understand: an
/// account, which a URL may have where a portal is expected, is not shown.
fn not_understood(error: &clap::Error) -> ExitCode {
    let message = error.render().to_string();
    match accounts::hidden(&message) {
        Cow::Borrowed(_) => error.exit(),
        Cow::Owned(shown) => eprint!("{shown}"),
    }
    ExitCode::from(2)
}

fn run(verb: Verb) -> Result<u8, VerbFailure> {
    // A write beyond the file size limit (`ulimit -f`) should fail; without a handler, this signal would end
    // the process.
    flag::register(SIGXFSZ, Arc::default())?;
    let done = match verb {
        Verb::Status(call) => return status::run(&call),
        Verb::Serve { config, supervised } => serve::run(&config, supervised),
        Verb::Attach(call) => attach::run(&call),
        Verb::Discover(call) => discover::run(&call),
        Verb::Check(call) => check::run(&call),
        Verb::Apply(call) => apply::run(&call),
        Verb::Show(call) => show::run(&call),
        Verb::Top(call) => top::run(&call),
        Verb::LogLevel(call) => log_level::run(&call),
        Verb::Volume {
            verb:
                VolumeVerb::Create {
                    config,
                    name,
                    from,
                    force,
                },
        } => create::run(&config, &name, from, force),
        Verb::Volume {
            verb: VolumeVerb::Grow { config, name },
        } => create::grow(&config, &name),
        Verb::Volume {
            verb:
                VolumeVerb::TakeOver {
                    config,
                    name,
                    force,
                },
        } => take_over::run(&config, &name, force),
        Verb::Volume {
            verb: VolumeVerb::Status(call),
        } => return mirror_status::run(&call),
        Verb::Volume {
            verb:
                VolumeVerb::Replace {
                    config,
                    name,
                    copy,
                    force,
                },
        } => create::replace(&config, &name, copy, force),
        Verb::Volume {
            verb: VolumeVerb::Inspect(call),
        } => inspect::run(&call),
        Verb::Volume {
            verb: VolumeVerb::Compare(call),
        } => return mirror_compare::run(&call),
        Verb::Demo(call) => demo::run(call),
        Verb::Pages(call) => pages::run(&call, Call::command()),
        Verb::Lab { verb } => lab::run(*verb),
    };
    done.map(|()| 0)
}
