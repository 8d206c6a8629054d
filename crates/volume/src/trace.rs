//! The timeline of a request for display: the spans of a [watch](crate::layers) that traces.

use std::sync::Arc;

use engine::{Duration, Instant};

/// The most spans recorded for one request; further ones are only counted.
const SPANS_MAX: usize = 4096;

/// Something that ran for a request, timed by this machine's clock.
#[derive(Clone, Debug)]
pub struct Span {
    /// The path of the node where it ran, such as `db/stripe/0/iscsi`.
    pub node: Arc<str>,
    /// When it was requested.
    pub began: Instant,
    /// When it was answered.
    pub ended: Instant,
    /// What ran.
    pub ran: Ran,
}

/// What ran.
#[derive(Clone, Debug)]
pub enum Ran {
    /// A request to the node.
    Request(TracedRequest),
    /// A command of our initiator. It waited for the target's command window until it was `sent`; from then until the
    /// answer it was at the target or on the way. `told` is the target's own account, if it gives one.
    Command {
        /// When it was sent.
        sent: Instant,
        /// The times that the target reports.
        told: Option<TargetTimes>,
    },
}

/// A request to a node.
#[derive(Clone, Debug)]
pub struct TracedRequest {
    /// The kind of request, such as "write".
    pub kind: &'static str,
    /// The number of bytes that it concerns.
    pub len_bytes: u64,
    /// Whether the node is a medium.
    pub is_medium: bool,
}

/// The times that a target reports for a command: durations, by its own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct TargetTimes {
    /// How long it had the command.
    pub total: Duration,
    /// How long its medium had the command, if it knows.
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

    /// All spans, and the number of those left out.
    pub(crate) fn into_spans(self) -> (Vec<Span>, usize) {
        (self.spans, self.left_out)
    }
}
