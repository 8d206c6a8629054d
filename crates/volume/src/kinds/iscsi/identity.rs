//! Identifies a disk however it is reached: by the designators of its device identification page (SPC-4 7.8.6). Two
//! portals, addresses or names may lead to one disk, and only these can tell.

use std::fmt;

/// The names a disk reports, and where it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskIdentity {
    target_name: String,
    lun: u16,
    /// Worldwide unique names.
    worldwide: Vec<Designator>,
    /// Names that another target may also give to one of its disks.
    local: Vec<Designator>,
}

/// A designator of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Designator {
    kind: u8,
    name: Vec<u8>,
}

const T10_VENDOR: u8 = 1;
const EUI_64: u8 = 2;
const NAA: u8 = 3;
const SCSI_NAME: u8 = 8;

impl DiskIdentity {
    /// The identity of the disk at this LUN from its device identification `page`, which may be truncated; what is
    /// missing stays unknown.
    pub(super) fn parse(target_name: &str, lun: u16, page: &[u8]) -> DiskIdentity {
        let mut identity = DiskIdentity {
            target_name: target_name.to_ascii_lowercase(),
            lun,
            ..DiskIdentity::default()
        };
        let mut rest = page.get(4..).unwrap_or_default();
        while let Some((&[_, kind, _, len], after)) = rest.split_first_chunk::<4>() {
            let Some((name, after)) = after.split_at_checked(len.into()) else {
                break;
            };
            rest = after;
            const ASSOCIATION: u8 = 0x30;
            const LOGICAL_UNIT: u8 = 0;
            let is_blank = name.iter().all(|&byte| byte == 0 || byte == b' ');
            if kind & ASSOCIATION != LOGICAL_UNIT || is_blank {
                continue;
            }
            let (kind, name) = (kind & 0xf, name.to_vec());
            const NAA_LOCALLY_ASSIGNED: u8 = 3;
            match kind {
                // tgt numbers its disks this way, starting over on each server.
                NAA if name[0] >> 4 == NAA_LOCALLY_ASSIGNED => {
                    identity.local.push(Designator { kind, name });
                }
                NAA | EUI_64 | SCSI_NAME => identity.worldwide.push(Designator { kind, name }),
                T10_VENDOR => identity.local.push(Designator { kind, name }),
                _ => {}
            }
        }
        identity
    }

    /// A worldwide unique name; of several, always the same one, whatever their order.
    pub fn worldwide_name(&self) -> Option<String> {
        let first = |kind: u8| {
            let names = self.worldwide.iter().filter(|name| name.kind == kind);
            names.map(Designator::to_string).min()
        };
        [NAA, EUI_64, SCSI_NAME].into_iter().find_map(first)
    }

    /// Whether what is found at its place now, which calls itself `found`, is the same disk: a name that it had must show
    /// itself again, a worldwide one above all. A disk that had no name has none now; then only its place speaks for it.
    pub(super) fn is_shown_by(&self, found: &DiskIdentity) -> bool {
        if !self.is_named() {
            return !found.is_named();
        }
        let keeps_worldwide = self.worldwide.is_empty() || !found.worldwide.is_empty();
        keeps_worldwide && self.in_common(found).is_some()
    }

    /// Whether it has any distinguishing name.
    pub(super) fn is_named(&self) -> bool {
        !(self.worldwide.is_empty() && self.local.is_empty())
    }

    /// A name that shows both to be the same disk; `None`: they differ, or it cannot be told.
    pub fn in_common(&self, other: &DiskIdentity) -> Option<String> {
        let both = |one: &[Designator], other: &[Designator]| {
            let common = one.iter().find(|name| other.contains(name));
            common.map(Designator::to_string)
        };
        if !self.worldwide.is_empty() && !other.worldwide.is_empty() {
            return both(&self.worldwide, &other.worldwide);
        }
        // The target's name is unique, and all its portals show the same LUNs.
        let is_same_place = (&self.target_name, self.lun) == (&other.target_name, other.lun);
        both(&self.local, &other.local).filter(|_| is_same_place)
    }
}

impl fmt::Display for DiskIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.worldwide.iter().chain(&self.local).next() {
            Some(name) => name.fmt(f),
            None => f.write_str("nothing"),
        }
    }
}

