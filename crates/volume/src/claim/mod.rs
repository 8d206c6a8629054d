//! Exclusive ownership of a stripe's children. Opening a stripe for writing *claims* each child first, and the claims
//! stand until the stripe is closed.
//!
//! A claim is a [label](set::label) on the child, written durably and read back. Where the child's target has
//! persistent reservations, a fence additionally keeps everyone else out (`kinds/iscsi/claim.rs`; children without a
//! fence are in `local_claim.rs`). Another owner's claim is replaced only if that owner is *certainly* dead, which no
//! clock can tell: either it has our own identity, whose state directory we hold locked or where the claim would be
//! [shown](standing_file), or the child is a regular file that we hold locked and the owner ran on this machine since the last
//! boot. (Locking a device node does not
//! lock the device, which may have other nodes.) Any other claim is refused with the owner's name, unless the user
//! orders a take-over.
//!
//! In which order children are claimed, which of them is an older copy, and what the loss of one means for the others
//! decides [`set::Ownership`]. All lanes share one through [`SetClaim`], and so do the layers above that could answer from
//! memory; a child's leaf has the [`Claim`] on that child. A stripe needs all children: as soon as one turns out to have
//! another owner, the whole stripe refuses all I/O for good.

mod former;
mod owner;
mod standing_file;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use engine::{Buf, Instant, Payload};
pub use set::Others;
use set::{
    All, Claimant, FoundLabel, Generation, Label, Ownership, OwnershipEnd, Policy, claimant,
};
pub(crate) use set::{LABEL_AT, LABEL_BYTES, LabelStanding};
use uuid::Uuid;

pub(crate) use self::former::FormerOwners;
pub use self::owner::{Owner, boot_id, name_of};
pub(crate) use self::standing_file::StandingFile;
use crate::{Error, ErrorKind, Result};

/// How long after the last proof of the claim a cache may still answer without asking its child.
pub const DOUBT: Duration = Duration::from_secs(3);
/// Bytes at the start of a stripe's child that hold no data.
const RESERVED_BYTES: u64 = 1 << 20;
/// Stands for the time of the last proof where none is needed, because nobody else can open the child.
const NEEDS_NO_PROOF: u64 = u64::MAX;

/// The claim on all children of a set. Clones share it.
#[derive(Clone)]
pub struct SetClaim(Arc<SharedClaim>);

/// The claim on one child of a set. Clones share it.
#[derive(Clone)]
pub struct Claim {
    set: SetClaim,
    child: usize,
    /// Why the claim on this child alone no longer stands: it was lost or closed before it was part of the set, or the set stands
    /// without it.
    ended: Arc<OnceLock<Error>>,
}

struct SharedClaim {
    owner: Owner,
    nonce: u128,
    since_unix_s: u64,
    others: Others,
    /// Whether data found in the label's place may be overwritten.
    may_overwrite: bool,
    /// Where other processes that have our identity see that it stands, if there may be any.
    shown: Option<ShownClaim>,
    /// Why it no longer stands: set as `ownership` comes to its end, for those who ask before every request.
    ended: OnceLock<Error>,
    /// The oldest of the children's last proofs, in the lane's nanoseconds, or [`NEEDS_NO_PROOF`].
    proved_ns: AtomicU64,
    state: Mutex<ClaimState>,
}

struct ShownClaim {
    directory: PathBuf,
    files: Mutex<Vec<StandingFile>>,
}

struct ClaimState {
    ownership: Ownership<Box<dyn Policy + Send>>,
    children: Vec<ChildClaim>,
}

#[derive(Default)]
struct ChildClaim {
    /// What its label said before it was taken; `ownership` is told when it is.
    found: Generation,
    /// See [`Claim`].
    ended: Arc<OnceLock<Error>>,
}

/// What the loss of a child is to its set.
enum ChildLoss {
    /// It was not part of the set yet.
    NotJoined,
    /// The set stands without it.
    Spared,
    /// It has ended the set.
    Fatal,
}

