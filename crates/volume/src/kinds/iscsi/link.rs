//! The home lane's handle on a session, which runs either on the home lane or on another lane that also sends its own
//! reads and writes over it. Requests to a session on another lane travel as messages, and its end is known here a
//! little late.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
};

use engine::{Buf, Instant, LaneFuture, LaneHandle, Payload, spawn, sync::Notify};
use iscsi::frame::Digests;

use super::{
    cdb::CdbBytes,
    config::{IscsiConfig, PathConfig},
    in_flight::InFlight,
    login::Portal,
    own::{Own, OwnedSession, SessionEnd},
    session::{Data, Port, Reply, Session},
    silence::Silence,
};
use crate::{Error, Result, part::Resident};

/// A session, wherever it runs.
pub(super) enum SessionLink {
    /// On this lane.
    Here(Rc<Session>),
    /// On another lane.
    There(Rc<Distant>),
}

/// A session on another lane.
pub(super) struct Distant {
    kept: Arc<Resident<Rc<OwnedSession>>>,
    port: Port,
    digests: Digests,
    silence: Silence,
    /// How it ended, once the other lane has reported it.
    end: RefCell<Option<SessionEnd>>,
    /// The target asks for a logout, as reported by the other lane.
    is_asked_to_log_out: Cell<bool>,
    changed: Notify,
}

/// A command's data, on its way to another lane.
pub(super) enum SentData {
    None,
    In(usize),
    Out(Buf),
}

impl From<Data> for SentData {
    fn from(data: Data) -> SentData {
        match data {
            Data::None => SentData::None,
            Data::In(len) => SentData::In(len),
            Data::Out(payload) => SentData::Out(payload.into_buf()),
        }
    }
}

impl From<SentData> for Data {
    fn from(data: SentData) -> Data {
        match data {
            SentData::None => Data::None,
            SentData::In(len) => Data::In(len),
            SentData::Out(buf) => Data::Out(buf.into()),
        }
    }
}

/// A command's reply, on its way to another lane.
pub(super) struct SentReply {
    status: u8,
    sense: Vec<u8>,
    data: Buf,
    transferred: usize,
    is_cut: bool,
    doubts: u64,
    is_in_doubt: bool,
}

impl From<Reply> for SentReply {
    fn from(reply: Reply) -> SentReply {
        SentReply {
            status: reply.status,
            sense: reply.sense,
            data: reply.data.into_buf(),
            transferred: reply.transferred,
            is_cut: reply.is_cut,
            doubts: reply.doubts,
            is_in_doubt: reply.is_in_doubt,
        }
    }
}

impl From<SentReply> for Reply {
    fn from(reply: SentReply) -> Reply {
        Reply {
            status: reply.status,
            sense: reply.sense,
            data: Payload::from(reply.data),
            transferred: reply.transferred,
            is_cut: reply.is_cut,
            doubts: reply.doubts,
            is_in_doubt: reply.is_in_doubt,
        }
    }
}

impl SessionLink {
    /// Logs in on `lane`, which is not this one, at `portal` or wherever that redirects us. Also returns where the target has
    /// moved for good.
    pub(super) async fn log_in_on(
        lane: &LaneHandle,
        portal: Portal,
        (config, path): (&IscsiConfig, &PathConfig),
        deadline: Instant,
    ) -> Result<(SessionLink, Option<SocketAddr>)> {
        let (config, path) = (config.clone(), path.clone());
        let make = move || {
            LaneFuture::new(async move {
                let (session, moved) = portal.log_in(&config, &path, deadline).await?;
                let silence = session.silence().clone();
                let told = (session.port(), session.digests(), silence, moved);
                let own = Own {
                    session,
                    in_flight: InFlight::default(),
                };
                Ok((Rc::new(OwnedSession(Rc::new(own))), told))
            })
        };
        let (kept, (port, digests, silence, moved)) = Resident::settle(lane, make).await?;
        let distant = Rc::new(Distant {
            kept,
            port,
            digests,
            silence,
            end: RefCell::default(),
            is_asked_to_log_out: Cell::new(false),
            changed: Notify::new(),
        });
        let asked = distant.ask(|own| async move {
            own.session.asked_to_log_out().await;
            Ok(own.session.is_asked_to_log_out())
        });
        let known = Rc::downgrade(&distant);
        spawn(async move {
            // It may have ended instead, which is reported below.
            let is_asked = asked.await.unwrap_or(false);
            if let Some(distant) = known.upgrade().filter(|_| is_asked) {
                distant.is_asked_to_log_out.set(true);
                distant.changed.notify();
            }
        });
        let over = distant.ask(|own| async move { Ok(over(&own.session).await) });
        let known = Rc::downgrade(&distant);
        spawn(async move {
            let end = over.await.unwrap_or_else(|error| SessionEnd {
                error,
                left_writes: true,
            });
            if let Some(distant) = known.upgrade() {
                distant.ended(end);
            }
        });
        Ok((SessionLink::There(distant), moved))
    }

