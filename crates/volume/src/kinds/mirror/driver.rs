//! Drives the machine of a mirror: its actions become calls on the copies and the register, and what comes of them its
//! events.
//!
//! ```text
//!  a request ─► tell(Event) ─► machine ─► Action ─► a call ─► tell(Event) ─► … ─► the request's answer
//! ```
//!
//! The commands at copies that a request leads to at once are driven by the request itself ([`requests`](super::requests));
//! every other call is a task.
//!
//! **Ended.** An outcome means that nothing of a command can happen any more. An error of a copy that is out of reach does
//! not say that, so the copy is given up at once, and the command is sent again, unchanged, for as long as the copy is not
//! out: its range stays locked meanwhile, and once it has succeeded, no earlier attempt can land any more. When the copy
//! is out, nobody waits for the command.
//!
//! **A new fence** begins when every call of the old one has returned: then nothing that is queued for the old key is sent
//! any more, and what still is at the target is ended by the fence's reset.
//!
//! **Time.** A call that takes longer than `copy_timeout` gives its copy up, but is waited for. A request that takes longer
//! than `request_timeout` fails. Neither has a timer of its own: `upkeep` looks at the oldest.

mod report;
mod swap;

use std::{
    cell::{Cell, RefCell},
    ops,
    rc::{Rc, Weak},
};

use ::mirror::{
    CopyCommand, CopyId, CopySet, Mirror, MirrorAction, MirrorEvent, MirrorPhase, OpId, Outcome,
    Range, Stand, copy::Header, fence::FenceCommand, key::FenceKey, planted,
};
use engine::{Duration, Instant, LaneFuture, Payload, share, spawn, sync::Notify, time};

use super::{
    calls::{Call, CallKind},
    comparison::Differences,
    copy::Copy,
    numbered::Numbered,
    register::Register,
    register_place::RegisterPlace,
    requests::{RequestCommands, RequestTable},
    status::MirrorHandle,
};
use crate::{
    Durability, Error, ErrorKind, Result, SharedVolume,
    member::{Order, Report},
    planted::{Bug, is_planted},
};

/// The pause before something that has failed is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// How long a step of a fence may take at least: a reset waits for what was lost to be silent, and for what is under way.
const FENCE_LIMIT: Duration = Duration::from_secs(30);

/// Why a copy does not do that lacks heartbeats of which the register knows.
pub(super) const OLDER: &str = "it is older than the register knows: it was set back, or is a disk that was replaced; put back its \
     disk as it was; `sanstone volume take-over --force` accepts it as it is, without what was written since";

/// The time limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How long a copy may take to answer before it is given up.
    pub(super) copy: Duration,
    /// How long a request may take before it fails.
    pub(super) request: Duration,
}

/// The driver of one mirror, on its home lane.
pub(super) struct Driver {
    me: Weak<Driver>,
    /// What messages call the mirror.
    pub(super) name: String,
    pub(super) limits: Limits,
    pub(super) header: Header,
    /// By their place in the mirror.
    copies: Vec<RefCell<Rc<Copy>>>,
    register: Box<dyn Register>,
    /// Where it is.
    pub(super) register_place: RegisterPlace,
    machine: RefCell<Mirror>,
    requests: RequestTable,
    /// The commands of the request that comes just now.
    coming: RefCell<Option<RequestCommands>>,
    /// What is written: the data of requests, and of commands that have read it.
    data: RefCell<Numbered<OpId, Payload>>,
    /// What comparisons have found, until it is fetched.
    differences: RefCell<Numbered<OpId, Differences>>,
    /// Notified after each event.
    pub(super) changed: Notify,
    /// Since when the register is to change, and the error of the last attempt.
    swapping: RefCell<Option<(Instant, Option<Error>)>>,
    /// Why it serves nothing any more.
    ended: RefCell<Option<Error>>,
    /// How many heartbeats are to come after the last write: the other copies remember the one before the last.
    heartbeats: Cell<u8>,
    /// Whether a request came since the last piece was filled.
    is_busy: Cell<bool>,
    /// The copy that the next read prefers.
    turn: Cell<usize>,
    handle: MirrorHandle,
    /// The copies that were in sync when the handle was last told.
    told: Cell<CopySet>,
}

