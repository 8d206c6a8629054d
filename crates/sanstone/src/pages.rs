//! `sanstone pages`: writes what a package of Sanstone contains beside the command, made of the same definitions as
//! `--help`: a man page for each verb, and completions for the shells.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Args, Command};
use clap_complete::{Shell, generate_to};

use crate::failure::VerbFailure;

#[derive(Args)]
pub(crate) struct PagesCall {
    /// The directory to write them into: `man1`, and one for each shell.
    directory: PathBuf,
}

/// Writes the pages and completions of `command`.
pub(crate) fn run(call: &PagesCall, mut command: Command) -> Result<(), VerbFailure> {
    let man = made(&call.directory, "man1")?;
    let mut completed = without_hidden_verbs(&command);
    command.build();
    write_man_pages(&command, &man)?;
    for (shell, name) in [
        (Shell::Bash, "bash"),
        (Shell::Zsh, "zsh"),
        (Shell::Fish, "fish"),
    ] {
        let directory = made(&call.directory, name)?;
        generate_to(shell, &mut completed, "sanstone", directory)?;
    }
    Ok(())
}

/// What is completed of `command`. Completions would offer hidden verbs, too.
fn without_hidden_verbs(command: &Command) -> Command {
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    Command::default()
        .name("sanstone")
        .args(command.get_arguments().cloned())
        .subcommands(verbs.cloned())
}

fn made(directory: &Path, name: &str) -> io::Result<PathBuf> {
    let path = directory.join(name);
    fs::create_dir_all(&path)?;
    Ok(path)
}

/// A page for `command` and for each verb below it that is shown.
fn write_man_pages(command: &Command, directory: &Path) -> io::Result<()> {
    let page = clap_mangen::Man::new(command.clone());
    let name = page.get_filename();
    let mut text = Vec::new();
    page.render(&mut text)?;
    fs::write(directory.join(name), text)?;
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    verbs
        .filter(|verb| verb.get_name() != "help")
        .try_for_each(|verb| write_man_pages(verb, directory))
}
