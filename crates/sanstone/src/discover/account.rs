//! The identity used for discovery: the initiator's name and its CHAP credentials.

use std::{
    fmt::{self, Display},
    path::{self, Path, PathBuf},
    sync::Arc,
};

use clap::Args;

use volume::{
    config::{ChapSettings, Credentials},
    discovery::{Chap, initiator_name},
};

use super::configuration::quoted;
use crate::failure::VerbFailure;

/// As what we log in: what `initiator`, `chap` and `mutual` of an `iscsi` volume say.
#[derive(Args)]
pub(crate) struct Account {
    /// The iSCSI name to log in with; the default is this host's own.
    #[arg(long, value_name = "NAME")]
    initiator: Option<String>,
    /// The CHAP user to authenticate as.
    #[arg(long, value_name = "USER", requires = "chap_secret_file")]
    chap_user: Option<String>,
    /// A file whose only line is that user's secret.
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    chap_secret_file: Option<PathBuf>,
    /// The user that the target must authenticate as (mutual CHAP).
    #[arg(
        long,
        value_name = "USER",
        requires = "chap_user",
        requires = "mutual_secret_file"
    )]
    mutual_user: Option<String>,
    /// A file whose only line is that user's secret.
    #[arg(long, value_name = "FILE", requires = "mutual_user")]
    mutual_secret_file: Option<PathBuf>,
}

impl Account {
    /// The initiator name to log in with.
    pub(super) fn initiator_name(&self) -> Result<String, VerbFailure> {
        let name = initiator_name(self.initiator.as_deref());
        name.map_err(|error| VerbFailure::Wrong(format!("--initiator {error}")))
    }

    /// The CHAP credentials of both sides, with the secrets read from their files.
    pub(super) fn chap(&self) -> Result<Option<Arc<Chap>>, VerbFailure> {
        let credentials =
            |(user, file): (&String, &PathBuf)| Credentials::in_file(user.clone(), file.clone());
        let chap = self.initiator_account().map(credentials);
        let mutual = self.target_account().map(credentials);
        let settings = ChapSettings {
            chap: chap.as_ref(),
            old: None,
            mutual: mutual.as_ref(),
            algorithms: None,
        };
        let read = settings.read(Path::new(""));
        read.map_err(|error| VerbFailure::Wrong(error.message().to_owned()))
    }

    fn initiator_account(&self) -> Option<(&String, &PathBuf)> {
        self.chap_user.as_ref().zip(self.chap_secret_file.as_ref())
    }

    fn target_account(&self) -> Option<(&String, &PathBuf)> {
        let user = self.mutual_user.as_ref();
        user.zip(self.mutual_secret_file.as_ref())
    }

    /// What to do if the target wants another authentication.
    pub(super) fn advice(&self) -> String {
        match &self.chap_user {
            None => "; it wants CHAP: add --chap-user USER --chap-secret-file FILE".to_owned(),
            Some(user) => {
                format!("; check --chap-user \"{user}\" and the secret in its --chap-secret-file")
            }
        }
    }

    /// Whether there are CHAP credentials, and a discovery without them proves no less: the target need not authenticate.
    pub(super) fn may_go_without(&self) -> bool {
        self.chap_user.is_some() && self.mutual_user.is_none()
    }

    /// What to try if the target shows us nothing.
    pub(super) fn mend(&self) -> &'static str {
        match self.chap_user {
            None => "; or authenticate with --chap-user",
            Some(_) => "",
        }
    }

    /// The settings of a volume that logs in the same way, each preceded by a comma. Paths are made absolute,
    /// because those in a configuration are relative to its location.
    pub(crate) fn settings(&self) -> anyhow::Result<String> {
        let mut settings = String::new();
        if let Some(name) = &self.initiator {
            settings += &format!(", initiator = {}", quoted(name));
        }
        let accounts = [
            ("chap", self.initiator_account()),
            ("mutual", self.target_account()),
        ];
        for (key, account) in accounts {
            let Some((user, file)) = account else {
                continue;
            };
            let file = path::absolute(file)?;
            settings += &format!(
                ", {key} = {{ user = {}, secret_file = {} }}",
                quoted(user),
                quoted(&file.to_string_lossy())
            );
        }
        Ok(settings)
    }
}

impl Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.chap_user {
            None => f.write_str(", without --chap-user")?,
            Some(user) => write!(f, ", with --chap-user \"{user}\"")?,
        }
        match &self.mutual_user {
            None => Ok(()),
            Some(user) => write!(f, ", and the target must authenticate as \"{user}\""),
        }
    }
}
