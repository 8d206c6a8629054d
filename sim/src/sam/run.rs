//! Runs one case in its own world: a target with the case's disks, and its initiators.

use std::{cell::Cell, rc::Rc, time::Duration};

use engine::{
    sim::{Host, World, WorldConfig},
    spawn, time,
};

use super::{
    history::{SentWhat, Shared},
    login,
    peer::Session,
    script::{CASE_TIME, Ending, Script, Setup, Step, What},
    serve::{IQN, serve},
    wire::Prepared,
};
use crate::target_machine::PORT;

/// Within this time the target must have answered everything, without being prompted.
const QUIET_TIME: Duration = Duration::from_secs(3);
/// The first tag of commands sent in addition to the script.
const BESIDE: u32 = 1_000;

/// Runs `script`; returns the history.
pub(super) fn run(script: &Script) -> Shared {
    let history = Shared::default();
    let mut config = WorldConfig::default();
    config.net.split_probability = if script.setup.network_splits {
        0.25
    } else {
        0.0
    };
    let world = World::with_config(script.seed, config);
    let target = world.host_with_lanes("target", script.setup.lanes);
    let client = world.host("client");
    serve(&target, script, history.clone());
    let case = Rc::new(Case {
        target: target.clone(),
        setup: script.setup.clone(),
        history: history.clone(),
        beside: Cell::new(BESIDE),
    });
    let steps = script.steps.clone();
    world.block_on(&client, async move {
        let all = time::timeout(CASE_TIME, case.clone().run(steps)).await;
        if all.is_none() {
            case.history
                .lock()
                .fault("an initiator waits for ever".to_owned());
        }
    });
    history
}

struct Case {
    target: Host,
    setup: Setup,
    history: Shared,
    beside: Cell<u32>,
}

impl Case {
    async fn run(self: Rc<Self>, steps: Vec<Step>) {
        let mut sessions = Vec::new();
        for who in 0..self.setup.initiators {
            // One after the other: with QERR, the unit attention of one initiator may abort another's commands.
            let Some(session) = self.begin(who).await else {
                return;
            };
            sessions.push(session);
        }
        let runners = sessions.into_iter().enumerate().map(|(who, session)| {
            let own = steps.iter().filter(|step| step.who == who).cloned();
            spawn(self.clone().play(session, own.collect()))
        });
        let mut last = Vec::new();
        for runner in runners.collect::<Vec<_>>() {
            last.extend(runner.await);
        }
        // From now on only solicited data is sent.
        time::sleep(QUIET_TIME).await;
        for session in last {
            self.probe(&session).await;
        }
    }

    /// Logs in, consumes the unit attentions, and registers.
    async fn begin(&self, who: usize) -> Option<Rc<Session>> {
        let mut attempts = 0;
        let session = loop {
            let config = login::config(&self.setup, IQN, who);
            let portal = self.target.addr(PORT);
            match Session::login(portal, config, who, &self.history).await {
                Ok(session) => break session,
                // It may not listen yet.
                Err(_) if attempts < 100 && self.history.lock().nexuses.is_empty() => {
                    attempts += 1;
                    time::sleep(Duration::from_millis(1)).await;
                }
                Err(error) => {
                    self.history
                        .lock()
                        .fault(format!("initiator {who} is not let in: {error}"));
                    return None;
                }
            }
        };
        let is_first = {
            let mut history = self.history.lock();
            let begun = history.nexuses[session.nexus].begun;
            let mut is_first = true;
            for (number, nexus) in history.nexuses.iter_mut().enumerate() {
                if nexus.who == who && number != session.nexus {
                    nexus.gone.get_or_insert(begun);
                    is_first = false;
                }
            }
            is_first
        };
        for lun in 0..self.setup.luns {
            self.until_quiet(&session, lun).await;
        }
        if is_first && self.setup.reserved {
            const REGISTER_AND_IGNORE: u8 = 6;
            const RESERVE: u8 = 1;
            let key = who as u8 + 1;
            self.beside(&session, Prepared::reserve_out(REGISTER_AND_IGNORE, 0, key))
                .await;
            if who == 0 {
                self.beside(&session, Prepared::reserve_out(RESERVE, key, 0))
                    .await;
            }
        }
        Some(session)
    }

    /// Sends TEST UNIT READY until nothing is left to be told.
    async fn until_quiet(&self, session: &Session, lun: u32) {
        for _ in 0..20 {
            let status = self.beside(session, Prepared::test_unit_ready(lun)).await;
            if status == Some(0) {
                return;
            }
        }
        session.fault(format!("disk {lun} is never ready"));
    }

