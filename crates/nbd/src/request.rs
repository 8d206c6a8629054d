//! Requests: parsing them, checking them against the export, and answering them.

use crate::{
    error::{ErrorCode, Violation},
    export::Export,
    reply::{self, AllocationExtent, ReplyBytes},
    wire::{REQUEST_MAGIC, RequestHeader, command, command_flag},
};

/// What a request asks for. Ranges consist of whole blocks, are not empty, and lie within the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NbdCommand {
    /// Read `len` bytes at byte `at`.
    Read {
        /// Offset, in bytes.
        at: u64,
        /// Length, in bytes.
        len: u32,
    },
    /// Write the `len` bytes that follow, at byte `at`.
    Write {
        /// Offset, in bytes.
        at: u64,
        /// Length, in bytes.
        len: u32,
        /// Whether the data must be on persistent media before the answer (FUA).
        fua: bool,
    },
    /// Make all answered writes durable.
    Flush,
    /// Discard `len` bytes at byte `at`.
    Trim {
        /// Offset, in bytes.
        at: u64,
        /// Length, in bytes.
        len: u32,
        /// Whether the change must be durable before the answer (FUA).
        fua: bool,
    },
    /// Make `len` bytes at byte `at` read as zeroes.
    WriteZeroes {
        /// Offset, in bytes.
        at: u64,
        /// Length, in bytes.
        len: u32,
        /// Whether the change must be durable before the answer (FUA).
        fua: bool,
        /// Whether the space may be freed.
        may_discard: bool,
    },
    /// Report the allocation status of `len` bytes at byte `at`.
    BlockStatus {
        /// Offset, in bytes.
        at: u64,
        /// Length, in bytes.
        len: u32,
        /// Whether a single extent is enough.
        one: bool,
    },
}

/// A request, to be answered once. Requests may be answered in any order.
#[derive(Debug)]
#[must_use = "the client waits for its answer"]
pub struct NbdRequest {
    cookie: u64,
    command: NbdCommand,
    is_structured: bool,
}

impl NbdRequest {
    /// What the request asks for.
    pub fn command(&self) -> NbdCommand {
        self.command
    }

    /// A success reply, for every command except a read or a block status.
    pub fn done(self) -> ReplyBytes {
        debug_assert!(!matches!(
            self.command,
            NbdCommand::Read { .. } | NbdCommand::BlockStatus { .. }
        ));
        reply::simple(self.cookie, None)
    }

    /// The reply to a read; all the data it asked for must follow.
    pub fn data(self) -> ReplyBytes {
        let NbdCommand::Read { at, len } = self.command else {
            panic!("{:?} is answered with data", self.command);
        };
        match self.is_structured {
            true => reply::data(self.cookie, at, len),
            false => reply::simple(self.cookie, None),
        }
    }

    /// The reply to a block status: at least one extent, the first of which begins at the requested offset.
    pub fn extents(self, extents: &[AllocationExtent]) -> ReplyBytes {
        assert!(matches!(self.command, NbdCommand::BlockStatus { .. }) && !extents.is_empty());
        reply::block_status(self.cookie, extents)
    }

    /// An error reply; `message` explains the error to people, if the client supports that.
    pub fn fail(self, error: ErrorCode, message: &str) -> ReplyBytes {
        failed(self.cookie, self.is_structured, error, message)
    }
}

fn failed(cookie: u64, is_structured: bool, error: ErrorCode, message: &str) -> ReplyBytes {
    match is_structured {
        true => reply::error(cookie, error, message),
        false => reply::simple(cookie, Some(error)),
    }
}

/// What was negotiated in the handshake.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Agreed {
    /// Structured replies were negotiated.
    pub(crate) is_structured: bool,
    /// `base:allocation` was selected.
    pub(crate) has_allocation: bool,
}

/// The meaning of a request header.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// A request for the driver to perform.
    Do(NbdRequest),
    /// The request has already been answered; this many bytes of its data are to be discarded.
    Answered(ReplyBytes, u32),
    /// The client disconnects.
    Disconnect,
}

/// The most data that is received and discarded so that a request gets a proper error reply: the amount that the
/// specification suggests is no attack.
pub(crate) const SKIP_MAX_BYTES: u32 = 32 << 20;

