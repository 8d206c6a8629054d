//! `sanstone volume status`: how the mirrors of one volume are, told by the program that uses it. The word and the exit code
//! (0 ok, 1 degraded, 2 down) are those of `sanstone status`, for this volume alone.

use std::fmt::Write as _;

use clap::Args;
use node::{
    description::{Description, MirrorDescription, Node, Volume},
    health::Verdict,
};

use crate::{
    admin::{self, AdminCall, DaemonAddress},
    failure::VerbFailure,
    output,
    quantity::bytes,
    status,
};

#[derive(Args)]
pub(crate) struct StatusCall {
    #[command(flatten)]
    pub(crate) place: DaemonAddress,
    /// The volume's name in the configuration.
    pub(crate) name: String,
}

/// Tells the state of the mirrors in the volume that `call` names; returns the exit code.
pub(crate) fn run(call: &StatusCall) -> Result<u8, VerbFailure> {
    let name = &call.name;
    let state = call.place.state_with(Some(&call.name))?;
    let description: Description = admin::ask(&state, AdminCall::Show)
        .map_err(|error| VerbFailure::Wrong(format!("volume \"{name}\" is down: {error}")))?;
    let volume = volume_of(&description, name)?;
    let mirrors = mirrors_of(volume, name)?;
    let verdict = Verdict::of_volume(name, volume);
    let mut text = status::lines(&verdict);
    for (_, mirror) in &mirrors {
        let _ = writeln!(text, "{}", said(mirror));
    }
    output::print(text)?;
    Ok(status::exit_code(verdict.health))
}

/// The paths of the open mirrors in the volume called `name`.
///
/// # Errors
/// When there is no such volume, or no mirror of it is open.
pub(crate) fn paths(description: &Description, name: &str) -> Result<Vec<String>, VerbFailure> {
    let mirrors = mirrors_of(volume_of(description, name)?, name)?;
    Ok(mirrors
        .into_iter()
        .map(|(path, _)| path.to_owned())
        .collect())
}

fn volume_of<'a>(description: &'a Description, name: &str) -> Result<&'a Volume, VerbFailure> {
    let missing = || {
        let mut all = description.volumes.iter();
        VerbFailure::Wrong(match all.find(|(_, volume)| has_part(&volume.tree, name)) {
            Some((whole, _)) => {
                format!("\"{name}\" is used as a part of volume \"{whole}\": ask for that")
            }
            None => format!(
                "there is no volume called \"{name}\" in {}",
                description.configuration
            ),
        })
    };
    description.volumes.get(name).ok_or_else(missing)
}

/// Whether the volume called `name` is below `node`.
fn has_part(node: &Node, name: &str) -> bool {
    let is_it = |child: &Node| child.name.as_deref() == Some(name);
    let mut below = node.children.iter();
    below.any(|child| is_it(child) || has_part(child, name))
}

fn mirrors_of<'a>(
    volume: &'a Volume,
    name: &str,
) -> Result<Vec<(&'a str, &'a MirrorDescription)>, VerbFailure> {
    let mut mirrors = Vec::new();
    collect(&volume.tree, &mut mirrors);
    match mirrors.is_empty() {
        false => Ok(mirrors),
        true if has_mirror(&volume.tree) => Err(VerbFailure::Wrong(format!(
            "volume \"{name}\" is down: no mirror of it is open"
        ))),
        true => Err(VerbFailure::Wrong(format!(
            "volume \"{name}\" has no mirror: `sanstone status` says how it is"
        ))),
    }
}

fn has_mirror(node: &Node) -> bool {
    node.kind == "mirror" || node.children.iter().any(has_mirror)
}

fn collect<'a>(node: &'a Node, mirrors: &mut Vec<(&'a str, &'a MirrorDescription)>) {
    mirrors.extend(node.mirror.iter().map(|mirror| (&*node.path, mirror)));
    node.children
        .iter()
        .for_each(|child| collect(child, mirrors));
}

/// One mirror, for people.
fn said(mirror: &MirrorDescription) -> String {
    let mut text = String::new();
    for copy in &mirror.copies {
        let _ = write!(text, "{}: {}", copy.name, copy.state);
        if let Some(error) = &copy.error {
            let _ = write!(text, ": {error}");
        }
        text.push('\n');
    }
    if let Some(error) = &mirror.register_error {
        let _ = writeln!(text, "the register does not change: {error}");
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
