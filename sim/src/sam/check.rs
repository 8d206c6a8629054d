//! The model: what SAM-5, RFC 7143 and our own promises allow to have happened in a case. Here: how
//! each command and function ends, and what the medium did for it.

use super::{
    events::{self, Event, Kind, Task},
    history::{Call, History, Io, SentWhat},
    leaf::bytes,
    script::{ABORT_TASK, ACA, NOT_OFFERED, Op, Setup},
};

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const RESERVATION_CONFLICT: u8 = 0x18;
pub(super) const TASK_ABORTED: u8 = 0x40;
const MISCOMPARE: [u8; 3] = [0xE, 0x1D, 0];
const OUT_OF_RANGE: [u8; 3] = [5, 0x21, 0];
const INVALID_MESSAGE: [u8; 3] = [5, 0x49, 0];
/// How long an answer may be in transit, in nanoseconds.
pub(super) const ON_ITS_WAY_NS: u64 = 10_000_000;

/// A completed case.
pub(super) struct Check<'a> {
    pub(super) setup: &'a Setup,
    pub(super) history: &'a History,
    pub(super) tasks: Vec<Task<'a>>,
    pub(super) events: Vec<Event>,
    pub(super) faults: Vec<String>,
}

/// Every rule that was broken.
pub(super) fn check(setup: &Setup, history: &History) -> Vec<String> {
    let mut check = Check::new(setup, history);
    check.faults.extend(history.faults.iter().cloned());
    check.commands();
    check.functions();
    check.aborts();
    check.order();
    check.fence();
    check.sessions();
    check.faults
}

impl<'a> Check<'a> {
    pub(super) fn new(setup: &'a Setup, history: &'a History) -> Check<'a> {
        Check {
            setup,
            history,
            tasks: events::tasks(history),
            events: events::events(setup, history),
            faults: Vec::new(),
        }
    }

    pub(super) fn rule(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(fault());
        }
    }

    pub(super) fn ios(&self, tag: u32) -> Vec<&'a Io> {
        let ios = self.history.ios.iter();
        ios.filter(|io| io.task == tag && io.call != Call::Flush)
            .collect()
    }

    pub(super) fn causes(&self, task: &Task<'_>) -> Vec<&Event> {
        let all = self.events.iter();
        all.filter(|event| event.concerns(self.setup, self.history, task))
            .collect()
    }

    /// Each command ends once, with a permitted status, and has done exactly what its answer says.
    fn commands(&mut self) {
        for index in 0..self.tasks.len() {
            let faults = self.command(&self.tasks[index]);
            self.faults.extend(faults);
        }
        for io in &self.history.ios {
            self.rule(io.ended.is_some(), || {
                format!("the I/O for {} never ends", io.task)
            });
        }
    }

    fn command(&self, task: &Task<'_>) -> Vec<String> {
        let (tag, command) = (task.tag, task.command);
        let ios = self.ios(tag);
        let wrong = |what: &str| vec![format!("{tag}: {what}: {:?}, {ios:?}", task.sent.answer)];
        let causes = self.causes(task);
        let by_others = |event: &&Event| event.nexus != task.sent.nexus;
        let Some(answer) = &task.sent.answer else {
            // With TAS others have to be told.
            let silent = causes
                .iter()
                .any(|event| !self.setup.tas || !by_others(event));
            return match (silent, causes.is_empty()) {
                (true, _) => Vec::new(),
                (false, true) => wrong("no answer"),
                (false, false) => wrong("no TASK ABORTED"),
            };
        };
        let during = |io: &Io| io.began > task.sent.at && io.ended.is_some_and(|at| at < answer.at);
        if !ios.iter().all(|io| during(io)) {
            return wrong("the medium was at work before or after it");
        }
        let calls: Vec<Call> = ios.iter().map(|io| io.call).collect();
        let is_right = match (answer.status, &command.op) {
            (None, _) => command.is_immediate && ios.is_empty(),
            (Some(TASK_ABORTED), _) => {
                self.setup.tas && causes.iter().any(|e| by_others(e) && e.kind != Kind::End)
            }
            (Some(CHECK_CONDITION), op) => match (answer.sense, op) {
                ([6, ..], _) => ios.is_empty(),
                (INVALID_MESSAGE, _) => command.attribute == ACA && ios.is_empty(),
                (OUT_OF_RANGE, Op::Beyond) => ios.is_empty(),
                (MISCOMPARE, Op::CompareAndWrite { lba, expected }) => {
                    let compared = bytes(command.lun, *lba, 1, *expected);
                    calls == [Call::Read] && ios[0].data != compared
                }
                _ => false,
            },
            (Some(RESERVATION_CONFLICT), op) => {
                let is_fenced = !matches!(op, Op::Read { .. } | Op::TestUnitReady | Op::Nothing);
                self.setup.reserved && is_fenced && command.lun == 0 && ios.is_empty()
            }
            (Some(GOOD), _) if command.attribute == ACA => false,
            (Some(GOOD), Op::Read { lba, blocks }) => {
                let extent = (*lba, u64::from(*blocks));
                calls == [Call::Read] && ios[0].blocks == extent && ios[0].data == task.sent.data
            }
            (
                Some(GOOD),
                Op::Write {
                    lba,
                    blocks,
                    is_fua,
                    ..
                },
            ) => {
                let extent = (*lba, u64::from(*blocks));
                calls == [Call::Write] && ios[0].blocks == extent && ios[0].is_fua == *is_fua
            }
            (Some(GOOD), Op::CompareAndWrite { lba, expected }) => {
                let compared = bytes(command.lun, *lba, 1, *expected);
                calls == [Call::Read, Call::Write] && ios[0].data == compared
            }
            (Some(GOOD), Op::SynchronizeCache) => self
                .history
                .ios
                .iter()
                .any(|io| io.call == Call::Flush && io.lun == command.lun && during(io)),
            (Some(GOOD), Op::TestUnitReady | Op::Nothing | Op::Preempt { .. }) => ios.is_empty(),
            _ => false,
        };
        if is_right {
            Vec::new()
        } else {
            wrong("that is no end of it")
        }
    }

    /// Each function is answered as it should be.
    fn functions(&mut self) {
        for (tag, sent) in &self.history.sent {
            let SentWhat::Function(function) = &sent.what else {
                continue;
            };
            let Some(answer) = &sent.answer else {
                let has_ended = self.history.nexuses[sent.nexus].ended.is_some();
                self.rule(has_ended, || format!("function {tag} is not answered"));
                continue;
            };
            const DOES_NOT_EXIST: u8 = 1;
            const NOT_SUPPORTED: u8 = 5;
            let named = self
                .tasks
                .iter()
                .find(|task| task.tag == function.referenced);
            let named = named.filter(|task| task.sent.nexus == sent.nexus);
            let is_right = match (function.code, answer.status, named) {
                (_, None, _) => function.is_immediate,
                (code, status, _) if NOT_OFFERED.contains(&code) => status == Some(NOT_SUPPORTED),
                (ABORT_TASK, status, None) => status == Some(DOES_NOT_EXIST),
                (ABORT_TASK, Some(DOES_NOT_EXIST), Some(named)) => {
                    let ended = named.sent.answer.as_ref();
                    let has_ended = ended.is_some_and(|ended| ended.at < answer.at);
                    has_ended || self.causes(named).iter().any(|cause| cause.tag != *tag)
                }
                (_, status, _) => status == Some(GOOD),
            };
            self.rule(is_right, || {
                format!("function {tag} is answered with {:x?}", answer.status)
            });
        }
    }
}
