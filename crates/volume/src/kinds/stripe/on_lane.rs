//! The children of a stripe or concat on one lane. When they have become more, the first request that sees it fetches the
//! others' volumes for its lane. What is in progress goes on with the children that it began with: nothing that it holds is
//! moved or changed.

use std::{cell::OnceCell, sync::Arc};

use super::{
    members::Members,
    place::{PerChild, Run},
};
use crate::{Durability, Error, ErrorKind, Result, SharedVolume};
use engine::Payload;

/// Its children from one moment on, on this lane.
pub(super) struct OnLane {
    pub(super) members: Arc<Members>,
    /// By child index.
    pub(super) children: Vec<SharedVolume>,
    /// What came next.
    longer: OnceCell<Box<OnLane>>,
}

impl OnLane {
    pub(super) fn new(members: Arc<Members>, children: Vec<SharedVolume>) -> OnLane {
        assert_eq!(members.names.len(), children.len(), "one volume each");
        OnLane {
            members,
            children,
            longer: OnceCell::new(),
        }
    }

    /// Those that this lane has, beginning with these.
    fn last(&self) -> &OnLane {
        let mut last = self;
        while let Some(longer) = last.longer.get() {
            last = longer;
        }
        last
    }

    /// Those that there are now, beginning with these. `None`: this lane has yet to [follow](OnLane::followed).
    pub(super) fn newest(&self) -> Option<&OnLane> {
        let last = self.last();
        last.members.longer().is_none().then_some(last)
    }

    /// The same, with what has yet to be fetched.
    ///
    /// # Errors
    /// When the lane of a new child has ended.
    pub(super) async fn followed(&self) -> Result<&OnLane> {
        let mut last = self.last();
        while let Some(longer) = last.members.longer() {
            let mut children = last.children.clone();
            for part in &longer.joined {
                children.push(part.on_lane().await?);
            }
            // Another request may have been faster.
            last.longer
                .get_or_init(|| Box::new(OnLane::new(longer.clone(), children)));
            last = last.last();
        }
        Ok(last)
    }

    /// Checks a child's answer to a read, including its length.
    pub(super) fn checked(
        &self,
        child: usize,
        part: Result<Payload>,
        len: usize,
    ) -> Result<Payload> {
        let part = part.map_err(|error| self.blame(child, error))?;
        if part.len() != len {
            let short = Error::new(
                ErrorKind::Protocol,
                format!("it returned {} bytes instead of {len}", part.len()),
            );
            return Err(self.blame(child, short));
        }
        Ok(part)
    }

    /// Records a child's completed write: unless it is already durable, the next flush has to cover it.
    pub(super) fn wrote(
        &self,
        child: usize,
        result: Result<()>,
        durability: Durability,
    ) -> Result<()> {
        if result.is_err() || durability == Durability::Cached {
            self.members.epochs[child].wrote();
        }
        result.map_err(|error| self.blame(child, error))
    }

    pub(super) fn all_wrote(
        &self,
        runs: &[Run],
        results: PerChild<Result<()>>,
        durability: Durability,
    ) -> Result<()> {
        let mut ended = Ok(());
        for (run, result) in runs.iter().zip(results) {
            let result = self.wrote(run.child, result, durability);
            ended = ended.and(result);
        }
        ended
    }

    pub(super) fn blame(&self, child: usize, error: Error) -> Error {
        error.context(format_args!("{}", self.members.names[child]))
    }
}
