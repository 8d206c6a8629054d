//! The layers between which the time of a commit is split.

use super::super::layers;

/// A layer of a commit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Layer {
    Database,
    /// Layers of the volume on this machine.
    Volume,
    /// Our initiator, where no command of the request has been made yet, or all have been answered.
    Initiator,
    /// A command that waits for the target's window.
    Line,
    Wire,
    Target,
    Medium,
    Untold,
}

impl Layer {
    pub(super) const ALL: [Layer; 8] = [
        Layer::Database,
        Layer::Volume,
        Layer::Initiator,
        Layer::Line,
        Layer::Wire,
        Layer::Target,
        Layer::Medium,
        Layer::Untold,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Layer::Database => super::DATABASE,
            Layer::Volume => layers::VOLUME,
            Layer::Initiator => layers::INITIATOR,
            Layer::Line => "initiator's queue",
            Layer::Wire => layers::WIRE,
            Layer::Target => layers::TARGET,
            Layer::Medium => layers::MEDIUM,
            Layer::Untold => layers::UNTOLD,
        }
    }

    /// The colour class of its bars, chosen so that neighbours are easy to tell apart in light and dark mode.
    pub(super) fn class(self) -> usize {
        match self {
            Layer::Database => 0,
            Layer::Volume => 1,
            Layer::Initiator => 2,
            Layer::Line => 4,
            Layer::Wire => 5,
            Layer::Target => 3,
            Layer::Medium => 6,
            Layer::Untold => 7,
        }
    }

    /// The row of the layers' table that it belongs to.
    pub(super) fn row(self) -> &'static str {
        match self {
            Layer::Line => layers::INITIATOR,
            other => other.name(),
        }
    }
}