impl SetClaim {
    /// A claim of `owner` on `children` children, none of which is claimed yet. `since_unix_s` is the current time.
    ///
    /// # Errors
    /// When no random bytes are available.
    pub fn new(
        owner: &Owner,
        children: usize,
        others: Others,
        since_unix_s: u64,
    ) -> Result<SetClaim> {
        Self::with_policy(Box::new(All), owner, children, others, since_unix_s)
    }

    fn with_policy(
        policy: Box<dyn Policy + Send>,
        owner: &Owner,
        children: usize,
        others: Others,
        since_unix_s: u64,
    ) -> Result<SetClaim> {
        let mut ownership = Ownership::new(policy, children);
        ownership.accept_older(others == Others::Overrule);
        let mut nonce = [0; 16];
        engine::random::fill(&mut nonce).map_err(|error| {
            let message = format!("cannot generate random bytes for a claim: {error}");
            Error::new(ErrorKind::Unreachable, message)
        })?;
        let nonce = u128::from_le_bytes(nonce);
        owner.standing().push(nonce);
        Ok(SetClaim(Arc::new(SharedClaim {
            owner: owner.clone(),
            nonce,
            since_unix_s,
            others,
            may_overwrite: false,
            shown: None,
            ended: OnceLock::new(),
            proved_ns: AtomicU64::new(NEEDS_NO_PROOF),
            state: Mutex::new(ClaimState {
                ownership,
                children: (0..children).map(|_| ChildClaim::default()).collect(),
            }),
        })))
    }

    /// The same, shown in `directory` to other processes that have the owner's identity. Only before any child is claimed.
    ///
    /// # Errors
    /// When nothing can be written there.
    pub(crate) fn shown_in(mut self, directory: &Path) -> Result<SetClaim> {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            let file = StandingFile::lock(directory, shared.nonce)?;
            shared.shown = Some(ShownClaim {
                directory: directory.to_owned(),
                files: Mutex::new(file.into_iter().collect()),
            });
        }
        Ok(self)
    }

    /// Has the whole set called `set`, whose members have no labels, for as long as the claim stands.
    ///
    /// # Errors
    /// When another process that has the owner's identity has it.
    pub(crate) fn alone_with(&self, set: Uuid) -> Result<()> {
        let Some(shown) = &self.0.shown else {
            return Ok(());
        };
        // No label names the claim, so nobody asks for it by its nonce.
        *shown.files() = vec![StandingFile::alone(&shown.directory, set.as_u128())?];
        Ok(())
    }

    /// The same for the children of a new set: they may have been part of others, and `may_overwrite` permits
    /// overwriting data in the label's place. Only before any child is claimed.
    #[must_use]
    pub fn for_new_set(mut self, may_overwrite: bool) -> SetClaim {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.may_overwrite = may_overwrite;
        }
        self.of_any_age()
    }

    /// The same for children of which some may be older than others. Only before any child is claimed.
    #[must_use]
    pub fn of_any_age(mut self) -> SetClaim {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            let state = shared.state.get_mut();
            let state = state.unwrap_or_else(PoisonError::into_inner);
            state.ownership.accept_older(true);
        }
        self
    }

    /// The claim on one child.
    pub(crate) fn of_child(&self, child: usize) -> Claim {
        Claim {
            set: self.clone(),
            child,
            ended: self.0.state().children[child].ended.clone(),
        }
    }

    /// Adds this many children to the set, of which all are claimed: the next orders are for them. Until they
    /// [join](SetClaim::join), it does not matter to the set what becomes of them. Returns the number of the first.
    ///
    /// # Errors
    /// When the claim no longer stands.
    pub(crate) fn add(&self, children: usize) -> Result<usize> {
        self.check()?;
        let mut state = self.0.state();
        if !state.ownership.is_owner() {
            let why = "it is not claimed";
            return Err(Error::new(ErrorKind::Unreachable, why));
        }
        let first = state.ownership.add(children);
        let all = first + children;
        state.children.resize_with(all, ChildClaim::default);
        Ok(first)
    }

    /// Makes the children that were added from the one with number `first` on part of the set.
    ///
    /// # Errors
    /// When the claim, or that on one of them, no longer stands.
    pub(crate) fn join(&self, first: usize) -> Result<()> {
        self.check()?;
        let mut state = self.0.state();
        if state.ownership.join(first) {
            return Ok(());
        }
        let mut added = state.children[first..].iter();
        let end = added.find_map(|it| it.ended.get().cloned());
        Err(end.unwrap_or_else(|| Error::new(ErrorKind::Claimed, "a new child is not claimed")))
    }

    /// The next child to be asked, and what.
    pub(crate) fn select(&self) -> Option<(usize, set::MemberOrder)> {
        self.0.state().ownership.select()
    }

    /// The answer of the child that was asked last.
    pub(crate) fn apply(&self, report: set::OrderReport) {
        self.0.state().ownership.apply(report);
    }

    /// Why it no longer stands, or never did.
    pub(crate) fn end(&self) -> Option<OwnershipEnd> {
        self.0.state().ownership.end()
    }

    /// Fails if it no longer stands.
    ///
    /// # Errors
    /// `Preempted`, with who took over, or that the volume is closed.
    pub fn check(&self) -> Result<()> {
        match self.0.ended.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Whether the last proof for some child is too old: cached data may be out of date, and only the child can tell.
    pub(crate) fn is_in_doubt(&self, now: Instant) -> bool {
        let oldest_ns = self.0.proved_ns.load(Relaxed);
        now.as_ns().saturating_sub(oldest_ns) > DOUBT.as_nanos() as u64
    }
}

