//! Which volumes may be served together. Each served volume is a disk with its own caches and
//! reservations, and unaware of what others do to the volumes beneath it. So two that share a volume
//! are rejected, unless both are read-only.

use std::{collections::BTreeMap, ops::Range};

use volume::config::ConfigError;

use super::ConfigFile;

/// All LUNs of a volume, over all targets.
struct ServedVolume {
    /// Where the volume is first named.
    span: Range<usize>,
    read_only: bool,
}

/// Checks that no two served volumes share a writable part.
pub(super) fn check(file: &ConfigFile) -> Result<(), ConfigError> {
    let mut luns: Vec<_> = file
        .target
        .values()
        .filter_map(|target| target.luns.as_ref())
        .flat_map(|luns| luns.get_ref().all())
        .collect();
    luns.sort_by_key(|lun| lun.span().start);
    let mut served = BTreeMap::new();
    for lun in &luns {
        let first = served
            .entry(lun.get_ref().volume.as_str())
            .or_insert(ServedVolume {
                span: lun.span(),
                read_only: true,
            });
        first.read_only &= lun.get_ref().read_only;
    }
    let mut in_order: Vec<_> = served.into_iter().collect();
    in_order.sort_by_key(|(_, served)| served.span.start);

    // Comparing with the first user of a part suffices, because all users of it must be read-only.
    let mut first_of = BTreeMap::new();
    for (name, served) in &in_order {
        let own = file.volume.own_parts(name);
        for part in file.volume.parts(name) {
            let is_shared = !own.contains(part);
            let first_here = (*name, served, is_shared);
            let (other, first, is_shared_there) = *first_of.entry(part).or_insert(first_here);
            let may_both = is_shared && is_shared_there || served.read_only && first.read_only;
            if other != *name && !may_both {
                return Err(shared(file, name, served, other, part));
            }
        }
    }
    Ok(())
}

fn shared(
    file: &ConfigFile,
    name: &str,
    served: &ServedVolume,
    other: &str,
    part: &str,
) -> ConfigError {
    let both = if file.volume.parts(name).contains(other) {
        format!("\"{name}\" is made of \"{other}\"")
    } else if part == name {
        format!("\"{other}\" is made of \"{name}\"")
    } else {
        format!("\"{other}\" and \"{name}\" are made of \"{part}\"")
    };
    let message = format!(
        "{both}, and both are served: writes to one bypass the cache and the reservations of the \
         other; serve one of them, or write both like {{ volume = \"{name}\", read_only = true }}"
    );
    ConfigError::new(served.span.clone(), message)
}
