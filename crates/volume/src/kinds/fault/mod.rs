//! The `fault` layer, for tests: a volume that fails, delays or hangs requests according to rules, which can be
//! changed from anywhere while the volume is in use.

pub mod settings;

use std::{
    future::poll_fn,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use engine::{LaneFuture, Payload, time};
use serde::Deserialize;

use crate::{
    CompareOutcome, Durability, Error, ErrorKind, Result, SharedVolume, Volume,
    flush_failure::FlushFailure,
};

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultOperation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard or a write of zeroes.
    Discard,
}

/// What happens to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultAction {
    /// It fails with this error, and the volume below never hears of it.
    Fail(ErrorKind),
    /// It is executed, and fails with this error all the same.
    FailAfter(ErrorKind),
    /// It begins after this delay.
    Delay(Duration),
    /// It begins when the rules are cleared.
    Hang,
}

/// Which requests an action applies to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The operation; any when `None`.
    pub on: Option<FaultOperation>,
    /// A range of bytes that the request must touch; any when `None`. A flush touches none.
    pub range: Option<Range<u64>>,
    /// How many matching requests pass first.
    pub skip: u64,
    /// How many requests it acts on; unlimited when `None`.
    pub times: Option<u64>,
    /// What happens to them.
    pub action: FaultAction,
}

impl Rule {
    /// A rule that applies `action` to every request; narrow it with the fields.
    pub fn always(action: FaultAction) -> Self {
        Rule {
            on: None,
            range: None,
            skip: 0,
            times: None,
            action,
        }
    }

    fn matches(&self, operation: FaultOperation, at: u64, len: u64) -> bool {
        self.on.is_none_or(|on| on == operation)
            && self
                .range
                .as_ref()
                .is_none_or(|range| at < range.end && range.start < at + len)
    }
}

/// Changes the rules of a [`Fault`] layer, from any thread.
#[derive(Clone, Debug, Default)]
pub struct FaultHandle(Arc<Mutex<Rules>>);

#[derive(Debug, Default)]
struct Rules {
    rules: Vec<Rule>,
    acted: u64,
    /// The number of clearings: a request that hangs since before the last one goes on.
    cleared: u64,
    hanging: Vec<Waker>,
}

impl FaultHandle {
    /// Without rules.
    pub fn new() -> Self {
        FaultHandle::default()
    }

    /// Appends a rule. The first rule that matches decides.
    pub fn add(&self, rule: Rule) {
        self.lock().rules.push(rule);
    }

    /// Removes all rules and releases hanging requests.
    pub fn clear(&self) {
        let hanging = {
            let mut rules = self.lock();
            rules.rules.clear();
            rules.cleared += 1;
            std::mem::take(&mut rules.hanging)
        };
        hanging.into_iter().for_each(Waker::wake);
    }

    /// How many requests a rule has acted on.
    pub fn acted(&self) -> u64 {
        self.lock().acted
    }

