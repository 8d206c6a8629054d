//! `sanstone apply`: has a running daemon serve another configuration.

use std::path::{self, Path, PathBuf};

use anyhow::anyhow;
use clap::Args;
use node::Config;
use serde::Serialize;

use crate::{
    admin::{self, AdminCall, Applied},
    failure::VerbFailure,
    log,
    output::{self, OutputFile},
};

#[derive(Args)]
pub(crate) struct ApplyCall {
    /// The new configuration file.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Check it, and only print what it would change.
    #[arg(long)]
    dry_run: bool,
    /// Write JSON to FILE instead; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What `--json` writes.
#[derive(Serialize)]
struct ApplyReport<'a> {
    product_version: &'a str,
    dry_run: bool,
    changes: &'a [String],
    notes: &'a [String],
}

/// Asks the process that uses the state directory `state`, or each of those that have a volume of it attached. What each of
/// these changes is its volume's own, and named so; one that refuses does not keep the others from it.
fn ask_all(state: &Path, asked: &AdminCall) -> Result<Applied, VerbFailure> {
    let directories = admin::directories(state);
    if let [one] = &directories[..] {
        return admin::ask(one, asked.clone());
    }
    let mut all = Applied::default();
    let (mut refused, mut is_wrong) = (Vec::new(), true);
    for directory in &directories {
        match admin::ask::<Applied>(directory, asked.clone()) {
            Ok(applied) => {
                all.changes.extend(applied.changes);
                all.warnings += applied.warnings;
                all.notes.extend(applied.notes);
            }
            Err(failure) => {
                is_wrong &= matches!(failure, VerbFailure::Wrong(_));
                let volume = admin::name_of(directory);
                let lines = failure.to_string();
                refused.extend(lines.lines().map(|line| format!("{volume}: {line}")));
            }
        }
    }
    match (refused.is_empty(), is_wrong) {
        (true, _) => Ok(all),
        (false, true) => Err(VerbFailure::Wrong(refused.join("\n"))),
        (false, false) => Err(anyhow!(refused.join("\n")).into()),
    }
}

/// Applies the configuration in `call` to the running daemon that uses its state directory.
pub(crate) fn run(call: &ApplyCall) -> Result<(), VerbFailure> {
    let state = Config::state_directory_to_apply(&call.config)?;
    let asked = AdminCall::Apply {
        path: path::absolute(&call.config)?,
        dry_run: call.dry_run,
    };
    let file = call.json.as_deref().map(OutputFile::open_or_standard);
    let file = file.transpose()?;
    let Applied {
        changes,
        warnings,
        notes,
    } = ask_all(&state, &asked)?;
    if let Some(mut file) = file {
        let report = ApplyReport {
            product_version: env!("CARGO_PKG_VERSION"),
            dry_run: call.dry_run,
            changes: &changes,
            notes: &notes,
        };
        let text = serde_json::to_string_pretty(&report)?;
        return Ok(file.append(&format!("{text}\n"))?);
    }
    for note in notes {
        log::say(format_args!("note: {note}"));
    }
    let mut text: String = changes.iter().map(|line| format!("{line}\n")).collect();
    // A warning alone is said of what is there.
    let is_same = warnings == changes.len();
    text += match (is_same, call.dry_run) {
        (true, _) => "nothing changes\n",
        (false, true) => "nothing was changed: this was a dry run, which opens no disk\n",
        (false, false) => "applied\n",
    };
    Ok(output::print(text)?)
}
