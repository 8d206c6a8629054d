//! `sanstone status`: one word on a running `serve` or `attach`, a line for each reason, and an exit code for monitors.

use std::path::PathBuf;

use clap::Args;
use node::{
    description::Description,
    health::{Health, Verdict},
};

use crate::{
    admin::{self, Asked, Place},
    failure::Failure,
    output::{self, OutputFile},
};

#[derive(Args)]
pub(crate) struct StatusCall {
    #[command(flatten)]
    place: Place,
    /// Write JSON to FILE instead; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Says how the daemon selected by `call` is; returns the exit code. One that does not answer is down.
pub(crate) fn run(call: &StatusCall) -> Result<u8, Failure> {
    let state = call.place.state()?;
    let file = call.json.as_deref().map(OutputFile::open_or_standard);
    let mut file = file.transpose()?;
    let asked = admin::ask::<Description>(&state, Asked::Show);
    let description = match asked {
        Ok(description) => description,
        Err(Failure::Failed(error)) => return Err(Failure::Wrong(format!("down: {error:#}"))),
        Err(wrong) => return Err(wrong),
    };
    let verdict = Verdict::of(&description);
    match &mut file {
        Some(file) => file.append(&format!("{}\n", serde_json::to_string_pretty(&verdict)?))?,
        None => output::print(lines(&verdict))?,
    }
    Ok(exit_code(verdict.health))
}

fn exit_code(health: Health) -> u8 {
    match health {
        Health::Ok => 0,
        Health::Degraded => 1,
        Health::Down => 2,
    }
}

/// The word, and below it the reasons.
pub(crate) fn lines(verdict: &Verdict) -> String {
    let mut lines = format!("{}\n", verdict.health);
    for reason in &verdict.reasons {
        lines.push_str(&format!("  {reason}\n"));
    }
    lines
}