    fn lock(&self) -> MutexGuard<'_, Rules> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, operation: FaultOperation, at: u64, len: u64) -> Option<FaultAction> {
        let mut state = self.lock();
        let rule = state.rules.iter_mut().find_map(|rule| {
            if !rule.matches(operation, at, len) || rule.times == Some(0) {
                return None;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                return None;
            }
            if let Some(times) = &mut rule.times {
                *times -= 1;
            }
            Some(rule.action)
        });
        state.acted += u64::from(rule.is_some());
        rule
    }

    async fn hang(&self) {
        let since = self.lock().cleared;
        poll_fn(|cx| {
            let mut rules = self.lock();
            if rules.cleared != since {
                return Poll::Ready(());
            }
            rules.hanging.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A volume that fails according to rules.
pub struct Fault {
    inner: SharedVolume,
    handle: FaultHandle,
    /// Whether a rule has failed a flush: as with any volume, that stays until it is reopened.
    flush_failed: FlushFailure,
}

impl Fault {
    /// `inner` under the rules of `handle`.
    pub fn new(inner: SharedVolume, handle: FaultHandle) -> Self {
        Fault {
            inner,
            handle,
            flush_failed: FlushFailure::default(),
        }
    }

    /// Does what the rules say with a request that `begin` hands to the volume below. Only this calls it: a volume may
    /// do all of its work before it returns its future, as `ram` does.
    async fn under_rules<'a, T>(
        &'a self,
        operation: FaultOperation,
        (at, len): (u64, u64),
        begin: impl FnOnce(&'a dyn Volume) -> LaneFuture<'a, Result<T>>,
    ) -> Result<T> {
        match self.handle.decide(operation, at, len) {
            None => begin(&*self.inner).await,
            Some(FaultAction::Fail(kind)) => Err(self.failure(operation, kind)),
            Some(FaultAction::FailAfter(kind)) => {
                begin(&*self.inner).await?;
                Err(self.failure(operation, kind))
            }
            Some(FaultAction::Delay(duration)) => {
                time::sleep(duration).exactly().await;
                begin(&*self.inner).await
            }
            Some(FaultAction::Hang) => {
                self.handle.hang().await;
                begin(&*self.inner).await
            }
        }
    }

    /// The same for a request that changes what is below: refused once a flush has failed.
    async fn change<'a, T>(
        &'a self,
        operation: FaultOperation,
        range: (u64, u64),
        begin: impl FnOnce(&'a dyn Volume) -> LaneFuture<'a, Result<T>>,
    ) -> Result<T> {
        self.flush_failed.check()?;
        self.under_rules(operation, range, begin).await
    }

    fn failure(&self, operation: FaultOperation, kind: ErrorKind) -> Error {
        let failure = Error::new(kind, format!("a fault rule made this {operation:?} fail"));
        if operation == FaultOperation::Flush {
            self.flush_failed.set(format!(
                "an earlier flush failed ({failure}), so data written before it counts as lost; \
                 open the volume again"
            ));
        }
        failure
    }
}

impl Volume for Fault {
    crate::pass_on! { self => self.inner; shape, member, close, allocation, atomic_writes }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        let request = self.under_rules(FaultOperation::Read, (at, len as u64), move |inner| {
            inner.read(at, len)
        });
        LaneFuture::new(request)
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        let range = (at, data.len() as u64);
        LaneFuture::new(self.change(FaultOperation::Write, range, move |inner| {
            inner.write(at, data, durability)
        }))
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.change(FaultOperation::Flush, (0, 0), |inner| inner.flush()))
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(
            self.change(FaultOperation::Discard, (at, len), move |inner| {
                inner.discard(at, len)
            }),
        )
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        let range = (at, data.len() as u64);
        LaneFuture::new(self.change(FaultOperation::Write, range, move |inner| {
            inner.write_atomic(at, data, durability)
        }))
    }

    fn compare_and_write(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        let range = (at, data.len() as u64 / 2);
        LaneFuture::new(self.change(FaultOperation::Write, range, move |inner| {
            inner.compare_and_write(at, data, durability)
        }))
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(
            self.change(FaultOperation::Discard, (at, len), move |inner| {
                inner.write_zeroes(at, len, may_discard, durability)
            }),
        )
    }
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fault({:?})", self.handle.lock().rules)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use engine::{Lane, LaneConfig, cost, task};

    use super::*;
    use crate::{contract, kinds::ram::Region};

    fn faulty() -> (Rc<Fault>, FaultHandle) {
        let ram = Region::new(1 << 20, 512).expect("memory").on_lane();
        let handle = FaultHandle::new();
        (Rc::new(Fault::new(Rc::new(ram), handle.clone())), handle)
    }

    #[test]
    fn keeps_the_contract_without_rules() {
        contract::run(|_| LaneFuture::new(async { Ok(faulty().0 as SharedVolume) }));
    }

    #[test]
    fn a_lane_does_not_sleep_past_a_delay() {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let (volume, handle) = faulty();
            handle.add(Rule::always(FaultAction::Delay(Duration::from_micros(80))));
            let before = cost::sleeps();
            for _ in 0..20 {
                volume.read(0, 512).await.expect("ram");
            }
            assert_eq!(cost::sleeps(), before);
        });
    }

    #[test]
    fn rules_act_where_and_as_often_as_they_say() {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let (volume, handle) = faulty();
            handle.add(Rule {
                on: Some(FaultOperation::Read),
                range: Some(4096..8192),
                skip: 1,
                times: Some(2),
                action: FaultAction::Fail(ErrorKind::Medium),
            });
            let mut results = Vec::new();
            for at in [0, 4096, 3584, 4096, 3584, 8192, 4096] {
                results.push(volume.read(at, 1024).await.is_ok());
            }
            assert_eq!(results, [true, true, false, false, true, true, true]);
            assert_eq!(handle.acted(), 2);

            handle.add(Rule::always(FaultAction::FailAfter(ErrorKind::TimedOut)));
            let ones = Payload::from(engine::Buf::copy_of(&[1; 512]));
            let error = volume
                .write(0, ones, Durability::Cached)
                .await
                .expect_err("told");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            handle.clear();
            let seen = volume.read(0, 512).await.expect("no rules").to_vec();
            assert_eq!(seen, [1; 512], "it was done all the same");
        });
    }

    #[test]
    fn a_write_that_fails_leaves_the_memory_below_as_it_was() {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let (volume, handle) = faulty();
            let bytes = |byte| Payload::from(engine::Buf::copy_of(&[byte; 4096]));
            let cached = Durability::Cached;
            volume.write(0, bytes(1), cached).await.expect("no rules");
            handle.add(Rule::always(FaultAction::Fail(ErrorKind::Medium)));
            let failed = [
                volume.write(0, bytes(2), cached).await,
                volume.write_atomic(0, bytes(2), cached).await,
                volume.write_zeroes(0, 4096, true, cached).await,
                volume.discard(0, 4096).await,
            ];
            assert!(failed.iter().all(Result::is_err), "{failed:?}");
            handle.clear();
            let seen = volume.read(0, 4096).await.expect("no rules").to_vec();
            assert!(seen == [1; 4096]);
        });
    }

    #[test]
    fn a_flush_that_failed_once_has_failed_until_the_volume_is_opened_again() {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            for action in [FaultAction::Fail, FaultAction::FailAfter] {
                let (volume, handle) = faulty();
                let data = || Payload::zeroes(512);
                let cached = Durability::Cached;
                handle.add(Rule {
                    on: Some(FaultOperation::Flush),
                    times: Some(1),
                    ..Rule::always(action(ErrorKind::Medium))
                });
                volume.write(0, data(), cached).await.expect("not a flush");
                let failed = volume.flush().await.expect_err("the rule");
                assert_eq!(failed.kind(), ErrorKind::Medium);
                handle.clear();
                let later = [
                    volume.flush().await,
                    volume.write(0, data(), cached).await,
                    volume.write_atomic(0, data(), cached).await,
                    volume.write_zeroes(0, 512, true, cached).await,
                    volume.discard(0, 512).await,
                ];
                for result in later {
                    let error = result.expect_err("what was written before may be lost");
                    assert_eq!(error.kind(), ErrorKind::FlushFailed);
                }
                volume.read(0, 512).await.expect("reads go on");
                let again = Fault::new(volume.inner.clone(), handle);
                again.flush().await.expect("it was opened again");
            }
        });
    }

    #[test]
    fn what_hangs_goes_on_when_the_rules_are_cleared() {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let (volume, handle) = faulty();
            handle.add(Rule::always(FaultAction::Hang));
            let hanging = volume.clone();
            let flush = task::spawn(async move { hanging.flush().await });
            time::sleep(Duration::from_millis(5)).await;
            assert!(!flush.is_finished());
            std::thread::spawn(move || handle.clear());
            flush.await.expect("it goes on");
        });
    }
}
