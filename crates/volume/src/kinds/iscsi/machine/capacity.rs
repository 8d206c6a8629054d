//! The size of the blocks of the disk and its length, as it was opened, and what it says of them now. A longer disk is
//! followed. One that has become shorter keeps its length: what lies beyond the end fails, and its data has to be looked at.
//! One whose blocks have another size is neither read nor written, for every address would mean another place.

use super::{Action, Actions, Machine, Subject};
use crate::{
    Error, ErrorKind,
    planted::{Bug, is_planted},
};

/// The geometry of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Geometry {
    pub(in super::super) block_size_bytes: u32,
    pub(in super::super) len_bytes: u64,
}

/// Why the disk is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum GeometryTrouble {
    /// Its blocks have this many bytes now.
    OtherBlocks { was_bytes: u32, is_bytes: u32 },
    /// It is shorter now.
    Shrunk { from_bytes: u64, to_bytes: u64 },
    /// It does not say what it is now.
    Untold,
}

/// The geometry, once the disk is open.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The length is the greatest that it has had.
    geometry: Option<Geometry>,
    trouble: Option<GeometryTrouble>,
}

impl Known {
    pub(super) fn open(&mut self, geometry: Geometry) {
        assert!(self.geometry.is_none(), "a disk is opened once");
        self.geometry = Some(geometry);
    }

    /// The disk does not say what it is now.
    pub(super) fn untold(&mut self, actions: &mut Actions) {
        self.set_trouble(Some(GeometryTrouble::Untold), actions);
    }

    /// What is wrong from now on; the user is told of a trouble once, however often the target repeats its answer.
    fn set_trouble(&mut self, trouble: Option<GeometryTrouble>, actions: &mut Actions) {
        let before = std::mem::replace(&mut self.trouble, trouble);
        actions.extend(
            trouble
                .filter(|_| trouble != before)
                .map(Action::TellGeometry),
        );
    }

    pub(super) fn check(self) {
        assert!(
            self.trouble.is_none() || self.geometry.is_some(),
            "only what was known can have changed"
        );
    }
}

impl Machine {
    /// The disk says that it is this now, in an answer to a question that was asked after so many events. The doubt stays
    /// where nothing may be read or written.
    pub(super) fn measured(&mut self, now: Geometry, events: u64, actions: &mut Actions) {
        let known = &mut self.geometry;
        let Some(was) = &mut known.geometry else {
            return;
        };
        if now.block_size_bytes != was.block_size_bytes && !is_planted(Bug::OtherBlocksTaken) {
            let trouble = GeometryTrouble::OtherBlocks {
                was_bytes: was.block_size_bytes,
                is_bytes: now.block_size_bytes,
            };
            return known.set_trouble(Some(trouble), actions);
        }
        let (from_bytes, to_bytes) = (was.len_bytes, now.len_bytes);
        if to_bytes > from_bytes {
            was.len_bytes = to_bytes;
            actions.push(Action::Grow(to_bytes));
        }
        let shrunk = GeometryTrouble::Shrunk {
            from_bytes,
            to_bytes,
        };
        known.set_trouble((to_bytes < from_bytes).then_some(shrunk), actions);
        self.subject_mut(Subject::Capacity).settle(events);
    }

    /// The size of its blocks, once the disk is open.
    pub(in super::super) fn block_size_bytes(&self) -> Option<u32> {
        self.geometry
            .geometry
            .map(|geometry| geometry.block_size_bytes)
    }

    /// Refuses everything while its blocks have another size.
    pub(in super::super) fn check_blocks(&self) -> Result<(), Error> {
        match self.geometry.trouble {
            Some(trouble @ GeometryTrouble::OtherBlocks { .. }) => {
                Err(Error::new(ErrorKind::Configuration, trouble.to_string()))
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for GeometryTrouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GeometryTrouble::OtherBlocks {
                was_bytes,
                is_bytes,
            } => write!(
                f,
                "the disk has blocks of {is_bytes} bytes now, and had blocks of {was_bytes}: restore their size, or open \
                 the volume again (restart sanstone)"
            ),
            GeometryTrouble::Shrunk {
                from_bytes,
                to_bytes,
            } => write!(
                f,
                "the disk has shrunk to {to_bytes} bytes from {from_bytes}: restore its size and check the data"
            ),
            GeometryTrouble::Untold => f.write_str(
                "the disk may have changed, but its capacity and block size cannot be read",
            ),
        }
    }
}
