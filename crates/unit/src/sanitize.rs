//! SANITIZE: overwrites or erases a whole volume in a task of its own, which no abort, reset or lost
//! session ends. It holds the volume's gates on all lanes: earlier I/O ends before it starts, and commands
//! accepted earlier are checked again after it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use engine::time;
use scsi::{Ending, Overwrite};
use volume::{Durability, Volume};

use crate::{
    disk::{Shared, Unit},
    exclusion::BlockLock,
    lane::LaneUnits,
    medium,
    units::Units,
};

/// Blocks are written in pieces of this size, in bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// Rate limit of a pass, so that other volumes on the lane and the disk are served meanwhile.
const RATE_BYTES_PER_S: u64 = 100 << 20;

/// Lets no sanitize begin on some disks for as long as it exists: the command ends with BUSY.
pub struct NoSanitize(Vec<Arc<Shared>>);

impl Units {
    /// Lets no sanitize begin on the disks called `names`, which are about to be removed.
    ///
    /// # Errors
    /// Those on which one is running; the others are as before.
    pub fn bar_sanitize(&self, names: &[String]) -> Result<NoSanitize, Vec<String>> {
        let (mut barred, mut running) = (NoSanitize(Vec::new()), Vec::new());
        let disks = self.disks();
        for disk in names.iter().filter_map(|name| disks.get(name)) {
            match disk.state.unit.bar_sanitize() {
                true => barred.0.push(disk.clone()),
                false => running.push(disk.name.clone()),
            }
        }
        match running.is_empty() {
            true => Ok(barred),
            false => Err(running),
        }
    }
}

impl Drop for NoSanitize {
    fn drop(&mut self) {
        for disk in &self.0 {
            disk.state.unit.admit_sanitize();
        }
    }
}

/// Locks the whole disk and records persistently that the sanitize has begun, so that after a restart an unfinished
/// sanitize is recognised (SBC-3 4.11.2). I/O in progress on the volume continues meanwhile, however long it takes.
///
/// # Errors
/// How the command ends if that cannot be recorded: nothing has been overwritten, and nothing may be.
pub(crate) async fn begin(unit: &Unit, overwrite: &Overwrite) -> Result<BlockLock, Ending> {
    let disk = &unit.disk;
    let lock = disk.lock(disk.whole()).await;
    if disk.shared.state.keep().await {
        return Ok(lock);
    }
    overwrite.ended(&disk.shared.state.unit, false);
    Err(scsi::Prepared::not_kept())
}

/// Runs a sanitize that has [begun](begin), and records how it ended.
pub(crate) async fn overwrite(
    units: &LaneUnits,
    unit: &Unit,
    lock: BlockLock,
    overwrite: &Overwrite,
) -> Ending {
    let disk = &unit.disk;
    let state = &disk.shared.state;
    let result = units
        .with_lock(lock, disk, async {
            let stopping = &units.everywhere.stopping;
            let result = passes(&*disk.volume, overwrite, &state.unit, stopping).await;
            if let Err(error) = &result {
                tracing::error!(volume = disk.name(), %error, "a sanitize failed");
            }
            result.is_ok()
        })
        .await;
    let ending = overwrite.ended(&state.unit, result);
    match state.keep().await {
        true => ending,
        false => scsi::Prepared::not_kept(),
    }
}

async fn passes(
    volume: &dyn Volume,
    overwrite: &Overwrite,
    unit: &scsi::SharedUnit,
    stopping: &AtomicBool,
) -> volume::Result<()> {
    // Use the length known to initiators. If the volume has grown meanwhile, they are told after the sanitize.
    let shape = volume.shape();
    let known = unit
        .len_blocks()
        .map(|n| n * u64::from(shape.block_size_bytes));
    let len = known.unwrap_or(shape.len_bytes());
    let total = len * u64::from(overwrite.passes);
    if overwrite.erase {
        const ERASE_BYTES: u64 = 64 << 20;
        let mut at = 0;
        while at < len {
            go_on_unless(stopping).await;
            let piece = ERASE_BYTES.min(len - at);
            volume.discard(at, piece).await?;
            at += piece;
            overwrite.progress(unit, at, total);
            // Let other tasks use the lane.
            time::sleep(Duration::from_millis(1)).await;
        }
        return volume.flush().await;
    }
    for pass in 0..overwrite.passes {
        let block = overwrite.block(pass);
        let pattern = medium::repeated(&block, PIECE_BYTES.min(len) as usize);
        let mut at = 0;
        while at < len {
            go_on_unless(stopping).await;
            let piece = PIECE_BYTES.min(len - at);
            let began = time::now();
            volume
                .write(at, pattern.slice(0..piece as usize), Durability::Cached)
                .await?;
            at += piece;
            overwrite.progress(unit, u64::from(pass) * len + at, total);
            let due = Duration::from_nanos(piece * 1_000_000_000 / RATE_BYTES_PER_S);
            time::sleep(due.saturating_sub(time::now() - began)).await;
        }
        volume.flush().await?;
    }
    Ok(())
}

/// Never returns once the daemon stops: the persistent state then says that the sanitize is running, as after a
/// crash.
async fn go_on_unless(stopping: &AtomicBool) {
    if stopping.load(Ordering::Relaxed) {
        std::future::pending().await
    }
}
