//! `volumes.toml` in a state directory: the disks that were served from there, by identity. Version 1
//! stored only a volume's name and identity. It can still be read, and is rewritten as version 2 when
//! its disks are served again.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use engine::{random, store};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeOwned},
};
use uuid::Uuid;
use volume::config;

use crate::StateError;

const VERSION: u32 = 2;
/// More than any file of a state directory has, in bytes.
pub(crate) const FILE_BYTES_MAX: usize = 64 << 20;
/// The name of the file in the state directory.
const FILE: &str = "volumes.toml";

/// What a served disk is, which decides how it is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskKind {
    /// A file, which is marked.
    File,
    /// A block device.
    Device,
    /// A volume of the kind with this name, whose children have superblocks.
    Superblocks(&'static str),
    /// A disk of another machine, through a volume of the kind with this name.
    Remote(&'static str),
    /// Recognised only by its volume's name.
    Named,
    /// The same disk as another served volume; both are read-only.
    View,
}

impl DiskKind {
    /// As recorded.
    pub(crate) fn word(self) -> Word {
        Word(match self {
            DiskKind::File => "file",
            DiskKind::Device => "device",
            DiskKind::Superblocks(name) | DiskKind::Remote(name) => name,
            DiskKind::Named => "ram",
            DiskKind::View => "view",
        })
    }

    /// Whether a disk recorded as `recorded` may be of this kind. A superblock tells stripe and concat apart, but
    /// older releases recorded a concat as a stripe.
    pub(crate) fn may_be(self, recorded: Word) -> bool {
        self.word() == recorded || (self.word().0, recorded.0) == ("concat", "stripe")
    }

    /// Whether it is recognised only by its volume's name. Nothing of it persists that another disk
    /// could be mistaken for.
    pub(crate) fn is_of_a_name(self) -> bool {
        self.word().is_of_a_name()
    }
}

/// The kind of a recorded disk. A volume in memory is a `ram`, whatever its kind; other kinds of volume have their own
/// names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Word(&'static str);

impl Word {
    /// As [`DiskKind::is_of_a_name`].
    fn is_of_a_name(self) -> bool {
        [DiskKind::Named, DiskKind::View]
            .map(DiskKind::word)
            .contains(&self)
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = [DiskKind::Device, DiskKind::View].map(|kind| kind.word().0);
        let mut known = known.iter().chain(config::Kind::NAMES);
        let word = known.find(|word| **word == text);
        word.map(|word| Word(word))
            .ok_or_else(|| de::Error::custom(format!("\"{text}\" is not a kind of disk")))
    }
}

/// The record of a disk that was served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// Its last name in the configuration.
    pub(crate) volume: String,
    /// `None`: version 1 did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<Word>,
    /// The identity that it carries: a stripe's, or that of a device or a remote disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) carried: Option<Uuid>,
    /// The location of a remote disk or a device, which identifies it if it carries no identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) place: Option<String>,
    /// Whether the file carried a mark.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) marked: bool,
    /// The length of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// The files it is made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) paths: Vec<String>,
    /// The same, relative to the configuration's directory; empty if they lie elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) relative_paths: Vec<String>,
}

impl Record {
    /// Whether it could still be the disk of a volume with its name.
    pub(crate) fn is_lasting(&self) -> bool {
        !self.kind.is_some_and(Word::is_of_a_name)
    }

    /// Whether it is recorded as a file.
    pub(crate) fn is_file(&self) -> bool {
        self.kind == Some(DiskKind::File.word())
    }

    /// The path of its file, if it is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.paths.first().map(Path::new)
    }
}

