//! Opens a mirror: finds out which one its copies are, and claims it.

use std::{pin::pin, rc::Rc};

use ::mirror::{CopyId, Mirror, MirrorConfig, MirrorPhase, copy::Header, register::Record};
use engine::{Duration, time};
use uuid::Uuid;

use super::{
    copy::Copy,
    driver::{Driver, Limits, OLDER, Parts},
    register::Register,
    register_place::RegisterPlace,
    status::MirrorHandle,
    upkeep,
};
use crate::{Error, ErrorKind, Result, SetClaim, claim::Others};

/// The most bytes that are equalised or filled at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// How many regions may be marked before recently written ones are cleared too.
const MARKED_MAX: usize = 4000;
/// How far ahead of a sequential write regions are marked: so that 1,000 writes of 4 KiB cost one write of metadata at most.
/// After a crash that much more is made equal.
const AHEAD_BYTES: u64 = 16 << 20;

/// What a mirror is opened with.
pub(super) struct Options {
    /// What messages call it.
    pub(super) name: String,
    pub(super) limits: Limits,
    pub(super) register: RegisterPlace,
    /// This node.
    pub(super) node: Uuid,
    pub(super) others: Others,
    /// The claim of those above it.
    pub(super) claim: SetClaim,
    pub(super) handle: MirrorHandle,
}

/// The headers of `copies`, as far as they can be read, and the mirror that they are of.
///
/// # Errors
/// When none can be read, or they belong to different mirrors.
pub(super) async fn look(copies: &[Copy]) -> Result<(Header, Vec<Result<Header>>)> {
    let mut found = Vec::with_capacity(copies.len());
    for copy in copies {
        found.push(copy.look().await);
    }
    let mut known = copies.iter().zip(&found).filter_map(|(copy, header)| {
        let header = header.as_ref().ok()?;
        Some((copy, *header))
    });
    let Some((first_copy, first)) = known.next() else {
        let errors = found.into_iter().filter_map(Result::err);
        return Err(errors.last().expect("a mirror has copies"));
    };
    for (copy, header) in known {
        if header.mirror != first.mirror {
            return Err(copy.refuse(format_args!(
                "it belongs to mirror {}, but {} belongs to {}: list the copies of one mirror",
                header.mirror, first_copy.name, first.mirror
            )));
        }
        if header.copy == first.copy {
            return Err(copy.refuse(format_args!(
                "it and {} are both copy {} of their mirror: give each copy its own disk, and no clone of the other",
                first_copy.name,
                header.copy.place()
            )));
        }
    }
    // One that has grown alone has to wait for the other.
    let headers = found.iter().filter_map(|header| header.as_ref().ok());
    let shortest = headers.min_by_key(|header| header.data_bytes);
    let shortest = *shortest.expect("there is one");
    Ok((shortest, found))
}

/// Puts `copies` in the order in which the mirror has them. Those whose place is not known get what is left.
fn in_order(copies: Vec<Copy>, found: &[Result<Header>]) -> Vec<Copy> {
    let mut places: Vec<Option<Copy>> = copies.iter().map(|_| None).collect();
    let mut rest = Vec::new();
    for (copy, header) in copies.into_iter().zip(found) {
        match header {
            Ok(header) if header.copy.place() < places.len() => {
                places[header.copy.place()] = Some(copy);
            }
            Ok(_) => rest.push(copy),
            Err(error) => {
                let name = &copy.name;
                tracing::warn!(copy = name, %error, "the copy cannot be read as the mirror opens");
                copy.suffers(error);
                rest.push(copy);
            }
        }
    }
    let mut rest = rest.into_iter();
    let filled = places
        .into_iter()
        .map(|place| place.or_else(|| rest.next()));
    filled
        .map(|copy| copy.expect("as many as there are"))
        .collect()
}

/// The record from which the mirror is claimed.
///
/// # Errors
/// When there is none, or not the newest one.
async fn record_of(
    register: &dyn Register,
    header: &Header,
    copies: &[Copy],
    (node, others): (Uuid, Others),
) -> Result<Record> {
    let held = register.read().await?;
    if let Some(record) = held {
        let checked = record.check(header.mirror, None);
        checked.map_err(|why| Error::new(ErrorKind::Configuration, why.to_string()))?;
        if usize::from(record.copies) != copies.len() {
            let message = format!(
                "the mirror has {} copies, and {} are listed: list all of them",
                record.copies,
                copies.len()
            );
            return Err(Error::new(ErrorKind::Configuration, message));
        }
        if others == Others::Refuse {
            check_owner(register, &record, node)?;
        }
        // Another owner of the same register is not overruled by what a copy knows, unless somebody says so.
        if others == Others::Refuse || register.is_shared() && others != Others::Overrule {
            check_newest(register, &record, copies).await?;
            return Ok(record);
        }
    } else if others == Others::Refuse {
        let why = match register.is_shared() {
            true => "has no record of this mirror: it was last used with another register",
            false => "does not exist: this mirror was last used with another state directory",
        };
        let message = format!(
            "{} {why}. If nobody uses it any more, make it this one's with `sanstone volume take-over -c FILE NAME`",
            register.describe()
        );
        return Err(Error::new(ErrorKind::Configuration, message));
    }
    let seen = newest(copies, others == Others::Overrule).await?;
    if let Some(held) = held.filter(|held| held.version >= seen.version) {
        return Ok(held);
    }
    register.begin(seen).await?;
    Ok(seen)
}

