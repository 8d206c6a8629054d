//! Exclusive ownership of a stripe's children. Opening a stripe for writing *claims* each child first, and the claim
//! stands until the stripe is closed.
//!
//! A claim is a [`mark`] on the child, written durably and read back. Where the child's target has persistent
//! reservations, a fence additionally keeps everyone else out (`kinds/iscsi/claim.rs`; children without a fence are
//! in `local_claim.rs`). Another owner's claim is replaced only if that owner is *certainly* dead, which no clock can
//! tell: either it has our own identity, whose state directory we hold locked, or the child is a regular file that we
//! hold locked and the owner ran on this machine since the last boot. (Locking a device node does not lock the
//! device, which may have other nodes.) Any other claim is refused with the owner's name, unless the user orders a
//! take-over.
//!
//! All lanes share one [`Claim`], and so do the layers above, through [`Shape::claim`](crate::Shape). As soon as one
//! child turns out to have another owner, the whole volume refuses all I/O for good.

mod mark;

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use engine::{Buf, Instant, Payload};
use uuid::Uuid;

pub(crate) use self::mark::{Found, MARK_AT, MARK_BYTES, Mark};
use crate::{Error, ErrorKind, Result};

/// How long after the last proof of the claim a cache may still answer without asking its child.
pub const DOUBT: Duration = Duration::from_secs(3);
/// Bytes at the start of a stripe's child that hold no data.
const RESERVED_BYTES: u64 = 1 << 20;

/// Stands for the owner of a child whose mark is damaged.
const A_DAMAGED: &str = "an unknown owner (damaged claim)";

/// The owner of claims: one per process, whatever it opens.
#[derive(Clone)]
pub struct Owner(Arc<OwnerInner>);

struct OwnerInner {
    uuid: Uuid,
    boot: Uuid,
    name: String,
    /// The nonces of its current claims.
    standing: Mutex<Vec<u128>>,
}

impl Owner {
    /// The owner with identity `uuid`, which must belong to something that only one process can hold, such as a
    /// locked state directory; `name` identifies it to people. `boot` is that of the machine, nil if unknown: see
    /// [`boot_id`].
    pub fn new(uuid: Uuid, boot: Uuid, name: impl Into<String>) -> Owner {
        Owner(Arc::new(OwnerInner {
            uuid,
            boot,
            name: name.into(),
            standing: Mutex::default(),
        }))
    }

    /// Its identity.
    pub(crate) fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    /// A temporary owner with a random identity.
    pub fn passing(name: impl Into<String>) -> Owner {
        Owner::new(Uuid::new_v4(), boot_id(), name)
    }

    fn standing(&self) -> std::sync::MutexGuard<'_, Vec<u128>> {
        let standing = &self.0.standing;
        standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({}, {:?})", self.0.uuid, self.0.name)
    }
}

/// A name for people: program, machine and process.
pub fn name_of(what: impl fmt::Display) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (host, process) = (host.trim(), std::process::id());
    format!("{what} on {host} (process {process})")
}

/// The process in a [name](name_of).
fn process_of(name: &str) -> Option<u32> {
    let (_, process) = name.strip_suffix(')')?.rsplit_once("(process ")?;
    process.parse().ok()
}

/// Whether the process with this number is a Sanstone. The number of one that has ended may be another's, or another
/// container's: nothing follows from "no".
fn runs(process: u32) -> bool {
    let name_of = |process: &str| std::fs::read_to_string(format!("/proc/{process}/comm"));
    // The program may have been renamed.
    let own = name_of("self").unwrap_or_default();
    let name = name_of(&process.to_string());
    name.is_ok_and(|name| name.starts_with("sanstone") || name == own)
}

/// Identifies this boot of the machine; nil if the system does not report it.
pub fn boot_id() -> Uuid {
    let told = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    told.trim().parse().unwrap_or_default()
}

/// What to do about the claim of an owner that may be alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Others {
    /// Refuse, and report who it is.
    #[default]
    Refuse,
    /// Take over if the child can fence the other owner off.
    Fence,
    /// Take over in any case: the user is certain that the other owner is gone.
    Overrule,
}

/// A claim on all children of a stripe. Clones share it; each refers to one child.
#[derive(Clone)]
pub struct Claim {
    shared: Arc<Shared>,
    child: usize,
    /// If set, the child is only read, under a registration that ends with the read.
    wanted: Option<Wanted>,
}

/// A block that is to be read in place of a claim.
#[derive(Clone)]
pub(crate) struct Wanted {
    /// Where it begins, in bytes.
    pub(crate) at: u64,
    block: Arc<OnceLock<Vec<u8>>>,
}

struct Shared {
    owner: Owner,
    mark: Mark,
    others: Others,
    /// Whether data found in the mark's place may be overwritten.
    may_overwrite: bool,
    /// Why it no longer stands.
    lost: OnceLock<Error>,
    /// A child has another owner.
    is_preempted: AtomicBool,
    /// Per child, the time (in the lane's nanoseconds) of the last proof that it is ours; `u64::MAX`: needs no proof,
    /// because nobody else can open it.
    proved_ns: Box<[AtomicU64]>,
}

