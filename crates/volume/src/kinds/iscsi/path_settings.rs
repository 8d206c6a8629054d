//! `paths`, `sessions` and `policy` of an `iscsi` volume: how many sessions its disk has, and over which networks; and
//! the settings of their connections.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    str::FromStr,
    time::Duration,
};

use engine::{
    blocking::look_up,
    net::{LocalEnd, SocketBuffers, try_buffers},
};
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::{
    config::{Multipath, PathConfig, Policy, Sessions, Transport},
    isids::{ISIDS_MAX, Isids},
    ping_timeout::PingTimeout,
    url::{IscsiUrl, lacks_zone, split_portal},
};
use crate::{
    Error, ErrorKind, Result,
    values::{ConfigError, Size, Time},
};

/// The most sessions with one disk.
const SESSIONS_MAX: usize = 16;
/// The default limit on one disk's sessions for one per lane.
const SESSIONS_DEFAULT_MAX: usize = 4;
/// How large a connection's buffer in the kernel may be, in bytes. A smaller one would be raised by the kernel.
const BUFFER_BYTES: RangeInclusive<u64> = 4 << 10..=512 << 20;
/// The longest network interface name, in bytes (IFNAMSIZ without the NUL).
const INTERFACE_BYTES_MAX: usize = 15;

/// `{ portal = "10.0.1.2", from = "eth0" }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSettings {
    /// Where the target listens.
    pub portal: Portal,
    /// The local source address or interface.
    pub from: Option<From>,
}

/// A host or address with its port: `10.0.1.2`, `storage.example:3260`, `[fd00::2]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Portal {
    /// Host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// An address of this machine, or the name of one of its network interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum From {
    /// An address.
    Address(IpAddr),
    /// A network interface.
    Interface(String),
}

impl Portal {
    /// Refuses a link-local address without its zone.
    ///
    /// # Errors
    /// What to write instead.
    pub fn check(&self) -> std::result::Result<(), String> {
        let Portal { host, port } = self;
        match lacks_zone(host) {
            false => Ok(()),
            true => Err(format!(
                "{self} is a link-local address, and every network interface has that network; write the \
                 interface with it, such as [{host}%eth0]:{port}"
            )),
        }
    }
}

impl FromStr for Portal {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let portal = split_portal(text).filter(|(host, _)| !host.contains('/'));
        let portal = portal.map(|(host, port)| Portal { host, port });
        portal.ok_or_else(|| {
            format!(
                "\"{text}\" is not a portal; write HOST or HOST:PORT, such as 10.0.1.2, \
                 [fd00::2]:3260 or [fe80::2%eth0]:3260"
            )
        })
    }
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(From::Address(address));
        }
        let is_name = (1..=INTERFACE_BYTES_MAX).contains(&text.len())
            && !text.contains(|c: char| c.is_whitespace() || c == '/' || c == '\0');
        match is_name {
            true => Ok(From::Interface(text.to_owned())),
            false => Err(format!(
                "\"{text}\" is neither an address of this machine nor a network interface; write \
                 from = \"10.0.1.1\" or from = \"eth0\""
            )),
        }
    }
}

impl fmt::Display for PathSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.portal)?;
        match &self.from {
            None => Ok(()),
            Some(From::Address(address)) => write!(f, " from {address}"),
            Some(From::Interface(name)) => write!(f, " from {name}"),
        }
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl<'de> Deserialize<'de> for Portal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for From {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl PathSettings {
    fn source(&self) -> Option<LocalEnd> {
        self.from.clone().map(|from| match from {
            From::Address(ip) => LocalEnd::Address(ip),
            From::Interface(name) => LocalEnd::Interface(name),
        })
    }
}

/// The addresses of portals, as they were resolved.
pub(super) type Addresses = HashMap<Portal, SocketAddr>;

/// The session settings of a disk.
pub(super) struct SessionSettings<'a> {
    pub(super) url: &'a Spanned<IscsiUrl>,
    pub(super) paths: Option<&'a Spanned<Vec<PathSettings>>>,
    pub(super) sessions: Option<&'a Spanned<usize>>,
    pub(super) policy: Policy,
    pub(super) congestion: Option<&'a str>,
    pub(super) user_timeout: Option<&'a Spanned<Time>>,
    pub(super) ping_timeout: Option<&'a Spanned<Time>>,
    pub(super) send_buffer: Option<&'a Spanned<Size>>,
    pub(super) receive_buffer: Option<&'a Spanned<Size>>,
}