    /// The session, if it is on another lane.
    pub(super) fn there(&self) -> Option<&Rc<Distant>> {
        match self {
            SessionLink::Here(_) => None,
            SessionLink::There(distant) => Some(distant),
        }
    }

    pub(super) fn port(&self) -> Port {
        match self {
            SessionLink::Here(session) => session.port(),
            SessionLink::There(distant) => distant.port,
        }
    }

    pub(super) fn digests(&self) -> Digests {
        match self {
            SessionLink::Here(session) => session.digests(),
            SessionLink::There(distant) => distant.digests,
        }
    }

    /// How it has ended, if it has.
    pub(super) fn end_now(&self) -> Option<SessionEnd> {
        match self {
            SessionLink::Here(session) => SessionEnd::of(session),
            SessionLink::There(distant) => distant.end.borrow().clone(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        match self {
            SessionLink::Here(session) => session.is_over(),
            SessionLink::There(distant) => distant.end.borrow().is_some(),
        }
    }

    /// Whether its target is silent, which changes with time.
    pub(super) fn silence(&self) -> &Silence {
        match self {
            SessionLink::Here(session) => session.silence(),
            SessionLink::There(distant) => &distant.silence,
        }
    }

    /// Waits until it is over.
    pub(super) async fn over(&self) -> SessionEnd {
        match self {
            SessionLink::Here(session) => over(session).await,
            SessionLink::There(distant) => distant.changed.wait_for(|| self.end_now()).await,
        }
    }

    /// Whether the target has asked for a logout.
    pub(super) fn is_asked_to_log_out(&self) -> bool {
        match self {
            SessionLink::Here(session) => session.is_asked_to_log_out(),
            SessionLink::There(distant) => distant.is_asked_to_log_out.get(),
        }
    }

    /// From now on it takes no more requests, as if the target had asked for a logout.
    pub(super) async fn retire(&self) {
        match self {
            SessionLink::Here(session) => session.retire(),
            SessionLink::There(distant) => {
                let retired = distant.ask(|own| async move {
                    own.session.retire();
                    Ok(())
                });
                // An error: the lane has ended, and sends nothing.
                let _ = retired.await;
            }
        }
    }

    /// Waits until the target asks for a logout, or it is over.
    pub(super) async fn asked_to_log_out(&self) {
        match self {
            SessionLink::Here(session) => session.asked_to_log_out().await,
            SessionLink::There(distant) => {
                let is_asked = || (self.is_asked_to_log_out() || self.is_over()).then_some(());
                distant.changed.wait_for(is_asked).await;
            }
        }
    }

    /// Sends a command once.
    pub(super) async fn execute(&self, cdb: &CdbBytes, data: Data) -> Result<Reply> {
        match self {
            SessionLink::Here(session) => session.execute(session.lun(), cdb, data).await,
            // Boxed, to keep the future of a command on this lane small.
            SessionLink::There(distant) => LaneFuture::new(distant.execute(*cdb, data)).await,
        }
    }

    /// Sends LOGICAL UNIT RESET; returns the response code (RFC 7143 §11.6.1).
    pub(super) async fn reset_logical_unit(&self) -> Result<u8> {
        match self {
            SessionLink::Here(session) => session.reset_logical_unit().await,
            SessionLink::There(distant) => {
                let reset = |own: Rc<Own>| async move { own.session.reset_logical_unit().await };
                distant.ask(reset).await
            }
        }
    }

    pub(super) async fn logout(&self) {
        match self {
            SessionLink::Here(session) => session.logout().await,
            SessionLink::There(distant) => {
                let logout = |own: Rc<Own>| async move { own.session.logout().await };
                distant.see_through(logout).await;
            }
        }
    }

    /// Ends it; on another lane this takes effect when the message arrives.
    /// As [`SessionLink::end`]; nothing that is queued is sent any more, and nothing that was sent leaves this machine.
    pub(super) fn abort(&self, error: Error) {
        match self {
            SessionLink::Here(session) => session.abort(error),
            SessionLink::There(distant) => {
                let abort = move |kept: Rc<OwnedSession>| kept.0.session.abort(error);
                distant.kept.tell(abort);
            }
        }
    }

    pub(super) fn end(&self, error: Error) {
        match self {
            SessionLink::Here(session) => session.end(error),
            SessionLink::There(distant) => {
                let end = move |kept: Rc<OwnedSession>| kept.0.session.end(error);
                distant.kept.tell(end);
            }
        }
    }
}

impl Distant {
    /// Its unique number.
    pub(super) fn number(&self) -> u64 {
        self.kept.number()
    }

    pub(super) fn lane(&self) -> &LaneHandle {
        self.kept.lane()
    }

    pub(super) fn kept(&self) -> &Arc<Resident<Rc<OwnedSession>>> {
        &self.kept
    }

    /// Records how it has ended.
    pub(super) fn ended(&self, end: SessionEnd) {
        self.end.borrow_mut().get_or_insert(end);
        self.changed.notify();
    }

    /// Waits until its own lane has no command outstanding on it, either.
    pub(super) async fn idle(&self) {
        let idle = self.ask(|own| async move {
            own.in_flight.idle().await;
            Ok(())
        });
        // An error: the lane has ended, and has no commands.
        let _ = idle.await;
    }

    /// Ends it if commands of any lane are in flight on it.
    pub(super) async fn end_if_busy(&self, error: Error) {
        let end = |own: Rc<Own>| async move {
            if own.in_flight.count() > 0 {
                own.session.end(error);
            }
        };
        self.see_through(end).await;
    }

    /// Runs an operation on its own lane that may end it, and knows afterwards whether it has ended.
    async fn see_through<F>(&self, order: impl FnOnce(Rc<Own>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let done = self.ask(|own| async move {
            order(own.clone()).await;
            Ok(SessionEnd::of(&own.session))
        });
        if let Ok(Some(end)) = done.await {
            self.ended(end);
        }
    }

    /// Runs a request on its own lane.
    pub(super) fn ask<R, F>(
        &self,
        request: impl FnOnce(Rc<Own>) -> F + Send + 'static,
    ) -> LaneFuture<'static, Result<R>>
    where
        R: Send + 'static,
        F: Future<Output = Result<R>> + 'static,
    {
        LaneFuture::new(self.kept.call(|kept: Rc<OwnedSession>| {
            let own = kept.0.clone();
            drop(kept);
            request(own)
        }))
    }

    async fn execute(&self, cdb: CdbBytes, data: Data) -> Result<Reply> {
        let data = SentData::from(data);
        let sent = self.ask(move |own| async move {
            let replied = own.execute(&cdb, data.into()).await;
            Ok((replied.map(SentReply::from), SessionEnd::of(&own.session)))
        });
        let (replied, end) = sent.await?;
        if let (Err(_), Some(end)) = (&replied, end) {
            self.ended(end);
        }
        replied.map(Reply::from)
    }
}

/// Waits until `session` is over.
async fn over(session: &Session) -> SessionEnd {
    let error = session.over().await;
    let left_writes = session.has_left_writes();
    SessionEnd { error, left_writes }
}
