//! Puts another disk in the place of a copy that is gone. The register says first that the copy is not in sync, so that
//! nobody reads the new disk before it is filled; then the disk is made the copy, which is filled whole when the mirror is
//! next served.

use ::mirror::{
    CopyId, CopySet,
    copy::Header,
    register::{Record, Swap},
};

use super::{
    copy::Copy,
    create::{check_blank, write},
    register::Register,
    register_place::RegisterPlace,
};
use crate::{Error, ErrorKind, Result};

/// Makes the disk that is listed as copy `at` that copy of the mirror to which the others belong.
///
/// # Errors
/// When the others are no mirror that this state directory has, what the copy held is on no other, or the disk is not suitable
/// or, without `force`, not blank; nothing is changed then.
pub(super) async fn replace(
    copies: &[Copy],
    at: usize,
    force: bool,
    register: &RegisterPlace,
) -> Result<()> {
    let Some(new) = copies.get(at) else {
        let message = format!(
            "there is no copy {at}: the mirror has {}, numbered from 0",
            copies.len()
        );
        return Err(Error::new(ErrorKind::Configuration, message));
    };
    let mut free = CopySet::first(copies.len());
    let mut known: Option<Header> = None;
    for (_, other) in copies.iter().enumerate().filter(|(place, _)| *place != at) {
        let header = other.look().await?;
        if known.is_some_and(|known| known.mirror != header.mirror) {
            return Err(other.refuse(format_args!(
                "it belongs to another mirror, {}",
                header.mirror
            )));
        }
        free.remove(header.copy);
        known = Some(header);
    }
    let header = known.expect("a mirror has other copies");
    let place = free.iter().next().expect("one place is left");
    let register = register.of(header.mirror);
    let record = register.read().await?.ok_or_else(|| {
        let message = format!(
            "{} has no record of this mirror: run this where the mirror is used, or take it over first with `sanstone volume \
             take-over`",
            register.describe()
        );
        Error::new(ErrorKind::Configuration, message)
    })?;
    check(&record, &header, copies, place)?;
    let wanted = Header {
        copy: place,
        ..header
    };
    let found = look_at_new(new, &wanted).await?;
    // Made by an attempt that was cut short, or known not to hold everything.
    let is_done = found == Some(wanted) && !record.in_sync.contains(place);
    if !force && !is_done {
        check_blank(new, header.data_bytes).await?;
    }
    let record = without(&*register, record, place).await?;
    let written = write(new, record, &wanted).await;
    written.map_err(|error| new.blame(error))
}

/// Which copy `new` is already, if it is one, that shall be the one with `header`.
///
/// # Errors
/// When it cannot be that, or is another copy of the same mirror.
pub(super) async fn look_at_new(new: &Copy, header: &Header) -> Result<Option<Header>> {
    new.ask_looks().await?;
    new.check(header)?;
    new.suits().await?;
    let found = new.look().await.ok();
    let is_other = |found: Header| found.mirror == header.mirror && found.copy != header.copy;
    if found.is_some_and(is_other) {
        return Err(new.refuse("it is another copy of this mirror; list a disk that is none"));
    }
    Ok(found)
}

/// Refuses to give up what the copy at `place` holds if it is the only one that holds it.
fn check(record: &Record, header: &Header, copies: &[Copy], place: CopyId) -> Result<()> {
    let refuse = |message: String| Err(Error::new(ErrorKind::Configuration, message));
    let checked = record.check(header.mirror, None);
    checked.map_err(|why| Error::new(ErrorKind::Configuration, why.to_string()))?;
    if usize::from(record.copies) != copies.len() {
        return refuse(format!(
            "the mirror has {} copies, and {} are listed: list all of them",
            record.copies,
            copies.len()
        ));
    }
    if record.in_sync == CopySet::from(place) {
        return refuse(
            "the copy to be replaced is the only one in sync: what was written since the other is out is on it alone; to give \
             that up, make the mirror anew from the other with `sanstone volume create --from N --force`"
                .to_owned(),
        );
    }
    Ok(())
}

/// Has the register say that the copy at `place` is not in sync.
async fn without(register: &dyn Register, record: Record, place: CopyId) -> Result<Record> {
    if !record.in_sync.contains(place) {
        return Ok(record);
    }
    let mut nonce = [0; 8];
    engine::random::fill(&mut nonce).map_err(|error| Error::io("a nonce", &error))?;
    let next = Record {
        in_sync: record.in_sync.without(place.into()),
        ..record.next(u64::from_le_bytes(nonce))
    };
    let landed = register.swap(Swap::new(record, next)).await?;
    match landed == next {
        true => Ok(next),
        false => Err(Error::new(
            ErrorKind::Configuration,
            format!(
                "{} is being changed: stop whoever uses the mirror",
                register.describe()
            ),
        )),
    }
}
