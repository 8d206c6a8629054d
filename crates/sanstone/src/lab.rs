//! `sanstone lab …`: measurements.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use ::lab::bench::{self, Other, Settings};
use anyhow::{Context, anyhow};
use clap::Subcommand;

use crate::failure::Failure;

#[derive(Subcommand)]
pub(crate) enum LabVerb {
    /// Compare this target with tgt and with bare TCP: I/Os per second, latency, CPU per I/O.
    Bench {
        /// How often every load meets every target.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// How long each time.
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
        /// Only the loads whose name has this in it, as "128K".
        #[arg(long, value_name = "TEXT", default_value = "")]
        only: String,
        /// All samples, for programs.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Another target that runs already: NAME=ADDRESS:PORT/TARGET/LUN,PID.
        #[arg(long, value_name = "TARGET", value_parser = other)]
        with: Vec<Other>,
    },
    /// The other end of the benchmark's bare TCP.
    #[command(hide = true)]
    Floor,
}

pub(crate) fn run(verb: LabVerb) -> Result<(), Failure> {
    match verb {
        LabVerb::Floor => bench::serve_floor()?,
        LabVerb::Bench {
            rounds,
            seconds,
            only,
            json,
            with,
        } => {
            let valid = seconds.is_finite() && (0.01..=3600.0).contains(&seconds) && rounds > 0;
            if !valid {
                let message = format!("--rounds {rounds} --seconds {seconds}: at least 1 and 0.01");
                return Err(Failure::Wrong(message));
            }
            let settings = Settings {
                binary: std::env::current_exe().context("finding our own binary")?,
                rounds,
                duration: Duration::from_secs_f64(seconds),
                only,
                others: with,
            };
            let report = bench::run(&settings, |line| eprintln!("{line}"))?;
            print!("{}", report.table());
            if let Some(path) = json {
                let text = serde_json::to_string_pretty(&report.json())?;
                std::fs::write(&path, text).with_context(|| path.display().to_string())?;
            }
        }
    }
    Ok(())
}

fn other(text: &str) -> anyhow::Result<Other> {
    let parse = || {
        let (name, rest) = text.split_once('=')?;
        let (url, pid) = rest.rsplit_once(',')?;
        let (portal, path) = url.split_once('/')?;
        let (target, lun) = path.rsplit_once('/')?;
        Some(Other {
            name: name.into(),
            address: portal.parse::<SocketAddr>().ok()?,
            target: target.into(),
            lun: lun.parse().ok()?,
            pid: pid.parse().ok()?,
        })
    };
    parse().ok_or_else(|| anyhow!("write NAME=ADDRESS:PORT/TARGET/LUN,PID"))
}