/// What the block in the mark's place means for us.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// No owner.
    Free,
    /// Its owner is certainly dead.
    Dead(Mark),
    /// Its owner may be alive; who it is.
    Alive(String),
    /// The same, and its process runs on this machine.
    Running(String),
    /// This process has claimed it elsewhere, or it is the same disk as another child of this stripe.
    Ours,
    /// Data that is no mark.
    Data,
}

impl Claim {
    /// A claim of `owner` on `children` children, none of which is claimed yet. `since_unix_s` is the current time.
    ///
    /// # Errors
    /// When no random bytes are available.
    pub fn new(owner: &Owner, children: usize, others: Others, since_unix_s: u64) -> Result<Claim> {
        let mut nonce = [0; 16];
        engine::random::fill(&mut nonce).map_err(|error| {
            let message = format!("cannot generate random bytes for a claim: {error}");
            Error::new(ErrorKind::Unreachable, message)
        })?;
        let mark = Mark {
            nonce: u128::from_le_bytes(nonce),
            owner: owner.0.uuid,
            boot: owner.0.boot,
            since_unix_s,
            name: owner.0.name.clone(),
        };
        owner.standing().push(mark.nonce);
        Ok(Claim {
            shared: Arc::new(Shared {
                owner: owner.clone(),
                mark,
                others,
                may_overwrite: false,
                lost: OnceLock::new(),
                is_preempted: AtomicBool::new(false),
                proved_ns: (0..children).map(|_| AtomicU64::new(u64::MAX)).collect(),
            }),
            child: 0,
            wanted: None,
        })
    }

    /// The same, with permission to overwrite data in the mark's place. Only before any child has the claim.
    #[must_use]
    pub fn overwriting(mut self, may: bool) -> Claim {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.may_overwrite = may;
        }
        self
    }

    /// The claim for one child.
    pub(crate) fn of_child(&self, child: usize) -> Claim {
        Claim {
            shared: self.shared.clone(),
            child,
            wanted: None,
        }
    }

    /// In place of a claim on one child: to read its first block, which another owner's reservation hides from all who
    /// are not registered. Takes nothing. A child that cannot hide its blocks leaves the second value empty.
    pub(crate) fn to_read(&self, child: usize) -> (Claim, Arc<OnceLock<Vec<u8>>>) {
        let block = Arc::new(OnceLock::new());
        let mut claim = self.of_child(child);
        claim.wanted = Some(Wanted {
            at: 0,
            block: block.clone(),
        });
        (claim, block)
    }

    /// The same for a child of this one, which has the wanted block at `at`.
    pub(crate) fn further(&self, at: u64) -> Claim {
        let mut claim = self.clone();
        if let Some(wanted) = &mut claim.wanted {
            wanted.at = at;
        }
        claim
    }

    /// The block that is [only to be read](Claim::to_read).
    pub(crate) fn wanted(&self) -> Option<&Wanted> {
        self.wanted.as_ref()
    }

    /// Fails if the claim no longer stands.
    ///
    /// # Errors
    /// `Preempted`, with who took over, or that the volume is closed.
    pub fn check(&self) -> Result<()> {
        match self.shared.lost.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Whether the last proof for some child is too old: cached data may be out of date, and only the child can tell.
    pub(crate) fn is_in_doubt(&self, now: Instant) -> bool {
        let oldest = self
            .shared
            .proved_ns
            .iter()
            .map(|ns| ns.load(Relaxed))
            .min();
        oldest.is_some_and(|ns| now.as_ns().saturating_sub(ns) > DOUBT.as_nanos() as u64)
    }

    /// Records that this child was ours at `at`. Once called for a child, it must be called again regularly.
    pub(crate) fn proved(&self, at: Instant) {
        if let Some(proved) = self.shared.proved_ns.get(self.child) {
            proved.store(at.as_ns(), Relaxed);
        }
    }

    /// Records that another owner has taken over, which ends all I/O; logs it once.
    pub(crate) fn lose(&self, child: impl fmt::Display, by: &str) -> Error {
        let error = Error::new(
            ErrorKind::Preempted,
            format!(
                "{child} was taken over by {by}: this volume now refuses all I/O; stop this \
                 daemon, or restart it after the other owner has stopped"
            ),
        );
        self.shared.is_preempted.store(true, Relaxed);
        if self.shared.lost.set(error.clone()).is_ok() {
            tracing::error!("{error}");
        }
        self.shared.lost.get().cloned().unwrap_or(error)
    }

    /// Releases the claim cleanly: later requests are refused.
    pub(crate) fn close(&self) {
        let closed = Error::new(ErrorKind::Preempted, "the volume has been closed");
        let _ = self.shared.lost.set(closed);
        self.shared.leave();
    }

    /// Whether it was not taken over. Still true while it is being released, so that the mark can be removed.
    pub(crate) fn is_held(&self) -> bool {
        !self.shared.is_preempted.load(Relaxed)
    }

    pub(crate) fn others(&self) -> Others {
        self.shared.others
    }

    /// The key of the claim's reservations.
    pub(crate) fn key(&self) -> u64 {
        self.shared.mark.key()
    }

    /// Whether `key` is a reservation key of this owner, even if no mark shows it: the owner may have died between
    /// reserving and marking.
    pub(crate) fn is_own_key(&self, key: u64) -> bool {
        key >> 32 == self.key() >> 32
    }

    /// What `block`, read from the mark's place, means for us. `is_locked`: the child is a file that no other process
    /// on this machine can have open.
    pub(crate) fn standing(&self, block: &[u8], is_locked: bool) -> Standing {
        let found = match Mark::decode(block) {
            Found::Nothing => return Standing::Free,
            Found::Data | Found::Damaged if self.shared.may_overwrite => return Standing::Free,
            Found::Data => return Standing::Data,
            Found::Damaged => return Standing::Alive(A_DAMAGED.to_owned()),
            Found::Unreadable(what) => return Standing::Alive(what),
            Found::Mark(found) => found,
        };
        let own = &self.shared.mark;
        if self.shared.owner.standing().contains(&found.nonce) {
            return Standing::Ours;
        }
        let was_here = is_locked && found.boot == own.boot && !own.boot.is_nil();
        if found.owner == own.owner || was_here {
            return Standing::Dead(found);
        }
        let is_here = found.boot == own.boot && !own.boot.is_nil();
        match is_here && process_of(&found.name).is_some_and(runs) {
            true => Standing::Running(found.describe()),
            false => Standing::Alive(found.describe()),
        }
    }

    /// Whether `block`, read from the mark's place, is this claim's own mark; if not, whose it is.
    pub(crate) fn is_marked(&self, block: &[u8]) -> std::result::Result<(), String> {
        match Mark::decode(block) {
            Found::Mark(found) if found.nonce == self.shared.mark.nonce => Ok(()),
            Found::Mark(found) => Err(found.describe()),
            Found::Nothing => Err("another owner, which has since released it".to_owned()),
            Found::Unreadable(what) => Err(what),
            Found::Damaged => Err(A_DAMAGED.to_owned()),
            Found::Data => Err("an unknown owner that overwrote the claim".to_owned()),
        }
    }

    /// The block to write to a child.
    pub(crate) fn block(&self) -> Payload {
        Buf::copy_of(&self.shared.mark.encode()).into()
    }
}

