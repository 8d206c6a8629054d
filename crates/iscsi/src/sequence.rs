//! Serial number arithmetic and the command window (RFC 7143 §4.2.2.1): 32-bit numbers that wrap around and are
//! compared by the sign of their difference.

/// Whether `a` comes before `b`.
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// How a target treats a non-immediate command with a given CmdSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is the next expected command.
    Next,
    /// Outside the window, or a duplicate: silently ignored.
    Ignored,
    /// Inside the window, but earlier commands are missing. On the only connection of a session they can no longer
    /// arrive.
    Gap,
}

/// The target's side of the window. MaxCmdSN moves on when it is [shown](CommandWindow::show) to the initiator, as far as
/// there is room for open commands and for what the commands that have not arrived may bring unasked. It never moves back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandWindow {
    expected: u32,
    /// MaxCmdSN, as last shown.
    max: u32,
    /// Maximum number of open commands.
    width: u32,
    /// The number of open commands.
    open: u32,
    /// Maximum number of commands that have not arrived; `None`: whatever the width permits.
    promised: Option<u32>,
}

impl CommandWindow {
    /// Starts with the CmdSN of the first Login Request.
    pub(crate) fn new(first: u32, width: u16, promised: Option<u32>) -> CommandWindow {
        let mut window = CommandWindow {
            expected: first,
            max: first.wrapping_sub(1),
            width: width.into(),
            open: 0,
            promised,
        };
        window.show();
        window
    }

    /// Raises the maximum number of open commands by `by`.
    pub(crate) fn widen(&mut self, by: u16) {
        self.width += u32::from(by);
    }

    /// Raises the maximum number of commands that have not arrived, if there is one.
    pub(crate) fn promise(&mut self, by: u32) {
        self.promised = self.promised.map(|promised| promised.saturating_add(by));
    }

    /// The maximum number of commands that have not arrived, if there is one.
    pub(crate) fn promised(&self) -> Option<u32> {
        self.promised
    }

    /// Whether as many commands are open as may be.
    pub(crate) fn is_full(&self) -> bool {
        self.open == self.width
    }

    /// Whether the initiator has used up what it was shown, and there is more.
    pub(crate) fn is_to_be_shown(&self) -> bool {
        before(self.max, self.expected) && self.room() > 0
    }

    /// ExpCmdSN.
    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// MaxCmdSN, which the initiator is about to see.
    pub(crate) fn show(&mut self) -> u32 {
        let max = self.expected.wrapping_add(self.room()).wrapping_sub(1);
        if before(self.max, max) {
            self.max = max;
        }
        self.max
    }

    /// How many more commands may arrive.
    fn room(&self) -> u32 {
        let room = self.width - self.open;
        self.promised.map_or(room, |promised| room.min(promised))
    }

    /// Checks a non-immediate command, and advances ExpCmdSN if it is the next one.
    pub(crate) fn admit(&mut self, cmd_sn: u32) -> Admission {
        if cmd_sn == self.expected && before(self.max, cmd_sn) && self.room() > 0 {
            // There is room by now, only nobody was told yet: some initiators do not wait for that.
            self.max = cmd_sn;
        }
        if before(cmd_sn, self.expected) || before(self.max, cmd_sn) {
            return Admission::Ignored;
        }
        if cmd_sn != self.expected {
            return Admission::Gap;
        }
        self.expected = self.expected.wrapping_add(1);
        self.open += 1;
        if let Some(promised) = &mut self.promised {
            *promised -= 1;
        }
        // MaxCmdSN is never below ExpCmdSN - 1 (RFC 7143 §4.2.2.1), and nothing arrives that was not promised.
        assert!(self.open <= self.width, "{} of {}", self.open, self.width);
        Admission::Next
    }

    /// A non-immediate command has ended.
    pub(crate) fn release(&mut self) {
        assert!(self.open > 0, "nothing ends that was not admitted");
        self.open -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_across_the_wrap() {
        assert!(before(u32::MAX, 0) && before(0, 1) && !before(0, u32::MAX) && !before(5, 5));
    }

    #[test]
    fn the_window_ignores_what_lies_outside_and_finds_gaps() {
        let mut window = CommandWindow::new(u32::MAX, 2, None);
        assert_eq!(window.show(), 0);
        assert_eq!(window.admit(1), Admission::Ignored);
        assert_eq!(window.admit(u32::MAX - 1), Admission::Ignored);
        assert_eq!(window.admit(0), Admission::Gap);
        assert_eq!(window.admit(u32::MAX), Admission::Next);
        assert_eq!(window.admit(u32::MAX), Admission::Ignored);
        assert_eq!(window.admit(0), Admission::Next);
        assert_eq!(
            (window.expected(), window.admit(1)),
            (1, Admission::Ignored)
        );
        assert!(window.is_full());
        window.release();
        assert!(window.is_to_be_shown());
        assert_eq!(window.admit(2), Admission::Ignored, "it is not the next");
        assert_eq!(window.admit(1), Admission::Next, "there is room");
        assert_eq!(window.admit(2), Admission::Ignored, "there is none");
        window.release();
        assert!(window.is_to_be_shown(), "nobody was told");
        assert_eq!(window.show(), 2);
        window.widen(2);
        assert_eq!((window.show(), window.is_full()), (4, false));
    }

    #[test]
    fn the_window_narrows_to_what_was_promised_and_never_moves_back() {
        let mut window = CommandWindow::new(1, 8, Some(2));
        assert_eq!(window.show(), 2);
        assert_eq!(window.admit(1), Admission::Next);
        assert_eq!(window.promised(), Some(1));
        assert_eq!(window.show(), 2, "there is room for no more");
        assert_eq!(window.admit(2), Admission::Next);
        assert!(!window.is_to_be_shown() && !window.is_full());
        assert_eq!(window.show(), 2);
        assert_eq!(window.admit(3), Admission::Ignored);
        window.release();
        assert_eq!(window.show(), 2, "an end alone makes no room");
        window.promise(3);
        assert!(window.is_to_be_shown());
        assert_eq!(window.show(), 5);
        window.promise(100);
        assert_eq!(window.show(), 9, "7 beside the open one");
    }
}
