//! What every kind of volume has to provide: its children, the validation of its settings, and how to open it.

use std::{fmt, ops::Range, sync::Arc};

use engine::LaneFuture;
use toml::Spanned;

use super::{
    Look, Node, VolumeIdentity, Volumes,
    change::{Change, Changing, Step},
};
use crate::{
    Error, ErrorKind, Result,
    part::{Handles, Opening, Part},
    values::{ConfigError, Size},
};

/// The settings of a volume of some kind. Two are equal if they mean the same, wherever in the text they are.
pub(crate) trait Settings: fmt::Debug {
    /// Opens the volume over its children, which are open. Ends with one of the constructors of [`Opening`], which
    /// decides whether each lane gets an instance or one lane is its home.
    fn open<'a>(&'a self, opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>>;

    /// What its disk is recognised by when it is served again: whoever serves it must not take it for another one.
    fn identity(&self) -> VolumeIdentity<'_>;

    /// Whether the data that it keeps itself is gone when the process ends. That of its children does not count.
    fn is_volatile(&self) -> bool;

    /// What becomes of its settings if `new` replace them while it is open. The children are compared by others; here
    /// they are the same.
    fn change(&self, new: &Self) -> Change
    where
        Self: Sized + PartialEq,
    {
        Change::between(self, new)
    }

    /// What becomes of it if its children, which `were` others, are of another number while it is open.
    fn other_number(&self, were: &[Node]) -> Change {
        let _ = were;
        Change::needs_restart()
    }

    /// These settings over the children of `other`; a leaf has none.
    fn over(&self, other: &Self) -> Self
    where
        Self: Sized + Clone,
    {
        let _ = other;
        self.clone()
    }

    /// The step that gives the open volume these settings, if [`Settings::change`] allows that.
    ///
    /// # Errors
    /// When it is not open.
    fn step<'a>(&'a self, changing: Changing<'a>) -> LaneFuture<'a, Result<Box<dyn Step>>> {
        let message = format!("{}: its settings cannot change", changing.path);
        LaneFuture::new(async { Err(Error::new(ErrorKind::Configuration, message)) })
    }

    /// What happens if the child at `index`, the first of the two, becomes another disk, the second, while it is open, after
    /// "volume …: ". `None`: that is impossible.
    fn exchanges(&self, index: usize, nodes: [&Node; 2]) -> Option<String> {
        let _ = (index, nodes);
        None
    }

    /// Why the child at an index, described so, cannot become another disk now, although it [may](Self::exchanges), while the
    /// volume is open at `path`.
    fn bars_exchange(&self, handles: &Handles, path: &str, child: (usize, &str)) -> Option<String> {
        let _ = (handles, path, child);
        None
    }

    /// Whether it gets longer with its children. If not, why, after "it is part of volume …: ".
    fn keeps_length(&self) -> Option<&'static str> {
        None
    }

    /// Its child nodes, in order; a leaf has none.
    fn children(&self) -> &[Node] {
        &[]
    }

    /// Whether the paths of its children have their numbers.
    fn numbers_children(&self) -> bool {
        self.children().len() > 1
    }

    /// Rejects settings that parse but make no sense, without looking at the system.
    ///
    /// # Errors
    /// The first problem, with its place and what to write instead.
    fn check(&self) -> std::result::Result<(), ConfigError> {
        Ok(())
    }

    /// Checks the system for anything that would keep the volume from opening. Nothing is changed, created or locked.
    fn look(&self, _: &mut Look<'_>) {}

    /// What messages call the volume, such as its path; `None`: its kind and children.
    fn describe(&self) -> Option<String> {
        None
    }

    /// For a disk of another machine: who logs in there, and how, for people.
    fn login(&self) -> Option<String> {
        None
    }

    /// The part of the text to point at when it does not open; `None`: all of it.
    fn span(&self) -> Option<Range<usize>> {
        None
    }

    /// The memory that it may use.
    fn memory(&self) -> Option<&Spanned<Size>> {
        None
    }

    /// Whether others may write to its blocks at any time, as far as its kind can tell.
    fn is_shared(&self) -> bool {
        false
    }

    /// The child that other volumes may use at the same time, if it has such a one.
    fn shared_child(&self) -> Option<&Node> {
        None
    }

    /// Refuses a volume that is named here and cannot be what it has to be. All of the names are there.
    ///
    /// # Errors
    /// The first, with its place.
    fn check_named(&self, _volumes: &Volumes) -> std::result::Result<(), ConfigError> {
        Ok(())
    }

    /// Whether it opens although some of its children do not.
    fn stands_without_children(&self) -> bool {
        false
    }

    /// Whether it keeps others from writing to its children.
    fn claims_children(&self) -> bool {
        false
    }

    /// Whether it needs to be the only writer of what is below: it would not notice others' writes.
    fn needs_only_writer(&self) -> bool {
        false
    }
}
