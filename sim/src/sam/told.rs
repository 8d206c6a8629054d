//! The model of unit attentions: each session is notified once of everything that concerns it, according to the table
//! in docs/internals/conformance.md.

use super::{
    check::{Check, ON_ITS_WAY_NS},
    events::{Event, Kind, Task},
    history::Nexus,
};

impl Check<'_> {
    /// Checks that each session gets every required unit attention once.
    pub(super) fn sessions(&mut self) {
        for index in 0..self.history.nexuses.len() {
            for lun in 0..self.setup.luns {
                self.told(index, lun);
            }
        }
    }

    fn told(&mut self, index: usize, lun: u32) {
        let nexus = &self.history.nexuses[index];
        let count = |codes: &[[u8; 2]]| {
            let told = nexus.told.iter();
            told.filter(|(of, code)| *of == lun && codes.contains(code))
                .count()
        };
        let all = nexus.told.iter().filter(|(of, _)| *of == lun).count();
        const POWER_ON: [u8; 2] = [0x29, 0];
        const NEXUS_LOSS: [u8; 2] = [0x29, 7];
        const BUS_DEVICE_RESET: [u8; 2] = [0x29, 3];
        const COMMANDS_CLEARED: [u8; 2] = [0x2F, 0];
        const REGISTRATIONS_PREEMPTED: [u8; 2] = [0x2A, 5];
        let begins = count(&[POWER_ON, NEXUS_LOSS]);
        let resets = count(&[BUS_DEVICE_RESET]);
        let cleared = count(&[COMMANDS_CLEARED]);
        let preempted = count(&[REGISTRATIONS_PREEMPTED]);
        let sum = begins + resets + cleared + preempted;
        self.rule(sum == all, || {
            format!("session {index} is told {:x?}", nexus.told)
        });
        let has_begun = nexus.quiet.contains_key(&lun);
        self.rule(begins == 1 || !has_begun, || {
            format!("session {index} begins with {begins}")
        });

        let is_other = |event: &&Event| event.nexus != index;
        let is_reset =
            |event: &&Event| matches!(event.kind, Kind::Reset(of) if of.is_none_or(|of| of == lun));
        let is_clear = |event: &&Event| match event.kind {
            Kind::Clear(of) => of == lun,
            Kind::Error(of) => of == lun && self.setup.qerr == 1,
            _ => false,
        };
        let is_preempt = |event: &&Event| matches!(event.kind, Kind::Preempt(victim) if victim == nexus.who && lun == 0);
        let events = || self.events.iter();
        let most = |of: &dyn Fn(&&Event) -> bool| {
            events().filter(of).filter(|e| could_tell(e, nexus)).count()
        };
        let certain = |of: &dyn Fn(&&Event) -> bool| {
            events().any(|event| of(&event) && must_tell(event, nexus, lun))
        };
        let lost = self.tasks.iter().filter(|task| {
            task.sent.nexus == index && task.command.lun == lun && task.sent.answer.is_none()
        });
        let lost: Vec<&Task<'_>> = lost.collect();
        // A condition may be lost with the answer that should have reported it.
        let has_own_abort = lost.iter().any(|task| {
            let causes = self.causes(task);
            causes.iter().any(|event| event.nexus == index)
        });
        let clears = most(&|e| is_other(e) && is_clear(e));
        let cleared_max = if self.setup.tas {
            0
        } else {
            clears.min(lost.len())
        };
        // Lost for no other reason than that another one cleared them.
        let cleared_min = lost.iter().any(|task| {
            let causes = self.causes(task);
            causes
                .iter()
                .all(|e| is_other(e) && is_clear(e) && must_tell(e, nexus, lun))
        });
        let bounds = [
            ("of resets", resets, certain(&is_reset), most(&is_reset)),
            ("of cleared commands", cleared, cleared_min, cleared_max),
            (
                "of its preemption",
                preempted,
                certain(&|e| is_preempt(e) && is_other(e)),
                most(&is_preempt),
            ),
        ];
        for (of, told, must, most) in bounds {
            let must = must && nexus.probed.is_some() && !has_own_abort;
            self.rule(told >= usize::from(must) && told <= most, || {
                format!("session {index} is told {told} times {of} of disk {lun}: {must}, {most}")
            });
        }
    }
}

/// Whether the session may have been there when it happened.
fn could_tell(event: &Event, nexus: &Nexus) -> bool {
    event
        .until
        .is_none_or(|until| until.ns + ON_ITS_WAY_NS > nexus.begun.ns)
}

/// Whether the session was there when it happened, and could tell of it until it was asked.
fn must_tell(event: &Event, nexus: &Nexus, lun: u32) -> bool {
    let is_known = nexus
        .quiet
        .get(&lun)
        .is_some_and(|quiet| *quiet < event.from);
    let is_done = match (event.until, nexus.probed) {
        (Some(until), Some(probed)) => until < probed,
        _ => false,
    };
    is_known && is_done
}
