//! REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 6.36): the functions that the target supports. With REPD the
//! reply also contains timeouts, none of which is specified.

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::sense::Sense;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportTaskManagement {
    /// REPD.
    extended: bool,
    allocation_len_bytes: u32,
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    let allocation_len_bytes = cdb.u32(6);
    // The header must fit (SPC-4 6.36).
    if allocation_len_bytes < 4 {
        return Err(Sense::invalid_cdb_field(6, None));
    }
    Ok(Command::ReportTaskManagement(ReportTaskManagement {
        extended: cdb.bit(2, 7),
        allocation_len_bytes,
    }))
}

impl ReportTaskManagement {
    pub(super) fn begin(self) -> Action {
        const ABORT_TASK: u8 = 0x80;
        const ABORT_TASK_SET: u8 = 0x40;
        const CLEAR_TASK_SET: u8 = 0x10;
        const LOGICAL_UNIT_RESET: u8 = 0x08;
        // CLEAR ACA would need ACA; the query functions and I_T NEXUS RESET need a newer iSCSI (RFC 7144).
        let functions = ABORT_TASK | ABORT_TASK_SET | CLEAR_TASK_SET | LOGICAL_UNIT_RESET;
        let mut data = vec![functions, 0, 0, 0];
        if self.extended {
            const FOLLOWING: u8 = 12;
            data[3] = FOLLOWING;
            data.resize(4 + usize::from(FOLLOWING), 0);
        }
        reply(data, self.allocation_len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{data, run, sense, thick};
    use crate::sense::Asc;

    fn cdb(flags: u8, len: u8) -> [u8; 12] {
        [0xA3, 0x0D, flags, 0, 0, 0, 0, 0, 0, len, 0, 0]
    }

    #[test]
    fn the_functions_are_those_that_the_target_does() {
        assert_eq!(data(run(thick(), &cdb(0, 255))), [0xD8, 0, 0, 0]);
        let long = data(run(thick(), &cdb(0x80, 255)));
        assert_eq!((long.len(), &long[..4]), (16, &[0xD8, 0, 0, 12][..]));
    }

    #[test]
    fn a_reply_that_would_not_hold_the_header_is_refused() {
        let refused = sense(run(thick(), &cdb(0, 3)));
        assert_eq!(refused.asc, Asc::INVALID_FIELD_IN_CDB);
    }
}