/// Refuses a record that is older than one that a copy has seen, before it is claimed: a claim raises its version, so that after
/// some of them nobody could tell any more. What cannot be asked now is looked at when it is fenced.
async fn check_newest(register: &dyn Register, record: &Record, copies: &[Copy]) -> Result<()> {
    // One that was away a moment ago would be waited for once more.
    for copy in copies.iter().filter(|copy| copy.looks().is_some()) {
        let Ok(kept) = copy.look_at_kept().await else {
            continue;
        };
        let Err(why) = record.check(record.mirror, Some(&kept.record)) else {
            continue;
        };
        // Another owner may have changed it meanwhile: then it is the claim that fails.
        if register.read().await? == Some(*record) {
            let message = format!("{} has seen another one: {why}", copy.name);
            return Err(Error::new(ErrorKind::Configuration, message));
        }
    }
    Ok(())
}

/// Refuses a mirror that another node has, as a register says that others reach as well.
fn check_owner(register: &dyn Register, record: &Record, node: Uuid) -> Result<()> {
    if !register.is_shared() || record.owner.is_nil() || record.owner == node {
        return Ok(());
    }
    let message = format!(
        "the mirror has another owner, node {} (epoch {}), as {} says: stop it there; then, or if it is gone, make the mirror \
         this host's with `sanstone volume take-over -c FILE NAME`, which fences the other one off",
        record.owner,
        record.epoch,
        register.describe()
    );
    Err(Error::new(ErrorKind::Claimed, message))
}

/// The newest record that any copy has seen. A copy that cannot be asked may have seen a newer one, in which another set is
/// in sync.
async fn newest(copies: &[Copy], without_some: bool) -> Result<Record> {
    let mut newest: Option<Record> = None;
    for copy in copies {
        match copy.look_at_kept().await {
            Ok(kept) if newest.is_none_or(|it| it.version < kept.record.version) => {
                newest = Some(kept.record);
            }
            Ok(_) => {}
            Err(error) if without_some => {
                tracing::warn!(copy = copy.name, %error, "the mirror is taken over without this copy");
            }
            Err(error) => {
                return Err(error.context(
                    "the register is lost, and only all copies together tell which are in sync (with --force, what this \
                     copy alone holds may be lost)",
                ));
            }
        }
    }
    newest.ok_or_else(|| Error::new(ErrorKind::Unreachable, "no copy of the mirror can be read"))
}

/// Claims the mirror of `copies`, and serves it.
///
/// # Errors
/// When they form no mirror, another owner has it, or no copy in sync can be reached.
pub(super) async fn open(copies: Vec<Copy>, options: Options) -> Result<Rc<Driver>> {
    let (header, found) = look(&copies).await?;
    options.claim.alone_with(header.mirror)?;
    let copies = in_order(copies, &found);
    copies.iter().try_for_each(|copy| copy.check(&header))?;
    let block_bytes = header.block_bytes;
    let register = options.register.of(header.mirror);
    let asked = (options.node, options.others);
    let record = record_of(&*register, &header, &copies, asked).await?;
    let mut nonce = [0; 8];
    engine::random::fill(&mut nonce).map_err(|error| Error::io("a nonce for a claim", &error))?;
    let config = MirrorConfig {
        node: options.node,
        nonce: u64::from_le_bytes(nonce),
        blocks: header.data_bytes / block_bytes,
        region_blocks: header.region_bytes / block_bytes,
        piece_blocks: PIECE_BYTES / block_bytes,
        marked_max: MARKED_MAX,
        ahead_blocks: AHEAD_BYTES / block_bytes,
        nearest: CopyId::new(0),
        accepts_older: options.others == Others::Overrule,
    };
    let driver = Driver::begin(Parts {
        name: options.name,
        limits: options.limits,
        header,
        copies,
        register,
        register_place: options.register,
        machine: Mirror::claim(config, record),
        handle: options.handle,
    });
    upkeep::begin(&driver, options.claim);
    wait_until_serving(&driver).await;
    driver.check()?;
    driver.report();
    Ok(driver)
}

/// Waits until the mirror is claimed, as long as its requests may wait. Long before the end of that, people are told.
async fn wait_until_serving(driver: &Driver) {
    let limit = driver.limits.request;
    let first = limit.min(driver.limits.copy);
    let is_serving = |it: &Mirror| it.phase() == MirrorPhase::Serving;
    let mut serving = pin!(driver.until(is_serving));
    if time::timeout(first, serving.as_mut()).await.is_some() {
        return;
    }
    let (mirror, why) = (&driver.name, missing(driver, first));
    let in_all = time::brief(limit);
    tracing::warn!(mirror, "{why}; it is waited for, {in_all:?} in all");
    if time::timeout(limit - first, serving).await.is_none() {
        driver.end(missing(driver, limit));
    }
}

/// No copy in sync can be reached, or not the register.
fn missing(driver: &Driver, limit: Duration) -> Error {
    if let Some(trouble) = driver.register_trouble() {
        let message = format!(
            "the mirror could not be claimed in its register within {:?}: {trouble}",
            time::brief(limit)
        );
        return Error::new(ErrorKind::Unreachable, message);
    }
    let in_sync = driver.machine(|it| it.record().in_sync);
    let names: Vec<String> = in_sync
        .iter()
        .map(|id| {
            let copy = driver.copy(id);
            match copy.trouble_told() {
                Some(trouble) => format!("{} ({trouble})", copy.name),
                None if driver.machine(|it| it.misses_beats(id)) => format!("{} ({OLDER})", copy.name),
                None if driver.machine(|it| it.is_behind(id)) => format!(
                    "{} (it may be older: it has not seen that all copies were in sync as the register says, and only the others \
                     can tell)",
                    copy.name
                ),
                None => copy.name.clone(),
            }
        })
        .collect();
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "no copy that is in sync could be used within {:?}: {}; what the others hold is older",
            time::brief(limit),
            names.join(", ")
        ),
    )
}
