//! Comparing the copies of a mirror that is in use: whoever holds its [`MirrorHandle`](super::MirrorHandle) asks for one
//! part after the other, from any thread; the mirror compares it piece by piece, each while nothing is written there.

use std::rc::Weak;

use engine::{Duration, time};

use super::{
    comparison::{Compared, Differences},
    driver::Driver,
};
use crate::{Error, ErrorKind, Result};

/// How much is read from each copy at a time, in bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// For how long a part is compared.
const PART_TIME: Duration = Duration::from_secs(1);
/// How often is looked whether somebody asks.
const PAUSE: Duration = Duration::from_millis(100);
/// The most ranges that are told of a part: more say no more.
const RANGES_MAX: usize = 1000;

/// Answers who asks, also when the mirror serves nothing any more.
pub(super) async fn answer(driver: Weak<Driver>) {
    while let Some(this) = driver.upgrade() {
        let asked = this.handle().take_asked();
        if let Some(asked) = asked {
            // Nobody may wait for it any more.
            let _ = asked.answer.send(part(&this, asked.at_bytes).await);
            continue;
        }
        drop(this);
        time::sleep(PAUSE).await;
    }
}

async fn part(driver: &Driver, at_bytes: u64) -> Result<Compared> {
    let len_bytes = driver.header.data_bytes;
    let (began, mut at) = (time::now(), at_bytes.min(len_bytes));
    let mut found = Differences::default();
    driver.check()?;
    while at < len_bytes && time::now() - began < PART_TIME && found.0.len() < RANGES_MAX {
        if driver.machine(|it| it.record().in_sync.len()) < driver.places().count() {
            let message = format!(
                "mirror {}: a copy is not in sync, so there is nothing to compare it with: `sanstone volume status` says why",
                driver.name
            );
            return Err(Error::new(ErrorKind::Unreachable, message));
        }
        let len = PIECE_BYTES.min(len_bytes - at);
        for range in driver.compare(at, len).await? {
            found.join(at + range.start..at + range.end);
        }
        at += len;
    }
    Ok(Compared {
        next_bytes: at,
        len_bytes,
        differ: found.0,
    })
}