impl Claim {
    /// A claim of `owner` on the only member of a set.
    #[cfg(test)]
    pub(crate) fn single(owner: &Owner, others: Others) -> Claim {
        let set = SetClaim::new(owner, 1, others, 0).expect("chance");
        set.of_child(0)
    }

    /// The claim on the set that the child is a member of.
    #[cfg(test)]
    pub(crate) fn of_set(&self) -> SetClaim {
        self.set.clone()
    }

    /// As [`SetClaim::check`], for all children together; fails as well if the claim on this child alone no longer stands.
    ///
    /// # Errors
    /// As [`SetClaim::check`].
    pub fn check(&self) -> Result<()> {
        match self.ended.get() {
            None => self.set.check(),
            Some(error) => Err(error.clone()),
        }
    }

    /// Records that this child was ours at `at`. Once called for a child, it must be called again regularly.
    pub(crate) fn proved(&self, at: Instant) {
        let shared = &self.set.0;
        let mut state = shared.state();
        state.ownership.prove(self.child, at.as_ns());
        shared.publish_proof(&state);
    }

    /// Records that another owner has taken over, which ends all I/O, unless the child is yet to join or the set stands without
    /// it; logs it once.
    pub(crate) fn lose(&self, child: impl fmt::Display, by: &str) -> Error {
        let loss = self.record_loss();
        let fate = match loss {
            ChildLoss::NotJoined => " before it was part of a volume",
            ChildLoss::Spared => ": this volume goes on without it",
            ChildLoss::Fatal => {
                ": this volume now refuses all I/O; stop this daemon, or restart it after the other owner has stopped"
            }
        };
        let message = format!("{child} was taken over by {by}{fate}");
        let error = Error::new(ErrorKind::Preempted, message);
        let ended = self.ended_by(&loss);
        if ended.set(error.clone()).is_ok() && !matches!(loss, ChildLoss::NotJoined) {
            tracing::error!("{error}");
        }
        ended.get().cloned().unwrap_or(error)
    }

    /// The claim on this child does not stand any more, for a reason that says so, and that was logged.
    pub(crate) fn end(&self, why: Error) {
        let loss = self.record_loss();
        let _ = self.ended_by(&loss).set(why);
    }

