//! The configuration section `iscsi = { url = "iscsi://10.0.1.2/iqn.2026-11.io.sanstone:a/0" }`: where the disk is,
//! who we are to its target, and the time limits.

use std::{
    ops::Range,
    path::Path,
    rc::Rc,
    sync::{Arc, OnceLock},
    time::Duration,
};

use engine::{LaneFuture, LaneHandle, time};
use serde::Deserialize;
use toml::Spanned;

use super::{
    IscsiConfig, IscsiDisk, SessionStatus,
    change::{self, DiskChange, OpenDisk},
    config::{LoginTerms, Policy, own_name},
    disks::{Disks, normalised},
    isids::{Isids, Openings},
    late::{KeptDisk, Late},
    path_settings::{Addresses, PathSettings, SessionSettings},
    remotes::Remotes,
    secrets::Secrets,
    url::{ISCSI_NAME_BYTES_MAX, IscsiUrl, is_iscsi_name},
};
use crate::{
    Error, ErrorKind, Result,
    announcer::Announcer,
    kinds::{
        Look, Settings, VolumeIdentity,
        change::{Change, Changing, Step},
    },
    part::{Carried, Opening, Part},
    values::{ChapAlgorithm, ChapSettings, ConfigError, Credentials, Size, Time, Wait},
};

/// `iscsi = { url = "iscsi://10.0.1.2/iqn.2026-11.io.sanstone:a/0" }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Iscsi {
    /// Portal, target and LUN.
    pub url: Spanned<IscsiUrl>,
    /// The paths to the disk; if omitted, the portal of the URL.
    pub paths: Option<Spanned<Vec<PathSettings>>>,
    /// The number of sessions over all paths. By default one per path, and at least one per lane, up to four.
    pub sessions: Option<Spanned<usize>>,
    /// How a command chooses among them.
    #[serde(default)]
    pub policy: Policy,
    /// The TCP congestion control algorithm, by its kernel name.
    pub congestion: Option<String>,
    /// How long sent data may stay unacknowledged before a connection counts as lost.
    pub user_timeout: Option<Spanned<Time>>,
    /// The size of a connection's send buffer in the kernel.
    pub send_buffer: Option<Spanned<Size>>,
    /// The size of a connection's receive buffer in the kernel.
    pub receive_buffer: Option<Spanned<Size>>,
    /// How long to wait for an unreachable disk when it is opened.
    #[serde(default = "seconds::<0>")]
    pub wait_at_start: Spanned<Time>,
    /// Our initiator name; by default the host's own.
    pub initiator: Option<Spanned<String>>,
    /// The credentials that authenticate us.
    pub chap: Option<Box<Spanned<Credentials>>>,
    /// The credentials that authenticate the target.
    pub mutual: Option<Box<Spanned<Credentials>>>,
    /// The algorithms to offer, in order of preference; by default all.
    pub chap_algorithms: Option<Spanned<Vec<ChapAlgorithm>>>,
    /// Requests CRC32C header digests.
    #[serde(default)]
    pub header_digest: bool,
    /// Requests CRC32C data digests.
    #[serde(default)]
    pub data_digest: bool,
    /// How long a connection and its login may take.
    #[serde(default = "seconds::<5>")]
    pub connect_timeout: Spanned<Time>,
    /// How long a command may go unanswered before the connection counts as lost.
    #[serde(default = "seconds::<30>")]
    pub request_timeout: Spanned<Time>,
    /// How long a target may send nothing, not even the answer to a ping, before the connection counts as lost. By default
    /// five seconds if there are two ways to it or more and `request_timeout` is not less; otherwise `request_timeout`.
    pub ping_timeout: Option<Spanned<Time>>,
    /// How long requests wait for a lost connection to come back before they fail. By default as long as those of stock
    /// initiators (open-iscsi: `replacement_timeout`), because a storage server takes that long to start again.
    #[serde(default = "two_minutes")]
    pub reconnect_timeout: Spanned<Wait>,
}

fn two_minutes() -> Spanned<Wait> {
    Spanned::new(
        0..0,
        Wait::For(Time::from_duration(Duration::from_secs(120))),
    )
}

fn seconds<const N: u64>() -> Spanned<Time> {
    Spanned::new(0..0, Time::from_duration(Duration::from_secs(N)))
}

