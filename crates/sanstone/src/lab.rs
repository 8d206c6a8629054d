//! `sanstone lab …`: measurements.

mod profiles;
mod stop;

use clap::Subcommand;

use crate::failure::VerbFailure;

#[derive(Subcommand)]
pub(crate) enum LabVerb {
    /// Run a profile on a volume, a file, a block device or an iSCSI disk, and report the findings.
    ///
    /// SIGINT ends it early and keeps what was measured; a second one ends it at once. A profile that writes
    /// refuses a disk that holds data, unless --overwrite is given.
    Run(profiles::RunCall),
    /// Compare two disks, in turn, under the loads of a profile, and report whether they differ.
    Compare(profiles::CompareCall),
    /// Report where the results changed in a series of runs of one profile.
    History(profiles::HistoryCall),
    /// List the built-in profiles, or print one.
    Profiles(profiles::ProfilesCall),
}

pub(crate) fn run(verb: LabVerb) -> Result<(), VerbFailure> {
    match verb {
        LabVerb::Run(call) => profiles::run_profile(&call)?,
        LabVerb::Compare(call) => profiles::compare_two(&call)?,
        LabVerb::History(call) => profiles::tell_history(&call)?,
        LabVerb::Profiles(call) => profiles::list(&call)?,
    }
    Ok(())
}