    fn record_loss(&self) -> ChildLoss {
        let shared = &self.set.0;
        let mut state = shared.state();
        state.ownership.lose(self.child);
        let is_added = state.ownership.is_added(self.child);
        match (is_added, state.ownership.end()) {
            (true, _) => ChildLoss::NotJoined,
            (false, Some(_)) => ChildLoss::Fatal,
            (false, None) => {
                shared.publish_proof(&state);
                ChildLoss::Spared
            }
        }
    }

    /// What such a loss has ended.
    fn ended_by(&self, loss: &ChildLoss) -> &OnceLock<Error> {
        match loss {
            ChildLoss::NotJoined | ChildLoss::Spared => &self.ended,
            ChildLoss::Fatal => &self.set.0.ended,
        }
    }

    /// Releases the claim cleanly: later requests are refused. A child that is yet to join, or without which the set stands, leaves
    /// the set's claim as it is.
    pub(crate) fn close(&self) {
        let shared = &self.set.0;
        let closed = Error::new(ErrorKind::Preempted, "the volume has been closed");
        if self.ended.get().is_some() || shared.state().ownership.withdraw(self.child) {
            let _ = self.ended.set(closed);
            return;
        }
        let _ = shared.ended.set(closed);
        shared.state().ownership.release();
        shared.leave();
    }

    /// Whether it was not taken over. Still true while it is being released, so that the label can be written.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(self.set.end(), Some(OwnershipEnd::Lost(_))) && self.ended.get().is_none()
    }

    pub(crate) fn others(&self) -> Others {
        self.set.0.others
    }

    /// The key of the claim's reservations.
    pub(crate) fn key(&self) -> u64 {
        self.label().key()
    }

    /// Whether `key` is a reservation key of this owner, even if no label shows it: the owner may have died between
    /// reserving and labelling.
    pub(crate) fn is_own_key(&self, key: u64) -> bool {
        key >> 32 == self.key() >> 32
    }

    /// What `block`, read from the label's place, means for us. Its generation is kept, for the label to come.
    /// `is_locked`: the child is a file that no other process on this machine can have open.
    pub(crate) fn standing(&self, block: &[u8], is_locked: bool) -> LabelStanding {
        let (shared, found) = (&self.set.0, Label::decode(block));
        shared.state().children[self.child].found = found.generation();
        let standing = shared.owner.standing();
        let claimant = Claimant {
            owner: shared.owner.uuid(),
            boot: shared.owner.boot(),
            standing: &standing,
            may_overwrite: shared.may_overwrite,
        };
        match claimant.standing(found, is_locked, owner::is_running) {
            LabelStanding::Dead(label) if shared.stands_elsewhere(label.nonce) => {
                LabelStanding::Running(label.describe())
            }
            standing => standing,
        }
    }

    /// How far the child has come: what its label says, or is to say next.
    pub(crate) fn generation(&self) -> Generation {
        let state = self.set.0.state();
        let known = state.ownership.generation(self.child);
        known.unwrap_or(state.children[self.child].found)
    }

    /// Whether `block`, read from the label's place, is this claim's own label; if not, whose it is.
    pub(crate) fn is_marked(&self, block: &[u8]) -> std::result::Result<(), String> {
        claimant::is_claimed_by(self.set.0.nonce, Label::decode(block))
    }

    /// Whether `block` is a label of anybody's.
    pub(crate) fn is_label(block: &[u8]) -> bool {
        matches!(Label::decode(block), FoundLabel::Label(_))
    }

    /// Whether `block`, read from the label's place, is what a former claim of this owner left there: the child was set back
    /// since this one took it, because each claim of a set raises its generation.
    pub(crate) fn is_set_back(&self, block: &[u8]) -> bool {
        let (shared, FoundLabel::Label(label)) = (&self.set.0, Label::decode(block)) else {
            return false;
        };
        let is_former = label.is_released()
            || label.owner == shared.owner.uuid() && !shared.stands_elsewhere(label.nonce);
        is_former && label.generation.claimed < self.generation().claimed
    }

    /// The block to write to a child that is ours.
    pub(crate) fn block(&self) -> Payload {
        Buf::copy_of(&self.label().encode()).into()
    }

    /// The block to write to a child that is no longer ours.
    pub(crate) fn released_block(&self) -> Payload {
        let label = Label::released(self.generation());
        Buf::copy_of(&label.encode()).into()
    }

    fn label(&self) -> Label {
        let shared = &self.set.0;
        Label {
            nonce: shared.nonce,
            owner: shared.owner.uuid(),
            boot: shared.owner.boot(),
            since_unix_s: shared.since_unix_s,
            name: shared.owner.name().to_owned(),
            generation: self.generation(),
        }
    }
}

