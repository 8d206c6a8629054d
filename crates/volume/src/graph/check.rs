//! What can be said about a configuration and the system that it is for, without opening anything
//! for writing.

use std::{collections::BTreeMap, fs, path::PathBuf};

use super::Graph;
use crate::config::{ConfigError, File, Kind, Node, What};

/// What [`Graph::check`] finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What would keep the volumes from opening.
    pub errors: Vec<ConfigError>,
    /// What works and may not be what was meant.
    pub notes: Vec<ConfigError>,
}

impl Graph {
    /// Looks whether the volumes would open. Nothing is changed, made or locked.
    pub fn check(&self) -> Findings {
        let mut findings = Findings::default();
        let mut paths = BTreeMap::new();
        for (name, node) in &self.volumes.0 {
            self.check_node(name, node, &mut paths, &mut findings);
        }
        findings
    }

    fn check_node(
        &self,
        name: &str,
        node: &Node,
        paths: &mut BTreeMap<PathBuf, String>,
        findings: &mut Findings,
    ) {
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
                    .and_then(|()| self.check_used_once(name, file, paths));
                findings.errors.extend(checked.err());
            }
            Kind::Iscsi(iscsi) => findings.errors.extend(iscsi.chap().read(&self.base).err()),
            _ => {}
        }
        for child in kind.children() {
            self.check_node(name, child, paths, findings);
        }
    }

    /// Two leaves on one file would overwrite each other; the second could not lock it anyway.
    fn check_used_once(
        &self,
        name: &str,
        file: &File,
        paths: &mut BTreeMap<PathBuf, String>,
    ) -> Result<(), ConfigError> {
        let path = self.resolve(file);
        let path = fs::canonicalize(&path).unwrap_or(path);
        match paths.insert(path, name.to_owned()) {
            None => Ok(()),
            Some(other) => Err(ConfigError::new(
                file.path.span(),
                format!(
                    "{} is used by \"{other}\" already; to use it twice, name one volume in two places",
                    self.resolve(file).display()
                ),
            )),
        }
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
                    Some(Err(error)) => {
                        wrong(format!("{shown} cannot be made in its directory: {error}"))
                    }
                };
            }
            Err(error) => {
                return wrong(format!(
                    "{shown} cannot be opened: {error}; give it a size to have it made, as size = \
                     \"20GiB\""
                ));
            }
        };
        if found.is_dir() {
            return wrong(format!("{shown} is a directory; name a file in it"));
        }
        if !found.is_file() {
            // A device says how long it is only when it is opened.
            return Ok(());
        }
        match size {
            None if found.len() == 0 => wrong(format!(
                "{shown} is empty; give it a size, as size = \"20GiB\""
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
