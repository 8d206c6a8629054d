//! What can be asked of a disk that another owner has reserved: everything that a registrant may read, during a
//! registration that ends with the question and takes nothing away from the owner.

use std::rc::Rc;

use ::mirror::key::FenceKey;

use super::{cdb, claim::ClaimAnswer, nexus::Nexus, session::Data, unit::RemoteUnit};
use crate::{Error, ErrorKind, Result};

/// How much of the disk is read: a superblock is no longer.
const READ_BYTES: usize = 4096;

impl RemoteUnit {
    /// Runs `asks` while registered. Under a registrants-only reservation some targets (LIO) tell others nothing about
    /// the disk, not even its capacity, which SBC-3 4.17 lets everyone read.
    pub(super) async fn as_registrant<T>(
        &self,
        asks: impl AsyncFnOnce() -> Result<T>,
    ) -> Result<T> {
        let nexus = self.nexus(&mut self.patience()).await?;
        self.registered_on(&nexus, asks).await
    }

    async fn registered_on<T>(
        &self,
        nexus: &Rc<Nexus>,
        asks: impl AsyncFnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut number = [0; 4];
        engine::random::fill(&mut number).map_err(|error| {
            Error::new(
                ErrorKind::Medium,
                format!("cannot generate random bytes for a key: {error}"),
            )
        })?;
        // Whoever is killed with it leaves it to the next fence.
        let key = FenceKey::guest(u32::from_be_bytes(number)).raw();
        let is_registered = self.register_key(nexus, key).await?;
        let asked = asks().await;
        if is_registered {
            self.unregister_key(nexus, key).await;
        }
        asked
    }

    /// The [`READ_BYTES`] of the disk from `at` on, read as a registrant if its reservation demands that.
    pub(super) async fn read_as_registrant(&self, at: u64) -> Result<Vec<u8>> {
        let nexus = self.nexus(&mut self.patience()).await?;
        let block = self.block_size_bytes();
        let read = cdb::read(at / u64::from(block), READ_BYTES as u32 / block);
        let read = || self.tell(&nexus, &read, Data::In(READ_BYTES));
        let told = match read().await? {
            // A nexus with a reservation of its own can read, and would lose it by registering again.
            ClaimAnswer::Conflict => self.registered_on(&nexus, async || read().await).await?,
            told => told,
        };
        match told {
            ClaimAnswer::Good(data) if data.len() == READ_BYTES => Ok(data),
            ClaimAnswer::Good(data) => {
                let why = format!("the target sent {} of {READ_BYTES} bytes", data.len());
                Err(Error::new(ErrorKind::Protocol, why))
            }
            ClaimAnswer::Conflict => Err(Error::new(
                ErrorKind::ReservationConflict,
                "not even registered initiators may read it",
            )),
            ClaimAnswer::Refused(why) => Err(Error::new(ErrorKind::Medium, why)),
        }
    }
}