impl SharedClaim {
    fn state(&self) -> MutexGuard<'_, ClaimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish_proof(&self, state: &ClaimState) {
        let oldest_ns = state.ownership.proved_ns();
        let oldest_ns = oldest_ns.unwrap_or(NEEDS_NO_PROOF);
        self.proved_ns.store(oldest_ns, Relaxed);
    }

    /// Whether a claim of this nonce is that of another process that has our identity.
    fn stands_elsewhere(&self, nonce: u128) -> bool {
        let shown = self.shown.as_ref();
        shown.is_some_and(|shown| standing_file::stands(&shown.directory, nonce))
    }

    /// The claim has ended: labels left on children now count as those of a dead owner.
    fn leave(&self) {
        let nonce = self.nonce;
        self.owner.standing().retain(|standing| *standing != nonce);
        if let Some(shown) = &self.shown {
            shown.files().clear();
        }
    }
}

impl ShownClaim {
    fn files(&self) -> MutexGuard<'_, Vec<StandingFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedClaim {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for SetClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetClaim({:032x})", self.0.nonce)
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({} of {:?})", self.child, self.set)
    }
}

/// The error for a child that another owner has.
pub(crate) fn refuse_alive(owner: &str) -> Error {
    Error::new(
        ErrorKind::Claimed,
        format!(
            "it is in use by {owner}; stop that owner or, if it is gone for good, run `sanstone \
             volume take-over -c FILE NAME`"
        ),
    )
}

/// The error for a take-over from an owner that runs.
pub(crate) fn refuse_running(owner: &str) -> Error {
    Error::new(
        ErrorKind::Claimed,
        format!(
            "it is in use by {owner}, and that process is running on this machine: stop it, and first what uses its \
             disks; with --force it loses the volume at once, and whatever runs on it fails"
        ),
    )
}

/// The error for a take-over where the other owner cannot be fenced off.
pub(crate) fn refuse_unfenced(owner: &str) -> Error {
    Error::new(
        ErrorKind::Claimed,
        format!(
            "it is in use by {owner}, and nothing here can stop that owner's writes: make sure \
             that it is switched off, then add --force"
        ),
    )
}

/// The error for a child that this process has already claimed.
pub(crate) fn refuse_ours() -> Error {
    Error::new(
        ErrorKind::Configuration,
        "it is the same disk as another child, or another volume of this configuration uses it; \
         give each child its own disk",
    )
}

/// The error for a child with data in the label's place.
pub(crate) fn refuse_data() -> Error {
    Error::new(
        ErrorKind::Configuration,
        format!(
            "it holds data where a claim belongs (at byte {LABEL_AT}); if it is a child of this \
             stripe, run `sanstone volume take-over -c FILE NAME --force`"
        ),
    )
}

/// Logs that a dead owner's claim is replaced.
pub(crate) fn tell_replaced(label: &Label) {
    let owner = label.describe();
    tracing::info!(owner, "replacing the claim of an owner that has stopped");
}

/// Whether a child's first MiB contains a label of any owner and version.
pub(crate) fn holds_label(start: &Payload) -> bool {
    let place = LABEL_AT as usize..RESERVED_BYTES as usize;
    let found = Label::decode(&start.slice(place).to_vec());
    matches!(
        found,
        FoundLabel::Label(_) | FoundLabel::Unreadable(_) | FoundLabel::Damaged
    )
}
