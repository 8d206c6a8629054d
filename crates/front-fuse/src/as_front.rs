//! The front behind the trait that all fronts have. It serves one volume, at one path, from its start to its end.

use std::{any::Any, path::Path};

use engine::{LaneFuture, mounts::Mount};
use front::{
    Ended, FrontConfig, LocalFile, Reporter, StartError,
    report::{Consequence, Report},
};
use unit::Units;

use crate::{
    front::{Front, Spec},
    mount::Unmounted,
    place::Place,
};

/// What to serve, and where.
pub struct Served {
    /// What to serve.
    pub spec: Spec,
    /// Where the file appears.
    pub place: Place,
}

impl FrontConfig for Served {
    fn start<'a>(
        self: Box<Self>,
        units: &'a Units,
    ) -> LaneFuture<'a, Result<Box<dyn front::Front>, StartError>> {
        LaneFuture::new(async move {
            let front = Front::start(&self.spec, self.place, units).await;
            let front = front.map_err(|error| StartError::Own(error.to_string()))?;
            Ok(Box::new(front) as Box<dyn front::Front>)
        })
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl front::Front for Front {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn places(&self) -> Vec<String> {
        vec![self.path().display().to_string()]
    }

    fn check(&self, _: Box<dyn FrontConfig>) -> LaneFuture<'_, Result<(), StartError>> {
        LaneFuture::new(async { Err(StartError::Fixed) })
    }

    fn consequences(&self, _: Box<dyn FrontConfig>) -> LaneFuture<'_, Vec<Consequence>> {
        LaneFuture::new(async { Vec::new() })
    }

    fn prepare(&mut self, _: Box<dyn FrontConfig>) -> LaneFuture<'_, Result<(), StartError>> {
        LaneFuture::new(async { Err(StartError::Fixed) })
    }

    fn discard(&mut self) -> LaneFuture<'_, ()> {
        LaneFuture::new(async {})
    }

    fn commit(&mut self) -> LaneFuture<'static, ()> {
        unreachable!("it prepares nothing")
    }

    fn reporter(&self) -> Box<dyn Reporter> {
        Box::new(NoSessions)
    }

    fn clients(&self) -> Vec<String> {
        // Only the kernel knows who has the file.
        Vec::new()
    }

    fn ended(&self) -> LaneFuture<'_, Ended> {
        LaneFuture::new(Front::ended(self))
    }

    fn file(&self) -> Option<&dyn LocalFile> {
        Some(self)
    }

    fn stop(self: Box<Self>) -> LaneFuture<'static, ()> {
        LaneFuture::new(Front::stop(*self))
    }
}

impl LocalFile for Front {
    fn path(&self) -> &Path {
        Front::path(self)
    }

    fn block_size_bytes(&self) -> u32 {
        Front::block_size_bytes(self)
    }

    fn mount(&self) -> &Mount {
        Front::mount(self)
    }

    fn unmount(&self) -> LaneFuture<'_, Result<(), String>> {
        LaneFuture::new(async {
            match Front::unmount(self).await {
                Unmounted::Yes => Ok(()),
                Unmounted::No(why) => Err(why),
            }
        })
    }
}

/// It has no targets, and no sessions with initiators.
struct NoSessions;

impl Reporter for NoSessions {
    fn report(&self) -> LaneFuture<'_, Report> {
        LaneFuture::new(async { Report::default() })
    }
}
