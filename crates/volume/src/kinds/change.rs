//! What a new configuration changes about a volume that stays open. Each kind says in its own folder which of its settings
//! may change while it is used, and how; [`graph`](crate::graph) applies that to trees.

use std::{fmt, sync::Arc};

use engine::LaneFuture;

use crate::{
    Result,
    part::{Handles, Part},
    values::Size,
};

/// What becomes of the settings of an open volume, apart from its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// They stay.
    None,
    /// It gets longer.
    Growth {
        /// Its size.
        from: Size,
        /// Its new size.
        to: Size,
    },
    /// Its users do not notice it. What changes, after "volume …: ".
    Live(Vec<String>),
    /// It is not possible while the volume is used. Why, and what to do instead, after "volume …: ".
    Refused(String),
}

impl Change {
    /// The change between settings of which none may change.
    pub(crate) fn between<S: PartialEq>(old: &S, new: &S) -> Change {
        match old == new {
            true => Change::None,
            false => Change::needs_restart(),
        }
    }

    /// No change of an open volume.
    pub(crate) fn needs_restart() -> Change {
        let why = "these settings cannot change while it is served: restart to apply them";
        Change::Refused(why.to_owned())
    }
}

/// A change of an open volume, in two phases: everything that may fail, and then what others can see.
pub(crate) trait Step: fmt::Debug {
    /// Does what may fail, unseen by users of the volume.
    ///
    /// # Errors
    /// Why the volume cannot change. [`Step::undo`] is still called.
    fn prepare(&self) -> LaneFuture<'_, Result<()>>;

    /// Puts the new settings into use, without delay.
    fn take_effect(&self) -> LaneFuture<'_, ()>;

    /// Waits, after [`Step::take_effect`], until nothing is left of the old settings. Returns warnings for the user.
    fn finish(&self) -> LaneFuture<'_, Vec<String>> {
        LaneFuture::new(async { Vec::new() })
    }

    /// Takes back what was prepared, instead of [`Step::take_effect`].
    fn undo(&self) -> LaneFuture<'_, ()>;
}

/// Access to an open volume that is to be changed.
#[derive(Clone, Debug)]
pub(crate) struct Changing<'a> {
    pub(crate) handles: &'a Handles,
    /// The path of kinds, starting with the volume's name.
    pub(crate) path: &'a str,
    /// The other disk that one of its children becomes, where [it may](crate::kinds::Settings::exchanges).
    pub(crate) other_child: Option<OtherChild>,
    /// The children, which are open, that follow those that it has, where [they may](crate::kinds::Settings::other_number).
    pub(crate) more_children: Vec<Arc<Part>>,
}

/// Another disk in the place of a child.
#[derive(Clone, Debug)]
pub(crate) struct OtherChild {
    /// Which child.
    pub(crate) index: usize,
    /// What the old one is called in the configuration.
    pub(crate) was: String,
    /// The new one, which is open.
    pub(crate) part: Arc<Part>,
}

impl<'a> Changing<'a> {
    /// The outside handle on the volume.
    pub(crate) fn handle<H: 'static>(&self) -> Option<&'a H> {
        self.handles.get(self.path)
    }
}