/// The paths to a disk and the number of its sessions, as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenPaths {
    url: IscsiUrl,
    pub(super) paths: Vec<PathSettings>,
    pub(super) sessions: Option<usize>,
}

impl WrittenPaths {
    /// The number of sessions: at least one per path and, unless configured, one per lane up to a limit.
    fn session_count(&self, paths: usize, lanes: usize) -> usize {
        let lanes = lanes.min(SESSIONS_DEFAULT_MAX);
        let asked = self.sessions.unwrap_or(lanes);
        asked.max(paths)
    }

    /// All sessions of a disk used by `lanes` lanes, dealt out over the paths in turn. The names of portals that are not
    /// among the `known` ones are resolved, and added to them.
    ///
    /// # Errors
    /// When a portal's name cannot be resolved within `limit`.
    pub(super) async fn resolve(
        &self,
        lanes: usize,
        known: &mut Addresses,
        limit: Duration,
    ) -> Result<Sessions> {
        let mut ways = Vec::new();
        for path in &self.paths {
            let address = match known.get(&path.portal) {
                Some(address) => *address,
                None => self.look_up(&path.portal, limit).await?,
            };
            let source = path.source();
            known.insert(path.portal.clone(), address);
            ways.push(Transport { address, source });
        }
        let count = self.session_count(ways.len(), lanes);
        let wanted = self.session_count(ways.len(), 1);
        Ok(Sessions {
            ways: ways.into_iter().cycle().take(count).collect(),
            spare: count - wanted,
        })
    }

    async fn look_up(&self, portal: &Portal, limit: Duration) -> Result<SocketAddr> {
        let Portal { host, port } = portal;
        look_up(host, *port, limit).await.map_err(|error| {
            let message = format!(
                "{}: \"{host}\" cannot be resolved: {error}; write its address instead",
                self.url
            );
            Error::new(ErrorKind::Configuration, message)
        })
    }
}

impl SessionSettings<'_> {
    /// The configured paths; if there are none, the one that the URL names.
    fn written_paths(&self) -> Vec<PathSettings> {
        let url = self.url.get_ref();
        let of_url = || PathSettings {
            portal: Portal {
                host: url.host.clone(),
                port: url.port,
            },
            from: None,
        };
        match self.paths {
            Some(paths) => paths.get_ref().clone(),
            None => vec![of_url()],
        }
    }

    /// The paths and the number of sessions.
    pub(super) fn written(&self) -> WrittenPaths {
        WrittenPaths {
            url: self.url.get_ref().clone(),
            paths: self.written_paths(),
            sessions: self.sessions.map(|count| *count.get_ref()),
        }
    }

    /// The configuration of these sessions under these ISIDs, the first one first.
    pub(super) fn configuration(
        &self,
        sessions: Sessions,
        isids: &Isids,
    ) -> (PathConfig, Multipath) {
        let Sessions { ways, spare } = sessions;
        let count = ways.len();
        let mut sessions = ways
            .into_iter()
            .enumerate()
            .map(|(number, way)| PathConfig {
                address: way.address,
                source: way.source,
                isid: isids.of(number),
            });
        let first = sessions.next();
        let first = first.expect("there is a path, the one of the URL or one that is written");
        let multipath = Multipath {
            source: first.source.clone(),
            more: sessions.collect(),
            later_isids: (count..ISIDS_MAX).map(|number| isids.of(number)).collect(),
            spare,
            policy: self.policy,
            congestion: self.congestion.map(str::to_owned),
            user_timeout: self.user_timeout.map(|time| time.get_ref().duration()),
            ping_timeout: PingTimeout::new(self.ping_timeout.map(|it| it.get_ref().duration())),
            buffers: self.buffers(),
            lease: Some(isids.lease()),
        };
        (first, multipath)
    }

    /// Rejects a link-local address for which neither a zone nor an interface says on which network it is.
    fn check_zones(&self) -> std::result::Result<(), ConfigError> {
        let paths = self.written_paths();
        let mut paths = paths
            .iter()
            .filter(|path| !matches!(path.from, Some(From::Interface(_))));
        let checked = paths.try_for_each(|path| path.portal.check());
        checked.map_err(|message| match self.paths {
            Some(paths) => ConfigError::at(paths, message),
            None => ConfigError::at(self.url, message),
        })
    }

    fn buffers(&self) -> SocketBuffers {
        let bytes = |size: Option<&Spanned<Size>>| size.map(|size| size.get_ref().bytes() as u32);
        SocketBuffers {
            send_bytes: bytes(self.send_buffer),
            receive_bytes: bytes(self.receive_buffer),
        }
    }

    /// Rejects buffers that the kernel does not allow.
    pub(super) fn look(&self) -> std::result::Result<(), ConfigError> {
        let Some(first) = self.send_buffer.or(self.receive_buffer) else {
            return Ok(());
        };
        try_buffers(self.buffers()).map_err(|error| ConfigError::at(first, error.to_string()))
    }

    /// Rejects settings that make no sense.
    pub(super) fn check(&self) -> std::result::Result<(), ConfigError> {
        self.check_zones()?;
        if let Some(paths) = self.paths {
            let (written, mut seen) = (paths.get_ref(), HashSet::new());
            let twice = written
                .iter()
                .find(|path| !seen.insert((&path.portal, &path.from)));
            let wrong = match (written.len(), twice) {
                (0, _) => {
                    Some("paths = [] leaves no path; remove it to use the portal of the url".into())
                }
                (SESSIONS_TOO_MANY.., _) => {
                    Some(format!("more than {SESSIONS_MAX} paths; write fewer"))
                }
                (_, Some(path)) => Some(format!(
                    "the path to {} appears twice; write sessions = 2 for two sessions over each \
                     path",
                    path.portal
                )),
                _ => None,
            };
            if let Some(wrong) = wrong {
                return Err(ConfigError::at(paths, wrong));
            }
        }
        if let Some(sessions) = self.sessions {
            let (count, paths) = (*sessions.get_ref(), self.written_paths().len());
            if !(paths..=SESSIONS_MAX).contains(&count) || count == 0 {
                return Err(ConfigError::at(
                    sessions,
                    format!(
                        "sessions = {count} is not possible; write {paths} to {SESSIONS_MAX}, at \
                         least one for each path"
                    ),
                ));
            }
        }
        for (name, size) in [
            ("send_buffer", self.send_buffer),
            ("receive_buffer", self.receive_buffer),
        ] {
            if let Some(size) = size.filter(|size| !BUFFER_BYTES.contains(&size.get_ref().bytes()))
            {
                return Err(ConfigError::at(
                    size,
                    format!(
                        "{name} = \"{}\" is not possible; write 4KiB to 512MiB, or remove it for the system's own",
                        size.get_ref()
                    ),
                ));
            }
        }
        match self.user_timeout {
            Some(time) if time.get_ref().duration().as_millis() == 0 => Err(ConfigError::at(
                time,
                "user_timeout must be at least a millisecond; write 10s, or remove it",
            )),
            _ => Ok(()),
        }
    }
}

