//! The front behind the trait that all fronts have. It serves one volume, at one path, from its start to its end.

use std::{any::Any, path::Path};

use engine::{LaneFuture, mounts::Mount};
use front::{Ended, FrontConfig, LocalFile, NoSessions, Reporter, StartError, report::Consequence};
use unit::Units;

use crate::{
    front::{FuseFront, Spec},
    mount::Unmounted,
    place::MountPath,
};

/// What to serve, and where.
pub struct FuseExport {
    /// What to serve.
    pub spec: Spec,
    /// Where the file appears.
    pub place: MountPath,
}

impl FrontConfig for FuseExport {
    fn start<'a>(
        self: Box<Self>,
        units: &'a Units,
    ) -> LaneFuture<'a, Result<Box<dyn front::Front>, StartError>> {
        LaneFuture::new(async move {
            let front = FuseFront::start(&self.spec, self.place, units).await;
            let front = front.map_err(|error| StartError::Own(error.to_string()))?;
            Ok(Box::new(front) as Box<dyn front::Front>)
        })
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl front::Front for FuseFront {
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
        LaneFuture::new(FuseFront::ended(self))
    }

    fn file(&self) -> Option<&dyn LocalFile> {
        Some(self)
    }

    fn stop(self: Box<Self>) -> LaneFuture<'static, ()> {
        LaneFuture::new(FuseFront::stop(*self))
    }
}

impl LocalFile for FuseFront {
    fn path(&self) -> &Path {
        FuseFront::path(self)
    }

    fn block_size_bytes(&self) -> u32 {
        FuseFront::block_size_bytes(self)
    }

    fn mount(&self) -> &Mount {
        FuseFront::mount(self)
    }

    fn unmount(&self) -> LaneFuture<'_, Result<(), String>> {
        LaneFuture::new(async {
            match FuseFront::unmount(self).await {
                Unmounted::Yes => Ok(()),
                Unmounted::No(why) => Err(why),
            }
        })
    }
}
