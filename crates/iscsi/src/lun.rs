//! Logical unit numbers as they stand in a header: eight bytes in the format of SAM-5 4.7.
//! Only single-level numbers name a unit here; every other value is carried unchanged, so that
//! the SCSI layer can say LOGICAL UNIT NOT SUPPORTED.

/// A logical unit number as the wire has it, big-endian in a `u64` (SAM-5 4.7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lun(pub u64);

impl Lun {
    /// The wire form of unit `number`: peripheral addressing below 256, flat space addressing
    /// up to 16383, which is what Linux and Windows expect (SAM-5 4.7.3.2, 4.7.3.3). `None`
    /// above.
    pub fn from_number(number: u16) -> Option<Lun> {
        match number {
            0..=0xff => Some(Lun(u64::from(number) << 48)),
            0x100..=0x3fff => Some(Lun((0x4000 | u64::from(number)) << 48)),
            _ => None,
        }
    }

    /// The number of a single-level unit, in either addressing method; `None` for a well-known
    /// unit, a bus other than 0 or a second level.
    pub fn number(self) -> Option<u16> {
        let first = (self.0 >> 48) as u16;
        let single_level = self.0 & 0xffff_ffff_ffff == 0;
        match (single_level, first >> 14) {
            (true, 0) if first <= 0xff => Some(first),
            (true, 1) => Some(first & 0x3fff),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_wire_form() {
        for number in [0, 1, 255, 256, 16383] {
            assert_eq!(Lun::from_number(number).and_then(Lun::number), Some(number));
        }
        assert_eq!(Lun::from_number(16384), None);
    }

    #[test]
    fn other_formats_name_no_unit() {
        for raw in [
            0x0101_0000_0000_0000,
            0x0000_0001_0000_0000,
            0xc101_0000_0000_0000,
            u64::MAX,
        ] {
            assert_eq!(Lun(raw).number(), None, "{raw:#x}");
        }
        assert_eq!(Lun(0x4001_0000_0000_0000).number(), Some(1));
    }
}
