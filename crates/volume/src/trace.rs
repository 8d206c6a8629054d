//! What ran when within a request, for whoever draws it: the spans of a [watch](crate::layers) that traces.

use std::sync::Arc;

use engine::{Duration, Instant};

/// More spans than this of one request are counted only.
const SPANS_MAX: usize = 4096;

/// Something that ran for a request, by the clock of this machine.
#[derive(Clone, Debug)]
pub struct Span {
    /// The path of the node where it ran, as `db/stripe/0/iscsi`.
    pub node: Arc<str>,
    /// When it was asked for.
    pub began: Instant,
    /// When it was answered.
    pub ended: Instant,
    /// What it was.
    pub ran: Ran,
}

/// What ran.
#[derive(Clone, Debug)]
pub enum Ran {
    /// A request of the node.
    Request(Request),
    /// A command of our initiator. It waited for the target's window until it was `sent`; then the target and the
    /// way there and back had it, of which the target `told`, if it tells.
    Command {
        /// When it was sent.
        sent: Instant,
        /// What the target says of its time.
        told: Option<Told>,
    },
}

/// What a node was asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Such as "write".
    pub kind: &'static str,
    /// How many bytes it is about.
    pub len_bytes: u64,
    /// Whether the node is a medium.
    pub is_medium: bool,
}

/// What a target has told of a command: durations, by its own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// How long it had it.
    pub total: Duration,
    /// How long its medium had it, if it knows.
    pub medium: Option<Duration>,
}

/// The spans of a request, in the order of their ends.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    spans: Vec<Span>,
    left_out: usize,
}

impl Trace {
    pub(crate) fn add(&mut self, span: Span) {
        match self.spans.len() < SPANS_MAX {
            true => self.spans.push(span),
            false => self.left_out += 1,
        }
    }

    /// All of them, and how many more there were.
    pub(crate) fn into_spans(self) -> (Vec<Span>, usize) {
        (self.spans, self.left_out)
    }
}
