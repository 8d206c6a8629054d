//! `sanstone apply`: has a running daemon serve another configuration.

use std::path::{self, PathBuf};

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

/// What programs are told.
#[derive(Serialize)]
struct Told<'a> {
    product_version: &'a str,
    dry_run: bool,
    changes: &'a [String],
    notes: &'a [String],
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
    let Applied { changes, notes } = admin::ask(&state, asked)?;
    if let Some(mut file) = file {
        let told = Told {
            product_version: env!("CARGO_PKG_VERSION"),
            dry_run: call.dry_run,
            changes: &changes,
            notes: &notes,
        };
        let text = serde_json::to_string_pretty(&told)?;
        return Ok(file.append(&format!("{text}\n"))?);
    }
    for note in notes {
        log::say(format_args!("note: {note}"));
    }
    let mut text: String = changes.iter().map(|line| format!("{line}\n")).collect();
    // What starts so is said of what is there.
    let is_same = changes.iter().all(|line| line.starts_with('!'));
    text += match (is_same, call.dry_run) {
        (true, _) => "nothing changes\n",
        (false, true) => "nothing was changed: this was a dry run, which opens no disk\n",
        (false, false) => "applied\n",
    };
    Ok(output::print(text)?)
}
