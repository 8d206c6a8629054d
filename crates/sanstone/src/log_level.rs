//! `sanstone log-level`: what a running `serve` or `attach` logs, and another level for it while it runs.

use clap::Args;

use crate::{
    admin::{self, AdminCall, DaemonAddress},
    failure::VerbFailure,
    output,
};

#[derive(Args)]
pub(crate) struct LogLevelCall {
    /// What to log from now on: a level, or levels by part, such as `info` or `front_iscsi=debug,volume=warn`; the parts
    /// that are not named stay at `info`. Without it, what is logged now is printed.
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
    #[command(flatten)]
    place: DaemonAddress,
}

/// Asks the daemon selected by `call`.
pub(crate) fn run(call: &LogLevelCall) -> Result<(), VerbFailure> {
    let asked = AdminCall::Log {
        filter: call.filter.clone(),
    };
    let before: String = admin::ask(&call.place.state()?, asked)?;
    let line = match &call.filter {
        None => format!("{before}\n"),
        Some(filter) => {
            format!("log level: {before} → {filter}, until it ends or the next log-level\n")
        }
    };
    Ok(output::print(line)?)
}
