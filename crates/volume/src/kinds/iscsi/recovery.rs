//! What the loss of a path means for the commands in flight, and how the path comes back.
//!
//! Reads in flight are resent at once. A write in flight may still take effect at the target at any time, even after
//! a newer write, so no write is sent until [`ghosts`](super::ghosts) has ended the old one.

use std::rc::{Rc, Weak};

use engine::{Duration, spawn, time};

use super::{
    access::{self, PathAccess},
    cdb,
    claim::ClaimAnswer,
    link::SessionLink,
    machine::{Action, Actions, Event, PathEvent, PathId, QUIET},
    nexus::Nexus,
    own::SessionEnd,
    path::Path,
    patience::AT_ONCE_MAX,
    same_disk,
    sense::Verdict,
    session::{Data, Unused},
    unit::RemoteUnit,
};
use crate::{Error, ErrorKind, Result};

impl RemoteUnit {
    /// Logs in on the first path that works, trying path `begin` first.
    ///
    /// # Errors
    /// The first path's error, if none works.
    pub(super) async fn open_first(&self, begin: usize) -> Result<()> {
        let (before, from) = self.paths.all().split_at(begin);
        for path in from.iter().chain(before) {
            match self.bring_up(path, self.paths.login_limit()).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    self.on_path(path, PathEvent::LoginFailed(error));
                }
            }
        }
        Err(self.paths.why())
    }

    /// Logs in on the missing paths. A path that is unreachable or refused is retried in the background.
    ///
    /// # Errors
    /// When a path leads to another disk.
    pub(super) async fn open_others(&self) -> Result<()> {
        let missing = || self.paths.wanted().filter(|path| path.live().is_none());
        let opened = missing().map(|path| Box::pin(self.open_path(path)));
        if self.paths.are_several() {
            self.handle(Event::AccessDoubted);
        }
        let opened = engine::task::join_all(opened).await;
        let opened: Result<Vec<_>> = opened.into_iter().collect();
        opened?;
        self.bring_back();
        Ok(())
    }

    /// Logs in on a new path. Returns why it cannot be used yet; it is to be retried then, unless the target accepts no
    /// more sessions and we can do without this one.
    ///
    /// # Errors
    /// When it leads to another disk.
    pub(super) async fn open_path(&self, path: &Path) -> Result<Option<Error>> {
        let Err(error) = self.bring_up(path, self.paths.login_limit()).await else {
            return Ok(None);
        };
        let tells = self.on_path(path, PathEvent::OpenFailed(error.clone()));
        if self.machine.borrow().leads_elsewhere(path.id()) {
            return Err(error.context(format_args!("the path through {}", path.address())));
        }
        if tells.contains(&Action::TellGivenUp(path.id())) {
            let target_name = &self.config().target_name;
            tracing::warn!(
                target_name,
                %error,
                "the target accepts no more sessions; set `sessions` to the number that it accepts"
            );
            return Ok(None);
        }
        self.tell_lost(path, &tells, &error);
        Ok(Some(error))
    }

    /// Starts the recovery of every lost path that is still wanted.
    pub(super) fn bring_back(&self) {
        self.paths.notice();
        self.handle(Event::BringBack);
    }

    /// Brings `path` back in the background.
    pub(super) fn recover(&self, path: PathId) {
        spawn(recover(self.me.clone(), path));
    }

    /// Queries every path's access state in the background.
    pub(super) fn ask_all_access(&self) {
        spawn(follow_access(self.me.clone()));
    }

    /// Has the machine take an event of `path`, whose state is shown. Returns what is left to do.
    pub(super) fn on_path(&self, path: &Path, event: PathEvent) -> Actions {
        self.paths.notice();
        let left = self.handle(Event::Path(path.id(), event));
        self.paths.tell_paths();
        left
    }

    /// Logs the loss of `path` if that is among `tells`.
    fn tell_lost(&self, path: &Path, tells: &Actions, error: &Error) {
        if tells.contains(&Action::TellLoss(path.id())) {
            let (target_name, address) = (&self.config().target_name, path.address());
            tracing::warn!(target_name, %address, %error, "session lost; logging in again");
        }
    }

    /// The session of `nexus` has ended with `error`.
    fn lost(&self, nexus: &Rc<Nexus>, error: &Error) {
        self.paths.notice();
        nexus.notice();
        let is_at_rest = self.paths.is_at_rest();
        let tells = self.handle(Event::Lost(nexus.id()));
        if is_at_rest {
            return;
        }
        let path = self.paths.path(nexus.path());
        {
            let mut counts = self.paths.counts.borrow_mut();
            counts.lost += u64::from(path.is_wanted());
            counts.lost_with_writes += u64::from(nexus.may_still_write());
        }
        match path.is_wanted() {
            true => self.tell_lost(path, &tells, error),
            false => self.paths.tell_first(),
        }
        self.paths.tell_lost(error);
    }

    /// Logs in on `path` within `limit`. Takes it into use once we know what the target has to report and no write of
    /// the previous nexus can still take effect.
    async fn bring_up(&self, path: &Path, limit: Duration) -> Result<()> {
        let link = self.paths.log_in(path, time::now() + limit).await?;
        let unused = match &link {
            SessionLink::Here(session) => Some(Unused(Some(session.clone()))),
            // It ends by itself when its last owner drops it.
            SessionLink::There(_) => None,
        };
        let nexus = self.paths.nexus_over(link, path.id());
        let before = path.last();
        if let Some(lost) = before.filter(|lost| lost.port().is_same(&nexus.port())) {
            self.handle(Event::Reinstated(lost.id()));
        }
        let limit = self.config().reconnect_timeout.max(limit);
        nexus.must_be_ready_within(limit);
        let prepared = self.prepare(path, &nexus).await;
        // Even if the login is of no use: the target reports a restart only once.
        self.account_for(&nexus).await;
        let why = match (self.paths.is_at_rest(), path.is_wanted()) {
            (true, _) => Some("the disk was closed in the meantime"),
            (false, false) => Some("the path was removed in the meantime"),
            (false, true) => None,
        };
        let unwanted = why.map(|why| Error::new(ErrorKind::Unreachable, why));
        let wanted = prepared.and_then(|()| unwanted.map_or(Ok(()), Err));
        if let Err(error) = wanted {
            nexus.link().logout().await;
            return Err(error);
        }
        unused.map(Unused::take);
        nexus.is_ready();
        // Not every target tells a new nexus that they have changed.
        self.doubt_cache();
        self.doubt_capacity();
        match path.access() {
            PathAccess::No => self.paths.park(&nexus),
            _ => self.paths.take_into_use(&nexus),
        }
        spawn(same_disk::keep_sure(self.me.clone(), nexus.clone()));
        let unit = self.me.clone();
        spawn(async move {
            nexus.link().asked_to_log_out().await;
            if let (false, Some(unit)) = (nexus.is_over(), unit.upgrade()) {
                unit.leave(&nexus).await;
            }
            let SessionEnd { error, .. } = nexus.link().over().await;
            if let Some(unit) = unit.upgrade() {
                unit.lost(&nexus, &error);
            }
        });
        Ok(())
    }

    /// Logs out on `nexus`, because its path was removed, or as the target asked.
    async fn leave(&self, nexus: &Rc<Nexus>) {
        let path = self.paths.path(nexus.path());
        // Nobody sends on it any more.
        let tells = self.on_path(path, PathEvent::LogoutRequested);
        if tells.contains(&Action::TellLoss(path.id())) {
            let (target_name, address) = (&self.config().target_name, path.address());
            tracing::info!(target_name, %address,
                "the target requested a logout; logging in again when it is back");
        }
        nexus.idle().await;
        match path.is_wanted() {
            true => self.flush_over(nexus).await,
            false => self.withdraw(nexus).await,
        }
        nexus.link().logout().await;
    }

    /// Flushes what a restart could lose: the target, which has asked for a logout, may be about to stop, and its restart
    /// would not tell us whether unflushed writes were kept.
    async fn flush_over(&self, nexus: &Rc<Nexus>) {
        for _ in 0..AT_ONCE_MAX {
            let Some(covers) = self.unflushed.at_stake() else {
                break;
            };
            let command = cdb::synchronize_cache();
            let Ok(reply) = self.execute(nexus, &command, Data::None).await else {
                break;
            };
            match self.judge(nexus, &reply) {
                None => self.unflushed.flushed(covers),
                Some((Verdict::Retry | Verdict::Restarted, _)) => {}
                Some((Verdict::RetryLater, _)) => break,
                Some((Verdict::Fail(kind), _)) => {
                    self.unflushed.flush_failed(kind);
                    break;
                }
            }
        }
    }

    /// Makes a new nexus fit for use.
    async fn prepare(&self, path: &Path, nexus: &Rc<Nexus>) -> Result<()> {
        let heard = self.hear(nexus).await;
        // Before anything is written over it: a restart that it has reported cannot have lost that.
        self.account_for(nexus).await;
        self.check_identity(nexus).await?;
        if self.paths.are_several() && self.identity.get().is_some() {
            self.ask_access(path, nexus).await?;
        }
        if path.access() == PathAccess::No {
            if path.ghost().is_none() {
                return Ok(());
            }
            heard?;
            // Its place must not be taken before its writes are ended, or they would be forgotten.
            let message = "a session was lost with writes in flight, and the target port reached now may not be used";
            return Err(Error::new(ErrorKind::Unreachable, message));
        }
        heard?;
        // Also before the reset, which would abort a new owner's writes.
        self.establish_claim(nexus).await?;
        if path.ghost().is_some() {
            self.end_past(path, nexus).await?;
        }
        Ok(())
    }

    /// Queries the asymmetric access state of a path (REPORT TARGET PORT GROUPS).
    async fn ask_access(&self, path: &Path, nexus: &Rc<Nexus>) -> Result<()> {
        const PAGE_LEN: u8 = 252;
        const LEN: u32 = 4096;
        let mut group = self.machine.borrow().port_group(path.id());
        if group.is_none() {
            let inquiry = cdb::inquiry(Some(0x83), PAGE_LEN);
            if let ClaimAnswer::Good(page) = self
                .tell(nexus, &inquiry, Data::In(PAGE_LEN.into()))
                .await?
            {
                group = access::port_group(&page);
                self.on_path(path, PathEvent::PortGroup(group));
            }
        }
        let mut access = None;
        if let Some(group) = group {
            let report = cdb::report_target_port_groups(LEN);
            if let ClaimAnswer::Good(data) =
                self.tell(nexus, &report, Data::In(LEN as usize)).await?
            {
                access = access::access_of(group, &data);
            }
        }
        let access = access.unwrap_or_default();
        let tells = self.on_path(path, PathEvent::Access(access));
        if tells.contains(&Action::TellAccess(path.id())) {
            let (target_name, address) = (&self.config().target_name, path.address());
            tracing::info!(target_name, %address, ?access,
                "the access state of the path has changed");
        }
        Ok(())
    }
}

