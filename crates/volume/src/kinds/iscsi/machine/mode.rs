//! What the mode parameters of the disk say (SPC-4 7.5, SBC-3 6.4.5), when it was opened and now. A disk that was opened as
//! one without a volatile write cache is never flushed, so a cache that appears later fails its writes and flushes; the rest
//! is followed.

use super::{Action, Actions, Machine};

/// What the disk says in its mode parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Mode {
    /// It has a volatile write cache (WCE).
    pub(in super::super) is_volatile: bool,
    /// It is write-protected (WP).
    pub(in super::super) is_protected: bool,
    /// A write with FUA is durable when it is done (DPOFUA).
    pub(in super::super) takes_fua: bool,
}

impl Mode {
    /// What is assumed of a disk that does not say.
    pub(in super::super) const UNTOLD: Mode = Mode {
        is_volatile: true,
        is_protected: false,
        takes_fua: false,
    };
}

/// The mode parameters, once the disk is open.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Modes {
    at_first: Option<Mode>,
    now: Option<Mode>,
    has_found_cache: bool,
}

impl Modes {
    pub(super) fn open(&mut self, mode: Mode) {
        assert!(self.at_first.is_none(), "a disk is opened once");
        (self.at_first, self.now) = (Some(mode), Some(mode));
    }

    /// The disk says this now. Before it is open, that is for whoever opens it.
    pub(super) fn tell(&mut self, mode: Mode, actions: &mut Actions) {
        let Some(before) = self.now.replace(mode) else {
            self.now = None;
            return;
        };
        if self.writes_through() && mode.is_volatile && !self.has_found_cache {
            self.has_found_cache = true;
            actions.push(Action::RefuseWrites);
        }
        if before != mode {
            actions.push(Action::Follow(mode));
        }
    }

    /// What was written so far matters to nobody any more, as its owner looks at all of it.
    pub(super) fn begin_anew(&mut self, actions: &mut Actions) {
        let is_volatile = self.now.is_some_and(|mode| mode.is_volatile);
        if self.has_found_cache && !is_volatile {
            self.has_found_cache = false;
            actions.push(Action::TakeWrites);
        }
    }

    fn writes_through(self) -> bool {
        self.at_first.is_some_and(|mode| !mode.is_volatile)
    }

    pub(super) fn check(self) {
        assert_eq!(
            self.at_first.is_some(),
            self.now.is_some(),
            "it is told from its opening on"
        );
        assert!(
            !self.has_found_cache || self.writes_through(),
            "a cache that was there is flushed"
        );
    }
}

impl Machine {
    /// What the disk says now; before it is open, what is assumed of one that does not say.
    pub(in super::super) fn mode(&self) -> Mode {
        self.modes.now.unwrap_or(Mode::UNTOLD)
    }

    /// Whether a volatile write cache has appeared that is not flushed.
    pub(in super::super) fn has_found_cache(&self) -> bool {
        self.modes.has_found_cache
    }

    /// Whether the disk was opened as one without a volatile write cache, which is not flushed.
    pub(in super::super) fn writes_through(&self) -> bool {
        self.modes.writes_through()
    }
}
