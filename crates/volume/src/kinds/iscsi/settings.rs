//! `iscsi = { url = "iscsi://10.0.1.2/iqn.2026-11.io.sanstone:a/0" }`: where the disk is, who we are
//! to its target, and how long we wait for it.

use std::{
    ops::Range,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use engine::{LaneFuture, blocking::look_up};
use serde::Deserialize;
use toml::Spanned;

use super::{
    IscsiConfig, IscsiDisk, SessionStatus,
    config::own_name,
    disks::{Disks, normalised},
    next_isid,
    url::{ISCSI_NAME_BYTES_MAX, IscsiUrl, is_iscsi_name},
};
use crate::{
    Error, ErrorKind, Result,
    kinds::{Look, Settings, USE_IT_TWICE},
    part::{Carried, Opening, Part},
    values::{ChapAlgorithm, ChapSettings, ConfigError, Credentials, Time},
};

/// `iscsi = { url = "iscsi://10.0.1.2/iqn.2026-11.io.sanstone:a/0" }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Iscsi {
    /// Portal, target and LUN.
    pub url: Spanned<IscsiUrl>,
    /// The name that the target knows this initiator by; without one, the host's own.
    pub initiator: Option<Spanned<String>>,
    /// With what we prove who we are.
    pub chap: Option<Box<Spanned<Credentials>>>,
    /// With what the target has to.
    pub mutual: Option<Box<Spanned<Credentials>>>,
    /// The algorithms to offer, in order of preference; all when not given.
    pub chap_algorithms: Option<Spanned<Vec<ChapAlgorithm>>>,
    /// Asks for CRC32C over the headers.
    #[serde(default)]
    pub header_digest: bool,
    /// Asks for CRC32C over the data.
    #[serde(default)]
    pub data_digest: bool,
    /// How long a connection and its login may take.
    #[serde(default = "seconds::<5>")]
    pub connect_timeout: Spanned<Time>,
    /// How long a command may go without an answer before the connection counts as lost.
    #[serde(default = "seconds::<30>")]
    pub request_timeout: Spanned<Time>,
    /// How long requests wait for a lost connection to come back before they fail.
    #[serde(default = "seconds::<30>")]
    pub reconnect_timeout: Spanned<Time>,
}

fn seconds<const N: u64>() -> Spanned<Time> {
    Spanned::new(0..0, Time::from_duration(Duration::from_secs(N)))
}

impl Iscsi {
    /// Who proves what.
    pub fn chap(&self) -> ChapSettings<'_> {
        ChapSettings {
            chap: self.chap.as_deref(),
            mutual: self.mutual.as_deref(),
            algorithms: self.chap_algorithms.as_ref(),
        }
    }

    /// The configuration of the session; secrets' files are relative to `base`. Looks the host's name up,
    /// for as long as a connection may take.
    async fn resolve(&self, base: &Path) -> Result<IscsiConfig> {
        let url = self.url.get_ref();
        let refused = |why: String| {
            Error::new(
                ErrorKind::Configuration,
                format!("{url}: {why}; write its address instead"),
            )
        };
        let limit = self.connect_timeout.get_ref().duration();
        let address = look_up(&url.host, url.port, limit)
            .await
            .map_err(|error| refused(format!("\"{}\" cannot be looked up: {error}", url.host)))?;
        let chap = self
            .chap()
            .read(base)
            .map_err(|error| Error::new(ErrorKind::Configuration, format!("{url}: {error}")))?;
        Ok(IscsiConfig {
            chap,
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            address,
            target_name: url.target.clone(),
            lun: url.lun,
            initiator_name: match &self.initiator {
                Some(name) => name.get_ref().clone(),
                None => own_name(),
            },
            isid: next_isid(),
            connect_timeout: self.connect_timeout.get_ref().duration(),
            request_timeout: self.request_timeout.get_ref().duration(),
            reconnect_timeout: self.reconnect_timeout.get_ref().duration(),
        })
    }

    /// Two leaves on one disk would overwrite each other, and what one writes a cache of the other
    /// would not know.
    fn check_used_once(&self, look: &mut Look<'_>) -> std::result::Result<(), ConfigError> {
        let url = self.url.get_ref();
        match look.use_once(normalised(url), url.to_string()) {
            None => Ok(()),
            Some((other, _)) => Err(ConfigError::at(
                &self.url,
                format!(
                    "{url} is used by \"{other}\" already, and \"{}\" would overwrite it; {USE_IT_TWICE}",
                    look.volume()
                ),
            )),
        }
    }
}

impl Settings for Iscsi {
    fn open<'a>(&'a self, mut opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        LaneFuture::new(async move {
            let config = self.resolve(opening.base()).await?;
            let status: SessionStatus = opening.handle();
            let identity = Arc::new(OnceLock::new());
            let told = identity.clone();
            let part = opening
                .at_home(move |_| {
                    LaneFuture::new(async move {
                        let disk = IscsiDisk::open(config).await?;
                        disk.unit.nexus.report_to(&status);
                        let _ = told.set(disk.identity().clone());
                        Ok(disk as _)
                    })
                })
                .await?;
            let identity = identity.get().cloned().unwrap_or_default();
            if let Some(name) = identity.worldwide_name() {
                part.carry(Carried::Remote(name));
            }
            let volume = opening.volume().to_owned();
            let disks: &mut Disks = opening.kept();
            disks.add(&volume, self.url.get_ref(), identity, &part)?;
            Ok(part)
        })
    }

    fn check(&self) -> std::result::Result<(), ConfigError> {
        for time in [&self.connect_timeout, &self.request_timeout] {
            if time.get_ref().duration().is_zero() {
                return Err(ConfigError::at(
                    time,
                    "a time limit of 0 lets nothing happen; write 5s",
                ));
            }
        }
        match &self.initiator {
            Some(name) if !is_iscsi_name(name.get_ref()) => Err(ConfigError::at(
                name,
                format!(
                    "initiator = \"{}\" is not an iSCSI name, which begins with iqn., eui. or naa., \
                     has no space in it and is not longer than {ISCSI_NAME_BYTES_MAX} bytes; write \
                     one as \"iqn.2026-11.io.sanstone:dbhost\", or nothing for this host's own",
                    name.get_ref()
                ),
            )),
            _ => Ok(()),
        }
    }

    fn look(&self, look: &mut Look<'_>) {
        let secrets = self.chap().read(look.base());
        look.errors(secrets.err());
        let used = self.check_used_once(look);
        look.errors(used.err());
    }

    fn describe(&self) -> Option<String> {
        Some(self.url.get_ref().to_string())
    }

    fn span(&self) -> Option<Range<usize>> {
        Some(self.url.span())
    }
}