impl Iscsi {
    /// The CHAP settings, for either direction.
    pub fn chap(&self) -> ChapSettings<'_> {
        ChapSettings {
            chap: self.chap.as_deref(),
            old: None,
            mutual: self.mutual.as_deref(),
            algorithms: self.chap_algorithms.as_ref(),
        }
    }

    /// The settings of the sessions and their paths.
    pub(super) fn session_settings(&self) -> SessionSettings<'_> {
        SessionSettings {
            url: &self.url,
            paths: self.paths.as_ref(),
            sessions: self.sessions.as_ref(),
            policy: self.policy,
            congestion: self.congestion.as_deref(),
            user_timeout: self.user_timeout.as_ref(),
            ping_timeout: self.ping_timeout.as_ref(),
            send_buffer: self.send_buffer.as_ref(),
            receive_buffer: self.receive_buffer.as_ref(),
        }
    }

    /// The session configuration for a disk used by `lanes` lanes. Paths of secret files are relative to `base`.
    /// Resolves the host name, within the connect timeout.
    async fn resolve(
        &self,
        base: &Path,
        lanes: usize,
        isids: &Isids,
        known: &mut Addresses,
    ) -> Result<IscsiConfig> {
        let url = self.url.get_ref();
        let limit = self.connect_timeout.get_ref().duration();
        let session_settings = self.session_settings();
        let written = session_settings.written();
        let sessions = written.resolve(lanes, known, limit).await?;
        let (first, multipath) = session_settings.configuration(sessions, isids);
        let terms = self.terms(base)?;
        Ok(IscsiConfig {
            chap: terms.chap,
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            address: first.address,
            target_name: url.target.clone(),
            lun: url.lun,
            initiator_name: match &self.initiator {
                Some(name) => name.get_ref().clone(),
                None => own_name(),
            },
            isid: first.isid,
            multipath,
            stage_times: false,
            connect_timeout: terms.connect_timeout,
            request_timeout: terms.request_timeout,
            reconnect_timeout: terms.reconnect_timeout,
        })
    }

    /// The time limits and secrets of its sessions. Paths of secret files are relative to `base`, and they are read.
    fn terms(&self, base: &Path) -> Result<LoginTerms> {
        Ok(LoginTerms {
            chap: self.secrets(base)?,
            connect_timeout: self.connect_timeout.get_ref().duration(),
            request_timeout: self.request_timeout.get_ref().duration(),
            reconnect_timeout: self.reconnect_timeout.get_ref().limit(),
            ping_timeout: self.ping_timeout.as_ref().map(|it| it.get_ref().duration()),
        })
    }

    /// The time limits by their names, for people.
    fn limits(&self) -> [(&'static str, String); 5] {
        let ping = self.ping_timeout.as_ref();
        let shown = |time: &Spanned<Time>| match time.get_ref().duration().is_zero() {
            true => "0s".to_owned(),
            false => time.get_ref().to_string(),
        };
        [
            ("connect_timeout", shown(&self.connect_timeout)),
            ("request_timeout", shown(&self.request_timeout)),
            ("ping_timeout", ping.map_or("(not set)".to_owned(), shown)),
            (
                "reconnect_timeout",
                self.reconnect_timeout.get_ref().to_string(),
            ),
            ("wait_at_start", shown(&self.wait_at_start)),
        ]
    }

    /// What changes about an open disk if its settings become those of `new`, of which only these are others: paths,
    /// sessions, time limits, secrets.
    fn live_change(&self, new: &Iscsi) -> Change {
        let [was, is] = [self, new].map(|it| it.session_settings().written());
        let mut made = change::of_paths(&was, &is);
        let limits = self.limits().into_iter().zip(new.limits());
        let limits = limits.filter(|(was, is)| was != is);
        made.extend(limits.map(|((name, was), (_, is))| format!("{name} {was} → {is}")));
        if self.chap() != new.chap() {
            made.push("the secrets of its next logins".to_owned());
        }
        match made.is_empty() {
            true => Change::None,
            false => Change::Live(made),
        }
    }

    /// Where each login takes its secrets from; they are right now.
    fn secrets(&self, base: &Path) -> Result<Option<Secrets>> {
        let url = self.url.get_ref();
        let (settings, base) = (self.clone(), base.to_owned());
        let read = move || settings.chap().read(&base);
        let read_now = read()
            .map_err(|error| Error::new(ErrorKind::Configuration, format!("{url}: {error}")))?;
        Ok(read_now.map(|chap| Secrets::read_again(chap, read)))
    }

    /// Two leaves on one disk would overwrite each other, and a cache above one would miss the other's writes.
    fn check_used_once(&self, look: &mut Look<'_>) -> std::result::Result<(), ConfigError> {
        let url = self.url.get_ref();
        match look.use_once(normalised(url), url.to_string()) {
            None => Ok(()),
            Some((other, _)) => {
                let message = look.used_twice(&url.to_string(), &other);
                Err(ConfigError::at(&self.url, message))
            }
        }
    }
}

