//! Requests: what they ask for, whether the export can do that, and how they are answered.

use crate::{
    error::{ErrorCode, Violation},
    export::Export,
    reply::{self, Extent, Reply},
    wire::{REQUEST_MAGIC, RequestHeader, command, command_flag},
};

/// What a request asks for. The ranges are in whole blocks, above zero, and within the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// `len` bytes at byte `at`.
    Read {
        /// Where.
        at: u64,
        /// How many.
        len: u32,
    },
    /// To write the `len` bytes that follow at byte `at`.
    Write {
        /// Where.
        at: u64,
        /// How many.
        len: u32,
        /// To persistent media, before it is answered.
        fua: bool,
    },
    /// To make durable what was answered.
    Flush,
    /// To forget `len` bytes at byte `at`.
    Trim {
        /// Where.
        at: u64,
        /// How many.
        len: u32,
        /// Durably, before it is answered.
        fua: bool,
    },
    /// To make `len` bytes at byte `at` zeroes.
    WriteZeroes {
        /// Where.
        at: u64,
        /// How many.
        len: u32,
        /// Durably, before it is answered.
        fua: bool,
        /// Their space may be freed.
        may_discard: bool,
    },
    /// How `len` bytes at byte `at` are stored.
    BlockStatus {
        /// Where.
        at: u64,
        /// How many.
        len: u32,
        /// One extent is enough.
        one: bool,
    },
}

/// A request, to be answered once. Requests may be answered in any order.
#[derive(Debug)]
#[must_use = "the client waits for its answer"]
pub struct Request {
    cookie: u64,
    command: Command,
    is_structured: bool,
}

impl Request {
    /// What it asks for.
    pub fn command(&self) -> Command {
        self.command
    }

    /// It is done: the answer to all but a read and a block status.
    pub fn done(self) -> Reply {
        debug_assert!(!matches!(
            self.command,
            Command::Read { .. } | Command::BlockStatus { .. }
        ));
        reply::simple(self.cookie, None)
    }

    /// The answer to a read; all the data that it asked for follow.
    pub fn data(self) -> Reply {
        let Command::Read { at, len } = self.command else {
            panic!("{:?} is answered with data", self.command);
        };
        match self.is_structured {
            true => reply::data(self.cookie, at, len),
            false => reply::simple(self.cookie, None),
        }
    }

    /// The answer to a block status: at least one extent, the first of which begins where it asked for.
    pub fn extents(self, extents: &[Extent]) -> Reply {
        assert!(matches!(self.command, Command::BlockStatus { .. }) && !extents.is_empty());
        reply::block_status(self.cookie, extents)
    }

    /// It failed; `message` tells people why, where the client takes one.
    pub fn fail(self, error: ErrorCode, message: &str) -> Reply {
        failed(self.cookie, self.is_structured, error, message)
    }
}

fn failed(cookie: u64, is_structured: bool, error: ErrorCode, message: &str) -> Reply {
    match is_structured {
        true => reply::error(cookie, error, message),
        false => reply::simple(cookie, Some(error)),
    }
}

/// What was negotiated before the transmission.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Agreed {
    /// Structured replies.
    pub(crate) is_structured: bool,
    /// `base:allocation` was selected.
    pub(crate) has_allocation: bool,
}

/// What a request header means.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// Something for the driver to do.
    Do(Request),
    /// Its answer is clear already; so many bytes of data follow it.
    Answered(Reply, u32),
    /// The client leaves.
    Disconnect,
}

/// The most that is received and thrown away so that a request gets a good reply: what the specification says is no
/// attack.
pub(crate) const SKIP_MAX_BYTES: u32 = 32 << 20;

/// Reads a request.
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
            return Ok(Meaning::Do(Request {
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

type Refusal = (ErrorCode, String);

fn invalid(message: impl Into<String>) -> Refusal {
    (ErrorCode::Invalid, message.into())
}

/// What is to be done; `None`: nothing, and that is well.
fn command_of(
    header: &RequestHeader,
    export: &Export,
    agreed: Agreed,
) -> Result<Option<Command>, Refusal> {
    let (kind, flags) = (header.kind.get(), header.flags.get());
    let (at, len) = (header.offset.get(), header.len.get());
    // FUA is allowed everywhere, where it means nothing as well.
    let allowed = match kind {
        command::READ if agreed.is_structured => command_flag::DF,
        command::WRITE_ZEROES => command_flag::NO_HOLE,
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        _ => 0,
    };
    let unknown = flags & !(allowed | command_flag::FUA);
    if unknown != 0 {
        return Err(invalid(format!(
            "a request of type {kind} has no flags {unknown:#x} here"
        )));
    }
    let fua = flags & command_flag::FUA != 0;
    let writes = matches!(kind, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if writes && export.is_read_only {
        return Err((ErrorCode::Permission, "the export is read-only".into()));
    }
    let is_data = matches!(kind, command::READ | command::WRITE);
    if is_data && len > export.block.payload_max {
        // The specification has this error for reads with chunks alone.
        let error = match kind == command::READ && agreed.is_structured {
            true => ErrorCode::Overflow,
            false => ErrorCode::Invalid,
        };
        let max = export.block.payload_max;
        return Err((
            error,
            format!("{len} bytes are more than the {max} that a request may have"),
        ));
    }
    match kind {
        command::FLUSH => return Ok(Some(Command::Flush)),
        command::READ
        | command::WRITE
        | command::TRIM
        | command::CACHE
        | command::WRITE_ZEROES
        | command::BLOCK_STATUS => check_range(export, kind, at, len)?,
        kind => {
            return Err(invalid(format!(
                "there are no requests of type {kind} here"
            )));
        }
    }
    Ok(Some(match kind {
        command::READ => Command::Read { at, len },
        command::WRITE => Command::Write { at, len, fua },
        command::TRIM if export.can_trim => Command::Trim { at, len, fua },
        command::TRIM => return Err(invalid("this export takes no trims")),
        command::WRITE_ZEROES => Command::WriteZeroes {
            at,
            len,
            fua,
            may_discard: flags & command_flag::NO_HOLE == 0,
        },
        command::BLOCK_STATUS if agreed.has_allocation => Command::BlockStatus {
            at,
            len,
            one: flags & command_flag::REQ_ONE != 0,
        },
        command::BLOCK_STATUS => return Err(invalid("no metadata context was selected")),
        // CACHE: what is read ahead of a database is its own concern.
        _ => return Ok(None),
    }))
}

fn check_range(export: &Export, kind: u16, at: u64, len: u32) -> Result<(), Refusal> {
    if len == 0 {
        return Err(invalid("a length of zero"));
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
