//! What can be said about a configuration and the system that it is for, without opening anything
//! for writing.

use std::{collections::HashMap, hash::Hash, path::Path};

use super::{Node, Volumes, What};
use crate::{part::ByType, values::ConfigError};

/// The advice to a user who names a medium twice.
pub(crate) const USE_IT_TWICE: &str = "to use it twice, name one volume in two places";

/// What [`Graph::check`](crate::graph::Graph::check) finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What would keep the volumes from opening.
    pub errors: Vec<ConfigError>,
    /// What works and may not be what was meant.
    pub notes: Vec<ConfigError>,
}

impl Volumes {
    /// Looks whether they would open, with paths that are relative to `base`. Nothing is changed, made
    /// or locked.
    pub(crate) fn look(&self, base: &Path) -> Findings {
        let mut findings = Findings::default();
        let mut users = ByType::default();
        for (volume, node) in &self.0 {
            for node in node.all() {
                if let What::Inline(kind) = &node.what {
                    kind.settings().look(&mut Look {
                        base,
                        volumes: self,
                        volume,
                        node,
                        users: &mut users,
                        findings: &mut findings,
                    });
                }
            }
        }
        findings
    }
}

/// A look at one node: what there is to look at, and where to say what was found.
pub(crate) struct Look<'a> {
    base: &'a Path,
    volumes: &'a Volumes,
    volume: &'a str,
    node: &'a Node,
    users: &'a mut ByType,
    findings: &'a mut Findings,
}

impl<'a> Look<'a> {
    /// What relative paths start from.
    pub(crate) fn base(&self) -> &'a Path {
        self.base
    }

    /// The name of the volume that the node is, or is a part of.
    pub(crate) fn volume(&self) -> &'a str {
        self.volume
    }

    /// All volumes of the configuration.
    pub(crate) fn volumes(&self) -> &'a Volumes {
        self.volumes
    }

    /// Takes for this volume what only one may use, which the configuration calls `name`; gives the
    /// volume that has taken it before, and how that calls it.
    pub(crate) fn use_once<M: Eq + Hash + Send + 'static>(
        &mut self,
        medium: M,
        name: String,
    ) -> Option<(String, String)> {
        let users: &mut HashMap<M, (String, String)> = self.users.of();
        users.insert(medium, (self.volume.to_owned(), name))
    }

    /// What to say when `medium` is named here and has been named by the volume `other` already.
    pub(crate) fn used_twice(&self, medium: &str, other: &str) -> String {
        match other == self.volume {
            true => format!(
                "{medium} is named twice in \"{other}\", whose parts would overwrite each other; name \
                 each disk once"
            ),
            false => format!(
                "{medium} is used by \"{other}\" already, and \"{}\" would overwrite it; {USE_IT_TWICE}",
                self.volume
            ),
        }
    }

    /// Says what would keep the volume from opening.
    pub(crate) fn errors(&mut self, errors: impl IntoIterator<Item = ConfigError>) {
        self.findings.errors.extend(errors);
    }

    /// Says of the node what works and may not be what was meant.
    pub(crate) fn note(&mut self, message: String) {
        let note = ConfigError::new(self.node.span.clone(), message);
        self.findings.notes.push(note);
    }
}
