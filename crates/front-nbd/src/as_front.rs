//! The server behind the trait that all fronts have. It serves one volume, at one place, from its start to its end.

use std::{any::Any, future::pending};

use engine::LaneFuture;
use front::{
    Address, Ended, Front, FrontConfig, LocalFile, NoSessions, Reporter, StartError,
    report::Consequence,
};
use unit::Units;

use crate::{config::NbdConfig, place::Listeners, server::NbdServer};

/// What to serve, and where.
pub struct NbdExport {
    /// What to serve.
    pub config: NbdConfig,
    /// Where clients connect.
    pub place: Listeners,
}

impl FrontConfig for NbdExport {
    fn start<'a>(
        self: Box<Self>,
        units: &'a Units,
    ) -> LaneFuture<'a, Result<Box<dyn Front>, StartError>> {
        LaneFuture::new(async move {
            let server = NbdServer::start(self.config, self.place, units).await?;
            Ok(Box::new(server) as Box<dyn Front>)
        })
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Front for NbdServer {
    fn name(&self) -> &'static str {
        "nbd"
    }

    fn places(&self) -> Vec<String> {
        self.addresses().iter().map(Address::to_string).collect()
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
        NbdServer::clients(self)
    }

    fn ended(&self) -> LaneFuture<'_, Ended> {
        // Clients come and go.
        LaneFuture::new(pending())
    }

    fn file(&self) -> Option<&dyn LocalFile> {
        None
    }

    fn stop(self: Box<Self>) -> LaneFuture<'static, ()> {
        LaneFuture::new(NbdServer::stop(*self))
    }
}
