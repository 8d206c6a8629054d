//! Runs operations exclusively: no other I/O runs on their blocks meanwhile, on any lane.

use std::rc::Rc;

use engine::cross::answered;
use scsi::Extent;
use smallvec::SmallVec;

use crate::{disk::Disk, exclusion::BlockLock, lane::LaneUnits};

impl LaneUnits {
    /// Runs `operation` while no other I/O runs in `extent` of a disk.
    pub(crate) async fn exclusively<T>(
        &self,
        disk: &Rc<Disk>,
        extent: Extent,
        operation: impl Future<Output = T>,
    ) -> T {
        let lock = disk.lock(extent).await;
        self.with_lock(lock, disk, operation).await
    }

    /// As [`exclusively`](Self::exclusively), for a caller that already has its lock.
    pub(crate) async fn with_lock<T>(
        &self,
        lock: BlockLock,
        disk: &Rc<Disk>,
        operation: impl Future<Output = T>,
    ) -> T {
        let (serial, extent) = (lock.serial(), lock.extent());
        let hold = || {
            let shared = disk.shared.clone();
            move |units: &Rc<LaneUnits>, done: engine::cross::OneshotSender<()>| {
                // A disk that no longer exists has no I/O in progress.
                let Some(disk) = units.disk(&shared) else {
                    return done.send(());
                };
                let gate = disk.gate.clone();
                gate.hold(serial, extent);
                engine::spawn(async move {
                    gate.empty(serial).await;
                    done.send(());
                });
            }
        };
        let answers: SmallVec<[_; 4]> = self.ask_others(hold).collect();
        disk.gate.hold(serial, extent);
        disk.gate.empty(serial).await;
        for answer in answers {
            answered(answer, "hold blocks for an exclusive operation").await;
        }
        let result = operation.await;
        disk.gate.release(serial);
        self.tell_others(|| {
            let shared = disk.shared.clone();
            move |units: &Rc<LaneUnits>| {
                if let Some(disk) = units.disk(&shared) {
                    disk.gate.release(serial);
                }
            }
        });
        // Only now, so that the messages of the next one to get the lock arrive after ours.
        drop(lock);
        result
    }
}
