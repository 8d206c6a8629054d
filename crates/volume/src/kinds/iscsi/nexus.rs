//! The way to a logical unit: one session at a time, and another one when it is lost. Whoever finds
//! it lost logs in again, one attempt at a time for all who wait, at a [pace](Pace) that does not
//! depend on their number or on what the target does with its sessions.
//!
//! A command is sent again only when the old session's can do no harm any more. A target ends them
//! all before it lets the same initiator port in again at the same target port (RFC 7143 §6.3.5). A
//! login that was redirected may reach another portal group, which is another target port: then
//! LOGICAL UNIT RESET ends what the old session left (SAM-5 7.10), and where that fails, writes that
//! were in flight have failed.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
};

use engine::{Duration, LaneFuture, sync::Notify, time};
use iscsi::LunField;

use super::{
    cdb::{self, Cdb},
    config::IscsiConfig,
    login::Portal,
    patience::{AT_ONCE_MAX, Pace, Patience},
    sense::{Sense, Verdict},
    session::{Data, Reply, Session, Unused},
    status::SessionStatus,
};
use crate::{Error, ErrorKind, Result};

/// What a reply asks us to do, and why; `None`: nothing, it is good.
pub(super) type Judgement = Option<(Verdict, String)>;

/// Makes sure on a new session that the disk is still ours, before anything is done on it.
pub(super) type Establish<'a> = dyn Fn(Rc<Session>) -> LaneFuture<'a, Result<()>> + 'a;

/// A way to one logical unit.
pub(super) struct Nexus {
    config: IscsiConfig,
    portal: Portal,
    lun: LunField,
    session: RefCell<Rc<Session>>,
    /// Somebody logs in right now; others wait for the outcome.
    reconnecting: Cell<bool>,
    reconnected: Notify,
    pace: RefCell<Pace>,
    /// The log has the loss of the session: one line, however many requests wait and attempts fail.
    loss_is_told: Cell<bool>,
    /// A reset that was to end the writes of an earlier session has failed.
    past_is_alive: Cell<bool>,
    status: OnceCell<SessionStatus>,
}

impl Nexus {
    /// Logs in.
    ///
    /// # Errors
    /// When the target cannot be reached or refuses us.
    pub(super) async fn open(config: IscsiConfig) -> Result<Nexus> {
        let lun = LunField::from(scsi::Lun::from(config.lun).encode());
        let portal = Portal::new(config.address);
        let pace = Pace::begin();
        let session = portal.log_in(&config, None).await?;
        Ok(Nexus {
            config,
            portal,
            lun,
            session: RefCell::new(session),
            reconnecting: Cell::new(false),
            reconnected: Notify::new(),
            pace: RefCell::new(pace),
            loss_is_told: Cell::new(false),
            past_is_alive: Cell::new(false),
            status: OnceCell::new(),
        })
    }

    pub(super) fn config(&self) -> &IscsiConfig {
        &self.config
    }

    /// Says from now on in `status` what the session does.
    pub(super) fn report_to(&self, status: &SessionStatus) {
        status.logged_in(self.session().port().address());
        let _ = self.status.set(status.clone());
    }

    pub(super) fn lun(&self) -> LunField {
        self.lun
    }

    /// The session, which may be lost.
    pub(super) fn session(&self) -> Rc<Session> {
        self.session.borrow().clone()
    }

    /// Sends a command once.
    ///
    /// # Errors
    /// When the session ends before the answer, or the target did not execute it.
    pub(super) fn execute(
        &self,
        session: &Rc<Session>,
        cdb: &Cdb,
        data: Data,
    ) -> impl Future<Output = Result<Reply>> {
        session.execute(self.lun, cdb, data)
    }

    /// Logs in again after `lost` ended with `error`, or waits for somebody who does. What the
    /// target says meanwhile goes to `judge`.
    ///
    /// # Errors
    /// The last attempt's, when the request's time is up or the target refuses us for good.
    pub(super) async fn reconnect(
        &self,
        lost: &Rc<Session>,
        error: Error,
        patience: &mut Patience,
        judge: &dyn Fn(&Reply) -> Judgement,
        establish: &Establish<'_>,
    ) -> Result<()> {
        let mut error = error;
        loop {
            if !Rc::ptr_eq(&self.session.borrow(), lost) {
                return Ok(());
            }
            let is_late = |error: Error| {
                let waited = self.config.reconnect_timeout;
                error.context(format_args!("no session again within {waited:?}"))
            };
            let Some(left) = patience.left() else {
                return Err(is_late(error));
            };
            if self.reconnecting.replace(true) {
                let waited = time::timeout(left, self.reconnected.notified()).await;
                if waited.is_none() {
                    return Err(is_late(error));
                }
                continue;
            }
            let _attempt = Attempt(self);
            let target_name = &self.config.target_name;
            if !self.loss_is_told.replace(true) {
                if let Some(status) = self.status.get() {
                    status.lost(error.to_string());
                }
                tracing::warn!(target_name, %error, "session lost; logging in again");
            }
            let due_in = self.pace.borrow().due_in();
            time::sleep(due_in.min(left)).await;
            if due_in > left {
                return Err(is_late(error));
            }
            self.pace.borrow_mut().next();
            // What has begun may take its time.
            let limit = (left - due_in).max(self.config.connect_timeout);
            match self.log_in_again(lost, limit, judge, establish).await {
                Ok(session) => {
                    tracing::info!(target_name, "logged in again");
                    self.loss_is_told.set(false);
                    if let Some(status) = self.status.get() {
                        status.logged_in(session.port().address());
                    }
                    *self.session.borrow_mut() = session;
                }
                Err(refused)
                    if matches!(
                        refused.kind(),
                        ErrorKind::Configuration | ErrorKind::Preempted
                    ) =>
                {
                    return Err(refused);
                }
                Err(failed) => error = failed,
            }
        }
    }

