//! `sanstone status`: one word on a running `serve` or `attach`, a line for each reason, and an exit code for monitors.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::Args;
use node::{
    description::Description,
    health::{About, Health, Reason, Verdict},
};
use serde::Serialize;

use crate::{
    admin::{self, AdminCall, DaemonAddress},
    failure::VerbFailure,
    output::{self, OutputFile},
};

#[derive(Args)]
pub(crate) struct StatusCall {
    #[command(flatten)]
    place: DaemonAddress,
    /// Write JSON to FILE instead; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Says how the daemon selected by `call` is, or all that have a volume attached; returns the exit code. One that does not
/// answer is down.
pub(crate) fn run(call: &StatusCall) -> Result<u8, VerbFailure> {
    let mut all = call.place.all()?;
    let state = match &mut all[..] {
        [one] => std::mem::take(one),
        several if call.json.is_none() => {
            let reasons = several.iter().flat_map(|it| reasons(it));
            let verdict = Verdict::for_reasons(reasons.collect());
            output::print(lines(&verdict))?;
            return Ok(exit_code(verdict.health));
        }
        _ => call.place.state()?,
    };
    let file = call.json.as_deref().map(OutputFile::open_or_standard);
    let mut file = file.transpose()?;
    let asked = admin::ask::<Description>(&state, AdminCall::Show);
    let description = match asked {
        Ok(description) => description,
        Err(VerbFailure::Failed(error)) => {
            return Err(VerbFailure::Wrong(format!("down: {error:#}")));
        }
        Err(wrong) => return Err(wrong),
    };
    let verdict = Verdict::of(&description);
    match &mut file {
        Some(file) => {
            let status = StatusOutput::of(&description, &verdict);
            file.append(&format!("{}\n", serde_json::to_string_pretty(&status)?))?;
        }
        None => output::print(lines(&verdict))?,
    }
    Ok(exit_code(verdict.health))
}

/// Why the volume that is attached with `directory` is not ok.
fn reasons(directory: &Path) -> Vec<Reason> {
    match admin::ask::<Description>(directory, AdminCall::Show) {
        Ok(description) => Verdict::of(&description).reasons,
        Err(failure) => vec![Reason {
            health: Health::Down,
            about: About::Other,
            of: admin::name_of(directory),
            what: "its process does not answer".to_owned(),
            mend: failure.to_string(),
        }],
    }
}

/// What programs are told.
#[derive(Serialize)]
struct StatusOutput<'a> {
    product_version: &'a str,
    pid: u32,
    started_unix_s: u64,
    #[serde(flatten)]
    verdict: &'a Verdict,
    volumes: BTreeMap<&'a str, Disk<'a>>,
}

/// By what others know a volume that is served.
#[derive(Serialize)]
struct Disk<'a> {
    uuid: &'a str,
    naa: Option<&'a str>,
    serial: Option<&'a str>,
}

impl<'a> StatusOutput<'a> {
    fn of(description: &'a Description, verdict: &'a Verdict) -> StatusOutput<'a> {
        let volumes = description.volumes.iter().filter_map(|(name, volume)| {
            let disk = Disk {
                uuid: volume.uuid.as_deref()?,
                naa: volume.naa.as_deref(),
                serial: volume.serial.as_deref(),
            };
            Some((name.as_str(), disk))
        });
        StatusOutput {
            product_version: &description.product_version,
            pid: description.pid,
            started_unix_s: description.started_unix_s,
            verdict,
            volumes: volumes.collect(),
        }
    }
}

/// What monitors are told.
pub(crate) fn exit_code(health: Health) -> u8 {
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
