//! Checks a configuration against the system it is for, without opening anything for writing.

use std::{collections::HashMap, hash::Hash, path::Path};

use super::{Node, NodeForm, Volumes};
use crate::{part::ByType, values::ConfigError};

/// The advice to a user who names a medium twice.
pub(crate) const USE_IT_TWICE: &str = "to use it twice, name the same volume in both places";

/// The findings of [`Graph::check`](crate::graph::Graph::check).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What would keep the volumes from opening.
    pub errors: Vec<ConfigError>,
    /// What works but may not be intended, such as a volume that does not last.
    pub warnings: Vec<ConfigError>,
    /// Advice: what works as intended, and what would suit other users better.
    pub notes: Vec<ConfigError>,
}

impl Volumes {
    /// Checks whether the volumes would open. Paths are relative to `base`. What this process has open already `may_grow`
    /// to its size, if so. Nothing is changed, created or locked.
    pub(crate) fn look(&self, base: &Path, may_grow: bool) -> Findings {
        let mut findings = Findings::default();
        let mut users = ByType::default();
        for (volume, node) in &self.0 {
            for node in node.all() {
                if let (Some(inner), Some(_)) = (node.inner_set(), node.superblocks()) {
                    findings.notes.push(ConfigError::new(
                        node.span.clone(),
                        format!(
                            "`sanstone volume create` does not make the {inner} inside it: for that, write it as a volume of its own, \
                             [volume.NAME]"
                        ),
                    ));
                }
                if let NodeForm::Inline(kind) = &node.what {
                    kind.settings().look(&mut Look {
                        base,
                        may_grow,
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

/// The check of one node: access to its context, and where to report findings.
pub(crate) struct Look<'a> {
    base: &'a Path,
    may_grow: bool,
    volumes: &'a Volumes,
    volume: &'a str,
    node: &'a Node,
    users: &'a mut ByType,
    findings: &'a mut Findings,
}

impl<'a> Look<'a> {
    /// The directory that relative paths start from.
    pub(crate) fn base(&self) -> &'a Path {
        self.base
    }

    /// Whether what this process has open is extended if its size is larger.
    pub(crate) fn may_grow(&self) -> bool {
        self.may_grow
    }

    /// The name of the volume that the node is, or is a part of.
    pub(crate) fn volume(&self) -> &'a str {
        self.volume
    }

    /// All volumes of the configuration.
    pub(crate) fn volumes(&self) -> &'a Volumes {
        self.volumes
    }

    /// Registers the exclusive use of `medium`, which the configuration calls `name`, by this volume. If it is
    /// already in use, returns the volume that uses it and that volume's name for it.
    pub(crate) fn use_once<M: Eq + Hash + Send + 'static>(
        &mut self,
        medium: M,
        name: String,
    ) -> Option<(String, String)> {
        let users: &mut HashMap<M, (String, String)> = self.users.of();
        users.insert(medium, (self.volume.to_owned(), name))
    }

    /// The message when `medium` is named here and was already named by the volume `other`.
    pub(crate) fn used_twice(&self, medium: &str, other: &str) -> String {
        match other == self.volume {
            true => format!(
                "{medium} appears twice in \"{other}\", whose parts would overwrite each other; name \
                 each disk once"
            ),
            false => format!(
                "{medium} is already used by \"{other}\", and \"{}\" would overwrite it; \
                 {USE_IT_TWICE}",
                self.volume
            ),
        }
    }

    /// Reports what would keep the volume from opening.
    pub(crate) fn errors(&mut self, errors: impl IntoIterator<Item = ConfigError>) {
        self.findings.errors.extend(errors);
    }

    /// Reports something about the node that works but may not be intended.
    pub(crate) fn warn(&mut self, message: String) {
        let warning = ConfigError::new(self.node.span.clone(), message);
        self.findings.warnings.push(warning);
    }

    /// Gives advice about the node: it works as intended, and something else would suit other users better.
    pub(crate) fn note(&mut self, message: String) {
        let note = ConfigError::new(self.node.span.clone(), message);
        self.findings.notes.push(note);
    }
}
