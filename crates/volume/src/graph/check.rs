//! What can be said about a configuration and the system that it is for, without opening anything
//! for writing.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::{
    Graph,
    disks::{MEND, normalised},
};
use crate::config::{ConfigError, File, Iscsi, IscsiUrl, Kind, Node, What};

/// What [`Graph::check`] finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What would keep the volumes from opening.
    pub errors: Vec<ConfigError>,
    /// What works and may not be what was meant.
    pub notes: Vec<ConfigError>,
}

/// What a path leads to, whatever the path.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Medium {
    /// A block device, by its number.
    Device(u64),
    /// A file, by those of its file system and inode.
    File(u64, u64),
    /// Not there yet.
    Missing(PathBuf),
}

/// The volume that uses what only one may use.
#[derive(Debug, Default)]
struct Users {
    media: BTreeMap<Medium, (String, PathBuf)>,
    disks: HashMap<IscsiUrl, String>,
}

impl Medium {
    pub(super) fn of(path: &Path) -> Medium {
        match fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => Medium::Device(found.rdev()),
            Ok(found) => Medium::File(found.dev(), found.ino()),
            Err(_) => {
                let directory = path
                    .parent()
                    .and_then(|parent| fs::canonicalize(parent).ok());
                let whole = directory.zip(path.file_name());
                Medium::Missing(whole.map_or(path.into(), |(parent, name)| parent.join(name)))
            }
        }
    }
}

impl Graph {
    /// Looks whether the volumes would open. Nothing is changed, made or locked.
    pub fn check(&self) -> Findings {
        let mut findings = Findings::default();
        findings.errors.extend(self.check_stripes().err());
        let mut users = Users::default();
        for (name, node) in &self.volumes.0 {
            for node in node.all() {
                self.check_node(name, node, &mut users, &mut findings);
            }
        }
        findings
    }

