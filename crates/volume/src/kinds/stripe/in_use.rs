//! A stripe or concat that is open, and takes the length that its grown children have while it is used. The order on the disks is
//! that of one that nobody uses ([`grow`](super::grow)): all superblocks say the new length, durably, before anybody is told of
//! it. So no data is behind a length that a start would not find again.

use std::sync::{Arc, Weak};

use super::{
    Child, OpenStripe, WantedLayout,
    grow::{lengthen, usable_bytes},
    map::Map,
    open::StripeState,
    superblock::Layout,
};
use crate::{Error, ErrorKind, Result, announcer::Announcer, kinds::NewLength, part::Part};

/// The handle on an open stripe or concat. What changes it is done one at a time.
#[derive(Clone, Debug)]
pub(crate) struct OpenSet {
    state: Weak<StripeState>,
    /// The children that it was opened with, as they were listed.
    children: Vec<Weak<Part>>,
    announcer: Announcer,
}

impl OpenSet {
    pub(super) fn new(
        opened: &OpenStripe,
        children: &[Arc<Part>],
        announcer: Announcer,
    ) -> OpenSet {
        OpenSet {
            state: Arc::downgrade(&opened.0),
            children: children.iter().map(Arc::downgrade).collect(),
            announcer,
        }
    }

    pub(super) fn announcer(&self) -> &Announcer {
        &self.announcer
    }

    /// Its state, and all its children: as they were listed, and then those that have joined it.
    ///
    /// # Errors
    /// When it is not open.
    pub(super) fn upgrade(&self) -> Result<(Arc<StripeState>, Vec<Arc<Part>>)> {
        let not_open = || Error::new(ErrorKind::Unreachable, "it is not open");
        let state = self.state.upgrade().ok_or_else(not_open)?;
        let children = self.children.iter().map(Weak::upgrade);
        let children: Option<Vec<_>> = children.collect();
        let mut children = children.ok_or_else(not_open)?;
        children.extend(state.members.joined_later());
        Ok((state, children))
    }

    /// The length that its children have room for now, if that is more than it has. Nothing is read for that.
    pub(crate) fn room(&self) -> Option<NewLength> {
        let (state, children) = self.upgrade().ok()?;
        state.claim().and_then(|claim| claim.check()).ok()?;
        let members = state.members.newest();
        let usable = |part: &Arc<Part>| usable_bytes(part.shape(), &state.layout);
        let to_bytes = match &members.map {
            Map::RoundRobin(_) => children.iter().map(usable).min()? * children.len() as u64,
            Map::Sequence(sequence) => {
                let opened_with = self.children.len();
                let last = match children.len() > opened_with {
                    true => children.last()?,
                    false => &children[*state.listed_at().last()?],
                };
                sequence.start(children.len() - 1) + usable(last)
            }
        };
        let from_bytes = state.shape.len_bytes();
        (to_bytes > from_bytes).then_some(NewLength {
            from_bytes,
            to_bytes,
        })
    }

    /// Takes the length that its children have room for now.
    ///
    /// # Errors
    /// When it is not open, or has lost its claim; the error of a child that could not be read or written. It has its old
    /// length then, and the next attempt ends the work.
    pub(crate) async fn lengthen(&self) -> Result<NewLength> {
        let (state, parts) = self.upgrade()?;
        state.claim()?.check()?;
        let from_bytes = state.shape.len_bytes();
        let wanted = match state.layout {
            Layout::Stripe { unit_bytes } => WantedLayout::Stripe(Some(unit_bytes)),
            Layout::Concat => WantedLayout::Concat,
        };
        let members = state.members.newest();
        let mut children = Vec::new();
        for (listed, part) in parts.iter().enumerate() {
            let index = state.listed_at().iter().position(|it| *it == listed);
            children.push(Child {
                name: members.names[index.unwrap_or(listed)].clone(),
                volume: part.on_lane().await?,
            });
        }
        lengthen(&children, wanted).await?;
        let read = OpenStripe::read(&children, wanted, None).await?;
        state.claim()?.check()?;
        match state.layout {
            Layout::Stripe { .. } => state.shape.len.grow(read.shape().len_bytes()),
            // Its map says where the last child ends.
            Layout::Concat => state.extend(&read, Vec::new()),
        }
        let to_bytes = state.shape.len_bytes();
        self.announcer.tell();
        Ok(NewLength {
            from_bytes,
            to_bytes,
        })
    }
}