impl fmt::Display for Designator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |f: &mut fmt::Formatter<'_>| {
            self.name
                .iter()
                .try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        match self.kind {
            NAA => f.write_str("naa.").and_then(|()| hex(f)),
            EUI_64 => f.write_str("eui.").and_then(|()| hex(f)),
            _ => {
                let text = self.name.escape_ascii().to_string();
                f.write_str(text.trim_end_matches([' ', '\0']))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(designators: &[(u8, &[u8])]) -> Vec<u8> {
        let mut page = vec![0, 0x83, 0, 0];
        for (kind, name) in designators {
            page.extend_from_slice(&[1, *kind, 0, name.len() as u8]);
            page.extend_from_slice(name);
        }
        page
    }

    fn identity(target: &str, designators: &[(u8, &[u8])]) -> DiskIdentity {
        DiskIdentity::parse(target, 1, &page(designators))
    }

    #[test]
    fn a_worldwide_name_tells_disks_apart_whatever_the_target() {
        let one: (u8, &[u8]) = (NAA, &[0x60, 1, 2, 3]);
        let other: (u8, &[u8]) = (NAA, &[0x60, 1, 2, 4]);
        let a = identity("iqn.a", &[(T10_VENDOR, b"IET 1"), one]);
        let b = identity("iqn.b", &[one]);
        assert_eq!(a.in_common(&b).as_deref(), Some("naa.60010203"));
        assert_eq!(a.in_common(&identity("iqn.b", &[other])), None);
        assert_eq!(a.worldwide_name().as_deref(), Some("naa.60010203"));
        let both = [[one, other], [other, one]].map(|page| identity("iqn.a", &page));
        assert_eq!(both[0].worldwide_name(), both[1].worldwide_name());
        let same_place = identity("iqn.a", &[(T10_VENDOR, b"IET 1"), other]);
        assert_eq!(identity("iqn.a", &[]).worldwide_name(), None);
        assert_eq!(a.in_common(&same_place), None);
    }

    #[test]
    fn a_local_name_counts_only_at_one_target() {
        let tgt: &[(u8, &[u8])] = &[(T10_VENDOR, b"IET     00010001"), (NAA, &[0x30, 0, 1, 1])];
        let a = identity("iqn.A", tgt);
        assert_eq!(a.in_common(&identity("iqn.b", tgt)), None);
        let again = a.in_common(&identity("iqn.a", tgt));
        assert_eq!(again.as_deref(), Some("IET     00010001"));
    }

    #[test]
    fn a_name_that_was_known_must_show_itself_again() {
        let local: (u8, &[u8]) = (T10_VENDOR, b"IET 1");
        let one: (u8, &[u8]) = (NAA, &[0x60, 1]);
        let other: (u8, &[u8]) = (NAA, &[0x60, 2]);
        let of = |designators: &[(u8, &[u8])]| identity("iqn.a", designators);
        for (known, found, is_same) in [
            (of(&[one]), of(&[one, other]), true),
            (of(&[one]), of(&[other]), false),
            (of(&[one]), of(&[]), false),
            (of(&[one, local]), of(&[local]), false),
            (of(&[local]), of(&[local, one]), true),
            (of(&[local]), of(&[one]), false),
            (of(&[]), of(&[]), true),
            (of(&[]), of(&[one]), false),
        ] {
            assert_eq!(known.is_shown_by(&found), is_same, "{known:?} {found:?}");
        }
    }

    #[test]
    fn ports_blanks_and_what_is_cut_name_no_disk() {
        const TARGET_PORT: u8 = 0x10;
        let port: (u8, &[u8]) = (TARGET_PORT | NAA, &[0x60, 1, 2, 3]);
        let blank: (u8, &[u8]) = (EUI_64, &[0; 8]);
        let a = identity("iqn.a", &[port, blank]);
        assert_eq!(a.in_common(&a), None);
        let whole = page(&[(NAA, &[0x60, 1, 2, 3])]);
        for len in 0..whole.len() {
            let cut = DiskIdentity::parse("iqn.a", 1, &whole[..len]);
            assert_eq!(cut.in_common(&cut), None, "{len} bytes");
        }
    }
}
