//! Counts how often each situation that has hidden bugs before occurred. A run in which one never occurred proves
//! nothing about it.

use std::collections::BTreeMap;

use super::{
    check::Check,
    events::{Event, Kind, Task},
    history::{At, History, SentWhat},
    script::{ABORT_TASK, Ending, HEAD_OF_QUEUE, ORDERED, Op, Script},
};

/// How often each situation occurred.
pub type Counters = BTreeMap<&'static str, u64>;

/// The situations that must occur in a run.
pub const HARD_CASES: [&str; 25] = [
    "a function between two commands in one segment",
    "a function while a write waits for the data of its R2T",
    "a function while a write's unsolicited data is missing",
    "a function while a write is at work",
    "a function of another session while a write is at work",
    "ORDERED is sent last, behind a command at work",
    "ORDERED is sent last, without data to come",
    "HEAD OF QUEUE passes ORDERED",
    "ABORT TASK races the answer of its command",
    "ABORT TASK of a command that has ended",
    "ABORT TASK of a command that never was",
    "TASK ABORTED",
    "a command is cleared without an answer, and its session told",
    "an error aborts other commands",
    "PREEMPT AND ABORT while the victim's write is at work",
    "a write of who was preempted is refused",
    "COMPARE AND WRITE writes",
    "COMPARE AND WRITE refuses",
    "an immediate command",
    "a segment is cut",
    "a connection is dropped with data outstanding",
    "a session is reinstated while its write is at work",
    "a logout with commands open",
    "a gap in CmdSN ends the session",
    "a session with a full window loses all its commands",
];

/// Counts what `script` has brought about.
pub(super) fn count(script: &Script, history: &History, counters: &mut Counters) {
    let check = Check::new(&script.setup, history);
    let mut hit = |what: &'static str, occurred: bool| {
        *counters.entry(what).or_default() += u64::from(occurred);
    };
    let at_work = |tag: u32, at: At| {
        let ios = check.ios(tag);
        ios.iter()
            .any(|io| io.began < at && io.ended.is_none_or(|ended| ended > at))
    };
    let is_write = |task: &Task<'_>| {
        matches!(
            task.command.op,
            Op::Write { .. } | Op::CompareAndWrite { .. }
        )
    };
    let is_function = |event: &Event| {
        matches!(
            event.kind,
            Kind::Task(_) | Kind::Set(_) | Kind::Clear(_) | Kind::Reset(_)
        )
    };
    for event in check.events.iter().filter(|event| is_function(event)) {
        let function = &history.sent[&event.tag];
        let neighbours = || {
            check.tasks.iter().filter(|task| {
                task.sent.nexus == function.nexus && task.sent.segment == function.segment
            })
        };
        let before = neighbours().any(|task| task.sent.place < function.place);
        let after = neighbours().any(|task| task.sent.place > function.place);
        hit(HARD_CASES[0], before && after);
    }
    for task in &check.tasks {
        let answer = task.sent.answer.as_ref();
        let status = answer.map(|answer| answer.status);
        let sense = answer.map_or([0; 3], |answer| answer.sense);
        for event in check.causes(task) {
            let is_own = event.nexus == task.sent.nexus;
            let waits = |(asked, answered): &(At, Option<At>)| {
                *asked < event.from && answered.is_none_or(|answered| answered > event.from)
            };
            let is_waiting = task.sent.r2ts.iter().any(waits);
            let works = is_write(task) && at_work(task.tag, event.from);
            let is_preempt = matches!(event.kind, Kind::Preempt(_));
            hit(HARD_CASES[1], is_function(event) && is_waiting);
            let owes = task.sent.unsolicited.is_some_and(|at| at > event.from);
            hit(HARD_CASES[2], is_function(event) && owes);
            hit(HARD_CASES[3], is_function(event) && is_own && works);
            hit(HARD_CASES[4], is_function(event) && !is_own && works);
            hit(HARD_CASES[14], is_preempt && works);
        }
        let causes = check.causes(task);
        let by_error = causes
            .iter()
            .all(|cause| matches!(cause.kind, Kind::Error(_)));
        hit(HARD_CASES[13], answer.is_none() && by_error);
        let is_last = history.nexuses[task.sent.nexus].last_sent == task.tag;
        let is_ordered = task.command.attribute == ORDERED;
        let has_data = is_write(task);
        let is_behind = check.tasks.iter().any(|other| {
            other.sent.nexus == task.sent.nexus
                && other.command.lun == task.command.lun
                && other.tag != task.tag
                && at_work(other.tag, task.sent.at)
        });
        let works = !check.ios(task.tag).is_empty();
        hit(HARD_CASES[5], is_last && is_ordered && is_behind && works);
        hit(HARD_CASES[6], is_last && is_ordered && !has_data && works);
        let head = task.command.attribute == HEAD_OF_QUEUE;
        let passes = || {
            let began = check.ios(task.tag).first().map(|io| io.began);
            check.tasks.iter().any(|other| {
                other.sent.nexus == task.sent.nexus
                    && other.command.attribute == ORDERED
                    && other.sent.place < task.sent.place
                    && check.ios(other.tag).iter().any(|io| Some(io.began) > began)
            })
        };
        hit(HARD_CASES[7], head && works && passes());
        hit(HARD_CASES[11], status == Some(Some(0x40)));
        hit(HARD_CASES[15], status == Some(Some(0x18)) && has_data);
        let compares = matches!(task.command.op, Op::CompareAndWrite { .. });
        hit(HARD_CASES[16], compares && status == Some(Some(0)));
        hit(HARD_CASES[17], compares && sense[0] == 0xE);
        hit(HARD_CASES[18], task.command.is_immediate);
    }
    for sent in history.sent.values() {
        let (SentWhat::Function(function), Some(answer)) = (&sent.what, &sent.answer) else {
            continue;
        };
        let named = check
            .tasks
            .iter()
            .find(|task| task.tag == function.referenced);
        let named = named.filter(|task| task.sent.nexus == sent.nexus);
        let ended = named
            .and_then(|task| task.sent.answer.as_ref())
            .map(|ended| ended.at);
        let is_abort = function.code == ABORT_TASK && answer.status == Some(1);
        hit(
            HARD_CASES[8],
            is_abort && ended.is_some_and(|at| at > sent.at),
        );
        hit(
            HARD_CASES[9],
            is_abort && ended.is_some_and(|at| at < sent.at),
        );
        hit(HARD_CASES[10], is_abort && named.is_none());
    }
    for nexus in &history.nexuses {
        hit(
            HARD_CASES[12],
            nexus.told.iter().any(|(_, code)| *code == [0x2F, 0]),
        );
    }
    hit(
        HARD_CASES[19],
        script.steps.iter().any(|step| step.cut.is_some()),
    );
    hit(HARD_CASES[24], history.windows_told > 0);
    for (number, nexus) in history.nexuses.iter().enumerate() {
        let (Some(at), Some(by)) = (nexus.ended, nexus.ended_by) else {
            continue;
        };
        let own = || check.tasks.iter().filter(|task| task.sent.nexus == number);
        let open = own().any(|task| task.sent.answer.as_ref().is_none_or(|a| a.at > at));
        let writes = own().any(|task| is_write(task) && at_work(task.tag, at));
        let owes = own().any(|task| task.sent.r2ts.iter().any(|(_, to)| to.is_none()));
        hit(HARD_CASES[20], by == Ending::Drop && owes);
        hit(HARD_CASES[21], by == Ending::Reinstate && writes);
        hit(HARD_CASES[22], by == Ending::Logout && open);
        hit(HARD_CASES[23], by == Ending::Gap);
    }
}
