//! Inspects the disks of a configuration before anything is opened: their files, the identities they
//! carry, and what neighbouring state directories have recorded of them.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use engine::store;
use sha2::{Digest, Sha256};
use uuid::Uuid;
use volume::config::{Node, NodeForm, Starts, VolumeIdentity};

use crate::{
    ServedSite,
    device::{DEVICES, world_wide_name},
    record::{DiskKind, Records},
};

/// A volume to be served.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) volume: String,
    pub(crate) span: Range<usize>,
    pub(crate) kind: DiskKind,
    /// The identity that it carries, if known without opening it.
    pub(crate) carried: Option<Uuid>,
    /// The location of a device or remote disk, which identifies it if it carries no identity.
    pub(crate) place: Option<String>,
    /// All its files; exactly one if it is a file.
    pub(crate) leaves: Vec<Leaf>,
    /// Where in the configuration the node with its blocks is defined: the same for two volumes that are one disk.
    pub(crate) root: Range<usize>,
}

/// A file of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) span: Range<usize>,
    /// Absolute and without symbolic links, if its directory exists.
    pub(crate) path: PathBuf,
    /// Relative to the configuration's directory, if it lies below that.
    pub(crate) relative: Option<PathBuf>,
    pub(crate) read_only: bool,
    pub(crate) found: FoundAtPath,
}

/// What is at a leaf's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundAtPath {
    /// Nothing, or an empty file.
    Nothing,
    File {
        len_bytes: u64,
        /// File system and inode number: the same under each of its names.
        id: (u64, u64),
        is_blank: bool,
        mark: SurveyMark,
    },
    /// Something else, about which opening it will report an error.
    Other,
}

/// The mark of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SurveyMark {
    /// Its file system does not support marks.
    Unsupported,
    None,
    Disk(Uuid),
    /// Not a disk identity: its content, for people.
    Other(String),
    /// The mark cannot be read; the reason, for people.
    Unreadable(String),
}

/// Another state directory.
#[derive(Clone, Debug)]
pub(crate) struct Sibling {
    pub(crate) directory: PathBuf,
    pub(crate) records: Records,
    /// The configuration that it would belong to does not exist.
    pub(crate) is_orphan: bool,
}

/// The disks that `site` serves. If several volumes are the same disk, the one recorded as it, or else
/// the first, becomes the disk, and the others are views of it.
pub(crate) fn asked(site: &ServedSite<'_>, records: &Records, starts: &Starts) -> Vec<Asked> {
    let mut all = asked_each(site, starts);
    let is_recorded = |asked: &Asked| {
        let mut records = records.disks.values();
        records.any(|record| record.volume == asked.volume && record.is_lasting())
    };
    let primary = |asked: &Asked| {
        let group = || all.iter().filter(|other| other.root == asked.root);
        let recorded = group().find(|other| is_recorded(other));
        recorded
            .or_else(|| group().next())
            .map(|asked| asked.volume.clone())
    };
    let primaries: Vec<_> = all.iter().map(primary).collect();
    for (asked, primary) in all.iter_mut().zip(primaries) {
        if asked.kind != DiskKind::Named && primary.as_ref() != Some(&asked.volume) {
            asked.kind = DiskKind::View;
            asked.carried = None;
            asked.place = None;
            asked.leaves.clear();
        }
    }
    all
}

fn asked_each(site: &ServedSite<'_>, starts: &Starts) -> Vec<Asked> {
    let base = site.base();
    let base = store::resolve(&base).unwrap_or(base);
    let all = site.served.iter().filter_map(|name| {
        let node = site.volumes.0.get(name)?;
        let root = root_of(site, node);
        let NodeForm::Inline(kind) = &root.what else {
            return None;
        };
        let mut leaves = Vec::new();
        collect(site, node, &base, &mut leaves);
        let mut place = None;
        let (kind, carried) = match kind.identity() {
            VolumeIdentity::Superblocks(_) => {
                let carried = site.volumes.carried(root, &base, starts);
                (DiskKind::Superblocks(kind.name()), carried)
            }
            VolumeIdentity::Remote(of_disk) => {
                place = Some(of_disk);
                (DiskKind::Remote(kind.name()), None)
            }
            VolumeIdentity::File(file) => match leaves.first().map(|leaf| look(&leaf.path)) {
                Some(Ok(look)) => match look.kind {
                    store::PathKind::BlockDevice { major, minor } => {
                        let name = world_wide_name(Path::new(DEVICES), major, minor);
                        // The path as written: the target of a link may have another name after a reboot.
                        let path = base.join(file.path.get_ref());
                        place = Some(path.to_string_lossy().into_owned());
                        (
                            DiskKind::Device,
                            name.map(|name| derived(&["device", &name])),
                        )
                    }
                    _ => (DiskKind::File, None),
                },
                _ => (DiskKind::File, None),
            },
            // `root_of` has followed it.
            VolumeIdentity::Child(_) => return None,
            VolumeIdentity::Name => (DiskKind::Named, None),
        };
        Some(Asked {
            volume: name.clone(),
            span: node.span.clone(),
            kind,
            carried,
            place,
            leaves,
            root: root.span.clone(),
        })
    });
    all.collect()
}

