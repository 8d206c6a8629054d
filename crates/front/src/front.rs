//! What every front can do, whatever it speaks: a daemon holds a list of them and knows no more. A front is made from its
//! configuration. It changes in two phases: all fronts prepare their next configuration, and only if each succeeds do
//! they serve it.

use std::{any::Any, path::Path};

use engine::{LaneFuture, mounts::Mount};
use unit::Units;

use crate::{
    error::StartError,
    report::{Consequence, FrontReport},
};

/// A front as it is configured.
pub trait FrontConfig {
    /// Starts serving `units`.
    ///
    /// # Errors
    /// [`StartError`]; nothing is served then.
    fn start<'a>(
        self: Box<Self>,
        units: &'a Units,
    ) -> LaneFuture<'a, Result<Box<dyn Front>, StartError>>;

    /// Itself, for the front of its kind.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// A front that serves, until [`stop`](Front::stop).
pub trait Front {
    /// What users call its kind: `nbd`.
    fn name(&self) -> &'static str;

    /// Where clients reach it, with ports that the system chose.
    fn places(&self) -> Vec<String>;

    /// Checks whether it could serve at the addresses of `config`, without a trace.
    ///
    /// # Errors
    /// [`StartError`]
    fn check(&self, config: Box<dyn FrontConfig>) -> LaneFuture<'_, Result<(), StartError>>;

    /// What its sessions would notice of `config`, which is of its own kind.
    fn consequences(&self, config: Box<dyn FrontConfig>) -> LaneFuture<'_, Vec<Consequence>>;

    /// Prepares on all lanes to serve `config`, which is of its own kind.
    ///
    /// # Errors
    /// [`StartError`]; it has prepared nothing then.
    fn prepare(&mut self, config: Box<dyn FrontConfig>) -> LaneFuture<'_, Result<(), StartError>>;

    /// Discards what it has prepared.
    fn discard(&mut self) -> LaneFuture<'_, ()>;

    /// Serves what it has prepared, from now on. The returned future completes once everything that it serves no more has
    /// ended.
    fn commit(&mut self) -> LaneFuture<'static, ()>;

    /// A handle that reports what it serves now, even while it changes.
    fn reporter(&self) -> Box<dyn Reporter>;

    /// Who has what it serves, for people.
    fn clients(&self) -> Vec<String>;

    /// Waits until it has nothing left to serve, and says why.
    fn ended(&self) -> LaneFuture<'_, Ended>;

    /// The file that it serves on this machine, if it does.
    fn file(&self) -> Option<&dyn LocalFile>;

    /// Accepts no more requests, answers those already accepted, and ends. The holder of the units is responsible for
    /// [flushing](Units::flush) what was written.
    fn stop(self: Box<Self>) -> LaneFuture<'static, ()>;
}

/// Reports what a front serves.
pub trait Reporter {
    /// What it serves, and to whom.
    fn report(&self) -> LaneFuture<'_, FrontReport>;
}

/// Of a front without targets, and without sessions with initiators.
pub struct NoSessions;

impl Reporter for NoSessions {
    fn report(&self) -> LaneFuture<'_, FrontReport> {
        LaneFuture::new(async { FrontReport::default() })
    }
}

/// A file that a front serves on this machine.
pub trait LocalFile {
    /// Its path.
    fn path(&self) -> &Path;

    /// The size of the volume's blocks. Smaller requests, and those that are not aligned to it, cost more.
    fn block_size_bytes(&self) -> u32;

    /// The mount of the file, as it was when it was mounted.
    fn mount(&self) -> &Mount;

    /// Unmounts the file from its path, unless somebody uses it there. It goes on being served: there may be others who
    /// have it.
    ///
    /// # Errors
    /// Why it cannot be unmounted.
    fn unmount(&self) -> LaneFuture<'_, Result<(), String>>;
}

/// Why a front has nothing left to serve.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Ended {
    /// Nobody has it any more, on any path, in any mount namespace, open or mapped.
    #[error("the file has been unmounted")]
    Released,
    /// The connection to the kernel is gone: whoever still has it gets errors.
    #[error("{0}")]
    Lost(String),
}
