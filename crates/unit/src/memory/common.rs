//! Memory that all lanes have in common, for requests larger than a lane's own part. First come, first
//! served across lanes. It takes a lock, which such a large request can afford.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::cross::{OneshotReceiver, OneshotSender, answered, oneshot};

use super::pool::Shortages;

/// The free bytes, and the queue of waiters.
#[derive(Debug)]
pub(crate) struct CommonMemory {
    total: usize,
    line: Mutex<PermitQueue>,
    /// Those of all lanes.
    shortages: Shortages,
}

#[derive(Debug)]
struct PermitQueue {
    left: usize,
    waiting: VecDeque<(usize, OneshotSender<CommonPermit>)>,
}

/// A part of the common memory, returned on drop, on whatever lane.
#[derive(Debug)]
pub(crate) struct CommonPermit {
    memory: Arc<CommonMemory>,
    amount: usize,
}

impl CommonMemory {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(CommonMemory {
            total,
            line: Mutex::new(PermitQueue {
                left: total,
                waiting: VecDeque::new(),
            }),
            shortages: Shortages::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, PermitQueue> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `amount` if that much is free and nobody waits.
    pub(crate) fn try_take(self: &Arc<Self>, amount: usize) -> Option<CommonPermit> {
        let mut line = self.lock();
        (line.waiting.is_empty() && line.left >= amount).then(|| {
            line.left -= amount;
            self.permit(amount)
        })
    }

    /// The shortages of all lanes, which are counted by those who ask.
    pub(super) fn shortages(&self) -> &Shortages {
        &self.shortages
    }

    /// The total, in bytes.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Waits in line for `amount`, which must not exceed the total.
    pub(crate) async fn take(self: &Arc<Self>, amount: usize) -> CommonPermit {
        loop {
            match self.take_or_wait(amount) {
                Ok(permit) => return permit,
                Err(given) => {
                    if let Some(permit) = answered(given, "give memory").await {
                        return permit;
                    }
                }
            }
        }
    }

    fn take_or_wait(
        self: &Arc<Self>,
        amount: usize,
    ) -> Result<CommonPermit, OneshotReceiver<CommonPermit>> {
        let mut line = self.lock();
        if line.waiting.is_empty() && line.left >= amount {
            line.left -= amount;
            return Ok(self.permit(amount));
        }
        let (sender, receiver) = oneshot();
        line.waiting.push_back((amount, sender));
        Err(receiver)
    }

    fn permit(self: &Arc<Self>, amount: usize) -> CommonPermit {
        CommonPermit {
            memory: self.clone(),
            amount,
        }
    }
}

impl CommonPermit {
    /// The amount it holds.
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for CommonPermit {
    fn drop(&mut self) {
        let mut served = Vec::new();
        {
            let mut line = self.memory.lock();
            line.left += self.amount;
            assert!(line.left <= self.memory.total, "memory was returned twice");
            while let Some((amount, _)) = line.waiting.front() {
                if *amount > line.left {
                    break;
                }
                let Some((amount, sender)) = line.waiting.pop_front() else {
                    break;
                };
                line.left -= amount;
                served.push((amount, sender));
            }
        }
        // Send outside the lock: if a waiter is gone, its part comes back here at once.
        for (amount, sender) in served {
            sender.send(self.memory.permit(amount));
        }
    }
}
