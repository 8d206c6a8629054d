//! `sanstone discover`: asks a portal of any iSCSI target which targets there are, and on demand which disks
//! they have. What it prints is a piece of a configuration: all but the volumes is comments.

mod account;
mod configuration;
mod found;

use std::path::PathBuf;

use clap::Args;
use engine::{Duration, Lane, LaneConfig};
use volume::{
    Advice, Error, ErrorKind,
    config::Time,
    discovery::{Asker, FoundTarget, Portal},
};

use crate::{
    failure::VerbFailure,
    output::{self, OutputFile},
};
pub(crate) use account::Account;
use found::DiscoveryAnswers;

#[derive(Args)]
pub(crate) struct DiscoverCall {
    /// A portal of the target: HOST or HOST:PORT, such as 10.0.1.2, [fd00::2]:3260 or [fe80::2%eth0].
    portal: Portal,
    /// Also ask each target for its disks, with their sizes, vendors and products.
    #[arg(long)]
    luns: bool,
    #[command(flatten)]
    account: Account,
    /// Authenticate only to the targets found, not for the discovery. Without mutual CHAP this is tried by itself if
    /// the discovery with CHAP is refused, because most targets have no CHAP there unless it is configured.
    #[arg(long, requires = "chap_user")]
    discovery_without_chap: bool,
    /// The time limit for connecting and logging in, and for each answer.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    timeout: Time,
    /// Write JSON to FILE instead; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the discovery that `call` describes.
pub(crate) fn run(call: &DiscoverCall) -> Result<(), VerbFailure> {
    call.portal.check().map_err(VerbFailure::Wrong)?;
    let asker = Asker {
        initiator_name: call.account.initiator_name()?,
        chap: call.account.chap()?,
        limit: limit(call.timeout)?,
    };
    let json = call.json.as_deref().map(OutputFile::open_or_standard);
    let json = json.transpose()?;
    let lane = Lane::new(&LaneConfig::default())?;
    let found = lane.block_on(ask(call, &asker))?;
    let Some(mut json) = json else {
        return Ok(output::print(found)?);
    };
    let text = serde_json::to_string_pretty(&found)?;
    Ok(json.append(&format!("{text}\n"))?)
}

fn limit(timeout: Time) -> Result<Duration, VerbFailure> {
    let limit = timeout.duration();
    match limit.is_zero() {
        true => Err(VerbFailure::Wrong(
            "a time limit of 0 leaves no time to answer; write a longer one, such as --timeout 5s"
                .into(),
        )),
        false => Ok(limit),
    }
}

async fn ask(call: &DiscoverCall, asker: &Asker) -> Result<DiscoveryAnswers, VerbFailure> {
    let (targets, is_bare) = list(call, asker).await;
    let targets = targets.map_err(|error| refused(error, call, asker))?;
    if targets.is_empty() {
        return Err(VerbFailure::Failed(anyhow::anyhow!(
            "{} shows no target to {}; allow that name there, or give another one with --initiator{}",
            call.portal,
            asker.initiator_name,
            call.account.mend()
        )));
    }
    let login = call.account.settings()?;
    let mut found = DiscoveryAnswers::new(&call.portal, &asker.initiator_name);
    if is_bare {
        found.was_listed_without_chap();
    }
    for target in targets {
        let luns = match call.luns {
            true => {
                let luns = asker.luns(&target, &call.portal).await;
                Some(luns.map_err(|error| advised(&error, &call.account)))
            }
            false => None,
        };
        found.add(&target, luns, &login);
    }
    Ok(found)
}

/// The targets, and whether they were listed without the CHAP credentials that we have: a target that requires CHAP for
/// its disks need not have it for discoveries, and then many refuse whoever offers nothing else.
async fn list(call: &DiscoverCall, asker: &Asker) -> (volume::Result<Vec<FoundTarget>>, bool) {
    let bare = Asker {
        chap: None,
        ..asker.clone()
    };
    let lister = match call.discovery_without_chap {
        true => &bare,
        false => asker,
    };
    let listed = lister.discover(&call.portal).await;
    let may_go_without = call.account.may_go_without() && !call.discovery_without_chap;
    match &listed {
        Err(error) if may_go_without && error.kind() == ErrorKind::Configuration => {}
        _ => return (listed, false),
    }
    match bare.discover(&call.portal).await {
        Ok(targets) => (Ok(targets), true),
        Err(_) => (listed, false),
    }
}

/// Adds our identity to errors about authentication or authorization.
fn refused(error: Error, call: &DiscoverCall, asker: &Asker) -> VerbFailure {
    let account = &call.account;
    let is_about_us = error.kind() == ErrorKind::Configuration;
    let error = advised(&error, account);
    let hint = match (&asker.chap, call.discovery_without_chap) {
        (None, _) => "",
        (Some(_), true) => ", but not for the discovery, because of --discovery-without-chap",
        (Some(_), false) if account.may_go_without() => {
            "; without it, as with --discovery-without-chap, the discovery is refused as well"
        }
        (Some(_), false) => "; for a discovery without CHAP, add --discovery-without-chap",
    };
    VerbFailure::Failed(match is_about_us {
        false => anyhow::Error::new(error),
        true => anyhow::anyhow!("{error} (we are {}{account}{hint})", asker.initiator_name),
    })
}

/// `error` with the advice for a command line in place of that for a configuration.
fn advised(error: &Error, account: &Account) -> Error {
    match error.advice() {
        None => error.clone(),
        Some(Advice::Credentials) => {
            let message = format!("{}{}", error.without_advice(), account.advice());
            Error::new(error.kind(), message)
        }
    }
}