/// All disks that were served from a state directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "RecordText")]
pub(crate) struct Records {
    pub(crate) file: PathBuf,
    pub(crate) disks: BTreeMap<Uuid, Record>,
    /// No disk was ever served from this directory.
    pub(crate) is_new: bool,
    is_version_1: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordText {
    version: u32,
    #[serde(default)]
    disk: BTreeMap<Uuid, Record>,
}

impl From<Records> for RecordText {
    fn from(records: Records) -> RecordText {
        RecordText {
            version: VERSION,
            disk: records.disks,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Version1 {
    #[expect(dead_code, reason = "read before, to know the format")]
    version: u32,
    #[serde(default)]
    volume: BTreeMap<String, Uuid>,
}

impl Records {
    /// Where a state directory has them.
    pub(crate) fn file(directory: &Path) -> PathBuf {
        directory.join(FILE)
    }

    /// Keeps what others have stored since the records were as `before`, and are as `now`.
    pub(crate) fn keep_those_of_others(&mut self, before: &Records, now: &Records) {
        let theirs = |uuid: &Uuid| now.disks.get(uuid) != before.disks.get(uuid);
        for uuid in now.disks.keys().chain(before.disks.keys()).copied() {
            match now.disks.get(&uuid).filter(|_| theirs(&uuid)) {
                Some(record) => drop(self.disks.insert(uuid, record.clone())),
                None if theirs(&uuid) => drop(self.disks.remove(&uuid)),
                None => {}
            }
        }
    }

    /// The records in the state directory `directory`, which need not exist.
    pub(crate) fn read(directory: &Path) -> Result<Records, StateError> {
        let mut records = Records {
            file: Records::file(directory),
            disks: BTreeMap::new(),
            is_new: false,
            is_version_1: false,
        };
        let file = &records.file;
        match version_of(file)? {
            None => records.is_new = true,
            Some(1) => {
                let old: Option<Version1> = read_toml(file)?;
                for (volume, uuid) in old.map(|old| old.volume).unwrap_or_default() {
                    let record = Record {
                        volume,
                        kind: None,
                        carried: None,
                        place: None,
                        marked: false,
                        bytes: None,
                        paths: Vec::new(),
                        relative_paths: Vec::new(),
                    };
                    if let Some(other) = records.disks.insert(uuid, record) {
                        return Err(StateError::Refused(format!(
                            "{} gives two volumes the identity {uuid}, one of them \"{}\"; restore it \
                             from a copy",
                            records.file.display(),
                            other.volume
                        )));
                    }
                }
                records.is_version_1 = true;
            }
            Some(_) => {
                let text: Option<RecordText> = read_versioned(file, VERSION)?;
                records.disks = text.map(|text| text.disk).unwrap_or_default();
            }
        }
        Ok(records)
    }

    /// What is known of the file once they are stored in place of the records `before`: nothing new, if that changes no disk.
    pub(crate) fn is_as_stored(&mut self, before: &Records) {
        let is_stored = self.disks == before.disks;
        self.is_new = before.is_new && is_stored;
        self.is_version_1 = before.is_version_1 && is_stored;
    }

    /// Adds the records of marked disks from `later`, except those whose files were `removed` again.
    pub(crate) fn keep_marked(&mut self, later: &Records, removed: &[PathBuf]) {
        let is_removed = |record: &Record| removed.iter().any(|path| record.path() == Some(path));
        let stays = |record: &Record| record.marked && !is_removed(record);
        for (uuid, record) in later.disks.iter().filter(|(_, record)| stays(record)) {
            self.disks.entry(*uuid).or_insert_with(|| record.clone());
        }
    }

    /// Records the new lengths of those disks in `served` whose files have grown while they were served.
    pub(crate) fn note_growth(&mut self, served: &BTreeSet<Uuid>) {
        for (uuid, record) in &mut self.disks {
            let (Some(known), Some(path)) = (record.bytes, record.path()) else {
                continue;
            };
            // Another file may be there by now.
            let is_it = !record.marked
                || matches!(store::mark(path), Ok(Some(mark)) if mark == uuid.to_string().as_bytes());
            let found = store::look(path).ok().map(|look| look.len_bytes);
            if let Some(len) = found.filter(|len| *len > known && is_it && served.contains(uuid)) {
                record.bytes = Some(len);
            }
        }
    }

    /// The remedy that makes this directory forget a disk.
    pub(crate) fn forget(&self, uuid: &Uuid, record: &Record) -> String {
        let file = self.file.display();
        match self.is_version_1 {
            true => format!("remove the line of \"{}\" from {file}", record.volume),
            false => format!("remove the table [disk.{uuid}] from {file}"),
        }
    }

    /// The remedy that makes this directory forget that a disk had `bytes`.
    pub(crate) fn forget_length(&self, uuid: &Uuid, bytes: u64) -> String {
        let file = self.file.display();
        format!("remove `bytes = {bytes}` from the table [disk.{uuid}] in {file}")
    }
}

/// A new identity, of a disk or of a state directory.
pub(crate) fn new_identity() -> Result<Uuid, StateError> {
    let mut bytes = [0; 16];
    random::fill(&mut bytes).map_err(StateError::io("making an identity".to_owned()))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

/// The version of `file`, if it exists. Ignores everything else, because another release may have written it.
fn version_of(file: &Path) -> Result<Option<u32>, StateError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let known: Option<Version> = read_toml(file)?;
    Ok(known.map(|known| known.version))
}

/// The content of `file`, if it exists, provided that its version is `ours`.
pub(crate) fn read_versioned<T: DeserializeOwned>(
    file: &Path,
    ours: u32,
) -> Result<Option<T>, StateError> {
    match version_of(file)? {
        Some(version) if version != ours => Err(StateError::Refused(format!(
            "{} has version {version}, and this sanstone reads version {ours}: use the release that wrote \
             it, or name another state directory with state = \"…\"",
            file.display()
        ))),
        _ => read_toml(file),
    }
}

fn read_toml<T: DeserializeOwned>(file: &Path) -> Result<Option<T>, StateError> {
    let shown = file.display();
    let damaged = |why: String| {
        StateError::Refused(format!("{shown} is damaged: {why}; restore it from a copy"))
    };
    match store::read_file(file, FILE_BYTES_MAX) {
        Ok(bytes) => {
            let text = String::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
            let read = toml::from_str(&text).map_err(|error| damaged(error.message().to_owned()));
            read.map(Some)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StateError::io(format!("reading {shown}"))(error)),
    }
}

/// Replaces `file` with `value`.
pub(crate) fn write_toml<T: Serialize>(file: &Path, value: &T) -> Result<(), StateError> {
    let what = format!("writing {}", file.display());
    let text = toml::to_string(value).map_err(|error| {
        let cause = io::Error::new(io::ErrorKind::InvalidData, error);
        StateError::io(what.clone())(cause)
    })?;
    store::replace(file, text.as_bytes()).map_err(StateError::io(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_of_disks_are_recorded_under_the_names_that_released_versions_read() {
        let kinds = [
            (DiskKind::File, "file"),
            (DiskKind::Device, "device"),
            (DiskKind::Superblocks("stripe"), "stripe"),
            (DiskKind::Superblocks("concat"), "concat"),
            (DiskKind::Remote("iscsi"), "iscsi"),
            (DiskKind::Named, "ram"),
            (DiskKind::View, "view"),
        ];
        for (kind, word) in kinds {
            let text = format!("volume = \"db\"\nkind = \"{word}\"\n");
            let record: Record = toml::from_str(&text).expect(word);
            assert_eq!(record.kind, Some(kind.word()));
            assert_eq!(toml::to_string(&record).expect(word), text);
            let is_of_a_name = ["ram", "view"].contains(&word);
            assert_eq!(record.is_lasting(), !is_of_a_name, "{word}");
            assert_eq!(kind.is_of_a_name(), is_of_a_name, "{word}");
        }
        let other = toml::from_str::<Record>("volume = \"db\"\nkind = \"fiel\"\n");
        let error = other.expect_err("no kind has this name").to_string();
        assert!(error.contains("\"fiel\" is not a kind of disk"), "{error}");
    }
}
