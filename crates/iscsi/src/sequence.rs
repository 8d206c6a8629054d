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

/// The target's side of the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandWindow {
    expected: u32,
    max: u32,
    /// Maximum number of open commands.
    width: u32,
}

impl CommandWindow {
    /// Starts with the CmdSN of the first Login Request.
    pub(crate) fn new(first: u32, width: u16) -> CommandWindow {
        CommandWindow {
            expected: first,
            max: first.wrapping_add(u32::from(width) - 1),
            width: width.into(),
        }
    }

    /// Raises the maximum number of open commands by `by`.
    pub(crate) fn widen(&mut self, by: u16) {
        self.width += u32::from(by);
        self.max = self.max.wrapping_add(by.into());
        self.check();
    }

    /// Whether the window has no room for another command.
    pub(crate) fn is_full(&self) -> bool {
        before(self.max, self.expected)
    }

    /// ExpCmdSN.
    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// MaxCmdSN.
    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    /// Checks a non-immediate command, and advances ExpCmdSN if it is the next one.
    pub(crate) fn admit(&mut self, cmd_sn: u32) -> Admission {
        if before(cmd_sn, self.expected) || before(self.max, cmd_sn) {
            return Admission::Ignored;
        }
        if cmd_sn != self.expected {
            return Admission::Gap;
        }
        self.expected = self.expected.wrapping_add(1);
        Admission::Next
    }

    /// Opens the window by one, because a non-immediate command has ended.
    pub(crate) fn release(&mut self) {
        self.max = self.max.wrapping_add(1);
        self.check();
    }

    /// The invariants: MaxCmdSN is never below ExpCmdSN - 1 (RFC 7143 §4.2.2.1), and nothing is released that was not
    /// admitted.
    fn check(&self) {
        let room = self.max.wrapping_add(1).wrapping_sub(self.expected);
        assert!(room <= self.width, "room for {room} of {}", self.width);
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
        let mut window = CommandWindow::new(u32::MAX, 2);
        assert_eq!(window.max(), 0);
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
        assert_eq!(window.admit(1), Admission::Next);
        window.widen(2);
        assert_eq!((window.max(), window.is_full()), (3, false));
    }
}