/// What an error of a copy says.
enum Judged {
    /// Another owner has a fence there.
    Fenced,
    /// The command has ended.
    Failed,
    /// It may still happen: the copy is out of reach, or nobody knows.
    Unknown,
}

fn judge(error: &Error) -> Judged {
    match error.kind() {
        ErrorKind::ReservationConflict | ErrorKind::Preempted | ErrorKind::Claimed => {
            Judged::Fenced
        }
        ErrorKind::OutOfRange
        | ErrorKind::Misaligned
        | ErrorKind::ReadOnly
        | ErrorKind::Medium
        | ErrorKind::FlushFailed
        | ErrorKind::NoSpace => Judged::Failed,
        // A target that refuses a login may still carry out what a lost session has sent.
        ErrorKind::Unreachable
        | ErrorKind::TimedOut
        | ErrorKind::Protocol
        | ErrorKind::OutcomeUnknown
        | ErrorKind::Configuration => Judged::Unknown,
    }
}

fn kind_of(command: &CopyCommand) -> Option<CallKind> {
    match command {
        CopyCommand::Read(_) => Some(CallKind::Read),
        CopyCommand::Write { .. } | CopyCommand::Mark { .. } | CopyCommand::Keep(_) => {
            Some(CallKind::Write)
        }
        CopyCommand::Prove => None,
    }
}

/// What a driver is made of.
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) limits: Limits,
    pub(super) header: Header,
    pub(super) copies: Vec<Copy>,
    pub(super) register: Box<dyn Register>,
    pub(super) register_place: RegisterPlace,
    pub(super) machine: Mirror,
    pub(super) handle: MirrorHandle,
}

/// The driver, while it serves.
pub(super) fn living(driver: &Weak<Driver>) -> Option<Rc<Driver>> {
    driver.upgrade().filter(|driver| driver.check().is_ok())
}

impl Driver {
    /// Begins to drive the machine, which claims the mirror.
    pub(super) fn begin(parts: Parts) -> Rc<Driver> {
        let driver = Rc::new_cyclic(|me| Driver {
            me: me.clone(),
            name: parts.name,
            limits: parts.limits,
            header: parts.header,
            copies: parts
                .copies
                .into_iter()
                .map(|copy| RefCell::new(Rc::new(copy)))
                .collect(),
            register: parts.register,
            register_place: parts.register_place,
            machine: RefCell::new(parts.machine),
            requests: RequestTable::default(),
            coming: RefCell::default(),
            data: RefCell::default(),
            differences: RefCell::default(),
            changed: Notify::new(),
            swapping: RefCell::default(),
            ended: RefCell::default(),
            heartbeats: Cell::new(0),
            is_busy: Cell::new(false),
            turn: Cell::new(0),
            handle: parts.handle,
            told: Cell::default(),
        });
        driver.carry_out_all();
        driver
    }

    /// What is asked of the machine.
    pub(super) fn machine<T>(&self, ask: impl FnOnce(&Mirror) -> T) -> T {
        ask(&self.machine.borrow())
    }

    /// Fails if it serves nothing any more.
    pub(super) fn check(&self) -> Result<()> {
        self.ended.borrow().clone().map_or(Ok(()), Err)
    }

    /// From now on it serves nothing. Returns whether it did before.
    pub(super) fn end(&self, why: Error) -> bool {
        let is_first = self.ended.borrow().is_none();
        if is_first {
            self.ended.replace(Some(why.clone()));
            self.requests.fail_all(&why);
        }
        self.report();
        self.changed.notify();
        is_first
    }

