//! Former owners of a mirror, whose claims on the disks of its copies are still there: a set in a copy that is away when the mirror
//! is taken over keeps the claim of then.

use std::{fmt, sync::Arc};

use uuid::Uuid;

/// Finds a former owner in a block that is noted.
type Find = dyn Fn(&[u8]) -> Option<Uuid> + Send + Sync;

/// Tells by what a mirror has noted on a disk who of its former owners that was.
#[derive(Clone)]
pub(crate) struct FormerOwners(Arc<Find>);

impl FormerOwners {
    /// Those that `of` finds in a block that is noted; `None`: the note is of another mirror, or of this one's owner.
    pub(crate) fn new(of: impl Fn(&[u8]) -> Option<Uuid> + Send + Sync + 'static) -> FormerOwners {
        FormerOwners(Arc::new(of))
    }

    /// Whether `owner` had the mirror when it noted `note`, and has it no more.
    pub(crate) fn includes(&self, owner: Uuid, note: &[u8]) -> bool {
        (self.0)(note) == Some(owner)
    }
}

impl fmt::Debug for FormerOwners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FormerOwners")
    }
}
