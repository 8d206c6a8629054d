//! Warns when a new disk is made while the file of a recorded one is missing, as that one may have
//! been meant. Also reports another configuration that uses the same state directory.

use uuid::Uuid;

use super::{Identity, IdentityContext, Judged, Level};
use crate::{
    record::{DiskKind, Record},
    survey::{Asked, FoundAtPath},
};

impl IdentityContext<'_> {
    /// If a new disk is about to be created, names the recorded disks whose files are missing: if a
    /// volume and its file are both renamed, it looks like this.
    pub(super) fn note_orphans(&self, all: &[Asked], judged: &mut Judged) {
        let is_new = |index: &usize| judged.identities.get(index) == Some(&Identity::New);
        let Some(asked) = (0..all.len())
            .filter(is_new)
            .map(|index| &all[index])
            .find(|asked| asked.kind == DiskKind::File)
        else {
            return;
        };
        let Some(leaf) = asked.leaves.first() else {
            return;
        };
        let records = self.records.disks.iter();
        let orphans = records.filter(|(uuid, record)| {
            let gone = record
                .path()
                .filter(|old| (self.at)(old) == FoundAtPath::Nothing);
            record.is_file() && judged.is_free(uuid) && gone.is_some()
        });
        let orphans: Vec<_> = orphans.collect();
        for (uuid, record) in orphans {
            let old = record.path().unwrap_or(&leaf.path).display();
            let (new, path) = (&asked.volume, leaf.path.display());
            let text = format!(
                "volume \"{new}\" is a new disk, and a recorded one is gone: disk {uuid} (serial \
                 number {}), which was served as volume \"{}\" from {old}; if \"{new}\" should be that \
                 disk, stop, remove the new {path} if it is blank, and set `path` to where the file of \
                 disk {uuid} is now, or move it back to {old}",
                uuid.simple(),
                record.volume
            );
            judged.note(Level::Warn, &leaf.span, text);
        }
    }

    /// Reports that another configuration uses the same state directory.
    pub(super) fn note_sharer(&self, all: &[Asked], judged: &mut Judged) {
        if let (Some(other), Some(asked)) = (self.sharer, all.first()) {
            let text = format!(
                "the state directory {} is also used by {}, which still exists: the two would confuse \
                 each other's disks, reservations and volume names; {}",
                self.state.display(),
                other.display(),
                self.own_state()
            );
            judged.note(Level::Warn, &asked.span, text);
        }
    }

    /// The remedy that makes this configuration independent of a recorded disk. A disk that another
    /// configuration may be serving must not be forgotten.
    pub(super) fn forget(&self, uuid: &Uuid, record: &Record) -> String {
        match self.sharer {
            Some(other) => format!(
                "{} ({} is also used by {})",
                self.own_state(),
                self.state.display(),
                other.display()
            ),
            None => self.records.forget(uuid, record),
        }
    }

    fn own_state(&self) -> &'static str {
        "give this configuration a state directory of its own: write another state = \"…\" above its \
         first [table]"
    }
}
