//! Writes a verb's results to standard output, which can be full or closed like any other file, and to files.

use std::{
    fmt::Display,
    fs,
    io::{self, Read, Write},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, TryLockError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use crate::{accounts::hidden, failure::VerbFailure};

/// A file for results. It is opened before the work, so that an unwritable file is reported early. Until there are results,
/// its old contents stay, and a new file is not there: however the work ends, nobody finds an empty file or half of one.
pub(crate) struct OutputFile {
    path: PathBuf,
    /// Where links lead; `None` for anything but a regular file, such as a pipe.
    place: Option<PathBuf>,
    /// What was opened. A new file has been removed again.
    file: fs::File,
    is_begun: bool,
}

/// Held while a file is replaced.
static REPLACING: Mutex<()> = Mutex::new(());
/// How long the end of the process waits for that.
const REPLACE_LIMIT: Duration = Duration::from_secs(1);

/// Waits until no file is being replaced, unless that hangs.
pub(crate) fn settle() {
    let began = Instant::now();
    while matches!(REPLACING.try_lock(), Err(TryLockError::WouldBlock)) {
        if began.elapsed() > REPLACE_LIMIT {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// A file, or standard output.
pub(crate) enum Output {
    File(OutputFile),
    Standard,
}

impl Output {
    /// Writes `text`: the first call replaces the file's contents, later ones append.
    pub(crate) fn append(&mut self, text: &str) -> anyhow::Result<()> {
        match self {
            Output::File(file) => file.append(text),
            Output::Standard => print(text),
        }
    }
}

/// How files that we write begin: HTML pages and JSON objects.
const BEGINNINGS: [&[u8]; 2] = [b"<!doctype html>", b"{"];

impl OutputFile {
    /// Opens the file at `path`, which need not exist. A file that does not look like our output is refused,
    /// so that a mistyped name does not destroy data.
    ///
    /// # Errors
    /// It cannot be written, or is not a suitable file.
    pub(crate) fn open(path: &Path) -> Result<OutputFile, VerbFailure> {
        if !is_replaceable(path)? {
            return Err(VerbFailure::Wrong(format!(
                "{}: this file is neither a report nor JSON and would be overwritten: name a new file, \
                 or remove this one",
                path.display()
            )));
        }
        let is_new = fs::metadata(path).is_err();
        let file = open_to_write(path)?;
        let unusable = |error: io::Error| unusable(path, &error);
        let is_regular = file.metadata().map_err(unusable)?.is_file();
        let place = is_regular.then(|| fs::canonicalize(path)).transpose();
        let place = place.map_err(unusable)?;
        if let Some(place) = place.as_ref().filter(|_| is_new) {
            fs::remove_file(place).map_err(unusable)?;
        }
        Ok(OutputFile {
            path: path.to_owned(),
            place,
            file,
            is_begun: false,
        })
    }

    /// The same, but `-` means standard output.
    pub(crate) fn open_or_standard(path: &Path) -> Result<Output, VerbFailure> {
        match path == Path::new("-") {
            true => Ok(Output::Standard),
            false => OutputFile::open(path).map(Output::File),
        }
    }

    /// Replaces the contents: atomically, unless only the file itself may be written and not its directory.
    pub(crate) fn write(mut self, text: &str) -> anyhow::Result<()> {
        if self.place.is_none() {
            return self.append(text);
        }
        let kept = self.keep(text);
        let is_denied = |error: &anyhow::Error| {
            let cause = error.downcast_ref::<io::Error>();
            cause.is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
        };
        match kept {
            Err(error) if is_denied(&error) => self.append(text),
            kept => kept,
        }
    }

    /// Replaces the contents atomically, and may be called again: a crash leaves either the old or the new
    /// text. Anything but a regular file, such as a pipe, is written only by the final [`OutputFile::write`].
    pub(crate) fn keep(&self, text: &str) -> anyhow::Result<()> {
        let of = |path: &Path| path.display().to_string();
        let Some(path) = &self.place else {
            return Ok(());
        };
        let found = self.file.metadata().with_context(|| of(&self.path))?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let beside = path.with_file_name(name);
        if !is_replaceable(&beside).unwrap_or(false) {
            bail!("{}: this file is in the way: remove it", beside.display());
        }
        let _replacing = REPLACING.lock().unwrap_or_else(PoisonError::into_inner);
        fs::write(&beside, text)
            .and_then(|()| fs::set_permissions(&beside, found.permissions()))
            .and_then(|()| fs::rename(&beside, path))
            .with_context(|| of(&beside))
    }

    fn append(&mut self, text: &str) -> anyhow::Result<()> {
        // A pipe or a terminal cannot be truncated.
        let emptied = match self.place.as_ref().filter(|_| !self.is_begun) {
            None => Ok(()),
            Some(place) => fs::File::create(place).map(|file| self.file = file),
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

fn open_to_write(path: &Path) -> Result<fs::File, VerbFailure> {
    if fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device()) {
        return Err(VerbFailure::Wrong(format!(
            "{}: this is a block device, and writing to it would destroy what is on it: name a file",
            path.display()
        )));
    }
    let opened = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    opened.map_err(|error| unusable(path, &error))
}

fn unusable(path: &Path, error: &io::Error) -> VerbFailure {
    VerbFailure::Wrong(format!("{}: {error}", path.display()))
}

/// Whether replacing the file at `path` loses nothing: it does not exist, is empty, holds output of an
/// earlier call, or has no contents, like a pipe.
fn is_replaceable(path: &Path) -> Result<bool, VerbFailure> {
    if !fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0) {
        return Ok(true);
    }
    let mut start = Vec::new();
    let longest = BEGINNINGS.map(<[u8]>::len).into_iter().max();
    fs::File::open(path)
        .and_then(|file| {
            file.take(longest.unwrap_or(0) as u64)
                .read_to_end(&mut start)
        })
        .map_err(|error| unusable(path, &error))?;
    Ok(BEGINNINGS.iter().any(|ours| start.starts_with(ours)))
}

/// Whether two paths lead to the same file, even if it does not exist yet.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| match fs::metadata(path) {
        Ok(found) => (Some((found.dev(), found.ino())), None),
        Err(_) => {
            let name = path.file_name();
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let directory = fs::canonicalize(parent.unwrap_or(Path::new("."))).ok();
            let there = directory
                .zip(name)
                .map(|(directory, name)| directory.join(name));
            (None, Some(there.unwrap_or_else(|| path.to_owned())))
        }
    };
    place(one) == place(other)
}

/// `text` for a terminal, with all control characters escaped but line ends and tabs: text may come from a file or from
/// another machine, and must not move the cursor, or turn the direction of writing. In JSON and TOML the escapes stand for
/// the same characters. Accounts in the call's arguments are [hidden].
pub(crate) fn plain(text: impl Display) -> String {
    let mut plain = String::new();
    for c in hidden(&text.to_string()).chars() {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match c {
            '\n' | '\t' => plain.push(c),
            c if c.is_control() || turns => plain += &format!("\\u{:04x}", u32::from(c)),
            c => plain.push(c),
        }
    }
    plain
}

/// Writes all of `text` to standard output, [plain].
pub(crate) fn print(text: impl Display) -> anyhow::Result<()> {
    let text = plain(text);
    let mut out = io::stdout().lock();
    write!(out, "{text}")
        .and_then(|()| out.flush())
        .context("writing to standard output")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_controls_the_terminal() {
        for (text, shown) in [
            ("a\tb\nc \"é\"", "a\tb\nc \"é\""),
            ("\u{1b}[31mred\r\u{7f}", "\\u001b[31mred\\u000d\\u007f"),
            ("\u{9b}2J \u{202e}txt", "\\u009b2J \\u202etxt"),
        ] {
            assert_eq!(plain(text), shown);
        }
    }

    #[test]
    fn only_what_we_wrote_is_replaced() {
        let scratch = tempfile::tempdir().expect("room");
        let path = scratch.path().join("output");
        for (content, is_ours) in [
            (&b""[..], true),
            (b"{\n  \"format\": 1 }", true),
            (b"<!doctype html>\n<html>", true),
            (b"# notes", false),
            (b"<", false),
            (&[0; 4096], false),
        ] {
            fs::write(&path, content).expect("room");
            let opened = OutputFile::open(&path);
            assert_eq!(opened.is_ok(), is_ours, "{content:?}");
            assert_eq!(fs::read(&path).expect("it is there"), content);
            if let Err(failure) = opened {
                assert!(failure.to_string().contains("name a new file"), "{failure}");
            }
        }
    }

    #[test]
    fn a_new_file_is_there_once_it_has_results() {
        let scratch = tempfile::tempdir().expect("room");
        let (path, link) = (scratch.path().join("new.json"), scratch.path().join("link"));
        symlink(&path, &link).expect("a link");
        drop(OutputFile::open(&link).expect("it may be written"));
        assert!(!path.exists(), "nothing was written");
        let output = OutputFile::open(&link).expect("it may be written");
        output.write("{}").expect("room");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "{}");
        fs::remove_file(&path).expect("it is there");
        let mut output = OutputFile::open(&path).expect("it may be written");
        for _ in 0..2 {
            output.append("{}\n").expect("room");
        }
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "{}\n{}\n");
        let none = scratch.path().join("none").join("new.json");
        assert!(OutputFile::open(&none).is_err(), "there is no directory");
    }

    #[test]
    fn what_is_kept_takes_the_place_of_what_was_there_and_nothing_is_left_beside_it() {
        let scratch = tempfile::tempdir().expect("room");
        let path = scratch.path().join("lab.json");
        fs::write(&path, "{ \"old\": 1 }").expect("room");
        let link = scratch.path().join("link.json");
        symlink(&path, &link).expect("a link");
        let output = OutputFile::open(&link).expect("it is ours");
        let is = |text: &str| assert_eq!(fs::read_to_string(&path).expect("it is there"), text);
        is("{ \"old\": 1 }");
        for text in ["{ \"steps\": 1 }", "{}"] {
            output.keep(text).expect("room");
            is(text);
        }
        output.write("{ \"last\": 1 }").expect("room");
        is("{ \"last\": 1 }");
        assert!(
            fs::symlink_metadata(&link)
                .expect("it is there")
                .is_symlink()
        );
        assert_eq!(
            fs::read_dir(scratch.path()).expect("it is there").count(),
            2
        );
        let beside = scratch.path().join("lab.json.new");
        fs::write(&beside, "somebody's").expect("room");
        let output = OutputFile::open(&path).expect("it is ours");
        let error = output.keep("{}").expect_err("it is not ours").to_string();
        assert!(error.contains("remove it"), "{error}");
    }

    #[test]
    fn a_file_is_the_same_by_all_its_names() {
        let scratch = tempfile::tempdir().expect("room");
        let at = |name: &str| scratch.path().join(name);
        fs::write(at("disk"), b"data").expect("room");
        fs::hard_link(at("disk"), at("link")).expect("a link");
        symlink(at("disk"), at("symlink")).expect("a link");
        for (one, other, is_same) in [
            ("disk", "./disk", true),
            ("disk", "link", true),
            ("disk", "symlink", true),
            ("new", "./new", true),
            ("new", "disk", false),
            ("new", "newer", false),
        ] {
            assert_eq!(is_same_file(&at(one), &at(other)), is_same, "{one} {other}");
        }
    }
}
