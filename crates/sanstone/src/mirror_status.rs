//! `sanstone volume status`: whether the copies of a mirror are in sync, told by the program that uses it. The exit code is
//! for monitoring: 0 in sync, 1 degraded, 2 down.

use std::fmt::Write as _;

use anyhow::anyhow;
use clap::Args;
use node::description::{Description, Mirror, Node};

use crate::{
    admin::{self, Asked, Place},
    failure::Failure,
    output,
    quantity::bytes,
};

#[derive(Args)]
pub(crate) struct StatusCall {
    #[command(flatten)]
    place: Place,
    /// The volume's name in the configuration.
    name: String,
}

/// Tells the state of the mirrors in the volume that `call` names.
pub(crate) fn run(call: &StatusCall) -> Result<(), Failure> {
    let name = &call.name;
    let asked = call
        .place
        .state()
        .map(|state| admin::ask(&state, Asked::Show));
    let description: Description =
        asked?.map_err(|error| Failure::Wrong(format!("volume \"{name}\" is down: {error}")))?;
    let Some(volume) = description.volumes.get(name) else {
        return Err(Failure::Wrong(format!(
            "there is no volume called \"{name}\" in {}",
            description.configuration
        )));
    };
    let mut mirrors = Vec::new();
    collect(&volume.tree, &mut mirrors);
    if mirrors.is_empty() {
        return Err(Failure::Wrong(format!(
            "volume \"{name}\" is down: no mirror of it is open"
        )));
    }
    let mut text = String::new();
    for mirror in &mirrors {
        let _ = writeln!(text, "{}", said(mirror));
    }
    output::print(text)?;
    if let Some(error) = mirrors.iter().find_map(|mirror| mirror.error.as_ref()) {
        return Err(Failure::Wrong(format!(
            "volume \"{name}\" is down: {error}"
        )));
    }
    match mirrors.iter().all(|mirror| mirror.in_sync) {
        true => Ok(()),
        false => Err(Failure::Failed(anyhow!(
            "volume \"{name}\" is degraded: a copy is not in sync"
        ))),
    }
}

fn collect<'a>(node: &'a Node, mirrors: &mut Vec<&'a Mirror>) {
    mirrors.extend(&node.mirror);
    node.children
        .iter()
        .for_each(|child| collect(child, mirrors));
}

/// One mirror, for people.
fn said(mirror: &Mirror) -> String {
    let mut text = String::new();
    for copy in &mirror.copies {
        let _ = write!(text, "{}: {}", copy.name, copy.state);
        if let Some(error) = &copy.error {
            let _ = write!(text, ": {error}");
        }
        text.push('\n');
    }
    let _ = write!(
        text,
        "epoch {}, marked {}, in doubt {}, left to fill {}",
        mirror.epoch,
        bytes(mirror.marked_bytes),
        bytes(mirror.in_doubt_bytes),
        bytes(mirror.left_to_fill_bytes)
    );
    text
}
