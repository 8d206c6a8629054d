//! What a kind of volume has to answer: what it is made of, what is wrong with its settings, and how
//! a volume of it is opened.

use std::{fmt, ops::Range, sync::Arc};

use engine::LaneFuture;
use toml::Spanned;

use super::{Look, Node};
use crate::{
    Result,
    part::{Opening, Part},
    values::{ConfigError, Size},
};

/// The settings of a volume of some kind. Two are equal when they mean the same, wherever in the text
/// they are.
pub(crate) trait Settings: fmt::Debug {
    /// Opens the volume over its children, which are open. One of the last three methods of
    /// [`Opening`] says whether each lane gets an instance or one lane is its home.
    fn open<'a>(&'a self, opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>>;

    /// The nodes it is made of, in order; a leaf has none.
    fn children(&self) -> &[Node] {
        &[]
    }

    /// Refuses what parses and cannot be meant, without a look at the system.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place and what to write instead.
    fn check(&self) -> std::result::Result<(), ConfigError> {
        Ok(())
    }

    /// Looks at the system for what would keep the volume from opening. Nothing is changed, made or
    /// locked.
    fn look(&self, _: &mut Look<'_>) {}

    /// What messages call the volume, as its path; without, its kind and what it is made of.
    fn describe(&self) -> Option<String> {
        None
    }

    /// Where in the text to point when it does not open; without, at all of it.
    fn span(&self) -> Option<Range<usize>> {
        None
    }

    /// The memory that it may fill.
    fn memory(&self) -> Option<&Spanned<Size>> {
        None
    }

    /// Whether others may write to its blocks at any time, as far as its kind can tell.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether it keeps others from writing to what it is made of.
    fn claims_children(&self) -> bool {
        false
    }

    /// Whether what is below has to be its own: it would not see what others write there.
    fn needs_only_writer(&self) -> bool {
        false
    }

    /// Whether what it holds is gone when the process ends.
    fn is_volatile(&self) -> bool {
        false
    }
}
