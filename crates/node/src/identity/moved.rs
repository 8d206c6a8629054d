//! What happened to recorded files while nobody served them: files that have become shorter, and files that have changed
//! places.

use uuid::Uuid;

use super::{Asked, FoundAtPath, IdentityContext, Judged, Leaf, is_at};
use crate::record::Record;

impl IdentityContext<'_> {
    /// Refuses marked files that have exchanged their places while the configuration stayed as it was: each volume
    /// would be another disk for its initiators. If one of them has a new name or path, the configuration was edited.
    pub(super) fn check_exchanged(&self, all: &[Asked], judged: &mut Judged) {
        // The volume whose file is now the disk that was served as volume `index` from the same path.
        let next = |judged: &Judged, index: usize| {
            let leaf = all[index].leaves.first()?;
            let mut records = self.records.disks.iter();
            let (uuid, _) = records.find(|(uuid, record)| {
                let is_taken = judged.taken.contains_key(uuid) && record.is_file();
                is_taken && record.volume == all[index].volume && is_at(record, leaf)
            })?;
            judged.taken.get(uuid).copied()
        };
        for first in 0..all.len() {
            let mut others = Vec::new();
            let mut at = next(judged, first);
            while let Some(index) = at.filter(|index| *index != first && !others.contains(index)) {
                others.push(index);
                at = next(judged, index);
            }
            let is_lowest = others.iter().all(|other| *other > first);
            let (Some(other), Some(leaf)) = (others.first(), all[first].leaves.first()) else {
                continue;
            };
            if at != Some(first) || !is_lowest {
                continue;
            }
            let names = others.iter().map(|other| all[*other].volume.as_str());
            let names: Vec<_> = [all[first].volume.as_str()]
                .into_iter()
                .chain(names)
                .collect();
            let names = names.join("\", \"");
            let now = all[*other].leaves.first().unwrap_or(leaf).path.display();
            judged.refuse(
                &leaf.span,
                format!(
                    "the files of volumes \"{names}\" have changed places: the disk that volume \"{}\" \
                     served from {} is in {now} now, where volume \"{}\" was; move the files back, or \
                     write where each disk is now as the `path` of its volume",
                    all[first].volume,
                    leaf.path.display(),
                    all[*other].volume
                ),
            );
        }
    }

    /// A disk never shrinks: its file must be as long as it was, or longer.
    pub(super) fn check_length(
        &self,
        leaf: &Leaf,
        (uuid, record): (&Uuid, &Record),
        judged: &mut Judged,
    ) {
        let FoundAtPath::File { len_bytes, .. } = &leaf.found else {
            return;
        };
        if let Some(bytes) = record.bytes.filter(|bytes| len_bytes < bytes) {
            let message = format!(
                "{} has {len_bytes} bytes, but disk {uuid} had {bytes} when it was last served, as \
                 volume \"{}\", and a disk never shrinks: restore the file from a copy; if it is meant \
                 to be shorter, and its end may be lost, {}",
                leaf.path.display(),
                record.volume,
                self.records.forget_length(uuid, bytes)
            );
            judged.refuse(&leaf.span, message);
        }
    }
}
