//! A configuration beside the one that is in use: read anew for a volume that is attached, and compared with its file. And what
//! it says of remote disks, for people.

use std::{io::ErrorKind, path::Path};

use volume::{
    config::{Node, NodeForm},
    graph::Graph,
};

use super::Config;
use crate::DaemonFailure;

impl Config {
    /// As [`Config::load_to_apply`], for the process that has the volume called `volume` attached: nothing but this volume
    /// is looked at. Returns the warnings about it.
    ///
    /// # Errors
    /// Everything that is wrong with the file, or with the volume.
    pub fn load_to_attach_anew(
        path: &Path,
        volume: &str,
    ) -> Result<(Config, Vec<String>), DaemonFailure> {
        let (mut config, mut errors) = Config::read_file(path)?;
        config.is_successor = true;
        let mut warnings = Vec::new();
        if errors.is_empty() {
            let mut volumes = config.file.volume.clone();
            let parts = config.file.volume.parts(volume);
            volumes.0.retain(|name, _| parts.contains(name.as_str()));
            let graph = Graph::new(volumes, config.directory());
            let findings = graph.map_err(|error| config.wrong(&error))?.check_again();
            errors = findings.errors;
            let located = findings.warnings.iter();
            warnings.extend(located.map(|warning| config.located(warning).to_string()));
        }
        config.refuse(errors)?;
        Ok((config, warnings))
    }

    /// Logs whether the configuration file differs from this one, which is served, and any errors in it.
    pub(crate) async fn tell_changed(&self) {
        let path = self.path.display();
        match self.changed().await {
            Ok(None) => {}
            Ok(Some(Ok(()))) => tracing::warn!(
                %path,
                "the configuration file has changed; `sanstone apply -c` with this path, or a restart, \
                 puts it into effect"
            ),
            Ok(Some(Err(failure))) => {
                for line in failure.to_string().lines() {
                    tracing::error!(
                        "the configuration file has changed, and a restart would fail: {line}"
                    );
                }
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => tracing::warn!(
                %path,
                %error,
                "whether the configuration file has changed could not be determined"
            ),
            Err(error) => tracing::warn!(
                %path,
                %error,
                "the configuration file can no longer be read; a restart would fail"
            ),
        }
    }

    /// Who logs in to each remote disk, and how, for people: a line for each, after the name of its volume.
    pub fn logins(&self) -> Vec<String> {
        let nodes = |(name, node): (&String, &Node)| {
            let kinds = node.all().into_iter().filter_map(|node| match &node.what {
                NodeForm::Inline(kind) => kind.login(),
                NodeForm::Named(_) => None,
            });
            kinds
                .map(|login| format!("volume {name}: {login}"))
                .collect::<Vec<_>>()
        };
        self.file.volume.0.iter().flat_map(nodes).collect()
    }
}
