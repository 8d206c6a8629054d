//! Decides which disk each served volume is, from what was found and what is recorded. Free of I/O,
//! so that every case can be tested.
//!
//! Identity belongs to the disk, not to a name. A file is recognised by its mark, then by its path,
//! then by its volume's name. A disk that carries an identity of its own (a stripe's superblock, a
//! device, a remote disk) is recognised by that, then by its volume's name. Contradictions are
//! refused: a recorded disk that is blank or gone, another disk in its place, a copy next to its
//! original (unless it is read-only, as a snapshot for a backup: that is a disk of its own), and a new state directory that lacks what another one next to it has recorded.

mod carried;
mod moved;
mod orphans;
mod siblings;
mod snapshots;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
};

use uuid::Uuid;
use volume::config::{ConfigError, Volumes};

use crate::{
    record::{DiskKind, Record, Records},
    survey::{Asked, FoundAtPath, Leaf, Sibling, SurveyMark},
};

/// The name of the mark, as passed to `setfattr`.
const MARK: &str = "user.sanstone.disk";

/// The importance of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Normal.
    Info,
    /// Possibly not what was meant.
    Warn,
}

/// A message about a served disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its importance.
    pub level: Level,
    /// The text, with its location in the configuration.
    pub text: ConfigError,
}

/// The identity of a volume's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    Known(Uuid),
    /// No initiator has seen it yet.
    New,
    /// Determined by the identity that it carries, which is read when it is open.
    Carried,
}

/// The known disks and other context for judging volumes.
pub(crate) struct IdentityContext<'a> {
    pub(crate) records: &'a Records,
    pub(crate) siblings: &'a [Sibling],
    /// The state directory, and whether it exists.
    pub(crate) state: &'a Path,
    pub(crate) state_exists: bool,
    /// Another configuration that keeps its state in the same directory.
    pub(crate) sharer: Option<&'a Path>,
    /// The volumes of the configuration, served or not.
    pub(crate) volumes: &'a Volumes,
    /// Looks up what is at a record's path.
    pub(crate) at: &'a dyn Fn(&Path) -> FoundAtPath,
    /// Looks up the process that has locked a file.
    pub(crate) holder: &'a dyn Fn(&Path) -> Option<u32>,
    /// Whether sets may have children that are not there yet.
    pub(crate) may_grow: bool,
}

/// Intermediate results of [`IdentityContext::judge`].
#[derive(Default)]
struct Judged {
    /// Records already assigned, with the index of the volume.
    taken: BTreeMap<Uuid, usize>,
    identities: BTreeMap<usize, Identity>,
    /// The volumes whose files are read-only copies of other disks.
    copies: BTreeSet<usize>,
    notes: Vec<Note>,
    errors: Vec<ConfigError>,
}

impl Judged {
    fn settle(&mut self, index: usize, identity: Identity) {
        if let Identity::Known(uuid) = identity {
            self.taken.insert(uuid, index);
        }
        self.identities.insert(index, identity);
    }

    fn note(&mut self, level: Level, span: &Range<usize>, text: String) {
        let text = ConfigError::new(span.clone(), text);
        self.notes.push(Note { level, text });
    }

    fn refuse(&mut self, span: &Range<usize>, text: String) {
        self.errors.push(ConfigError::new(span.clone(), text));
    }

    fn is_free(&self, uuid: &Uuid) -> bool {
        !self.taken.contains_key(uuid)
    }
}

