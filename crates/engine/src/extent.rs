//! Where a file takes space (SEEK_DATA, SEEK_HOLE). The system has no way to ask that without
//! waiting for its answer, which may have to read the file's map from the disk, and io_uring knows
//! no such operation. So one thread of the process asks for all lanes, in the order of their
//! questions; each question belongs to a command, whose number is bounded.

use std::{
    io,
    sync::{OnceLock, mpsc},
    thread,
};

use crate::{
    cross::{OneshotReceiver, OneshotSender, oneshot},
    reactor::Keeper,
};

/// A run of bytes that all take space, or all do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Whether they take space. What was allocated and never written takes none in this sense: it
    /// reads as zeroes without being read.
    pub is_allocated: bool,
    /// Where the run ends, in bytes from the file's beginning.
    pub end: u64,
}

/// What a reactor has to say about it.
pub(crate) enum Answer {
    /// At once.
    Now(io::Result<Extent>),
    /// When the thread has asked; nothing if it could not be started.
    Later(OneshotReceiver<io::Result<Extent>>),
}

struct Question {
    /// Keeps the descriptor open.
    _keeper: Keeper,
    raw: i32,
    at: u64,
    answer: OneshotSender<io::Result<Extent>>,
}

/// Has the thread ask about the run from byte `at` of an open file on.
pub(crate) fn ask(raw: i32, keeper: Keeper, at: u64) -> Answer {
    static QUESTIONS: OnceLock<Option<mpsc::Sender<Question>>> = OnceLock::new();
    let questions = QUESTIONS.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Question>();
        let ask_all = move || {
            for question in receiver {
                question.answer.send(look(question.raw, question.at));
            }
        };
        let thread = thread::Builder::new().name("extents".into());
        thread.spawn(ask_all).ok().map(|_| sender)
    });
    let (answer, receiver) = oneshot();
    let question = Question {
        _keeper: keeper,
        raw,
        at,
        answer,
    };
    if let Some(questions) = questions {
        // A question that nobody takes drops its sender, which its receiver hears of.
        let _ = questions.send(question);
    }
    Answer::Later(receiver)
}

fn look(raw: i32, at: u64) -> io::Result<Extent> {
    match seek(raw, at, libc::SEEK_DATA)? {
        Some(data) if data <= at => Ok(Extent {
            is_allocated: true,
            end: seek(raw, at, libc::SEEK_HOLE)?.unwrap_or(u64::MAX),
        }),
        Some(data) => Ok(Extent {
            is_allocated: false,
            end: data,
        }),
        // A hole up to the end, unless the end comes before: what is behind it is no hole and reads
        // as nothing.
        None => match seek(raw, 0, libc::SEEK_END)? {
            Some(end) if at < end => Ok(Extent {
                is_allocated: false,
                end,
            }),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        },
    }
}

/// The next byte of that kind; `None` if there is none up to the end.
fn seek(raw: i32, at: u64, kind: libc::c_int) -> io::Result<Option<u64>> {
    let at = i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory arguments. It moves the handle's own position, which nothing uses: all I/O
    // says where.
    let found = unsafe { libc::lseek64(raw, at, kind) };
    if found >= 0 {
        return Ok(Some(found as u64));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        _ => Err(error),
    }
}
