//! Gives a mirror the length that its copies have room for, once all of them have become longer. It is claimed for that, in
//! sync, and used by nobody.
//!
//! Until then what the mirror keeps on a copy lies where the copy ended when it was made. Now it has to leave that place to the
//! data: it is written again at the end of each copy, where so far a [signpost](crate::copy_end) leads to the old place, and
//! the header takes that signpost's place last. From then on this copy has the new length. Wherever the power fails, each copy
//! has one header that is found; as long as they say different lengths, the smallest holds. The next attempt ends the work.
//!
//! What the data has gained is marked in the new bitmaps, and so it is made equal when the mirror is next used.

use std::{ops::Range, pin::pin, rc::Rc};

use ::mirror::{
    CopyId, Mirror, Regions,
    copy::{Header, METADATA_BYTES},
};
use engine::time;

use super::{
    copy::Copy,
    create::{GRAIN_BYTES, are_blank},
    driver::Driver,
};
use crate::{
    Error, ErrorKind, Result,
    copy_end::last_end,
    kinds::NewLength,
    member::{Order, Report},
};

/// Grows the mirror of `driver`, which is serving it; nothing is read or written by it any more afterwards.
///
/// # Errors
/// When a copy is out, or the error of a copy that is not longer than before although another is; the error of a copy that
/// could not be written.
pub(super) async fn grow(driver: &Rc<Driver>) -> Result<NewLength> {
    let from_bytes = driver.header.data_bytes;
    let copies: Vec<(CopyId, Rc<Copy>)> = driver
        .places()
        .map(|place| (place, driver.copy(place)))
        .collect();
    wait_until_settled(driver).await?;
    let mut data_bytes = u64::MAX;
    let mut ends = Vec::new();
    for (_, copy) in &copies {
        let end_bytes = new_end(copy).await?;
        data_bytes = data_bytes.min((end_bytes - METADATA_BYTES) / GRAIN_BYTES * GRAIN_BYTES);
        ends.push(end_bytes);
    }
    if data_bytes <= from_bytes {
        let shortest = copies.iter().zip(&ends).min_by_key(|(_, end)| **end);
        let ((_, copy), _) = shortest.expect("a mirror has copies");
        tracing::info!(
            mirror = driver.name,
            copy = copy.name,
            "the mirror is as long as this copy has room for; to have it longer, make all of them so, by 1 MiB at least"
        );
        return Ok(NewLength {
            from_bytes,
            to_bytes: from_bytes,
        });
    }
    driver.end(Error::new(ErrorKind::Preempted, "the mirror grows"));
    for (_, copy) in &copies {
        copy.calls.over().await;
    }
    let old_ends = copies.iter().map(|(_, copy)| copy.end_bytes());
    let used = old_ends.max().expect("a mirror has copies").min(data_bytes);
    let just_copies: Vec<&Copy> = copies.iter().map(|(_, copy)| &**copy).collect();
    let gained = match used == data_bytes || are_blank(&just_copies, used..data_bytes).await? {
        true => from_bytes..used,
        false => from_bytes..data_bytes,
    };
    let Header {
        mirror,
        block_bytes,
        ..
    } = driver.header;
    let header = |place| Header::new(mirror, place, data_bytes, block_bytes);
    for ((place, copy), end_bytes) in copies.iter().zip(&ends) {
        let marks = marks(&header(*place), &gained);
        let moved = copy.move_to(*end_bytes, &marks).await;
        moved.map_err(|error| copy.blame(error))?;
    }
    let mut left = Vec::new();
    for ((place, copy), end_bytes) in copies.iter().zip(&ends) {
        left.push(copy.end_bytes());
        let headed = copy.moves_to(*end_bytes, &header(*place)).await;
        headed.map_err(|error| copy.blame(error))?;
    }
    for (((_, copy), end_bytes), left) in copies.iter().zip(&ends).zip(left) {
        // Its server may have it lead to the old place until it knows of the header.
        if new_end(copy).await? != *end_bytes {
            return Err(copy.refuse("it has become longer meanwhile; run this again"));
        }
        if left != *end_bytes {
            let erased = copy.erase(left).await;
            erased.map_err(|error| copy.blame(error))?;
        }
    }
    Ok(NewLength {
        from_bytes,
        to_bytes: data_bytes,
    })
}

/// Waits until all copies are in sync, and nothing is marked in the bitmaps.
async fn wait_until_settled(driver: &Driver) -> Result<()> {
    let is_complete = |it: &Mirror| it.record().in_sync == it.record().all();
    if !driver.machine(is_complete) {
        let limit = time::brief(driver.limits.request);
        tracing::info!(
            mirror = driver.name,
            ?limit,
            "it grows when all of its copies are in sync, for which it waits"
        );
    }
    wait_until(driver, is_complete).await?.ok_or_else(|| {
        let why = "its copies are not all in sync: serve it until `sanstone volume status` says that they are, and stop it \
                   properly";
        Error::new(ErrorKind::Configuration, why)
    })?;
    driver.clear_marks();
    let is_settled = |it: &Mirror| is_complete(it) && it.is_settled();
    wait_until(driver, is_settled).await?.ok_or_else(|| {
        let why = "its copies are still being made equal, after a crash or an earlier growth: serve it until `sanstone volume status` says that \
                   nothing is in doubt, and stop it properly";
        Error::new(ErrorKind::Configuration, why)
    })
}

/// Waits until it `is_so`; `None`: it took too long.
async fn wait_until(driver: &Driver, is_so: impl Fn(&Mirror) -> bool) -> Result<Option<()>> {
    let waited = time::timeout(driver.limits.request, pin!(driver.until(is_so))).await;
    driver.check().map(|()| waited)
}

/// Where the metadata of `copy` can end: at the end of the disk as it is now, unless that is so near that the old would be
/// overwritten.
async fn new_end(copy: &Copy) -> Result<u64> {
    let told = copy.volume.member(Order::Look).await;
    let Report::Looks(looks) = told.map_err(|error| copy.blame(error))? else {
        return Err(copy.refuse("it has not told its length"));
    };
    let (old, last) = (copy.end_bytes(), last_end(looks.len_bytes));
    Ok(if last >= old + METADATA_BYTES {
        last
    } else {
        old
    })
}

/// The regions, as words of the bitmap, of a mirror with `header` in which `range` lies, in bytes.
fn marks(header: &Header, range: &Range<u64>) -> Regions {
    let mut regions = Regions::none(header.regions());
    let (first, end) = (
        range.start / header.region_bytes,
        range.end.div_ceil(header.region_bytes),
    );
    for region in first..end {
        regions.set(region as usize, true);
    }
    regions
}
