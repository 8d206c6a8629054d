//! The kinds of log lines that peers can trigger; each has a rate limit of its own.

/// A kind of log line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum IscsiNotice {
    /// A connection did not log in in time.
    TooSlow,
    /// A login was refused, or abandoned by the initiator.
    Refused,
    /// An initiator failed authentication.
    Unproven,
    /// A peer broke the protocol.
    Broken,
    /// A session began.
    LoggedIn,
    /// A session ended.
    LoggedOut,
    /// I/O of a session that has ended hangs.
    Hung,
}

pub(crate) type IscsiNotices = front::Notices<IscsiNotice>;