const SESSIONS_TOO_MANY: usize = SESSIONS_MAX + 1;

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    use super::super::isids::Openings;
    use crate::kinds::{Settings, iscsi::settings::Iscsi};

    fn parsed(more: &str) -> std::result::Result<Iscsi, String> {
        let text = format!("url = \"iscsi://127.0.0.1/iqn.2026-11.example:a/0\"\n{more}");
        let settings: Iscsi = toml::from_str(&text).map_err(|error| error.to_string())?;
        settings.check().map_err(|error| error.to_string())?;
        Ok(settings)
    }

    fn sessions(more: &str) -> Vec<PathConfig> {
        sessions_on(1, more).0
    }

    /// The sessions of a disk used by `lanes` lanes, and how many of them are optional.
    fn sessions_on(lanes: usize, more: &str) -> (Vec<PathConfig>, usize) {
        let settings = parsed(more).expect("the configuration is valid");
        let lane = engine::Lane::new(&engine::LaneConfig::default()).expect("a ring");
        let session_settings = settings.session_settings();
        let isids = Openings::default().next(Uuid::nil(), settings.url.get_ref());
        let isids = isids.expect("it is the first");
        let mut known = Addresses::new();
        let written = session_settings.written();
        let sessions = written.resolve(lanes, &mut known, Duration::from_secs(1));
        let sessions = lane.block_on(sessions);
        let sessions = sessions.expect("addresses are not looked up");
        let (first, multipath) = session_settings.configuration(sessions, &isids);
        let spare = multipath.spare;
        let all = std::iter::once(first).chain(multipath.more);
        (all.collect(), spare)
    }

    #[test]
    fn there_is_a_session_for_each_lane_up_to_four_unless_it_is_told_otherwise() {
        let paths = "paths = [{ portal = \"127.0.0.2\" }, { portal = \"127.0.0.3\" }]";
        for (lanes, more, count, spare) in [
            (1, "", 1, 0),
            (2, "", 2, 1),
            (64, "", 4, 3),
            (1, paths, 2, 0),
            (4, paths, 4, 2),
            (4, "sessions = 1", 1, 0),
            (2, "sessions = 16", 16, 0),
        ] {
            let (sessions, can_spare) = sessions_on(lanes, more);
            assert_eq!(
                (sessions.len(), can_spare),
                (count, spare),
                "{lanes} {more}"
            );
        }
    }

    #[test]
    fn sessions_are_dealt_out_over_the_paths() {
        let addresses = |more: &str| -> Vec<String> {
            let sessions = sessions(more);
            let isids: HashSet<_> = sessions
                .iter()
                .map(|path| format!("{:?}", path.isid))
                .collect();
            assert_eq!(isids.len(), sessions.len(), "each has an ISID of its own");
            sessions
                .iter()
                .map(|path| path.address.to_string())
                .collect()
        };
        assert_eq!(addresses(""), ["127.0.0.1:3260"]);
        assert_eq!(addresses("sessions = 2"), ["127.0.0.1:3260"; 2]);
        let (a, b) = ("127.0.0.2:3260", "127.0.0.3:4000");
        let paths = "paths = [{ portal = \"127.0.0.2\" }, { portal = \"127.0.0.3:4000\" }]";
        assert_eq!(addresses(paths), [a, b]);
        assert_eq!(addresses(&format!("{paths}\nsessions = 3")), [a, b, a]);
    }

    #[test]
    fn a_path_leaves_by_an_address_or_an_interface() {
        let paths = "paths = [{ portal = \"127.0.0.2\", from = \"eth0\" }, \
                     { portal = \"127.0.0.2\", from = \"fd00::1\" }]";
        let sources: Vec<_> = sessions(paths)
            .into_iter()
            .map(|path| path.source)
            .collect();
        let address = "fd00::1".parse().expect("an address");
        let interface = LocalEnd::Interface("eth0".into());
        assert_eq!(sources, [Some(interface), Some(LocalEnd::Address(address))]);
    }

    #[test]
    fn buffers_are_as_large_as_the_kernel_allows() {
        let settings = parsed("send_buffer = \"8KiB\"").expect("it is valid");
        let settings = settings.session_settings();
        assert_eq!(settings.buffers().send_bytes, Some(8 << 10));
        assert_eq!(settings.buffers().receive_bytes, None);
        settings.look().expect("every kernel allows that");
        let settings = parsed("receive_buffer = \"512MiB\"").expect("it is valid");
        let refused = settings
            .session_settings()
            .look()
            .expect_err("no kernel does");
        let message = refused.message();
        assert!(message.contains("net.core.rmem_max"), "{message}");
    }

    #[test]
    fn a_link_local_portal_has_its_zone_or_an_interface() {
        for (portal, address) in [
            (r#"portal = "[fe80::1%lo]:4""#, "[fe80::1%1]:4"),
            (r#"portal = "[fe80::1]", from = "eth0""#, "[fe80::1]:3260"),
        ] {
            let sessions = sessions(&format!("paths = [{{ {portal} }}]"));
            assert_eq!(sessions[0].address.to_string(), address);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_mend() {
        for (more, said) in [
            ("sessions = 0", "write 1 to 16"),
            ("sessions = 17", "write 1 to 16"),
            ("paths = []", "leaves no path"),
            (
                "sessions = 1\npaths = [{ portal = \"a\" }, { portal = \"b\" }]",
                "write 2 to 16",
            ),
            (
                "paths = [{ portal = \"a\" }, { portal = \"a\" }]",
                "appears twice",
            ),
            ("paths = [{ portal = \"fd00::1\" }]", "is not a portal"),
            (
                "paths = [{ portal = \"[fe80::1]:4000\" }]",
                "such as [fe80::1%eth0]:4000",
            ),
            (
                "paths = [{ portal = \"[fe80::1]\", from = \"fe80::2\" }]",
                "[fe80::1%eth0]:3260",
            ),
            (
                "paths = [{ portal = \"a\", from = \"no such thing\" }]",
                "from = \"eth0\"",
            ),
            ("policy = \"fastest\"", "least-outstanding"),
            ("user_timeout = \"0s\"", "at least a millisecond"),
            ("send_buffer = \"4095B\"", "write 4KiB to 512MiB"),
            ("receive_buffer = \"1GiB\"", "receive_buffer = \"1GiB\""),
        ] {
            let error = parsed(more).expect_err(more);
            assert!(error.contains(said), "{more}: {error}");
        }
    }
}
