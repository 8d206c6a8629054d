//! Which volumes may be served beside each other. Each volume that is served is a disk with caches and
//! reservations of its own, and knows nothing of what others do to the volumes that it is made of. So
//! two that share one are refused, unless nobody can write to either.

use std::{collections::BTreeMap, ops::Range};

use volume::config::ConfigError;

use super::File;

/// All LUNs of a volume, in all targets.
struct Served {
    /// Where it is named first.
    span: Range<usize>,
    read_only: bool,
}

/// Looks whether two volumes that are served share one.
pub(super) fn check(file: &File) -> Result<(), ConfigError> {
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
            .or_insert(Served {
                span: lun.span(),
                read_only: true,
            });
        first.read_only &= lun.get_ref().read_only;
    }
    let mut in_order: Vec<_> = served.into_iter().collect();
    in_order.sort_by_key(|(_, served)| served.span.start);

    // The first that has a part stands for all that have it: they have to be read-only, all of them.
    let mut first_of = BTreeMap::new();
    for (name, served) in &in_order {
        for part in file.volume.parts(name) {
            let (other, first) = *first_of.entry(part).or_insert((*name, served));
            if other != *name && !(served.read_only && first.read_only) {
                return Err(shared(file, name, served, other, part));
            }
        }
    }
    Ok(())
}

fn shared(file: &File, name: &str, served: &Served, other: &str, part: &str) -> ConfigError {
    let both = if file.volume.parts(name).contains(other) {
        format!("\"{name}\" is made of \"{other}\"")
    } else if part == name {
        format!("\"{other}\" is made of \"{name}\"")
    } else {
        format!("\"{other}\" and \"{name}\" are made of \"{part}\"")
    };
    let message = format!(
        "{both}, and both are served: what is written to one goes past the cache and the reservations of the \
         other; serve one of them, or write both like {{ volume = \"{name}\", read_only = true }}"
    );
    ConfigError::new(served.span.clone(), message)
}