    /// Sends a command that is not of the script, and waits a while for its status.
    async fn beside(&self, session: &Session, prepared: Prepared) -> Option<u8> {
        let tag = self.beside.get() + 1;
        self.beside.set(tag);
        let what = SentWhat::Beside(prepared.lun);
        session.command(tag, prepared, what, 0);
        session.flush(None).await;
        let answered = session.changed.wait_for(|| {
            let history = self.history.lock();
            let answer = history.sent[&tag].answer.as_ref();
            let status = answer.map(|answer| answer.status);
            status.or(session.over.get().then_some(None))
        });
        // Others may abort it without a word.
        time::timeout(Duration::from_millis(200), answered)
            .await
            .flatten()
    }

    /// Plays the steps of one initiator, through all its sessions; gives the last one, if it lives.
    async fn play(self: Rc<Self>, session: Rc<Session>, steps: Vec<Step>) -> Option<Rc<Session>> {
        let mut session = Some(session);
        for step in &steps {
            let now = match &session {
                Some(session) => session.clone(),
                None => self.begin(steps[0].who).await?,
            };
            session = Some(now.clone());
            match &step.what {
                What::Command(command) => {
                    if command.is_immediate || now.has_window().await {
                        let prepared = Prepared::of(command, step.id, step.who, &now.parameters);
                        now.command(step.id, prepared, SentWhat::Command(command.clone()), 0);
                    }
                }
                What::Function(function) => {
                    if function.is_immediate || now.has_window().await {
                        now.function(step.id, function);
                    }
                }
                What::Unsolicited => drop(now.send_unsolicited()),
                What::End(ending) => {
                    now.flush(step.cut).await;
                    self.end(&now, *ending, step.id).await;
                    session = match ending {
                        // The next session comes while this one stands.
                        Ending::Reinstate => Some(self.begin(step.who).await?),
                        _ => None,
                    };
                }
            }
            if !step.is_glued {
                now.flush(step.cut).await;
                time::sleep(Duration::from_nanos(step.pause_ns)).await;
            }
        }
        let last = session?;
        while last.send_unsolicited() {}
        last.flush(None).await;
        Some(last)
    }

    async fn end(&self, session: &Session, ending: Ending, tag: u32) {
        const PATIENCE: Duration = Duration::from_secs(2);
        let at = match ending {
            Ending::Drop => session.close(),
            Ending::Reinstate => {
                session.over.set(true);
                let mut history = self.history.lock();
                history.note(format_args!("{} is to be reinstated", session.nexus))
            }
            Ending::Logout | Ending::Gap => {
                while session.send_unsolicited() {}
                let mut history = self.history.lock();
                history.note(format_args!("{} is to end by {ending:?}", session.nexus))
            }
        };
        {
            let nexus = &mut self.history.lock().nexuses[session.nexus];
            (nexus.ended, nexus.ended_by) = (Some(at), Some(ending));
        }
        let is_gone = || {
            let history = self.history.lock();
            history.nexuses[session.nexus].gone.is_some()
        };
        match ending {
            Ending::Drop | Ending::Reinstate => {}
            Ending::Logout => {
                session.logout(tag);
                session.flush(None).await;
                let logged_out = session.changed.wait_for(|| is_gone().then_some(()));
                if time::timeout(PATIENCE, logged_out).await.is_none() {
                    session.fault("the logout is not answered".to_owned());
                }
                session.close();
            }
            Ending::Gap => {
                if session.has_window().await {
                    let prepared = Prepared::test_unit_ready(0);
                    session.command(tag, prepared, SentWhat::Beside(0), 1);
                    session.over.set(true);
                    session.flush(None).await;
                }
                time::sleep(Duration::from_millis(5)).await;
                session.close();
            }
        }
    }

    /// Hears what is left to be told, and sees that the session is as it was at its beginning.
    async fn probe(&self, session: &Session) {
        let at = self
            .history
            .lock()
            .note(format_args!("{} is asked", session.nexus));
        for lun in 0..self.setup.luns {
            self.until_quiet(session, lun).await;
        }
        self.history.lock().nexuses[session.nexus].probed = Some(at);
        let counts = *session.counts.borrow();
        let width = counts.max_cmd_sn + 1 - counts.exp_cmd_sn;
        let was_lost = {
            let history = self.history.lock();
            let mut sent = history.sent.iter();
            sent.any(|(tag, sent)| {
                sent.nexus == session.nexus && *tag >= BESIDE && sent.answer.is_none()
            })
        };
        // How wide it is follows the lane's memory; it is never shut for good.
        if !(1..=self.setup.window.into()).contains(&width) && !was_lost {
            session.fault(format!(
                "the window is {width} wide when all has ended: {counts:?}"
            ));
        }
    }
}