/// Opens the disk, retrying for up to `wait_at_start`.
async fn open(
    config: IscsiConfig,
    lanes: &[LaneHandle],
    wait_at_start: Duration,
) -> Result<Rc<IscsiDisk>> {
    const PAUSE: Duration = Duration::from_secs(1);
    let deadline = time::now() + wait_at_start;
    let mut is_told = false;
    loop {
        let error = match IscsiDisk::open_on(config.clone(), lanes).await {
            Ok(disk) => return Ok(disk),
            Err(error) => error,
        };
        if !is_away(&error) || time::now() + PAUSE > deadline {
            return Err(error);
        }
        if !is_told {
            tracing::warn!(%error, "waiting for the disk, up to {wait_at_start:?}");
            is_told = true;
        }
        time::sleep(PAUSE).await;
    }
}

/// Whether what has failed with `error` may come yet.
fn is_away(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut)
}

impl Settings for Iscsi {
    fn open<'a>(&'a self, mut opening: Opening<'a>) -> LaneFuture<'a, Result<Arc<Part>>> {
        LaneFuture::new(async move {
            let lanes = opening.lanes.to_vec();
            let owner = opening.owner();
            let url = self.url.get_ref();
            let isids = opening.kept::<Openings>().next(owner, url)?;
            let may_come_later = opening.may_come_later();
            let claims = opening.claims().map(Path::to_owned);
            let shown = match &claims {
                Some(claims) => isids.show(claims).await,
                None => Ok(()),
            };
            let held = shown.map_err(|error| error.context(url)).err();
            if let Some(error) = held.clone().filter(|_| !may_come_later) {
                return Err(error);
            }
            let mut known = Addresses::new();
            let resolved = self.resolve(opening.base(), lanes.len(), &isids, &mut known);
            let mut config = resolved.await?;
            let lane_count = lanes.len();
            config.stage_times = opening.is_watched();
            let wait_at_start = match opening.may_wait() {
                true => self.wait_at_start.get_ref().duration(),
                false => Duration::ZERO,
            };
            let status: SessionStatus = opening.handle();
            let numbers: Vec<_> = lanes.iter().map(|lane| opening.number_of(lane)).collect();
            let announcer = opening.kept::<Announcer>().clone();
            let found = Arc::new(OnceLock::new());
            let told = found.clone();
            let part = opening
                .at_home(move |_| {
                    LaneFuture::new(async move {
                        let (on, shown) = (lanes.clone(), status.clone());
                        let show = move |disk: &Rc<IscsiDisk>| {
                            disk.unit.announce_to(announcer.clone());
                            let (on, numbers) = (on.clone(), numbers.clone());
                            disk.unit.paths.report_to(&shown, move |lane| {
                                let at = on.iter().position(|it| Some(it) == lane);
                                numbers[at.unwrap_or(0)]
                            });
                        };
                        let home = lanes[0].clone();
                        // A process that is about to end may still have it.
                        let is_held = held.is_some();
                        let opened = match held {
                            Some(error) => Err(error),
                            None => open(config.clone(), &lanes, wait_at_start).await,
                        };
                        let disk = match opened {
                            Err(error) if may_come_later && (is_held || is_away(&error)) => {
                                tracing::warn!(%error, "the disk is not there yet");
                                status.lost(error.to_string());
                                let claims = claims.map(|claims| (isids, claims));
                                let late = Rc::new(Late::new(config, claims, lanes, show));
                                let kept = KeptDisk::Late(Rc::downgrade(&late));
                                let _ = told.set((OpenDisk::keep(home, kept), None));
                                return Ok(late as _);
                            }
                            opened => opened?,
                        };
                        show(&disk);
                        let kept = KeptDisk::Open(Rc::downgrade(&disk));
                        let kept = OpenDisk::keep(home, kept);
                        let branches = disk.branches().await?;
                        let _ = told.set((kept, Some((disk.identity().clone(), branches))));
                        Ok(disk as _)
                    })
                })
                .await?;
            let (disk, opened) = found
                .get()
                .cloned()
                .expect("it was opened, or is looked for");
            opening.kept::<Remotes>().add(&disk);
            let base = opening.base().to_owned();
            opening.put(OpenDisk::new(disk, lane_count, base, known));
            let Some((identity, branches)) = opened else {
                part.share();
                part.tell_layers();
                return Ok(part);
            };
            part.branch(branches);
            if let Some(name) = identity.worldwide_name() {
                part.carry(Carried::Remote(name));
            }
            part.share();
            part.tell_layers();
            let (volume, claims) = (opening.volume().to_owned(), opening.claims());
            let claims = claims.map(Path::to_owned);
            let disks: &mut Disks = opening.kept();
            let added = disks.add(&volume, url, identity, &part, claims.as_deref());
            added.await?;
            Ok(part)
        })
    }

