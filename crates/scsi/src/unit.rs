//! A logical unit: identity, shape and what it remembers of each nexus; the way through a
//! command from its CDB to its ending.
//!
//! What is remembered of a nexus stays with the nexus, so a transport that spreads sessions over
//! several threads may give each thread a logical unit of its own for the same volume.

use crate::action::{Action, Ending, ParameterList};
use crate::attention::{Attention, Attentions, NexusId};
use crate::commands::Command;
use crate::identity::Identity;
use crate::medium::{MediumError, MediumErrorKind};
use crate::sense::{Asc, Sense, SenseFormat, SenseKey};
use crate::shape::{Shape, ShapeError};

/// One disk as its initiators see it.
#[derive(Debug, Clone)]
pub struct LogicalUnit {
    identity: Identity,
    shape: Shape,
    attentions: Attentions,
}

impl LogicalUnit {
    /// A disk that no nexus has reached yet.
    ///
    /// # Errors
    /// [`ShapeError`] if no disk can have this shape.
    pub fn new(identity: Identity, shape: Shape) -> Result<LogicalUnit, ShapeError> {
        shape.check()?;
        Ok(LogicalUnit {
            identity,
            shape,
            attentions: Attentions::default(),
        })
    }

    /// Its names.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its size and abilities.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The format that sense data of this disk has in a CHECK CONDITION (control mode page,
    /// D_SENSE).
    pub fn sense_format(&self) -> SenseFormat {
        SenseFormat::Fixed
    }

    /// Gives the disk another shape: it was resized, or became read-only. Every nexus is told
    /// of a change of capacity.
    ///
    /// # Errors
    /// [`ShapeError`], and the shape stays as it was.
    pub fn set_shape(&mut self, shape: Shape) -> Result<(), ShapeError> {
        shape.check()?;
        let capacity = |shape: &Shape| (shape.len_blocks, shape.block_size_bytes);
        if capacity(&shape) != capacity(&self.shape) {
            self.attentions.post(Attention::CapacityChanged, None);
        }
        self.shape = shape;
        Ok(())
    }

    /// Has every known nexus told of `attention` once, except the one that caused it. A task
    /// management function or another layer uses it: resets, cleared commands, a changed LUN
    /// list.
    pub fn post(&mut self, attention: Attention, except: Option<NexusId>) {
        self.attentions.post(attention, except);
    }

    /// Forgets a nexus that ended. Transports must call it, or the table of nexuses fills up and
    /// new ones get BUSY.
    pub fn forget(&mut self, nexus: NexusId) {
        self.attentions.forget(nexus);
    }

    /// Takes a command: `cdb` as received, padded or not. Nothing is transferred yet, and a
    /// failure found here costs no data-out.
    ///
    /// The first command of a new nexus, other than INQUIRY, REPORT LUNS and REQUEST SENSE, is
    /// answered with a unit attention instead (SAM-5 5.14), and so is the first after a change.
    /// With 4096 nexuses remembered a new one gets BUSY.
    pub fn begin(&mut self, nexus: NexusId, cdb: &[u8]) -> Action {
        if self.attentions.know(nexus).is_err() {
            return Action::End(Ending::BUSY);
        }
        let command = Command::decode(cdb);
        match &command {
            Ok(Command::Inquiry(_)) => {}
            Ok(Command::ReportLuns(_)) => {
                self.attentions
                    .withdraw(nexus, Attention::ReportedLunsChanged);
            }
            Ok(Command::RequestSense(request)) => {
                let waiting = self.attentions.take(nexus).map(Attention::sense);
                return Action::Reply(request.reply(waiting.unwrap_or(Sense::NONE)));
            }
            _ => {
                if let Some(attention) = self.attentions.take(nexus) {
                    return Action::End(Ending::check(attention.sense()));
                }
            }
        }
        command.and_then(|command| command.begin(self)).into()
    }

    /// Goes on with a command whose parameter list has arrived. Never asks for another.
    pub fn resume(&mut self, list: ParameterList, data: &[u8]) -> Action {
        let result = list.check_offered(data.len() as u64);
        result
            .and_then(|()| list.command.resume(self, &data[..list.len_bytes as usize]))
            .into()
    }

    /// The ending of a command whose [`MediumOp`](crate::MediumOp) is done.
    pub fn complete(&self, result: Result<(), MediumError>) -> Ending {
        let Err(error) = result else {
            return Ending::GOOD;
        };
        let (key, asc) = match error.kind {
            MediumErrorKind::Read => (SenseKey::MediumError, Asc::UNRECOVERED_READ_ERROR),
            MediumErrorKind::Write | MediumErrorKind::Flush => {
                (SenseKey::MediumError, Asc::WRITE_ERROR)
            }
            MediumErrorKind::Failed => (SenseKey::HardwareError, Asc::INTERNAL_TARGET_FAILURE),
            MediumErrorKind::NotReady => (SenseKey::NotReady, Asc::CAUSE_NOT_REPORTABLE),
            MediumErrorKind::WriteProtected => (SenseKey::DataProtect, Asc::WRITE_PROTECTED),
            MediumErrorKind::OutOfSpace => (SenseKey::DataProtect, Asc::SPACE_ALLOCATION_FAILED),
            MediumErrorKind::Miscompare { .. } => {
                (SenseKey::Miscompare, Asc::MISCOMPARE_DURING_VERIFY)
            }
            MediumErrorKind::Aborted => (SenseKey::AbortedCommand, Asc::NO_ADDITIONAL_SENSE),
        };
        let information = match error.kind {
            MediumErrorKind::Miscompare { offset_bytes } => Some(offset_bytes),
            _ => error.lba,
        };
        Ending::check(Sense {
            information,
            ..Sense::new(key, asc)
        })
    }
}

#[cfg(test)]
mod tests;
