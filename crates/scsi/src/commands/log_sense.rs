//! LOG SENSE (SPC-4 6.8): the pages that initiators ask a disk for. Nothing is measured just for them, and unknown
//! values are not reported. So there is no temperature page, and no logical block provisioning page, whose counts
//! would be those of the file system below.

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::sense::Sense;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogSense {
    page: u8,
    /// Whether the list of pages includes subpages (FFh).
    all_subpages: bool,
    parameter: u16,
    allocation_len_bytes: u16,
}

const SUPPORTED_PAGES: u8 = 0x00;
const INFORMATIONAL_EXCEPTIONS: u8 = 0x2F;
const ALL_SUBPAGES: u8 = 0xFF;

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    const SAVE_PARAMETERS: u8 = 0x01;
    cdb.must_be_zero(1, SAVE_PARAMETERS)?;
    let (page, subpage) = (cdb.u8(2) & 0x3F, cdb.u8(3));
    let all_subpages = match (page, subpage) {
        (SUPPORTED_PAGES | INFORMATIONAL_EXCEPTIONS, 0) => false,
        (SUPPORTED_PAGES, ALL_SUBPAGES) => true,
        (SUPPORTED_PAGES | INFORMATIONAL_EXCEPTIONS, _) => {
            return Err(Sense::invalid_cdb_field(3, None));
        }
        _ => return Err(Sense::invalid_cdb_field(2, Some(5))),
    };
    Ok(Command::LogSense(LogSense {
        page,
        all_subpages,
        parameter: cdb.u16(5),
        allocation_len_bytes: cdb.u16(7),
    }))
}

impl LogSense {
    pub(super) fn begin(self) -> Result<Action, Sense> {
        // No page here has a parameter above 0000h.
        if self.parameter != 0 {
            return Err(Sense::invalid_cdb_field(5, None));
        }
        const SUBPAGE_FORMAT: u8 = 0x40;
        let (head, body) = match (self.page, self.all_subpages) {
            (SUPPORTED_PAGES, false) => (
                [SUPPORTED_PAGES, 0],
                vec![SUPPORTED_PAGES, INFORMATIONAL_EXCEPTIONS],
            ),
            (SUPPORTED_PAGES, true) => (
                [SUPPORTED_PAGES | SUBPAGE_FORMAT, ALL_SUBPAGES],
                vec![
                    SUPPORTED_PAGES,
                    0,
                    SUPPORTED_PAGES,
                    ALL_SUBPAGES,
                    INFORMATIONAL_EXCEPTIONS,
                    0,
                ],
            ),
            _ => ([INFORMATIONAL_EXCEPTIONS, 0], informational_exceptions()),
        };
        let mut data = head.to_vec();
        data.extend((body.len() as u16).to_be_bytes());
        data.extend(body);
        Ok(reply(data, self.allocation_len_bytes.into()))
    }
}

/// The informational exceptions page (SPC-4 7.3.8): no exception, no temperature.
fn informational_exceptions() -> Vec<u8> {
    const BINARY_LIST: u8 = 0x03;
    const NO_TEMPERATURE: u8 = 0xFF;
    vec![0, 0, BINARY_LIST, 4, 0, 0, NO_TEMPERATURE, 0]
}

#[cfg(test)]
mod tests {
    use crate::fixture::{data, run, sense, thick};
    use crate::sense::Asc;

    fn cdb(page: u8, subpage: u8) -> [u8; 10] {
        // Cumulative values, as requested by sg_logs.
        [0x4D, 0, 0x40 | page, subpage, 0, 0, 0, 0, 255, 0]
    }

    #[test]
    fn every_page_that_is_listed_can_be_read() {
        let list = data(run(thick(), &cdb(0, 0)));
        assert_eq!(list, [0, 0, 0, 2, 0x00, 0x2F]);
        for page in &list[4..] {
            let found = data(run(thick(), &cdb(*page, 0)));
            assert_eq!((found[0], found[3] as usize), (*page, found.len() - 4));
        }
        let subpages = data(run(thick(), &cdb(0, 0xFF)));
        assert_eq!(subpages, [0x40, 0xFF, 0, 6, 0, 0, 0, 0xFF, 0x2F, 0]);
    }

    #[test]
    fn nothing_is_wrong_and_no_temperature_is_made_up() {
        let page = data(run(thick(), &cdb(0x2F, 0)));
        assert_eq!(page[4..], [0, 0, 3, 4, 0, 0, 0xFF, 0]);
    }

    #[test]
    fn unknown_pages_parameters_and_saving_are_refused() {
        let (mut saving, mut parameter) = (cdb(0, 0), cdb(0x2F, 0));
        saving[1] = 1;
        parameter[6] = 1;
        for cdb in [cdb(0x0D, 0), cdb(0x2F, 1), saving, parameter] {
            assert_eq!(sense(run(thick(), &cdb)).asc, Asc::INVALID_FIELD_IN_CDB);
        }
    }
}
