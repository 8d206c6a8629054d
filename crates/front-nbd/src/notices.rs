//! The kinds of log lines that clients can trigger; each has a rate limit of its own.

/// A kind of log line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum NbdNotice {
    /// A client connected, or left in good order.
    Client,
    /// A connection ended early.
    Trouble,
}

pub(crate) type NbdNotices = front::Notices<NbdNotice>;