/// Queries every path's access state, repeatedly while no path is usable.
async fn follow_access(unit: Weak<RemoteUnit>) {
    loop {
        let Some(this) = unit.upgrade() else { return };
        for path in this.paths.all() {
            let Some(nexus) = path.live() else { continue };
            let asked = this.ask_access(path, &nexus).await;
            this.account_for(&nexus).await;
            // It was not prepared for use; another login does that.
            if asked.is_ok() && path.access() != PathAccess::No && nexus.is_new() {
                let message = "its target port has become usable";
                nexus.end(Error::new(ErrorKind::Unreachable, message));
            }
        }
        this.paths.notice();
        let left = this.handle(Event::AccessAsked);
        let Some(Action::AskAccessAgainIn(pause)) = left.first() else {
            return;
        };
        drop(this);
        time::sleep(*pause).await;
    }
}

/// Brings a lost path back, for as long as the disk exists and is in use.
async fn recover(unit: Weak<RemoteUnit>, path: PathId) {
    // Writes that another path can end at once need not wait for this one.
    if let Some(this) = unit.upgrade() {
        let path = this.paths.path(path);
        if let Some(lost) = path.ghost() {
            this.fence(path, &lost, false).await;
        }
    }
    loop {
        let Some(this) = unit.upgrade() else { return };
        let path = this.paths.path(path);
        let left = this.on_path(path, PathEvent::Due);
        match left.first() {
            Some(Action::LogInLater(pause)) => {
                drop(this);
                time::sleep(*pause).await;
                continue;
            }
            Some(Action::LogIn) => {}
            _ => return,
        }
        let has_others = this.paths.live().next().is_some();
        let limit = match path.ghost() {
            Some(_) if has_others => QUIET.min(this.paths.login_limit()),
            _ => this.paths.login_limit(),
        };
        let failed = this.bring_up(path, limit).await.err();
        let (target_name, address) = (&this.config().target_name, path.address());
        let Some(error) = failed else {
            tracing::info!(target_name, %address, "logged in again");
            this.on_path(path, PathEvent::Recovered(None));
            return;
        };
        let tells = this.on_path(path, PathEvent::Recovered(Some(error.clone())));
        if tells.contains(&Action::TellRefusal(path.id())) {
            tracing::warn!(target_name, %address, %error,
                "a path is refused; it will be retried from time to time");
        }
        if let Some(lost) = path.ghost() {
            this.fence(path, &lost, true).await;
        }
    }
}