    /// A new session within `limit`, of which we know what the target has to say, and beside which
    /// nothing of `lost` is at work any more.
    async fn log_in_again(
        &self,
        lost: &Session,
        limit: Duration,
        judge: &dyn Fn(&Reply) -> Judgement,
        establish: &Establish<'_>,
    ) -> Result<Rc<Session>> {
        let deadline = time::now() + limit;
        let session = self.portal.log_in(&self.config, Some(deadline)).await?;
        let unused = Unused(Some(session));
        let session = unused.0.as_ref().expect("it was put there");
        let prepared = async {
            self.settle(session, judge).await?;
            // Before the reset, too: it would end another owner's writes.
            establish(session.clone()).await?;
            self.fence(lost, session, judge).await
        };
        let left = deadline - time::now();
        let prepared = time::timeout(left, prepared).await.unwrap_or_else(|| {
            let message = format!("the target is not ready within {limit:?}");
            Err(Error::new(ErrorKind::TimedOut, message))
        });
        match prepared {
            Ok(()) => Ok(unused.take()),
            Err(error) => {
                session.logout().await;
                Err(error)
            }
        }
    }

    /// Hears what the target has to say: whether it has restarted has to be known before anything
    /// is sent again, or a flush could be answered well before the unit attention that came with
    /// another command is looked at.
    async fn settle(
        &self,
        session: &Rc<Session>,
        judge: &dyn Fn(&Reply) -> Judgement,
    ) -> Result<()> {
        for _ in 0..AT_ONCE_MAX {
            let command = cdb::test_unit_ready();
            let reply = session.execute(self.lun, &command, Data::None).await?;
            match judge(&reply) {
                None | Some((Verdict::Fail(_), _)) => return Ok(()),
                Some((Verdict::Retry | Verdict::Restarted, _)) => {}
                Some((Verdict::RetryLater, why)) => {
                    return Err(Error::new(ErrorKind::TimedOut, why));
                }
            }
        }
        let message = "the target has a unit attention for every command";
        Err(Error::new(ErrorKind::Protocol, message))
    }

    /// Ends the writes that `lost` may have left with the target, unless the login has.
    async fn fence(
        &self,
        lost: &Session,
        session: &Rc<Session>,
        judge: &dyn Fn(&Reply) -> Judgement,
    ) -> Result<()> {
        const FUNCTION_COMPLETE: u8 = 0;
        let is_reinstated = session.port().is_same(&lost.port());
        if !self.past_is_alive.get() && (is_reinstated || !lost.has_left_writes()) {
            return Ok(());
        }
        let target_name = &self.config.target_name;
        let response = session.reset_logical_unit(self.lun).await?;
        if response != FUNCTION_COMPLETE {
            let consequence = "writes that were in flight have failed and may still happen";
            tracing::error!(
                target_name,
                response,
                consequence,
                "the session is at another portal group now, where LOGICAL UNIT RESET has failed"
            );
            lost.may_still_write();
            self.past_is_alive.set(true);
            return Ok(());
        }
        tracing::warn!(
            target_name,
            "the session is at another portal group now: LOGICAL UNIT RESET has ended the old one's writes"
        );
        self.past_is_alive.set(false);
        // The reset is told by a unit attention of its own, which is no restart: that would have
        // ended this session.
        self.settle(session, &|reply| match Sense::of(reply) {
            Some(sense) if sense.is_reset() => Some((Verdict::Retry, String::new())),
            _ => judge(reply),
        })
        .await
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        // Its tasks would keep it alive, and answer pings for ever.
        let closed = Error::new(ErrorKind::Unreachable, "the volume has been closed");
        self.session.borrow().end(closed);
    }
}

/// The one attempt to log in again; however it ends, others may try.
struct Attempt<'a>(&'a Nexus);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.reconnecting.set(false);
        self.0.reconnected.notify();
    }
}
