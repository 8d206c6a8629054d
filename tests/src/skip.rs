//! Reports tests that cannot run here. cargo counts such a test as passed, and shows output only of failed tests. So
//! the test also writes a line to the file named by `SANSTONE_SKIPPED`; `tools/test` creates that file, shows it, and
//! subtracts its lines from the number of passed tests.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// Records that the current thread's test is skipped, wholly or in part, and why. A test that calls this several times
/// counts once.
///
/// # Panics
/// If the file that is named cannot be written.
pub fn skip(why: impl Display) {
    println!("skipped: {why}");
    if let Some(file) = std::env::var_os("SANSTONE_SKIPPED") {
        let file = Path::new(&file);
        let written = note(file, &test(), why);
        written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

/// `BINARY TEST`.
fn test() -> String {
    let binary = std::env::current_exe().unwrap_or_default();
    let stem = binary.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo appends a hash to the name.
    let name = stem.rsplit_once('-').map_or(&*stem, |(name, _)| name);
    let thread = std::thread::current();
    format!("{name} {}", thread.name().unwrap_or("?"))
}

/// In a single write, because other processes append too.
fn note(file: &Path, test: &str, why: impl Display) -> io::Result<()> {
    let line = format!("{test}: {why}\n").replace('\n', " ");
    let line = format!("{}\n", line.trim_end());
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;

    #[test]
    fn each_reason_is_a_line_with_the_test_before_it() {
        let directory = Directory::new();
        let file = directory.path().join("skipped");
        note(&file, &test(), "there is no\nistgt").expect("room");
        note(&file, "peers contract::on_istgt", "the same").expect("room");
        let lines = std::fs::read_to_string(&file).expect("it is there");
        assert_eq!(
            lines,
            "harness skip::tests::each_reason_is_a_line_with_the_test_before_it: there is no istgt\n\
             peers contract::on_istgt: the same\n"
        );
    }
}
