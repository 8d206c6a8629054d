//! The mark of a [claim](super::claim) on a remote disk: where it is, and how it is read and durably written.

use std::rc::Rc;

use engine::Payload;

use super::{
    cdb, claim::ClaimAnswer, machine::Mode, nexus::Nexus, session::Data, unit::RemoteUnit,
};
use crate::{
    Error, ErrorKind, Result,
    claim::{LABEL_AT, LABEL_BYTES, refuse_alive},
};

impl RemoteUnit {
    /// LBA and number of blocks of the mark.
    pub(super) fn mark_place(&self) -> (u64, u32) {
        let block = self.block_size_bytes();
        (LABEL_AT / u64::from(block), LABEL_BYTES as u32 / block)
    }

    pub(super) async fn read_mark(&self, nexus: &Rc<Nexus>) -> Result<ClaimAnswer> {
        let (lba, blocks) = self.mark_place();
        let read = cdb::read(lba, blocks);
        match self.tell(nexus, &read, Data::In(LABEL_BYTES)).await? {
            ClaimAnswer::Good(block) if block.len() != LABEL_BYTES => {
                let why = format!("the target sent {} of {LABEL_BYTES} bytes", block.len());
                Err(Error::new(ErrorKind::Protocol, why))
            }
            told => Ok(told),
        }
    }

    /// Reads the mark; a reservation conflict is an error here.
    pub(super) async fn must_read_mark(&self, nexus: &Rc<Nexus>) -> Result<Vec<u8>> {
        match self.read_mark(nexus).await? {
            ClaimAnswer::Good(block) => Ok(block),
            ClaimAnswer::Conflict => Err(refuse_alive(&self.holder(nexus).await)),
            ClaimAnswer::Refused(why) => Err(Error::new(ErrorKind::Medium, why)),
        }
    }

    /// Writes the mark's block durably.
    pub(super) async fn write_mark(&self, nexus: &Rc<Nexus>, block: Payload) -> Result<()> {
        let (lba, blocks) = self.mark_place();
        let Mode {
            is_volatile,
            takes_fua,
            ..
        } = self.machine.borrow().mode();
        let write = cdb::write(lba, blocks, is_volatile && takes_fua);
        let mut told = self.tell(nexus, &write, Data::Out(block)).await?;
        if is_volatile && !takes_fua && matches!(told, ClaimAnswer::Good(_)) {
            let flush = cdb::synchronize_cache();
            told = self.tell(nexus, &flush, Data::None).await?;
        }
        match told {
            ClaimAnswer::Good(_) => Ok(()),
            ClaimAnswer::Conflict => Err(refuse_alive(&self.holder(nexus).await)),
            ClaimAnswer::Refused(why) => Err(Error::new(ErrorKind::Medium, why)),
        }
    }
}
