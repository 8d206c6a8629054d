//! REPORT TARGET PORT GROUPS (SPC-4 6.37): one group, active/optimized, with all ports that lead to the unit. TPGS in
//! the standard INQUIRY data announces implicit ALUA, and VPD page 83h identifies the port and group through which a
//! command came.

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::sense::Sense;
use crate::unit::LogicalUnit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportPortGroups {
    /// PARAMETER DATA FORMAT 001b: with an extended header.
    extended: bool,
    allocation_len_bytes: u32,
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    let extended = match cdb.u8(1) >> 5 {
        0b000 => false,
        0b001 => true,
        _ => return Err(Sense::invalid_cdb_field(1, Some(7))),
    };
    Ok(Command::ReportPortGroups(ReportPortGroups {
        extended,
        allocation_len_bytes: cdb.u32(6),
    }))
}

impl ReportPortGroups {
    pub(super) fn begin(self, unit: &LogicalUnit) -> Action {
        const ACTIVE_OPTIMIZED: u8 = 0x00;
        const ACTIVE_OPTIMIZED_SUPPORTED: u8 = 0x01;
        const NO_STATUS: u8 = 0x00;
        // The NUMBER OF TARGET PORTS field has one byte.
        const PORTS_MAX: usize = 255;
        let ports: Vec<u16> = {
            let state = unit.shared().look();
            state.ports.iter().copied().take(PORTS_MAX).collect()
        };
        let mut data = vec![0; 4];
        if self.extended {
            const EXTENDED_FORMAT: u8 = 0x10;
            data.extend([EXTENDED_FORMAT, 0, 0, 0]);
        }
        data.extend([ACTIVE_OPTIMIZED, ACTIVE_OPTIMIZED_SUPPORTED]);
        data.extend(unit.identity().port.port_group.to_be_bytes());
        data.extend([0, NO_STATUS, 0, ports.len() as u8]);
        for port in ports {
            data.extend([0, 0]);
            data.extend(port.to_be_bytes());
        }
        let following = (data.len() - 4) as u32;
        data[..4].copy_from_slice(&following.to_be_bytes());
        reply(data, self.allocation_len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{NEXUS, data, identity, run, sense, thick};
    use crate::{Asc, LogicalUnit};

    fn cdb(format: u8) -> [u8; 12] {
        [0xA3, format << 5 | 0x0A, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    }

    #[test]
    fn all_ports_are_in_one_group_as_the_identification_page_says() {
        let mut first = LogicalUnit::new(identity(), thick()).unwrap();
        let mut other = identity();
        other.port.relative_port = 9;
        LogicalUnit::sharing(other, thick(), first.shared().clone()).unwrap();
        sense(first.begin(NEXUS, &[0; 6]));
        let group = [0, 1, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 9];
        let plain = data(first.begin(NEXUS, &cdb(0)));
        assert_eq!(plain, [&[0, 0, 0, 16][..], &group].concat());
        let long = data(first.begin(NEXUS, &cdb(1)));
        assert_eq!(long, [&[0, 0, 0, 20, 0x10, 0, 0, 0][..], &group].concat());
        let page = data(first.begin(NEXUS, &[0x12, 1, 0x83, 4, 0, 0]));
        let holds = |designator: &[u8]| page.windows(8).any(|window| window == designator);
        assert!(holds(&[0x51, 0x94, 0, 4, 0, 0, 0, 2]), "the port");
        assert!(holds(&[0x51, 0x95, 0, 4, 0, 0, 0, 3]), "its group");
        let inquiry = data(first.begin(NEXUS, &[0x12, 0, 0, 1, 0, 0]));
        assert_eq!(inquiry[5] & 0x30, 0x10, "TPGS: implicit");
    }

    #[test]
    fn an_unknown_format_is_refused() {
        assert_eq!(sense(run(thick(), &cdb(2))).asc, Asc::INVALID_FIELD_IN_CDB);
    }
}
