//! Read-only copies beside their originals, such as a snapshot that is shown for a backup. The copy carries the mark of its
//! original, which nobody can remove from it. It is a disk of its own, and its identity derives from the mark and from
//! where it is, so that it stays the same without being written anywhere.

use uuid::Uuid;

use super::{Identity, IdentityContext, Judged, Level, id_of};
use crate::survey::{FoundAtPath, Leaf, SurveyMark, derived};

impl IdentityContext<'_> {
    /// Whether `leaf`, marked as disk `mark`, is a read-only copy of that disk: the disk itself is among `others` or still
    /// where it was served from, or the copy has been served as one before.
    pub(super) fn is_snapshot<'a>(
        &self,
        mut others: impl Iterator<Item = &'a Leaf>,
        leaf: &Leaf,
        mark: Uuid,
    ) -> bool {
        let is_other = |found: &FoundAtPath| {
            matches!(found, FoundAtPath::File { mark: SurveyMark::Disk(it), .. } if *it == mark)
                && id_of(found) != id_of(&leaf.found)
        };
        let is_beside = |other: &Leaf| !other.read_only && is_other(&other.found);
        if !leaf.read_only {
            return false;
        }
        let recorded = self
            .records
            .disks
            .get(&mark)
            .and_then(|record| record.path());
        others.any(is_beside)
            || recorded.is_some_and(|path| is_other(&(self.at)(path)))
            || self.records.disks.contains_key(&identity_of(leaf, mark))
    }

    /// Makes `leaf`, a read-only copy of disk `mark`, a disk of its own.
    pub(super) fn take_snapshot(&self, index: usize, leaf: &Leaf, mark: Uuid, judged: &mut Judged) {
        let own = identity_of(leaf, mark);
        let path = leaf.path.display();
        judged.note(
            Level::Info,
            &leaf.span,
            format!(
                "{path} is a read-only copy of disk {mark}: it is served as disk {own}, its own"
            ),
        );
        judged.copies.insert(index);
        judged.settle(index, Identity::Known(own));
    }
}

/// The identity of a read-only copy of disk `mark`.
fn identity_of(leaf: &Leaf, mark: Uuid) -> Uuid {
    let path = leaf.path.to_string_lossy();
    derived(&["read-only copy", &mark.to_string(), &path])
}
