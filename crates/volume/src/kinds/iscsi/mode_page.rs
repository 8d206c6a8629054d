//! The mode parameters as a disk reports them (SPC-4 7.5): how they are asked for, and what is read of them.

use super::{
    cdb::{self, CdbBytes},
    machine::Mode,
};

/// The caching mode page.
const PAGE: u8 = 0x08;
const ALL_PAGES: u8 = 0x3f;
/// The most that is read of the mode pages with their header.
pub(super) const LEN: u8 = 192;

/// The commands that read the mode parameters, until one is answered. A disk that has no caching page still says in its
/// header whether it is write-protected.
pub(super) fn queries() -> [CdbBytes; 2] {
    [PAGE, ALL_PAGES].map(|page| cdb::mode_sense_6(page, LEN))
}

impl Mode {
    /// Parses the answer to one of the [`queries`]; `None`: it is no mode parameter list.
    pub(super) fn parse(mode: &[u8]) -> Option<Mode> {
        const WRITE_PROTECT: u8 = 0x80;
        const DPOFUA: u8 = 0x10;
        const WCE: u8 = 0x04;
        let [_, _, flags, descriptors, rest @ ..] = mode else {
            return None;
        };
        let caching = find(rest.get(usize::from(*descriptors)..).unwrap_or_default());
        let caching = caching.and_then(|page| page.get(2));
        Some(Mode {
            is_volatile: caching.is_none_or(|byte| byte & WCE != 0),
            is_protected: flags & WRITE_PROTECT != 0,
            takes_fua: flags & DPOFUA != 0,
        })
    }
}

/// The caching page among mode pages (SPC-4 7.5.7).
fn find(mut pages: &[u8]) -> Option<&[u8]> {
    const SUBPAGE: u8 = 0x40;
    loop {
        let [code, second, ..] = *pages else {
            return None;
        };
        let len = match code & SUBPAGE {
            0 => 2 + usize::from(second),
            _ => 4 + usize::from(u16::from_be_bytes([*pages.get(2)?, *pages.get(3)?])),
        };
        if code & 0x7f == PAGE {
            return Some(pages);
        }
        pages = pages.get(len..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_parameters_are_read_wherever_the_caching_page_is() {
        let mode = |is_volatile, is_protected, takes_fua| {
            Some(Mode {
                is_volatile,
                is_protected,
                takes_fua,
            })
        };
        for (data, expected) in [
            (&[6, 0, 0, 0, 0x08, 1, 4][..], mode(true, false, false)),
            (&[6, 0, 0x10, 0, 0x08, 1, 0], mode(false, false, true)),
            (&[6, 0, 0x90, 0, 0x88, 1, 0], mode(false, true, true)),
            // Behind a block descriptor, another page and a subpage.
            (
                &[
                    0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0x0a, 1, 9, 0x4a, 1, 0, 1, 7, 0x08, 1, 0,
                ],
                mode(false, false, false),
            ),
            // The header alone.
            (&[3, 0, 0x80, 0], mode(true, true, false)),
            (&[3, 0, 0, 200, 0x08, 1, 0], mode(true, false, false)),
            (&[6, 0, 0, 0, 0x0a, 200, 0], mode(true, false, false)),
            (&[6, 0, 0, 0, 0x48, 0], mode(true, false, false)),
            (&[3, 0, 0], None),
            (&[], None),
        ] {
            assert_eq!(Mode::parse(data), expected, "{data:?}");
        }
    }
}
