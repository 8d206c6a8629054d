//! The open remote disks of a graph, so that they can be asked again for what may have changed at their targets: not every
//! target says so by itself.

use std::sync::{Arc, Weak};

use engine::{Duration, task, time};

use super::late::KeptDisk;
use crate::part::Resident;

type Home = Resident<KeptDisk>;

/// The open disks; those no longer in use drop out.
#[derive(Debug, Default)]
pub(crate) struct Remotes {
    all: Vec<Weak<Home>>,
}

impl Remotes {
    pub(super) fn add(&mut self, disk: &Arc<Home>) {
        self.all.retain(|disk| disk.strong_count() > 0);
        self.all.push(Arc::downgrade(disk));
    }

    /// Asks all of them, for `limit` at most. Returns a message for each change.
    pub(crate) async fn look_again(&self, limit: Duration) -> Vec<String> {
        let open = self.all.iter().filter_map(Weak::upgrade);
        let asked = open.map(|disk| {
            let asked = disk.call(|kept: KeptDisk| async move {
                Ok(match kept.disk() {
                    Some(disk) => disk.look_again().await,
                    None => None,
                })
            });
            Box::pin(time::timeout(limit, asked))
        });
        let told = task::join_all(asked).await.into_iter();
        told.filter_map(|told| told?.ok()?).collect()
    }
}
