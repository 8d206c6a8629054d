//! What a reply says when a request failed, and what ends a connection.

/// The errors that a reply may have; the numbers are the specification's and those of no system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ErrorCode {
    /// The export takes no writes, or somebody else has it reserved.
    Permission = 1,
    /// The medium failed.
    Io = 5,
    /// There is no memory.
    Memory = 12,
    /// The request makes no sense here.
    Invalid = 22,
    /// There is no space.
    NoSpace = 28,
    /// It is too long.
    Overflow = 75,
    /// It is not supported.
    Unsupported = 95,
    /// The server is about to end, or cannot reach the disk.
    Shutdown = 108,
}

/// Why a connection cannot go on: the client has broken the protocol, or asks for what only a hard disconnect refuses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// It sets flags that nobody has defined.
    #[error("the client sets unknown flags: {0:#x}")]
    ClientFlags(u32),
    /// An option that does not begin as one.
    #[error("an option begins with {0:#018x}: this is no NBD client")]
    OptionMagic(u64),
    /// A request that does not begin as one.
    #[error("a request begins with {0:#010x}: the client has lost its place in the stream")]
    RequestMagic(u32),
    /// It goes on and on.
    #[error("more than {0} options before the transmission")]
    TooManyOptions(u32),
    /// NBD_OPT_EXPORT_NAME has no answer for this.
    #[error("there is no export called {0:?}; the one that is served is called {1:?}")]
    NoSuchExport(String, String),
    /// NBD_OPT_EXPORT_NAME has no answer for this either.
    #[error("the client asks for the export without TLS, which is needed here")]
    WithoutTls,
    /// More than is thrown away for the sake of a good reply.
    #[error("{0} bytes follow, which is more than any client needs to send at once")]
    TooLong(u32),
}