/// An identity derived from these words alone.
pub(crate) fn derived(words: &[&str]) -> Uuid {
    let mut hash = Sha256::new();
    hash.update("sanstone disk");
    for word in words {
        hash.update([0]);
        hash.update(word);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// The node that is the disk, beneath layers that leave its blocks where they are.
fn root_of<'a>(site: &ServedSite<'a>, mut node: &'a Node) -> &'a Node {
    loop {
        match &node.what {
            NodeForm::Named(name) => node = &site.volumes.0[name],
            NodeForm::Inline(kind) => match kind.identity() {
                VolumeIdentity::Child(child) => node = child,
                _ => return node,
            },
        }
    }
}

fn collect(site: &ServedSite<'_>, node: &Node, base: &Path, leaves: &mut Vec<Leaf>) {
    let kind = match &node.what {
        NodeForm::Named(name) => return collect(site, &site.volumes.0[name], base, leaves),
        NodeForm::Inline(kind) => kind,
    };
    if let Some(file) = kind.identity().file() {
        let path = base.join(file.path.get_ref());
        let path = store::resolve(&path).unwrap_or(path);
        leaves.push(Leaf {
            span: file.path.span(),
            relative: path.strip_prefix(base).ok().map(Path::to_owned),
            read_only: file.read_only,
            found: found(&path),
            path,
        });
    }
    let is_missing = |leaf: &Leaf| leaf.found == FoundAtPath::Nothing;
    let before = leaves.len();
    let mut has_other = false;
    for child in kind.children() {
        let of_child = leaves.len();
        collect(site, child, base, leaves);
        has_other |= !leaves[of_child..].iter().any(is_missing);
    }
    // A copy of a mirror may be away, but not all of them.
    if kind.stands_without_children() && has_other {
        let mut index = 0;
        leaves.retain(|leaf| {
            index += 1;
            index <= before || !is_missing(leaf)
        });
    }
}

fn look(path: &Path) -> io::Result<store::PathInfo> {
    store::look(path)
}

/// What is at `path`.
pub(crate) fn found(path: &Path) -> FoundAtPath {
    match look(path) {
        Ok(look) if look.kind == store::PathKind::File && look.len_bytes == 0 => {
            FoundAtPath::Nothing
        }
        Ok(look) if look.kind == store::PathKind::File => {
            let is_blank = match store::is_blank(path) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return FoundAtPath::Other;
                }
                // Some file systems cannot tell.
                is_blank => is_blank.unwrap_or(false),
            };
            FoundAtPath::File {
                len_bytes: look.len_bytes,
                id: look.id,
                is_blank,
                mark: mark(path),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => FoundAtPath::Nothing,
        _ => FoundAtPath::Other,
    }
}

fn mark(path: &Path) -> SurveyMark {
    match store::mark(path) {
        Ok(None) => SurveyMark::None,
        Ok(Some(bytes)) => {
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            match text.parse() {
                Ok(uuid) => SurveyMark::Disk(uuid),
                Err(_) => SurveyMark::Other(format!("{text:?}")),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => SurveyMark::Unsupported,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            SurveyMark::Other(error.to_string())
        }
        Err(error) => SurveyMark::Unreadable(error.to_string()),
    }
}

/// The other state directories next to the configuration. Unreadable ones are skipped.
pub(crate) fn siblings(site: &ServedSite<'_>) -> Vec<Sibling> {
    let base = site.base();
    let ours = store::resolve(site.state).unwrap_or(site.state.to_owned());
    // A user who may not list the directory may still serve from it.
    let listed = store::list(&base).unwrap_or_default();
    let states = listed
        .into_iter()
        .filter(|path| path.extension().is_some_and(|it| it == "state"));
    let mut siblings = Vec::new();
    for directory in states {
        if store::resolve(&directory).unwrap_or_default() == ours {
            continue;
        }
        // As the user would write it.
        let directory = match directory.strip_prefix(".") {
            Ok(short) => short.to_owned(),
            Err(_) => directory,
        };
        let Ok(records) = Records::read(&directory) else {
            continue;
        };
        siblings.push(Sibling {
            is_orphan: look(&directory.with_extension("toml")).is_err(),
            directory,
            records,
        });
    }
    siblings
}