    /// Refuses stripes that can be created and never served: what is in memory is another disk, and
    /// blank, in every process.
    ///
    /// # Errors
    /// The first child that keeps its blocks in memory, with its place.
    pub fn check_stripes(&self) -> Result<(), ConfigError> {
        for node in self.volumes.0.values().flat_map(Node::all) {
            let What::Inline(kind) = &node.what else {
                continue;
            };
            let Kind::Stripe(stripe) = &**kind else {
                continue;
            };
            let mut children = stripe.of.get_ref().iter();
            if let Some(child) = children.find(|child| self.is_in_memory(child)) {
                return Err(ConfigError::new(
                    child.span.clone(),
                    "a stripe's child in memory is blank whenever it is opened: what `sanstone volume \
                     create` writes to it has gone before `serve` reads it; name a file or an iSCSI disk"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Whether `node` keeps blocks in a RAM disk.
    fn is_in_memory(&self, node: &Node) -> bool {
        node.all().into_iter().any(|node| match &node.what {
            What::Named(name) => {
                let named = self.volumes.0.get(name);
                named.is_some_and(|node| self.is_in_memory(node))
            }
            What::Inline(kind) => matches!(**kind, Kind::Ram(_)),
        })
    }

    fn check_node(&self, name: &str, node: &Node, users: &mut Users, findings: &mut Findings) {
        let What::Inline(kind) = &node.what else {
            return;
        };
        match &**kind {
            Kind::Ram(_) => findings.notes.push(ConfigError::new(
                node.span.clone(),
                format!("\"{name}\" is in memory: what it holds is gone when the process ends"),
            )),
            Kind::File(file) => {
                let checked = self
                    .check_file(file)
                    .and_then(|()| self.check_used_once(name, file, &mut users.media));
                findings.errors.extend(checked.err());
            }
            Kind::Iscsi(iscsi) => {
                findings.errors.extend(iscsi.chap().read(&self.base).err());
                let used = check_disk_used_once(name, iscsi, &mut users.disks);
                findings.errors.extend(used.err());
            }
            _ => {}
        }
    }

    /// Two leaves on one file would overwrite each other; the second could not lock it anyway.
    fn check_used_once(
        &self,
        name: &str,
        file: &File,
        users: &mut BTreeMap<Medium, (String, PathBuf)>,
    ) -> Result<(), ConfigError> {
        let path = self.resolve(file);
        let user = (name.to_owned(), path.clone());
        let Some((other, its_path)) = users.insert(Medium::of(&path), user) else {
            return Ok(());
        };
        let shown = path.display();
        let same = match its_path == path {
            true => String::new(),
            false => format!(" and {} are one file, which", its_path.display()),
        };
        Err(ConfigError::new(
            file.path.span(),
            format!(
                "{shown}{same} is used by \"{other}\" already, and \"{name}\" would overwrite it; {MEND}"
            ),
        ))
    }

    fn check_file(&self, file: &File) -> Result<(), ConfigError> {
        let path = self.resolve(file);
        let shown = path.display();
        let wrong = |message: String| Err(ConfigError::new(file.path.span(), message));
        let size = file.size.as_ref().map(|size| size.get_ref().bytes());
        let found = match fs::metadata(&path) {
            Ok(found) => found,
            Err(_) if size.is_some() && !file.read_only => {
                let parent = path
                    .parent()
                    .filter(|parent| !parent.as_os_str().is_empty());
                return match parent.map(fs::metadata) {
                    None | Some(Ok(_)) => Ok(()),
                    // What a shell would put in place of these, it does not.
                    Some(Err(_))
                        if file
                            .path
                            .get_ref()
                            .to_string_lossy()
                            .starts_with(['~', '$']) =>
                    {
                        wrong(format!(
                            "{shown} cannot be created: a path stands for itself, without ~ and variables; \
                             write it from / on"
                        ))
                    }
                    Some(Err(error)) => wrong(format!(
                        "{shown} cannot be created: its directory is not there ({error}); create it with \
                         mkdir -p, or mount its file system"
                    )),
                };
            }
            Err(error) if size.is_some() => {
                return wrong(format!(
                    "{shown} cannot be opened: {error}; make it, or take read_only out to have it made"
                ));
            }
            Err(error) => {
                return wrong(format!(
                    "{shown} cannot be opened: {error}; give it a size to have it made, as size = \
                     \"20GiB\""
                ));
            }
        };
        if found.is_dir() {
            return wrong(format!(
                "{shown} is a directory; name a regular file or a block device"
            ));
        }
        let kind = found.file_type();
        let other = [
            (kind.is_char_device(), "a character device"),
            (kind.is_fifo(), "a pipe"),
            (kind.is_socket(), "a socket"),
        ];
        if let Some((_, kind)) = other.into_iter().find(|(is, _)| *is) {
            return wrong(format!(
                "{shown} is {kind}; name a regular file or a block device"
            ));
        }
        if !found.is_file() {
            // A device says how long it is only when it is opened.
            return Ok(());
        }
        match size {
            None if found.len() == 0 => wrong(format!(
                "{shown} is empty; give it a size, as size = \"20GiB\""
            )),
            None if found.len() < file.block_size.bytes().into() => wrong(format!(
                "{shown} has {} bytes, less than a block of {}; name a longer file, or make it longer \
                 (truncate -s 1G)",
                found.len(),
                file.block_size.bytes()
            )),
            Some(size) if found.len() > 0 && found.len() < size => wrong(format!(
                "{shown} has {} bytes, fewer than the size of {size} that is configured; write the \
                 smaller size, or make the file longer (truncate -s {size})",
                found.len()
            )),
            _ => Ok(()),
        }
    }
}

/// Two leaves on one disk would overwrite each other, and what one writes a cache of the other would
/// not know.
fn check_disk_used_once(
    name: &str,
    iscsi: &Iscsi,
    disks: &mut HashMap<IscsiUrl, String>,
) -> Result<(), ConfigError> {
    let url = iscsi.url.get_ref();
    match disks.insert(normalised(url), name.to_owned()) {
        None => Ok(()),
        Some(other) => Err(ConfigError::new(
            iscsi.url.span(),
            format!(
                "{url} is used by \"{other}\" already, and \"{name}\" would overwrite it; {MEND}"
            ),
        )),
    }
}
