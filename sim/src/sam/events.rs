//! Events that end other commands: task management functions, resets, PREEMPT AND ABORT, errors under QERR, and the end
//! of a session; and which commands each of them affects (SAM-5 5.6, 7).

use super::{
    history::{At, History, Sent, SentWhat},
    script::{
        ABORT_TASK, ABORT_TASK_SET, CLEAR_TASK_SET, Command, LOGICAL_UNIT_RESET, Op, Setup,
        TARGET_WARM_RESET,
    },
};

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const TASK_ABORTED: u8 = 0x40;
/// How long other lanes may still act after an answer has left, in nanoseconds.
const ELSEWHERE_NS: u64 = 2_000_000;

/// One cause of aborts.
#[derive(Debug)]
pub(super) struct Event {
    /// Its tag; 0 for the end of a session.
    pub(super) tag: u32,
    pub(super) nexus: usize,
    pub(super) kind: Kind,
    /// The earliest it can have happened.
    pub(super) from: At,
    /// The latest it can have happened; `None`: it may still happen.
    pub(super) until: Option<At>,
    place: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Task(u32),
    Set(u32),
    Clear(u32),
    /// A reset of one disk or of all.
    Reset(Option<u32>),
    /// PREEMPT AND ABORT of this initiator's commands at disk 0.
    Preempt(usize),
    /// CHECK CONDITION under QERR.
    Error(u32),
    /// The end of the session.
    End,
}

/// A command of the script that was sent.
pub(super) struct Task<'a> {
    pub(super) tag: u32,
    pub(super) sent: &'a Sent,
    pub(super) command: &'a Command,
}

/// The commands of the script.
pub(super) fn tasks(history: &History) -> Vec<Task<'_>> {
    let all = history.sent.iter();
    all.filter_map(|(&tag, sent)| match &sent.what {
        SentWhat::Command(command) => Some(Task { tag, sent, command }),
        _ => None,
    })
    .collect()
}

/// All events that have aborted commands, or may have.
pub(super) fn events(setup: &Setup, history: &History) -> Vec<Event> {
    let mut events = Vec::new();
    for (&tag, sent) in &history.sent {
        let answer = sent.answer.as_ref();
        let status = answer.and_then(|answer| answer.status);
        // An aborted function or command may have begun anyway.
        let is_aborted = status == Some(TASK_ABORTED);
        let is_refused = answer.is_some() && status != Some(GOOD) && !is_aborted;
        let mut push = |kind| {
            events.push(Event {
                tag,
                nexus: sent.nexus,
                kind,
                from: sent.at,
                until: answer.filter(|_| !is_aborted).map(|answer| answer.at),
                place: sent.place,
            });
        };
        match &sent.what {
            SentWhat::Function(function) if !is_refused => match function.code {
                ABORT_TASK => push(Kind::Task(function.referenced)),
                ABORT_TASK_SET => push(Kind::Set(function.lun)),
                CLEAR_TASK_SET => push(Kind::Clear(function.lun)),
                LOGICAL_UNIT_RESET => push(Kind::Reset(Some(function.lun))),
                TARGET_WARM_RESET => push(Kind::Reset(None)),
                _ => {}
            },
            SentWhat::Command(Command {
                op: Op::Preempt { victim },
                ..
            }) if !is_refused => {
                push(Kind::Preempt(*victim));
            }
            SentWhat::Function(_) => {}
            SentWhat::Command(Command { lun, .. }) | SentWhat::Beside(lun) => {
                let has_failed = status.is_none_or(|status| status == CHECK_CONDITION);
                if setup.qerr != 0 && has_failed {
                    push(Kind::Error(*lun));
                }
            }
        }
    }
    for (nexus, session) in history.nexuses.iter().enumerate() {
        if let Some(from) = session.ended {
            let kind = Kind::End;
            let (tag, until, place) = (0, session.gone, u64::MAX);
            events.push(Event {
                tag,
                nexus,
                kind,
                from,
                until,
                place,
            });
        }
    }
    events
}

impl Event {
    /// Whether it affects this command, provided the command was open when it came.
    pub(super) fn concerns(&self, setup: &Setup, history: &History, task: &Task<'_>) -> bool {
        let (is_own, lun) = (self.nexus == task.sent.nexus, task.command.lun);
        let is_for = match self.kind {
            Kind::Task(tag) => is_own && tag == task.tag,
            Kind::Set(of) => is_own && of == lun,
            Kind::Clear(of) => of == lun,
            Kind::Reset(of) => of.is_none_or(|of| of == lun),
            Kind::Preempt(victim) => {
                !is_own && lun == 0 && history.nexuses[task.sent.nexus].who == victim
            }
            Kind::Error(of) => of == lun && (is_own || setup.qerr == 1),
            Kind::End => is_own,
        };
        is_for && self.tag != task.tag && !self.was_before(task)
    }

    /// Whether the event was over when the command came.
    fn was_before(&self, task: &Task<'_>) -> bool {
        let is_own = self.nexus == task.sent.nexus;
        match self.kind {
            // Commands that the initiator sends later are not affected (SAM-5 7.1).
            _ if is_own && !matches!(self.kind, Kind::Error(_)) => self.place < task.sent.place,
            Kind::Error(_) if !is_own => {
                let late = |until: At| until.ns + ELSEWHERE_NS < task.sent.at.ns;
                self.until.is_some_and(late)
            }
            _ => self.until.is_some_and(|until| until < task.sent.at),
        }
    }

    /// Whether the command had certainly arrived when the event came: sent before it on the same connection, or long
    /// enough before it on another.
    pub(super) fn found(&self, task: &Task<'_>) -> bool {
        const ON_ITS_WAY_NS: u64 = 10_000_000;
        match self.nexus == task.sent.nexus {
            true => true,
            false => {
                let out = task.sent.out;
                out.is_some_and(|out| out.ns + ON_ITS_WAY_NS < self.from.ns)
            }
        }
    }

    /// When it was answered, if it is a function or PREEMPT AND ABORT: from then on it is over for everybody.
    pub(super) fn is_complete(&self) -> Option<At> {
        match self.kind {
            Kind::Error(_) | Kind::End => None,
            _ => self.until,
        }
    }
}