/// Parses a request header.
pub(crate) fn parse(
    header: &RequestHeader,
    export: &Export,
    agreed: Agreed,
) -> Result<Meaning, Violation> {
    if header.magic.get() != REQUEST_MAGIC {
        return Err(Violation::RequestMagic(header.magic.get()));
    }
    let (cookie, len) = (header.cookie.get(), header.len.get());
    let follow = match header.kind.get() {
        command::DISC => return Ok(Meaning::Disconnect),
        command::WRITE => len,
        _ => 0,
    };
    let is_structured = agreed.is_structured;
    let answered = match command_of(header, export, agreed) {
        Ok(Some(command)) => {
            return Ok(Meaning::Do(NbdRequest {
                cookie,
                command,
                is_structured,
            }));
        }
        Ok(None) => reply::simple(cookie, None),
        Err((error, message)) => failed(cookie, is_structured, error, &message),
    };
    if follow > SKIP_MAX_BYTES {
        return Err(Violation::TooLong(follow));
    }
    Ok(Meaning::Answered(answered, follow))
}

type RequestError = (ErrorCode, String);

fn invalid(message: impl Into<String>) -> RequestError {
    (ErrorCode::Invalid, message.into())
}

/// The command to perform; `None` if there is nothing to do and the request succeeds.
fn command_of(
    header: &RequestHeader,
    export: &Export,
    agreed: Agreed,
) -> Result<Option<NbdCommand>, RequestError> {
    let (kind, flags) = (header.kind.get(), header.flags.get());
    let (at, len) = (header.offset.get(), header.len.get());
    // FUA is allowed with every command, even where it has no meaning.
    let allowed = match kind {
        command::READ if agreed.is_structured => command_flag::DF,
        command::WRITE_ZEROES => command_flag::NO_HOLE,
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        _ => 0,
    };
    let unknown = flags & !(allowed | command_flag::FUA);
    if unknown != 0 {
        return Err(invalid(format!(
            "a request of type {kind} does not support the flags {unknown:#x}"
        )));
    }
    let fua = flags & command_flag::FUA != 0;
    let writes = matches!(kind, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if writes && export.is_read_only {
        return Err((ErrorCode::Permission, "the export is read-only".into()));
    }
    let is_data = matches!(kind, command::READ | command::WRITE);
    if is_data && len > export.block.payload_max {
        // The specification defines this error only for reads with structured replies.
        let error = match kind == command::READ && agreed.is_structured {
            true => ErrorCode::Overflow,
            false => ErrorCode::Invalid,
        };
        let max = export.block.payload_max;
        return Err((
            error,
            format!("a request of {len} bytes exceeds the maximum of {max}"),
        ));
    }
    match kind {
        command::FLUSH => return Ok(Some(NbdCommand::Flush)),
        command::READ
        | command::WRITE
        | command::TRIM
        | command::CACHE
        | command::WRITE_ZEROES
        | command::BLOCK_STATUS => check_range(export, kind, at, len)?,
        kind => {
            return Err(invalid(format!(
                "requests of type {kind} are not supported"
            )));
        }
    }
    Ok(Some(match kind {
        command::READ => NbdCommand::Read { at, len },
        command::WRITE => NbdCommand::Write { at, len, fua },
        command::TRIM if export.can_trim => NbdCommand::Trim { at, len, fua },
        command::TRIM => return Err(invalid("this export does not support trim")),
        command::WRITE_ZEROES => NbdCommand::WriteZeroes {
            at,
            len,
            fua,
            may_discard: flags & command_flag::NO_HOLE == 0,
        },
        command::BLOCK_STATUS if agreed.has_allocation => NbdCommand::BlockStatus {
            at,
            len,
            one: flags & command_flag::REQ_ONE != 0,
        },
        command::BLOCK_STATUS => return Err(invalid("no metadata context was selected")),
        // NBD_CMD_CACHE: read-ahead is left to the database.
        _ => return Ok(None),
    }))
}

fn check_range(export: &Export, kind: u16, at: u64, len: u32) -> Result<(), RequestError> {
    if len == 0 {
        return Err(invalid("the length is zero"));
    }
    let block = u64::from(export.block.minimum);
    let end = at.checked_add(len.into());
    if end.is_none_or(|end| end > export.len_bytes) {
        let error = match kind {
            command::WRITE | command::WRITE_ZEROES => ErrorCode::NoSpace,
            _ => ErrorCode::Invalid,
        };
        let whole = export.len_bytes;
        return Err((
            error,
            format!("{len} bytes at {at} reach beyond the export's {whole} bytes"),
        ));
    }
    if at % block != 0 || u64::from(len) % block != 0 {
        return Err(invalid(format!(
            "{len} bytes at {at} are not whole blocks of {block} bytes"
        )));
    }
    Ok(())
}
