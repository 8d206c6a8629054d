//! When the access states of the target ports are asked for (ALUA, SPC-4 5.15): when the target reports a change, when
//! there are sessions and none of them may be used, and from time to time while a target port is not optimal.

use engine::Duration;

use super::{Action, Actions, Machine};

/// Interval between two queries of a target that lets no path be used.
const ACCESS_PAUSE: Duration = Duration::from_secs(1);
/// Interval between two access-state queries while some target ports are not optimal. A target announces a state
/// change with the commands that come through the affected port (LIO: only there), and an unused port carries none.
const ACCESS_INTERVAL: Duration = Duration::from_secs(10);

/// The queries under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AccessWatch {
    is_asked: bool,
    /// They are repeated from time to time.
    is_watched: bool,
}

impl Machine {
    /// The access states may have changed.
    pub(super) fn doubt_access(&mut self, actions: &mut Actions) {
        if !std::mem::replace(&mut self.paths.access.is_asked, true) {
            actions.push(Action::AskAccess);
        }
    }

    /// Every path was asked.
    pub(super) fn access_asked(&mut self, actions: &mut Actions) {
        assert!(self.paths.access.is_asked, "an answer follows a question");
        let is_known = self.is_any_usable() || !self.is_any_live();
        if !is_known && !self.is_at_rest() {
            actions.push(Action::AskAccessAgainIn(ACCESS_PAUSE));
            return;
        }
        self.paths.access.is_asked = false;
        if !self.paths.access.is_watched {
            self.watch_access(actions);
        }
    }

    /// It is time to ask again.
    pub(super) fn access_due(&mut self, actions: &mut Actions) {
        self.doubt_access(actions);
        self.watch_access(actions);
    }

    fn watch_access(&mut self, actions: &mut Actions) {
        self.paths.access.is_watched = !self.is_at_rest() && self.wants_better_access();
        if self.paths.access.is_watched {
            actions.push(Action::WatchAccess(ACCESS_INTERVAL));
        }
    }
}
