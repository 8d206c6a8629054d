//! The `sanstone` command: parses the call, runs one verb, and turns its outcome into an exit
//! code: 0 done, 1 it failed, 2 the call or the configuration is wrong.
#![forbid(unsafe_code)]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

mod config;
mod create;
mod demo;
mod descriptors;
mod failure;
mod lab;
mod lanes;
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
    /// Serve the targets of a configuration until SIGTERM.
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
    /// is lost.
    Create {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// The volume's name in it.
        name: String,
        /// Also if the children hold data or belong to another volume.
        #[arg(long)]
        force: bool,
    },
}

fn main() -> ExitCode {
    // clap itself ends with code 2 when the call is wrong.
    let call = Call::parse();
    let filter = match tracing_subscriber::EnvFilter::try_new(&call.log) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!(
                "sanstone: --log \"{}\": {error}; write --log info",
                call.log
            );
            return ExitCode::from(2);
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
    let outcome = match call.verb {
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
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Wrong(message)) => {
            eprintln!("sanstone: {message}");
            ExitCode::from(2)
        }
        Err(Failure::Failed(error)) => {
            eprintln!("sanstone: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check(path: &Path) -> Result<(), Failure> {
    let config = config::Config::load(path)?;
    config.check_system()?;
    println!("{}: {}", path.display(), config.summary());
    Ok(())
}
