//! REQUEST SENSE (SPC-4 6.39): sense data as parameter data. With autosense, only a pending unit attention or the
//! state of a sanitize is left to report.

use super::Command;
use crate::cdb::Cdb;
use crate::sense::{Sense, SenseFormat};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestSense {
    format: SenseFormat,
    allocation_len_bytes: u8,
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    let format = if cdb.bit(1, 0) {
        SenseFormat::Descriptor
    } else {
        SenseFormat::Fixed
    };
    Ok(Command::RequestSense(RequestSense {
        format,
        allocation_len_bytes: cdb.u8(4),
    }))
}

impl RequestSense {
    pub(crate) fn reply(&self, sense: Sense) -> Vec<u8> {
        let mut data = sense.encode(self.format);
        data.truncate(self.allocation_len_bytes.into());
        data
    }
}