impl IdentityContext<'_> {
    /// Decides which disk each of `all` is, as far as possible before they are open.
    ///
    /// # Errors
    /// All reasons why they must not be served, each with a remedy.
    pub(crate) fn judge(
        &self,
        all: &[Asked],
    ) -> Result<(Vec<Identity>, Vec<Note>), Vec<ConfigError>> {
        let mut judged = Judged::default();
        let files = || {
            let files = all
                .iter()
                .enumerate()
                .filter(|(_, asked)| asked.kind == DiskKind::File);
            files.filter_map(|(index, asked)| Some((index, asked, asked.leaves.first()?)))
        };
        // Marks first: once a record's disk is found by its mark, its old path and name are free.
        for (index, _, leaf) in files() {
            let Some(mark) = self.mark_of(leaf, &mut judged) else {
                continue;
            };
            match self.is_snapshot(files().map(|(_, _, leaf)| leaf), leaf, mark) {
                true => self.take_snapshot(index, leaf, mark, &mut judged),
                false => self.take_mark(all, index, leaf, mark, &mut judged),
            }
        }
        for (index, asked, leaf) in files() {
            let FoundAtPath::File { mark, .. } = &leaf.found else {
                continue;
            };
            match (mark, judged.identities.get(&index)) {
                (SurveyMark::Disk(_), _) if judged.copies.contains(&index) => {}
                (SurveyMark::Disk(mark), Some(_)) => {
                    self.check_marked(asked, leaf, *mark, &mut judged)
                }
                (SurveyMark::None | SurveyMark::Unsupported, None) => {
                    let records = self.records.disks.iter();
                    let at_place = records
                        .filter(|(_, record)| record.kind.is_none() || record.is_file())
                        .filter(|(uuid, record)| judged.is_free(uuid) && is_at(record, leaf))
                        .find(|(uuid, record)| !self.is_elsewhere(uuid, record, leaf));
                    if let Some((uuid, record)) = at_place {
                        self.adopt(index, asked, leaf, (uuid, record), &mut judged);
                    }
                }
                _ => {}
            }
        }
        for (index, asked) in all.iter().enumerate() {
            if judged.identities.contains_key(&index) {
                continue;
            }
            let only = asked
                .leaves
                .first()
                .filter(|_| asked.kind == DiskKind::File);
            match (asked.kind, only) {
                (DiskKind::File, Some(leaf)) => match &leaf.found {
                    FoundAtPath::File {
                        mark: SurveyMark::None | SurveyMark::Unsupported,
                        ..
                    } => {
                        self.judge_unmarked(index, asked, leaf, &mut judged);
                    }
                    FoundAtPath::File { .. } => {}
                    FoundAtPath::Nothing | FoundAtPath::Other => {
                        self.judge_missing(asked, leaf, &mut judged);
                        judged.settle(index, Identity::New);
                    }
                },
                _ => {
                    for leaf in &asked.leaves {
                        self.judge_missing(asked, leaf, &mut judged);
                    }
                    judged.settle(index, Identity::Carried);
                }
            }
        }
        self.check_exchanged(all, &mut judged);
        self.note_unmarkable(all, &mut judged);
        self.note_orphans(all, &mut judged);
        self.note_sharer(all, &mut judged);
        if !judged.errors.is_empty() {
            return Err(judged.errors);
        }
        let identities = (0..all.len()).map(|index| judged.identities[&index]);
        Ok((identities.collect(), judged.notes))
    }

    /// Reports once which files cannot carry a mark.
    fn note_unmarkable(&self, all: &[Asked], judged: &mut Judged) {
        let files = all.iter().filter(|asked| asked.kind == DiskKind::File);
        let leaves = files.filter_map(|asked| asked.leaves.first());
        let unmarkable = leaves.filter(|leaf| {
            let mark = match &leaf.found {
                FoundAtPath::File { mark, .. } => Some(mark),
                _ => None,
            };
            mark == Some(&SurveyMark::Unsupported)
        });
        let unmarkable: Vec<&Leaf> = unmarkable.collect();
        if let Some(first) = unmarkable.first() {
            let paths = unmarkable
                .iter()
                .map(|leaf| leaf.path.display().to_string());
            let paths: Vec<String> = paths.collect();
            let text = format!(
                "the file system of {} does not support extended attributes: a disk on it is \
                 recognised only by its path and its volume's name, so keep {} with it",
                paths.join(", "),
                self.state.display()
            );
            judged.note(Level::Warn, &first.span, text);
        }
    }

    /// The disk that a file is marked as. A mark that names no disk is refused.
    fn mark_of(&self, leaf: &Leaf, judged: &mut Judged) -> Option<Uuid> {
        let FoundAtPath::File { mark, .. } = &leaf.found else {
            return None;
        };
        match mark {
            SurveyMark::Disk(uuid) => Some(*uuid),
            SurveyMark::None | SurveyMark::Unsupported => None,
            SurveyMark::Other(text) => {
                let path = leaf.path.display();
                judged.refuse(
                    &leaf.span,
                    format!(
                        "the mark of {path} names no disk ({text}): it is damaged or from a newer \
                         sanstone; `setfattr -x {MARK} {path}` removes it, and the file is then \
                         recognised by its path"
                    ),
                );
                None
            }
            SurveyMark::Unreadable(error) => {
                let path = leaf.path.display();
                let message = format!(
                    "the mark {MARK} of {path}, which identifies its disk, cannot be read: {error}; \
                     restore the file, or `setfattr -x {MARK} {path}` to have it recognised by its path"
                );
                judged.refuse(&leaf.span, message);
                None
            }
        }
    }

    /// Assigns the disk `mark` to the volume whose file carries the mark, unless another volume has it.
    fn take_mark(&self, all: &[Asked], index: usize, leaf: &Leaf, mark: Uuid, judged: &mut Judged) {
        let other = judged
            .taken
            .get(&mark)
            .and_then(|&other| all[other].leaves.first());
        match other {
            // Serving the same file twice is reported when volumes are checked.
            Some(other) if id_of(&other.found) != id_of(&leaf.found) => {
                let (path, other) = (leaf.path.display(), other.path.display());
                judged.refuse(
                    &leaf.span,
                    format!(
                        "{path} and {other} are both marked as disk {mark}: one is a copy, and initiators \
                         would take both for one disk; `setfattr -x {MARK} COPY` makes the copy a disk of \
                         its own"
                    ),
                );
            }
            _ => judged.settle(index, Identity::Known(mark)),
        }
    }

    /// Checks that the records agree with a mark.
    fn check_marked(&self, asked: &Asked, leaf: &Leaf, mark: Uuid, judged: &mut Judged) {
        let path = leaf.path.display();
        let others = self.records.disks.iter();
        let other = others
            .filter(|(uuid, record)| judged.is_free(uuid) && record.is_lasting())
            .map(|(uuid, record)| (is_at(record, leaf), uuid, record))
            .filter(|(is_here, _, record)| *is_here || record.volume == asked.volume)
            .max_by_key(|(is_here, ..)| *is_here);
        if let Some((is_here, uuid, record)) = other {
            let forget = self.forget(uuid, record);
            let message = match (is_here, record.path()) {
                (true, _) => format!(
                    "{path} is marked as disk {mark}, but disk {uuid} was served from there: restore \
                     that disk's file; to serve this disk instead, {forget}"
                ),
                (false, Some(old)) => format!(
                    "{path} is marked as disk {mark}, but volume \"{}\" has been served as disk {uuid} \
                     from {}: name that file; to serve this disk instead, {forget}",
                    asked.volume,
                    old.display()
                ),
                (false, None) => format!(
                    "{path} is marked as disk {mark}, but volume \"{}\" has been served as disk \
                     {uuid}: name that disk's file; to serve this disk instead, {forget}",
                    asked.volume
                ),
            };
            return judged.refuse(&leaf.span, message);
        }
        match self.records.disks.get(&mark) {
            Some(record) => {
                self.check_length(leaf, (&mark, record), judged);
                self.check_moved(asked, leaf, (&mark, record), judged);
            }
            None => self.check_unrecorded(leaf, mark, judged),
        }
    }

    /// A recorded disk, found by its mark, may have been moved, but must not be a copy.
    fn check_moved(
        &self,
        asked: &Asked,
        leaf: &Leaf,
        (uuid, record): (&Uuid, &Record),
        judged: &mut Judged,
    ) {
        let path = leaf.path.display();
        let old = record.path().filter(|old| *old != leaf.path);
        if let Some((old, found)) = old.map(|old| (old, (self.at)(old))) {
            let shown = old.display();
            let is_copy = matches!(&found, FoundAtPath::File { mark: SurveyMark::Disk(it), .. } if it == uuid)
                && id_of(&found) != id_of(&leaf.found);
            if is_copy && has_moved_whole(record, leaf) {
                self.warn_of_original(leaf, uuid, old, judged);
            } else if is_copy {
                return judged.refuse(
                    &leaf.span,
                    format!(
                        "{path} is marked as disk {uuid}, and so is {shown}, from which that disk was \
                         served: one is a copy; serve {shown}, or remove it; `setfattr -x {MARK} \
                         {path}` makes {path} a disk of its own, for a volume with another name"
                    ),
                );
            }
        }
        self.note_changes(asked, leaf, (uuid, record), judged);
    }

    fn warn_of_original(&self, leaf: &Leaf, uuid: &Uuid, old: &Path, judged: &mut Judged) {
        judged.note(
            Level::Warn,
            &leaf.span,
            format!(
                "{} is a copy of disk {uuid} that keeps its identity, and {} is still there: no \
                 initiator may see both, because it would take them for one disk",
                leaf.path.display(),
                old.display()
            ),
        );
    }

    fn note_changes(
        &self,
        asked: &Asked,
        leaf: &Leaf,
        (uuid, record): (&Uuid, &Record),
        judged: &mut Judged,
    ) {
        let mut changes = Vec::new();
        if record.volume != asked.volume {
            changes.push(format!("its volume was called \"{}\"", record.volume));
        }
        if let Some(old) = record.path().filter(|old| *old != leaf.path) {
            changes.push(format!("its file was {}", old.display()));
        }
        if !changes.is_empty() {
            judged.note(
                Level::Info,
                &leaf.span,
                format!(
                    "volume \"{}\" in {} is disk {uuid} as before: {}",
                    asked.volume,
                    leaf.path.display(),
                    changes.join(", ")
                ),
            );
        }
    }

    /// Handles a marked file that is not recorded in this state directory.
    fn check_unrecorded(&self, leaf: &Leaf, mark: Uuid, judged: &mut Judged) {
        let path = leaf.path.display();
        let sibling = self.siblings.iter().find_map(|sibling| {
            let record = sibling.records.disks.get(&mark)?;
            Some((sibling, record))
        });
        let text = match sibling {
            Some((sibling, record)) => {
                let known = (&mark, record);
                let second = self.second_file(leaf, known, sibling);
                let is_second = second.is_some();
                let message = second.unwrap_or_else(|| {
                    let what = format!("{path} is disk {mark}");
                    let otherwise =
                        "should be served without its reservations and saved mode pages";
                    self.elsewhere(std::slice::from_ref(leaf), &what, sibling, known, otherwise)
                });
                // A state directory in use takes in a disk that was moved, but no second file of one.
                if (self.records.is_new || is_second) && !leaf.read_only {
                    return judged.refuse(&leaf.span, message);
                }
                message
            }
            None => format!(
                "{path} is marked as disk {mark}, which {} does not know: it is served under that \
                 identity, without the reservations and saved mode pages that another state directory \
                 may hold; if they matter, stop, and name that directory with state = \"…\"; if it is \
                 a copy that should be a disk of its own, stop, and `setfattr -x {MARK} {path}`",
                self.state.display()
            ),
        };
        judged.note(Level::Warn, &leaf.span, text);
    }

    /// Whether a recorded disk is still at its old path, according to the mark there, so that the unmarked `leaf` is
    /// not it.
    fn is_elsewhere(&self, uuid: &Uuid, record: &Record, leaf: &Leaf) -> bool {
        let old = record.path().filter(|old| *old != leaf.path);
        let found = old.map(|old| (self.at)(old));
        matches!(found, Some(FoundAtPath::File { mark: SurveyMark::Disk(it), .. }) if it == *uuid)
    }

    /// Handles an unmarked file that is recorded by its path or its volume's name.
    fn adopt(
        &self,
        index: usize,
        asked: &Asked,
        leaf: &Leaf,
        (uuid, record): (&Uuid, &Record),
        judged: &mut Judged,
    ) {
        let FoundAtPath::File {
            len_bytes,
            is_blank,
            mark,
            ..
        } = &leaf.found
        else {
            return;
        };
        let path = leaf.path.display();
        let forget = self.forget(uuid, record);
        let shorter = record.bytes.filter(|bytes| len_bytes < bytes);
        let is_new = record.marked && *is_blank;
        if is_new || shorter.is_some() {
            let (what, keep) = match shorter {
                Some(bytes) => (
                    format!("{path} has {len_bytes} bytes, but disk {uuid} had {bytes}"),
                    format!(
                        "and is meant to be shorter, {}",
                        self.records.forget_length(uuid, bytes)
                    ),
                ),
                None => (
                    format!("{path} is blank and has no mark, but disk {uuid} had one"),
                    format!("`setfattr -n {MARK} -v {uuid} {path}`"),
                ),
            };
            judged.refuse(
                &leaf.span,
                format!(
                    "{what}: volume \"{}\" has been served before, and this is another file; mount its \
                     file system or restore the file; for a new disk, {forget}; if it is that disk \
                     after all, {keep}",
                    record.volume
                ),
            );
            // Nothing further needs saying about this file.
            return judged.settle(index, Identity::Known(*uuid));
        }
        if record.marked && *mark == SurveyMark::None {
            judged.note(
                Level::Warn,
                &leaf.span,
                format!(
                    "{path} has lost its mark, as a copy without attributes does: it is taken for disk \
                     {uuid}, which was served from there as volume \"{}\", and marked again",
                    record.volume
                ),
            );
        }
        if let Some(old) = record.path().filter(|old| *old != leaf.path) {
            if has_moved_whole(record, leaf) && (self.at)(old) != FoundAtPath::Nothing {
                self.warn_of_original(leaf, uuid, old, judged);
            }
        }
        self.note_changes(asked, leaf, (uuid, record), judged);
        judged.settle(index, Identity::Known(*uuid));
    }

    /// Handles an unmarked file at a path where no disk is recorded.
    fn judge_unmarked(&self, index: usize, asked: &Asked, leaf: &Leaf, judged: &mut Judged) {
        let path = leaf.path.display();
        if let Some((uuid, record)) = self.named(asked, judged) {
            let still_there = record
                .path()
                .filter(|old| (self.at)(old) != FoundAtPath::Nothing);
            let Some(old) = still_there else {
                return match record.kind.is_none() || record.is_file() {
                    true => self.adopt(index, asked, leaf, (uuid, record), judged),
                    false => self.refuse_other_kind(asked, (uuid, record), judged),
                };
            };
            let keep = match has_moved_whole(record, leaf) {
                true => format!(
                    "; if it is a copy that keeps its identity, `setfattr -n {MARK} -v {uuid} {path}`"
                ),
                false => String::new(),
            };
            return judged.refuse(
                &leaf.span,
                format!(
                    "volume \"{}\" has been served as disk {uuid} from {}, which still exists, and \
                     {path} is another file: give its volume another name; to serve it in place of \
                     that disk, {}{keep}",
                    asked.volume,
                    old.display(),
                    self.forget(uuid, record)
                ),
            );
        }
        if let Some((sibling, disk)) = self.in_sibling(asked, leaf) {
            let message = self.elsewhere(
                std::slice::from_ref(leaf),
                &format!("{path} was served as disk {}", disk.0),
                sibling,
                disk,
                "should be a new disk",
            );
            if !leaf.read_only {
                return judged.refuse(&leaf.span, message);
            }
            judged.note(Level::Warn, &leaf.span, message);
        }
        if matches!(
            &leaf.found,
            FoundAtPath::File {
                is_blank: false,
                ..
            }
        ) {
            self.check_nameless(asked, &leaf.span, judged);
        }
        judged.settle(index, Identity::New);
    }

    /// An unrecorded disk with content could be one that version 1 recorded, by name only, under a
    /// name that no volume has now.
    fn check_nameless(&self, asked: &Asked, span: &Range<usize>, judged: &mut Judged) {
        let mut records = self.records.disks.iter();
        let nameless = records.find(|(_, record)| {
            record.kind.is_none() && !self.volumes.0.contains_key(&record.volume)
        });
        if let Some((uuid, record)) = nameless {
            let old = &record.volume;
            judged.refuse(
                span,
                format!(
                    "volume \"{}\" holds data but is not known, and volume \"{old}\", which an older \
                     release served as disk {uuid}, is gone: if this is that disk, call it \"{old}\" \
                     for one start; if not, {}",
                    asked.volume,
                    self.forget(uuid, record)
                ),
            );
        }
    }

    /// Handles a missing or empty file: it may be created, unless a disk was recorded there.
    fn judge_missing(&self, asked: &Asked, leaf: &Leaf, judged: &mut Judged) {
        let may_come = self.may_grow && matches!(asked.kind, DiskKind::Superblocks(_));
        if leaf.found != FoundAtPath::Nothing || may_come {
            return;
        }
        let path = leaf.path.display();
        let at_place = self
            .records
            .disks
            .iter()
            .find(|(uuid, record)| judged.is_free(uuid) && is_at(record, leaf));
        if let Some((uuid, record)) = at_place.or_else(|| self.named(asked, judged)) {
            let old = record.path().filter(|_| !is_at(record, leaf));
            let from = old.map_or(String::new(), |old| format!(" from {}", old.display()));
            let forget = self.forget(uuid, record);
            let otherwise = match asked.kind {
                DiskKind::Superblocks(kind) => format!(
                    "if it is a new child, `sanstone volume grow` adds it; without one that it had, all data of the \
                     {kind} is lost: to create a new one, {forget} and run \
                     `sanstone volume create -c FILE NAME --force`"
                ),
                _ => format!("for a new, blank disk, {forget}"),
            };
            return judged.refuse(
                &leaf.span,
                format!(
                    "{path} is missing or empty, but volume \"{}\" has been served before{from}, as \
                     disk {uuid}: mount its file system or restore the file; {otherwise}",
                    record.volume
                ),
            );
        }
        if let Some((sibling, disk)) = self.in_sibling(asked, leaf) {
            let message = self.elsewhere(
                std::slice::from_ref(leaf),
                &format!(
                    "{path} is missing or empty, but has been served before as disk {}",
                    disk.0
                ),
                sibling,
                disk,
                "should be a new, blank disk",
            );
            judged.refuse(&leaf.span, message);
        }
    }

    fn refuse_other_kind(
        &self,
        asked: &Asked,
        (uuid, record): (&Uuid, &Record),
        judged: &mut Judged,
    ) {
        judged.refuse(
            &asked.span,
            format!(
                "volume \"{}\" has been served as disk {uuid}, which was another kind of volume: give \
                 this one another name; to serve it in place of that disk, {}",
                asked.volume,
                self.forget(uuid, record)
            ),
        );
    }

    /// The record under a volume's name, unless it is already assigned.
    fn named<'a>(&'a self, asked: &Asked, judged: &Judged) -> Option<(&'a Uuid, &'a Record)> {
        let mut records = self.records.disks.iter();
        records.find(|(uuid, record)| {
            record.volume == asked.volume
                && record.kind != Some(DiskKind::Named.word())
                && judged.is_free(uuid)
        })
    }

    /// What a state directory next to ours has recorded for a path. If that directory is of version
    /// 1, which recorded only names, and its configuration is gone, looks for the volume's name.
    fn in_sibling(&self, asked: &Asked, leaf: &Leaf) -> Option<(&Sibling, (&Uuid, &Record))> {
        self.siblings.iter().find_map(|sibling| {
            let mut records = sibling.records.disks.iter();
            let found = records.find(|(_, record)| {
                let is_old = record.kind.is_none() && sibling.is_orphan && self.records.is_new;
                is_at(record, leaf) || is_old && record.volume == asked.volume
            });
            Some((sibling, found?))
        })
    }
}

/// Whether a recorded disk was served from where `leaf` is: at the same path, or at the same path
/// relative to the configuration.
fn is_at(record: &Record, leaf: &Leaf) -> bool {
    let path = leaf.path.to_string_lossy();
    record.paths.iter().any(|recorded| *recorded == path) || has_moved_whole(record, leaf)
}

/// Whether its path relative to the configuration is unchanged: both may have been moved or copied together.
fn has_moved_whole(record: &Record, leaf: &Leaf) -> bool {
    let Some(relative) = &leaf.relative else {
        return false;
    };
    let relative = relative.to_string_lossy();
    record
        .relative_paths
        .iter()
        .any(|recorded| *recorded == relative)
}

fn id_of(found: &FoundAtPath) -> Option<(u64, u64)> {
    match found {
        FoundAtPath::File { id, .. } => Some(*id),
        _ => None,
    }
}
