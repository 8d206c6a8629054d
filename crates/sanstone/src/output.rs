//! What a verb found out: on standard output, which can be full or closed like any other file, and in
//! files.

use std::{
    fmt::Display,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::failure::Failure;

/// A file for what a verb finds out. It is opened before the work: one that cannot be written is
/// better known then. It keeps what is in it until there is something new.
pub(crate) struct OutputFile {
    path: PathBuf,
    file: fs::File,
    is_begun: bool,
}

/// A file, or standard output.
pub(crate) enum Output {
    File(OutputFile),
    Standard,
}

impl Output {
    /// Writes `text`: the first time in place of what is in the file, then after it.
    pub(crate) fn append(&mut self, text: &str) -> anyhow::Result<()> {
        match self {
            Output::File(file) => file.append(text),
            Output::Standard => print(text),
        }
    }
}

impl OutputFile {
    pub(crate) fn open(path: &Path) -> Result<OutputFile, Failure> {
        let opened = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        match opened {
            Ok(file) => Ok(OutputFile {
                path: path.to_owned(),
                file,
                is_begun: false,
            }),
            Err(error) => Err(Failure::Wrong(format!("{}: {error}", path.display()))),
        }
    }

    /// The same, where `-` is standard output.
    pub(crate) fn open_or_standard(path: &Path) -> Result<Output, Failure> {
        match path == Path::new("-") {
            true => Ok(Output::Standard),
            false => OutputFile::open(path).map(Output::File),
        }
    }

    /// Replaces what is in it.
    pub(crate) fn write(mut self, text: &str) -> anyhow::Result<()> {
        self.append(text)
    }

    fn append(&mut self, text: &str) -> anyhow::Result<()> {
        // A pipe or a terminal has no length.
        let has_len = self.file.metadata().is_ok_and(|found| found.is_file());
        let emptied = match self.is_begun || !has_len {
            true => Ok(()),
            false => self.file.set_len(0),
        };
        self.is_begun = true;
        emptied
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .with_context(|| self.path.display().to_string())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Writes all of `text`.
pub(crate) fn print(text: impl Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")
        .and_then(|()| out.flush())
        .context("writing to standard output")
}
