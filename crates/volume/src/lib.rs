//! Volumes: the [`Volume`] trait with its contract, the layers and leaves that implement it, and the graph that
//! builds a tree of them from the configuration.
//!
//! A leaf holds data (`ram`, `file`) or accesses it elsewhere (`iscsi`). A layer is a volume made of volumes
//! (`stripe`, `cache`, `throttle`, …). Only the table in `kinds/mod.rs` knows every kind.
//!
//! Each module depends only on those below it:
//!
//! ```text
//! graph, config    opens the volumes of a configuration; re-exports everything that a configuration contains
//! kinds            every kind of volume with its settings, and the tree of nodes that they form
//! part             an open node of the tree, on every lane or at home on one
//! stats            the request counters of a node
//! layers           accounts for where the time of a request goes, if it is watched
//! trace            the timeline of a traced request
//! volume, values   the trait and its contract; the value types of settings, and their error messages
//! member, claim    what a set asks of its members, such as a stripe of its children; who owns them
//! floor            which keys a mirror's copy lets in
//! copy_end         where on a disk that is found
//! ```

mod announcer;
pub mod claim;
pub mod config;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod copy_end;
mod error;
pub(crate) mod failing;
pub mod fallback;
pub mod floor;
mod flush_epochs;
mod flush_failure;
pub mod graph;
pub mod histogram;
pub mod inspect;
pub mod kinds;
pub mod layers;
mod len;
mod local_claim;
mod local_fence;
#[cfg(test)]
mod measure;
pub mod member;
mod part;
mod pass_on;
pub mod pending;
pub mod planted;
mod read_only;
mod request_kind;
#[cfg(test)]
mod scratch;
#[cfg(test)]
mod seam_tests;
pub mod stats;
#[cfg(test)]
mod test_volume;
mod trace;
mod values;
mod volume;

/// Within this time of its begin and of its end a trouble is shown, and shown no more, by whoever is asked: that is promised to
/// users. The limits on which it depends are bound to it where they are set.
pub const SHOWN_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);

pub use claim::{Claim, SetClaim};
pub use error::{Advice, Error, ErrorKind, Result};
pub use failing::RequestFailure;
pub use kinds::iscsi::{
    DiskIdentity, IscsiConfig, IscsiDisk, Multipath, PathConfig, PathCounts, Policy, Secrets,
    Sessions, Transport, discovery, luns, next_isid,
};
#[cfg(any(test, feature = "testing"))]
pub use kinds::{file::recorder, iscsi::foreign};
pub use len::Len;
pub use read_only::ReadOnly;
pub use volume::{
    Allocation, AtomicWrites, CompareOutcome, Discard, Durability, Shape, SharedVolume, Volume,
};

pub use kinds::{
    cache,
    mirror::{Compared as ComparedCopies, CopyStatus, MirrorHandle, MirrorStatus},
    stripe,
};

/// Kinds that hold data.
pub mod leaf {
    pub use crate::kinds::{file, ram};
}

/// Kinds that are made of another volume.
pub mod layer {
    pub use crate::{
        kinds::{fault, throttle},
        stats,
    };
}
