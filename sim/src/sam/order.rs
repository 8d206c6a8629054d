//! The model of concurrent commands: what must be over when an abort is answered, which commands ORDERED, HEAD OF QUEUE
//! and COMPARE AND WRITE must separate, and that a fence holds.

use super::{
    check::{Check, ON_ITS_WAY_NS, TASK_ABORTED},
    events::Kind,
    history::{At, Call, Io},
    script::{HEAD_OF_QUEUE, ORDERED, Op},
};

impl Check<'_> {
    /// I/O that an abort overtook is over when the initiator gets the answer, and stays over.
    pub(super) fn aborts(&mut self) {
        let mut faults = Vec::new();
        for task in &self.tasks {
            let ios = self.ios(task.tag);
            let causes = self.causes(task);
            let answer = task.sent.answer.as_ref();
            let has_ended = |at: At| {
                ios.iter()
                    .all(|io| io.ended.is_some_and(|ended| ended < at))
            };
            for event in &causes {
                let Some(done) = event.is_complete() else {
                    continue;
                };
                let (tag, by) = (task.tag, event.tag);
                let is_own = event.nexus == task.sent.nexus;
                if is_own && task.sent.last.is_some_and(|last| last > done) {
                    faults.push(format!("{tag} goes on after {by} has aborted it"));
                }
                let late = answer.filter(|answer| answer.at.ns > done.ns + ON_ITS_WAY_NS);
                let is_told = late.is_none_or(|late| late.status == Some(TASK_ABORTED));
                if event.found(task) && !is_told {
                    faults.push(format!("{tag} is answered long after {by} has aborted it"));
                }
                if event.found(task) && !has_ended(done) {
                    faults.push(format!(
                        "the medium works for {tag} after {by} has aborted it"
                    ));
                }
            }
            // Whichever event ended it without an answer, the last of these events must have waited for it.
            let ends: Vec<Option<At>> = causes
                .iter()
                .map(|event| match event.kind {
                    Kind::Error(_) => None,
                    _ => event.until,
                })
                .collect();
            let last = ends.iter().copied().collect::<Option<Vec<At>>>();
            if let (None, Some(last)) = (answer, last.and_then(|ends| ends.into_iter().max())) {
                if !has_ended(last) {
                    faults.push(format!("the medium works for {} after its end", task.tag));
                }
            }
        }
        self.faults.extend(faults);
    }

    /// ORDERED, HEAD OF QUEUE and COMPARE AND WRITE.
    pub(super) fn order(&mut self) {
        let mut faults = Vec::new();
        let is_over = |one: &Io, other: &Io| one.ended.is_some_and(|at| at < other.began);
        let overlap = |one: &Io, other: &Io| {
            let ((a, a_len), (b, b_len)) = (one.blocks, other.blocks);
            a < b + b_len && b < a + a_len
        };
        for task in &self.tasks {
            let (tag, command) = (task.tag, task.command);
            let is_ordered = command.attribute == ORDERED;
            for io in self.ios(tag) {
                for other in &self.tasks {
                    if other.tag == tag || other.command.lun != command.lun {
                        continue;
                    }
                    let is_own = other.sent.nexus == task.sent.nexus;
                    let is_head = other.command.attribute == HEAD_OF_QUEUE;
                    let is_older = is_own && other.sent.place < task.sent.place;
                    let is_newer = is_own && other.sent.place > task.sent.place;
                    for their in self.ios(other.tag) {
                        let (before, after) = (is_over(their, io), is_over(io, their));
                        let is_right = match command.attribute {
                            ORDERED if is_older => before,
                            ORDERED if is_newer && !is_head => after,
                            HEAD_OF_QUEUE if is_newer && !is_head => after,
                            _ => true,
                        };
                        // Nothing puts commands on different blocks in an order with it but its session.
                        let excludes = is_ordered && overlap(io, their);
                        if !is_right || (excludes && !before && !after) {
                            faults.push(format!("{tag} and {} are out of order", other.tag));
                        }
                    }
                }
            }
            let ios = self.ios(tag);
            if let (Op::CompareAndWrite { lba, .. }, [read, write]) = (&command.op, &ios[..]) {
                let overlaps = |io: &&Io| {
                    let (start, len) = io.blocks;
                    io.lun == command.lun
                        && io.task != tag
                        && io.call == Call::Write
                        && (start..start + len).contains(lba)
                        && !is_over(io, read)
                        && !is_over(write, io)
                };
                if let Some(io) = self.history.ios.iter().find(overlaps) {
                    faults.push(format!("{} writes in the middle of {tag}", io.task));
                }
            }
        }
        self.faults.extend(faults);
    }

    /// A preempted initiator writes no more.
    pub(super) fn fence(&mut self) {
        let mut faults = Vec::new();
        for event in &self.events {
            let (Kind::Preempt(victim), Some(done)) = (event.kind, event.until) else {
                continue;
            };
            for task in &self.tasks {
                let is_victim = self.history.nexuses[task.sent.nexus].who == victim;
                let writes = |io: &&Io| io.call == Call::Write && io.began > done && io.lun == 0;
                let is_fenced = is_victim && self.history.nexuses[event.nexus].who != victim;
                if is_fenced && self.ios(task.tag).iter().any(writes) {
                    faults.push(format!(
                        "{} writes though {} has preempted it",
                        task.tag, event.tag
                    ));
                }
            }
        }
        self.faults.extend(faults);
    }
}
