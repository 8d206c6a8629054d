//! Which target ports may be used, on targets with asymmetric access (ALUA, SPC-4 5.15). The device identification
//! page names the port group that a command came through, and REPORT TARGET PORT GROUPS reports the state of each
//! group.

use scsi::{Asc, SenseKey, sense::Received};

/// How a path may be used, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathAccess {
    /// Active/optimized, or the target does not report access states.
    #[default]
    Optimized,
    /// Active/non-optimized: only if there is nothing better.
    NonOptimized,
    /// Standby, unavailable, offline or transitioning: not now.
    No,
}

/// The target port group through which this device identification page (SPC-4 7.8.6) was read.
pub(super) fn port_group(page: &[u8]) -> Option<u16> {
    const ASSOCIATION: u8 = 0x30;
    const TARGET_PORT: u8 = 0x10;
    const TARGET_PORT_GROUP: u8 = 5;
    let mut rest = page.get(4..)?;
    while let Some((&[_, kind, _, len], after)) = rest.split_first_chunk::<4>() {
        let (name, after) = after.split_at_checked(len.into())?;
        if kind & ASSOCIATION == TARGET_PORT && kind & 0xf == TARGET_PORT_GROUP {
            let group = name.get(2..4)?;
            return Some(u16::from_be_bytes([group[0], group[1]]));
        }
        rest = after;
    }
    None
}

/// The state of `group` in the data of REPORT TARGET PORT GROUPS (SPC-4 6.37), which may be truncated; `None`: the
/// group is missing.
pub(super) fn access_of(group: u16, data: &[u8]) -> Option<PathAccess> {
    const DESCRIPTOR_BYTES: usize = 8;
    const PORT_BYTES: usize = 4;
    const OPTIMIZED: u8 = 0;
    const NON_OPTIMIZED: u8 = 1;
    const LBA_DEPENDENT: u8 = 4;
    let mut rest = data.get(4..)?;
    loop {
        let descriptor = rest.get(..DESCRIPTOR_BYTES)?;
        if u16::from_be_bytes([descriptor[2], descriptor[3]]) == group {
            return Some(match descriptor[0] & 0xf {
                OPTIMIZED => PathAccess::Optimized,
                NON_OPTIMIZED | LBA_DEPENDENT => PathAccess::NonOptimized,
                _ => PathAccess::No,
            });
        }
        let ports = usize::from(descriptor[7]);
        rest = rest.get(DESCRIPTOR_BYTES + ports * PORT_BYTES..)?;
    }
}

/// Whether a command was refused, or a unit attention raised, because a group's access state has changed.
pub(super) fn tells_of_access(received: Received) -> bool {
    const NOT_READY_CODE: u8 = 0x04;
    const IN_TRANSITION_STANDBY_UNAVAILABLE: std::ops::RangeInclusive<u8> = 0x0a..=0x0c;
    const PARAMETERS_CHANGED_CODE: u8 = 0x2a;
    const STATE_CHANGED_OR_TRANSITION_FAILED: std::ops::RangeInclusive<u8> = 0x06..=0x07;
    let Asc { code, qualifier } = received.asc;
    match received.key {
        SenseKey::NotReady => {
            code == NOT_READY_CODE && IN_TRANSITION_STANDBY_UNAVAILABLE.contains(&qualifier)
        }
        SenseKey::UnitAttention => {
            code == PARAMETERS_CHANGED_CODE
                && STATE_CHANGED_OR_TRANSITION_FAILED.contains(&qualifier)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_that_of_the_target_port() {
        let page = [
            0, 0x83, 0, 20, //
            1, 3, 0, 4, 0x60, 1, 2, 3, // the logical unit
            1, 0x15, 0, 4, 0, 0, 0x12, 0x34, // the port's group
        ];
        assert_eq!(port_group(&page), Some(0x1234));
        for len in 0..page.len() {
            assert_eq!(port_group(&page[..len]), None, "{len}");
        }
    }

    #[test]
    fn each_group_has_its_state() {
        let mut data = vec![0, 0, 0, 28];
        data.extend([0x80, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]);
        data.extend([2, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3]);
        data.extend([1, 0, 0, 3, 0, 0, 0, 0]);
        assert_eq!(access_of(1, &data), Some(PathAccess::Optimized));
        assert_eq!(access_of(2, &data), Some(PathAccess::No));
        assert_eq!(access_of(3, &data), Some(PathAccess::NonOptimized));
        assert_eq!(access_of(4, &data), None);
        for len in 0..data.len() {
            access_of(4, &data[..len]);
        }
    }
}
