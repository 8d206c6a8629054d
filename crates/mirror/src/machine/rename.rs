//! New names for all operations, in their order: for an exploration, states that differ in names alone are one.

use super::Mirror;
use crate::op::OpId;

impl Mirror {
    /// Renames the operations that this machine knows. Returns their old names; the new ones are [`OpId::nth`].
    ///
    /// # Panics
    /// If there are actions that were not selected.
    pub fn rename(&mut self) -> Vec<OpId> {
        assert!(self.actions.is_empty(), "actions carry names");
        let mut ids: Vec<&mut OpId> = Vec::new();
        for work in &mut self.works {
            ids.push(&mut work.id);
            ids.extend(&mut work.data);
            ids.extend(work.sent.iter_mut().map(|(_, id)| id));
            ids.extend(work.compared.iter_mut().map(|(_, id)| id));
        }
        for member in &mut self.members {
            ids.extend(&mut member.proof);
            ids.extend(member.keeping.iter_mut().map(|(id, _)| id));
            ids.extend(member.bitmap.ids());
        }
        let mut old: Vec<OpId> = ids.iter().map(|id| **id).collect();
        old.sort_unstable();
        old.dedup();
        for id in ids {
            *id = OpId::nth(old.partition_point(|one| *one < *id));
        }
        self.next = old.len() as u64;
        old
    }
}

impl OpId {
    /// The new name of the operation whose old one was returned at `index`.
    pub fn nth(index: usize) -> OpId {
        OpId(index as u64 + 1)
    }
}