    /// The unit of the machine's ranges, in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        self.header.block_bytes
    }

    /// The copy in that place now: another disk may [take it](Self::put).
    pub(super) fn copy(&self, copy: CopyId) -> Rc<Copy> {
        self.copies[copy.place()].borrow().clone()
    }

    /// All places.
    pub(super) fn places(&self) -> impl Iterator<Item = CopyId> + use<> {
        (0..self.copies.len()).map(CopyId::new)
    }

    /// Puts `new` in the place of a copy that is out, which is returned. What it has still to answer concerns nobody.
    pub(super) fn put(&self, copy: CopyId, new: Rc<Copy>) -> Rc<Copy> {
        self.copies[copy.place()].replace(new)
    }

    /// Whether a heartbeat is due. Called once for each.
    pub(super) fn takes_heartbeat(&self) -> bool {
        let left = self.heartbeats.get();
        self.heartbeats.set(left.saturating_sub(1));
        left > 0
    }

    /// Whether requests are served: the mirror is claimed, and its copies are fenced.
    pub(super) fn is_serving(&self) -> bool {
        self.machine(|it| it.phase()) == MirrorPhase::Serving
    }

    /// Whether a request came since the last call.
    pub(super) fn take_busy(&self) -> bool {
        self.is_busy.take()
    }

    /// Waits until it `is_so`, or serves nothing any more.
    pub(super) async fn until(&self, is_so: impl Fn(&Mirror) -> bool) {
        let is_over = || self.check().is_err() || self.machine(&is_so);
        self.changed.wait_for(|| is_over().then_some(())).await;
    }

    /// Has the marks cleared, as the last request has been answered.
    pub(super) fn clear_marks(&self) {
        // Regions that were written since the last tick are cleared by the one after it.
        for _ in 0..2 {
            self.tell(MirrorEvent::Tick);
        }
    }

    /// Whether a copy is being filled.
    pub(super) fn is_filling(&self) -> bool {
        let machine = self.machine.borrow();
        self.places()
            .any(|copy| machine.stand(copy) == Stand::Filling)
    }

    /// Reads `len` bytes at `at`, which were checked.
    pub(super) async fn read(&self, at: u64, len: u64) -> Result<Payload> {
        let turn = self.turn.get();
        self.turn.set((turn + 1) % self.copies.len());
        let range = self.range(at, len);
        let from = CopyId::new(turn);
        self.request(None, |id| MirrorEvent::Read { id, range, from })
            .await
    }

    /// Writes `data` at `at`, which was checked.
    pub(super) async fn write(&self, at: u64, data: Payload) -> Result<()> {
        self.heartbeats.set(2);
        let range = self.range(at, data.len() as u64);
        let written = self.request(Some(data), |id| MirrorEvent::Write { id, range });
        written.await.map(drop)
    }

    /// In which ranges, in bytes, the copies differ between `at` and `at + len`, which were checked. What overlaps waits
    /// meanwhile.
    pub(super) async fn compare(&self, at: u64, len: u64) -> Result<Vec<ops::Range<u64>>> {
        let range = self.range(at, len);
        let mut asked = None;
        let event = |id| {
            asked = Some(id);
            MirrorEvent::Compare { id, range }
        };
        self.request(None, event).await?;
        let found = asked.and_then(|id| self.differences.borrow_mut().remove(id));
        Ok(found.expect("it was compared").0)
    }

    /// The comparison `request` is answered by what the commands `data` have read.
    fn compared(&self, request: OpId, data: &[OpId]) {
        let read = self.data.borrow();
        let mut read = data
            .iter()
            .map(|id| read.get(*id).expect("it was read").to_vec());
        let first = read.next().expect("two at least");
        let mut found = Differences::default();
        for other in read {
            // Each byte was copied, and looked at.
            share::charge(2 * (first.len() + other.len()));
            found.add(&first, &other, self.block_bytes() as usize);
        }
        self.differences.borrow_mut().insert(request, found);
        self.requests.answer(request, Ok(Payload::new()));
    }

    /// What others ask of the mirror, and see of it.
    pub(super) fn handle(&self) -> &MirrorHandle {
        &self.handle
    }

    fn range(&self, at: u64, len: u64) -> Range {
        Range::new(at / self.block_bytes(), len / self.block_bytes())
    }

    async fn request(
        &self,
        data: Option<Payload>,
        event: impl FnOnce(OpId) -> MirrorEvent,
    ) -> Result<Payload> {
        self.check()?;
        self.is_busy.set(true);
        let id = self.machine.borrow_mut().next_id();
        if let Some(data) = data {
            self.data.borrow_mut().insert(id, data);
        }
        let deadline = time::turn_began() + self.limits.request;
        let answer = self.requests.begin(id, deadline);
        self.coming.replace(Some(RequestCommands::new()));
        self.tell(event(id));
        let commands = self.coming.take().unwrap_or_default();
        answer.with(commands).await
    }

    /// Fails requests that have taken too long. Returns when to look again: none that comes before may have to fail then.
    pub(super) fn expire(&self) -> Instant {
        let now = time::now();
        for id in self.requests.take_overdue(now) {
            self.tell(MirrorEvent::Expired(id));
        }
        let next = self.requests.next_deadline();
        next.unwrap_or(now + self.limits.request)
    }

    /// Something has happened.
    pub(super) fn tell(&self, event: MirrorEvent) {
        self.machine.borrow_mut().apply(event);
        if self.machine(Mirror::in_sync) != self.told.get() {
            // Before anything is acknowledged: nobody is told that a copy is in sync which lacks that.
            self.report();
        }
        self.carry_out_all();
    }

    fn carry_out_all(&self) {
        loop {
            let action = self.machine.borrow_mut().select();
            match action {
                Some(action) => self.carry_out(action),
                None => break,
            }
        }
        self.changed.notify();
    }

    fn carry_out(&self, action: MirrorAction) {
        let Some(this) = self.me.upgrade() else {
            return; // It is being dropped, and nobody waits.
        };
        match action {
            MirrorAction::Swap(swap) => drop(spawn(async move { this.swap(swap).await })),
            MirrorAction::Fence { copy, key, step } => {
                spawn(async move { this.fence(copy, key, step).await });
            }
            MirrorAction::Unusable { copy, by } => self.unusable(copy, by),
            MirrorAction::ReadMetadata { copy, key } => {
                spawn(async move { this.read_metadata(copy, key).await });
            }
            MirrorAction::Command {
                id,
                copy,
                key,
                command,
            } => self.command(this, id, (copy, key), command),
            MirrorAction::Acknowledge(id) => self.requests.answer(id, Ok(Payload::new())),
            MirrorAction::Answer { request, data } => {
                let read = self.data.borrow_mut().remove(data);
                self.requests
                    .answer(request, Ok(read.expect("it was read")));
            }
            MirrorAction::Compared { request, data } => self.compared(request, &data),
            MirrorAction::Fail(id) => self.requests.answer(id, Err(self.why())),
            MirrorAction::Release(id) => drop(self.data.borrow_mut().remove(id)),
            MirrorAction::Stop(stopped) => {
                self.data.borrow_mut().clear();
                let why = self.stopped(&stopped);
                if self.end(why.clone()) {
                    tracing::error!("{why}");
                }
            }
        }
    }

    async fn fence(&self, copy: CopyId, key: FenceKey, step: FenceCommand) {
        let place = self.copy(copy);
        // Nothing that is queued for an older key may come after it.
        place.calls.over().await;
        let call = place.calls.begin();
        call.may_take(self.limits.copy.max(FENCE_LIMIT));
        let known = async {
            // All that it keeps is looked at anew.
            place.volume.member(Order::Renew).await?;
            place.know(&self.header, copy).await
        };
        if let Err(error) = known.await {
            return self.give_up((copy, &place), &error);
        }
        match place.volume.member(Order::Fence(key, step)).await {
            Ok(Report::Fence(answer)) => self.tell(MirrorEvent::FenceAnswer { copy, key, answer }),
            Ok(_) => self.give_up((copy, &place), &place.refuse("it has no fence")),
            Err(error) => self.give_up((copy, &place), &error),
        }
    }

    async fn read_metadata(&self, copy: CopyId, key: FenceKey) {
        let place = self.copy(copy);
        let call = place.calls.begin();
        call.may_take(self.limits.copy);
        let read = place.read_metadata(&self.header, copy);
        match read.await {
            Ok((kept, marked)) => {
                self.tell(MirrorEvent::Metadata {
                    copy,
                    key,
                    kept,
                    marked,
                });
            }
            // If it is fenced for somebody else by now, the next fence tells by whom.
            Err(error) => self.give_up((copy, &place), &error),
        }
    }

    /// Gives `copy` up if one of its calls has taken too long. Returns when to look again: none that begins before may have
    /// taken too long then.
    pub(super) fn give_up_late(&self, copy: CopyId) -> Instant {
        let (place, now) = (self.copy(copy), time::now());
        while let Some(limit) = place.calls.take_overdue(now) {
            self.give_up((copy, &place), &not_answered(limit));
        }
        let latest = now + self.limits.copy;
        place.calls.next_deadline().unwrap_or(latest).min(latest)
    }

    /// Asks `copy` whether it is still ours. One that cannot be reached is given up though nothing else is asked of it: it
    /// may come back as it was long ago, and only a new fence looks at what it keeps. The others are asked again meanwhile.
    pub(super) async fn prove(&self, copy: CopyId) -> Result<()> {
        let place = self.copy(copy);
        let call = place.calls.begin();
        let proof = place.volume.member(Order::Prove);
        if is_planted(Bug::LostWhileIdle) {
            return proof.await.map(drop);
        }
        let limit = self.limits.copy;
        let proved = time::timeout(limit, proof).await;
        drop(call);
        match proved.unwrap_or_else(|| Err(not_answered(limit))) {
            Ok(_) => self.answers(copy),
            Err(error) => {
                match judge(&error) {
                    Judged::Unknown => {
                        self.give_up((copy, &place), &place.why(error.clone()));
                        self.go_on_alone(copy).await;
                    }
                    // By a fence of our own that was made meanwhile, or by another owner's: a read tells. Where reads need no
                    // proof, none does.
                    Judged::Fenced if planted::is_planted(planted::Bug::Unproven) => {}
                    Judged::Fenced => drop(self.read(0, self.block_bytes()).await),
                    Judged::Failed => {}
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// If nothing newer than `copy` is in use, it goes on also if its target has restarted, unless it was set back by that.
    async fn go_on_alone(&self, copy: CopyId) {
        let key = self.machine(|it| it.key(copy).filter(|_| it.is_alone(copy)));
        if let Some(key) = key {
            let place = self.copy(copy);
            let call = place.calls.begin();
            call.may_take(self.limits.copy);
            match time::timeout(self.limits.copy, place.is_as_kept()).await {
                Some(Ok(true)) => {}
                // It is looked at again with the next proof.
                _ => return,
            }
            let step = FenceCommand::ReadReservation;
            for order in [Order::Renew, Order::Fence(key, step)] {
                let asked = place.volume.member(order);
                drop(time::timeout(self.limits.copy, asked).await);
            }
        }
    }

    /// `copy` is given up, unless another disk has taken its place meanwhile.
    pub(super) fn give_up(&self, (copy, place): (CopyId, &Copy), error: &Error) {
        if !std::ptr::eq(&raw const **self.copies[copy.place()].borrow(), place) {
            return;
        }
        self.say_why(copy, error);
        self.tell(MirrorEvent::Failed(copy));
    }

    fn say_why(&self, copy: CopyId, error: &Error) {
        let place = self.copy(copy);
        if place.suffers(error) && self.check().is_ok() {
            tracing::warn!(mirror = self.name, copy = place.name, %error, "a copy is given up");
        }
    }

    /// `copy` cannot be fenced: others use it, who are no mirror if their key is known.
    fn unusable(&self, copy: CopyId, by: Option<u64>) {
        let why = match by {
            Some(key) => format!(
                "something that is no mirror has registered with it, under key {key:016x}h; if nothing else shall use it, \
                 clear its registrations (sg_persist --out --clear)"
            ),
            None => "others change its reservation again and again".to_owned(),
        };
        self.say_why(copy, &Error::new(ErrorKind::ReservationConflict, why));
    }

    /// `copy` has carried out a command: if it is in sync, its trouble is over.
    pub(super) fn answers(&self, copy: CopyId) {
        if self.machine(|it| it.stand(copy)) == Stand::InSync {
            self.copy(copy).recovers();
        }
    }

    fn command(
        &self,
        this: Rc<Driver>,
        id: OpId,
        (copy, key): (CopyId, FenceKey),
        command: CopyCommand,
    ) {
        let data = match &command {
            CopyCommand::Write { data, .. } => {
                let data = self.data.borrow().get(*data).cloned();
                Some(data.expect("what is written is kept"))
            }
            _ => None,
        };
        let command = LaneFuture::new(async move {
            let place = this.copy(copy);
            let call = place.calls.begin_as(kind_of(&command));
            let outcome = this.run((&place, &call), (copy, key), id, &command, data);
            if let Some(outcome) = outcome.await {
                this.tell(MirrorEvent::Ended { id, outcome });
            }
        });
        match &mut *self.coming.borrow_mut() {
            Some(coming) => coming.push(command),
            None => drop(spawn(command)),
        }
    }

    /// Carries out a command; `None`: its copy is out, and nobody waits for it.
    async fn run(
        &self,
        (place, call): (&Copy, &Call<'_>),
        (copy, key): (CopyId, FenceKey),
        id: OpId,
        command: &CopyCommand,
        data: Option<Payload>,
    ) -> Option<Outcome> {
        let is_wanted = || self.check().is_ok() && self.machine(|it| it.key(copy)) == Some(key);
        loop {
            call.may_take(self.limits.copy);
            let Err(error) = self.attempt(place, id, command, data.clone()).await else {
                call.is_done();
                self.answers(copy);
                return Some(Outcome::Good);
            };
            call.is_answered();
            match judge(&error) {
                Judged::Fenced => return Some(Outcome::Fenced),
                Judged::Failed => {
                    place.suffers(&error);
                    return Some(Outcome::Failed);
                }
                Judged::Unknown if !is_wanted() => return None,
                Judged::Unknown => self.give_up((copy, place), &error),
            }
            let out = self.changed.wait_for(|| (!is_wanted()).then_some(()));
            if time::timeout(RETRY, out).await.is_some() {
                return None;
            }
        }
    }

    /// One attempt at a command.
    async fn attempt(
        &self,
        place: &Copy,
        id: OpId,
        command: &CopyCommand,
        data: Option<Payload>,
    ) -> Result<()> {
        let volume: &SharedVolume = &place.volume;
        match command {
            CopyCommand::Read(range) => {
                let (at, len) = self.bytes(*range);
                let read = volume.read(at, len as usize).await?;
                if read.len() as u64 != len {
                    let message = format!("it returned {} bytes instead of {len}", read.len());
                    return Err(Error::new(ErrorKind::Medium, message));
                }
                if self.machine(|it| it.phase()) != MirrorPhase::Stopped {
                    self.data.borrow_mut().insert(id, read);
                }
                Ok(())
            }
            CopyCommand::Prove => volume.member(Order::Prove).await.map(drop),
            CopyCommand::Write { range, .. } => {
                let data = data.expect("a write has data");
                let durability = match is_planted(Bug::MirrorOverCaches) {
                    true => Durability::Cached,
                    false => Durability::Fua,
                };
                volume.write(self.bytes(*range).0, data, durability).await
            }
            CopyCommand::Mark { block, regions } => place.mark(*block, regions).await,
            CopyCommand::Keep(kept) => place.keep(kept).await,
        }
    }

    /// The bytes of a range: where it begins, and its length.
    fn bytes(&self, range: Range) -> (u64, u64) {
        let blocks = range.end - range.start;
        (
            range.start * self.block_bytes(),
            blocks * self.block_bytes(),
        )
    }
}

/// A copy takes longer than it may.
fn not_answered(limit: Duration) -> Error {
    let limit = time::brief(limit);
    let message = format!("it has not answered within {limit:?}");
    Error::new(ErrorKind::TimedOut, message)
}
