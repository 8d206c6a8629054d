//! Finds the processes that use a directory: those with an open or mapped file, their program, or their
//! working or root directory in it.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// Maximum number of processes to name.
const NAMED_MAX: usize = 5;

/// Describes them for people, as `process 123 (bash)`. It reads only link names in /proc, so it cannot block
/// on the file system.
pub(super) fn users_of(directory: &Path) -> String {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.map(|entry| entry.path());
    let users: Vec<PathBuf> = processes.filter(|it| uses(it, directory)).collect();
    let mut text = String::new();
    for process in users.iter().take(NAMED_MAX) {
        let separator = if text.is_empty() { "" } else { ", " };
        let id = process.file_name().unwrap_or_default().to_string_lossy();
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let _ = write!(text, "{separator}process {id} ({})", name.trim());
    }
    match users.len() {
        0 => "something that cannot be identified, such as a swap file or a loop device".to_owned(),
        count if count > NAMED_MAX => format!("{text} and {} more", count - NAMED_MAX),
        _ => text,
    }
}

fn uses(process: &Path, directory: &Path) -> bool {
    let leads_there = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(directory));
    if ["cwd", "root", "exe"]
        .iter()
        .any(|name| leads_there(process.join(name)))
    {
        return true;
    }
    // Mapped files count too, as their descriptors may already be closed.
    ["fd", "map_files"].iter().any(|list| {
        let entries = fs::read_dir(process.join(list))
            .into_iter()
            .flatten()
            .flatten();
        entries.map(|entry| entry.path()).any(leads_there)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_file_open_is_named() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = scratch.path().canonicalize().expect("it is there");
        assert!(users_of(&directory).contains("cannot be identified"));
        let file = fs::File::create(directory.join("file")).expect("a file");
        let users = users_of(&directory);
        let me = format!("process {} (", std::process::id());
        assert!(users.contains(&me), "{users}");
        drop(file);
    }
}
