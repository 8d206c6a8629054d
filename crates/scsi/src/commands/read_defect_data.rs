//! READ DEFECT DATA (10), (12) (SBC-3 5.17, 5.18): a volume has no defect lists, so every list is empty, in the
//! requested format.

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::sense::Sense;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadDefectData {
    form: Form,
    /// REQ_PLIST, REQ_GLIST and DEFECT LIST FORMAT, which the answer echoes.
    flags: u8,
    allocation_len_bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Ten,
    Twelve,
}

const FLAGS: u8 = 0x1F;

pub(crate) fn decode_10(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::ReadDefectData(ReadDefectData {
        form: Form::Ten,
        flags: cdb.u8(2) & FLAGS,
        allocation_len_bytes: cdb.u16(7).into(),
    }))
}

pub(crate) fn decode_12(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::ReadDefectData(ReadDefectData {
        form: Form::Twelve,
        flags: cdb.u8(1) & FLAGS,
        allocation_len_bytes: cdb.u32(6),
    }))
}

impl ReadDefectData {
    pub(super) fn begin(self) -> Action {
        let header_len = match self.form {
            Form::Ten => 4,
            Form::Twelve => 8,
        };
        let mut data = vec![0; header_len];
        data[1] = self.flags;
        reply(data, self.allocation_len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{data, run, thick};

    #[test]
    fn both_forms_have_an_empty_list_in_the_format_asked_for() {
        let ten = [0x37, 0, 0x1D, 0, 0, 0, 0, 0, 32, 0];
        assert_eq!(data(run(thick(), &ten)), [0, 0x1D, 0, 0]);
        let twelve = [0xB7, 0x1D, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
        assert_eq!(data(run(thick(), &twelve)), [0, 0x1D, 0, 0, 0, 0, 0, 0]);
    }
}
