//! The kinds of requests that are counted, and whose failures are told.

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RequestKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards and writes of zeroes.
    Discard,
}

impl RequestKind {
    /// Every kind.
    pub const ALL: [RequestKind; 4] = [
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::Flush,
        RequestKind::Discard,
    ];

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Read => "read",
            RequestKind::Write => "write",
            RequestKind::Flush => "flush",
            RequestKind::Discard => "discard",
        }
    }
}
