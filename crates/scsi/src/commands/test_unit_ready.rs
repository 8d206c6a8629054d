//! TEST UNIT READY (SPC-4 6.47): a disk that is configured is ready.

use super::Command;
use crate::cdb::Cdb;
use crate::sense::Sense;

pub(crate) fn decode(_cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::TestUnitReady)
}