    fn identity(&self) -> VolumeIdentity<'_> {
        let url = self.url.get_ref();
        VolumeIdentity::Remote(format!("{}/{}", url.target.to_lowercase(), url.lun))
    }

    fn is_volatile(&self) -> bool {
        false
    }

    fn check(&self) -> std::result::Result<(), ConfigError> {
        let limits = [&self.connect_timeout, &self.request_timeout];
        for time in limits.into_iter().chain(&self.ping_timeout) {
            if time.get_ref().duration().is_zero() {
                return Err(ConfigError::at(
                    time,
                    "a time limit of 0 leaves no time for anything; write 5s",
                ));
            }
        }
        self.session_settings().check()?;
        match &self.initiator {
            Some(name) if !is_iscsi_name(name.get_ref()) => Err(ConfigError::at(
                name,
                format!(
                    "initiator = \"{}\" is not an iSCSI name: it must begin with iqn., eui. or \
                     naa., contain no spaces and have at most {ISCSI_NAME_BYTES_MAX} bytes; write \
                     one such as \"iqn.2026-11.io.sanstone:dbhost\", or remove it to use this \
                     host's own name",
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
        look.errors(self.session_settings().look().err());
    }

    fn change(&self, new: &Iscsi) -> Change {
        let with_live = Iscsi {
            paths: new.paths.clone(),
            sessions: new.sessions.clone(),
            chap: new.chap.clone(),
            mutual: new.mutual.clone(),
            chap_algorithms: new.chap_algorithms.clone(),
            connect_timeout: new.connect_timeout.clone(),
            request_timeout: new.request_timeout.clone(),
            ping_timeout: new.ping_timeout.clone(),
            reconnect_timeout: new.reconnect_timeout.clone(),
            wait_at_start: new.wait_at_start.clone(),
            ..self.clone()
        };
        match with_live == *new {
            true => self.live_change(new),
            false => Change::between(self, new),
        }
    }

    fn step<'a>(&'a self, changing: Changing<'a>) -> LaneFuture<'a, Result<Box<dyn Step>>> {
        let open = changing.handle::<OpenDisk>().cloned();
        let (written, settings) = (self.session_settings().written(), self.clone());
        let terms = Arc::new(move |base: &Path| settings.terms(base));
        let step = open.map(|open| Box::new(DiskChange::new(open, written, terms)) as _);
        let error = || Error::new(ErrorKind::Unreachable, "it is not open");
        LaneFuture::new(async move { step.ok_or_else(error) })
    }

    fn describe(&self) -> Option<String> {
        Some(self.url.get_ref().to_string())
    }

    /// `iscsi://… as iqn.…, CHAP as "db", by 10.0.1.2:3260`.
    fn login(&self) -> Option<String> {
        let name = match &self.initiator {
            Some(name) => name.get_ref().clone(),
            None => own_name(),
        };
        let user = |key: &str, account: &Option<Box<Spanned<Credentials>>>| {
            let user = account
                .as_ref()
                .map(|it| it.get_ref().user.get_ref().clone());
            user.map_or(String::new(), |user| format!(", {key} \"{user}\""))
        };
        let paths = self.session_settings().written().paths;
        let paths: Vec<_> = paths.iter().map(ToString::to_string).collect();
        Some(format!(
            "{} as {name}{}{}, by {}",
            self.url.get_ref(),
            user("CHAP as", &self.chap),
            user("which proves to be", &self.mutual),
            paths.join(" and ")
        ))
    }

    fn span(&self) -> Option<Range<usize>> {
        Some(self.url.span())
    }

    fn is_shared(&self) -> bool {
        true
    }
}