impl Wanted {
    /// Answers with the block.
    pub(crate) fn answer(&self, block: Vec<u8>) {
        let _ = self.block.set(block);
    }
}

impl Shared {
    /// The claim has ended: marks it left on children now count as those of a dead owner.
    fn leave(&self) {
        let nonce = self.mark.nonce;
        self.owner.standing().retain(|standing| *standing != nonce);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.leave();
    }
}

impl PartialEq for Claim {
    fn eq(&self, other: &Claim) -> bool {
        self.shared.mark.nonce == other.shared.mark.nonce
    }
}

impl Eq for Claim {}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:032x})", self.shared.mark.nonce)
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

/// The error for a child with data in the mark's place.
pub(crate) fn refuse_data() -> Error {
    Error::new(
        ErrorKind::Configuration,
        format!(
            "it holds data where a claim belongs (at byte {MARK_AT}); if it is a child of this \
             stripe, run `sanstone volume take-over -c FILE NAME --force`"
        ),
    )
}

/// Logs that a dead owner's claim is replaced.
pub(crate) fn tell_replaced(mark: &Mark) {
    let owner = mark.describe();
    tracing::info!(owner, "replacing the claim of an owner that has stopped");
}

/// Whether a child's first MiB contains a mark of any owner and version.
pub(crate) fn holds_mark(start: &Payload) -> bool {
    let place = MARK_AT as usize..RESERVED_BYTES as usize;
    let found = Mark::decode(&start.slice(place).to_vec());
    matches!(
        found,
        Found::Mark(_) | Found::Unreadable(_) | Found::Damaged
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_volume::on_lane;

    #[test]
    fn a_process_that_runs_here_is_told_from_its_name() {
        let name = name_of("sanstone serve -c (a).toml");
        assert_eq!(process_of(&name), Some(std::process::id()));
        assert_eq!(process_of("somebody"), None);
        assert!(runs(std::process::id()));
        assert!(!runs(u32::MAX));
    }

    #[test]
    fn a_mark_of_a_later_release_is_not_overwritten() {
        on_lane(async {
            let owner = Owner::passing("a test");
            let claim = Claim::new(&owner, 1, Others::Refuse, 0).expect("chance");
            let claim = claim.overwriting(true);
            let mut block = claim.shared.mark.encode();
            assert_eq!(claim.standing(&[7; MARK_BYTES], true), Standing::Free);
            block[100] ^= 1;
            assert_eq!(claim.standing(&block, true), Standing::Free, "damaged");
            block[16] = 2;
            let standing = claim.standing(&block, true);
            let is_alive = matches!(&standing, Standing::Alive(what) if what.contains("version 2"));
            assert!(is_alive, "{standing:?}");
        });
    }
}
