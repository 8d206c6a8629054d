//! What most events are: of one request, to a mirror that is as it shall be. Then all rules but those for that request say what
//! they said before, and are not asked: for each event they would look at all the requests that are under way.

use super::{CopyStanding, Mirror, MirrorPhase, work::OperationKind};
use crate::planted::is_every_rule_checked;

impl Mirror {
    /// Whether nothing happens but requests.
    fn is_steady(&self) -> bool {
        let is_settled =
            |standing: &CopyStanding| matches!(standing, CopyStanding::InSync | CopyStanding::Out);
        self.phase == MirrorPhase::Serving
            && self.swap.is_none()
            && self.failed.is_empty()
            && self.doubts.is_empty()
            && self.members.iter().all(|it| is_settled(&it.standing))
    }

    /// An event of the work at `at` alone has come, after which the rules have nothing else to do.
    pub(super) fn run_rules_for(&mut self, at: usize) {
        let is_request = matches!(
            self.works[at].kind,
            OperationKind::Read(_) | OperationKind::Write
        );
        if !is_request || !self.is_steady() {
            return self.run_rules();
        }
        let is_read = self.works[at].is_read();
        let needed = self.needed_by_writes();
        if !self.works[at].has_begun && !self.is_held_up(at) {
            self.begin(at);
        }
        if self.works[at].has_begun && !self.works[at].waits(needed) {
            self.advance(at);
        }
        if !self.works[at].unsent.is_empty() {
            self.mark();
        }
        if self.works[at].is_over() {
            if let Some(work) = self.works.remove(at) {
                work.release(&mut self.actions);
            }
            if self.works.iter().any(|work| !work.has_begun) {
                return self.run_rules();
            }
        }
        if is_read {
            self.prove();
        }
        self.check_rules();
    }

    /// The rules have nothing to do, where [that is checked](crate::planted::check_every_rule).
    fn check_rules(&self) {
        if is_every_rule_checked() {
            let mut other = self.clone();
            other.run_rules();
            assert_eq!(
                (&other.works, &other.actions),
                (&self.works, &self.actions),
                "a rule was not asked that has something to do"
            );
        }
    }
}
