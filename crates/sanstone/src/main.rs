//! The `sanstone` command: parses the call, runs one verb, and turns its outcome into an exit
//! code: 0 done, 1 it failed, 2 the call or the configuration is wrong.
#![forbid(unsafe_code)]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::{Parser, Subcommand};
use signal_hook::{consts::SIGXFSZ, flag};

mod config;
mod create;
mod demo;
mod descriptors;
mod failure;
mod lab;
mod lanes;
mod log;
mod output;
mod serve;
mod state;

use failure::Failure;

/// Block storage for databases over iSCSI: serve, compose, prove.
#[derive(Parser)]
#[command(version, disable_help_subcommand = true)]
struct Call {
    #[command(subcommand)]
    verb: Verb,
    /// What is logged to standard error, as in `info`, `debug` or `target=debug,volume=warn`.
    #[arg(long, global = true, value_name = "FILTER", default_value = "info")]
    log: String,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve the targets of a configuration until SIGTERM, which finishes what was accepted; a second one,
    /// a second later, gives that up. On SIGHUP, follow files and devices that
    /// became longer; on SIGUSR1, write to the log where the time went.
    Serve {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// For a program that starts this one: write each portal's address to standard output when
        /// it serves, and stop when standard input closes, as it does when that program ends.
        #[arg(long, hide = true)]
        supervised: bool,
    },
    /// Say whether a configuration is right; opens nothing.
    Check {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Prepare volumes.
    Volume {
        #[command(subcommand)]
        verb: VolumeVerb,
    },
    /// Run SQL on one share and on a stripe of several, each a process on this machine behind a
    /// link of limited rate; print the figures and write a report.
    Demo(demo::DemoCall),
    /// Measure.
    Lab {
        #[command(subcommand)]
        verb: lab::LabVerb,
    },
}

#[derive(Subcommand)]
enum VolumeVerb {
    /// Write the superblocks of a stripe's children, which makes them one volume. What they held
    /// is lost. Children whose first MiB is not zero are refused; what lies behind it is not looked at.
    Create {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// The volume's name in it.
        name: String,
        /// Also if the children hold data or belong to another stripe.
        #[arg(long)]
        force: bool,
    },
}

fn main() -> ExitCode {
    // clap itself ends with code 2 when the call is wrong.
    let call = Call::parse();
    let begun = log::start(&call.log);
    let (code, message) = match begun.and_then(|()| run(call.verb)) {
        Ok(()) => (0, None),
        Err(Failure::Wrong(message)) => (2, Some(message)),
        Err(Failure::Failed(error)) => (1, Some(format!("{error:#}"))),
    };
    if let Some(message) = message {
        log::say(format_args!("sanstone: {message}"));
    }
    log::flush();
    ExitCode::from(code)
}

fn run(verb: Verb) -> Result<(), Failure> {
    // A write beyond the limit on file sizes (`ulimit -f`) fails; unless this signal has a handler, it
    // would end the process.
    flag::register(SIGXFSZ, Arc::default())?;
    match verb {
        Verb::Serve { config, supervised } => serve::run(&config, supervised),
        Verb::Check { config } => check(&config),
        Verb::Volume {
            verb:
                VolumeVerb::Create {
                    config,
                    name,
                    force,
                },
        } => create::run(&config, &name, force),
        Verb::Demo(call) => demo::run(call),
        Verb::Lab { verb } => lab::run(verb),
    }
}

fn check(path: &Path) -> Result<(), Failure> {
    let config = config::Config::load(path)?;
    config.check_ports()?;
    config.check_system()?;
    let line = format!("{}: {}\n", path.display(), config.summary());
    Ok(output::print(line)?)
}
