//! The error codes of replies, and the violations that end a connection.

/// The errors that a reply can carry. The numbers are those of the specification, independent of any system's errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ErrorCode {
    /// The export is read-only, reserved by another client, or taken over by another owner.
    Permission = 1,
    /// The medium failed.
    Io = 5,
    /// Out of memory.
    Memory = 12,
    /// The request is invalid for this export.
    Invalid = 22,
    /// Out of space.
    NoSpace = 28,
    /// The request is too long.
    Overflow = 75,
    /// The request is not supported.
    Unsupported = 95,
    /// The server is shutting down, or cannot reach the disk.
    Shutdown = 108,
}

/// Why a connection must end: a protocol violation, or a request that only disconnecting can refuse.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// The client sets undefined flags.
    #[error("the client sets unknown flags: {0:#x}")]
    ClientFlags(u32),
    /// An option does not begin with its magic number.
    #[error("an option begins with {0:#018x}: this is not an NBD client")]
    OptionMagic(u64),
    /// A request does not begin with its magic number.
    #[error("a request begins with {0:#010x}: the client has lost its place in the stream")]
    RequestMagic(u32),
    /// The client keeps sending options.
    #[error("the client sent more than {0} options before the transmission phase")]
    TooManyOptions(u32),
    /// NBD_OPT_EXPORT_NAME for an unknown export: the option has no error reply.
    #[error("there is no export called {0:?}; the only one is called {1:?}")]
    NoSuchExport(String, String),
    /// NBD_OPT_EXPORT_NAME before TLS: the option has no error reply.
    #[error("the client asks for the export without TLS, which is required here")]
    WithoutTls,
    /// More data follows than is worth discarding to send a proper error reply.
    #[error("{0} bytes follow, which is more than any client needs to send at once")]
    TooLong(u32),
}
