//! The settings of each kind of volume, as they are written. Defaults are here and nowhere else.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::{
    credentials::{ChapAlgorithm, ChapSettings, Credentials},
    node::Node,
    units::{Rate, Size, Time},
    url::IscsiUrl,
};

/// `ram = { size = "1GiB" }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ram {
    /// Its length.
    pub size: Spanned<Size>,
    /// The unit of its addresses.
    #[serde(default)]
    pub block_size: BlockSize,
}

/// `file = { path = "disk.img", size = "20GiB", cache = "direct" }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Relative to the directory of the configuration file.
    pub path: Spanned<PathBuf>,
    /// Its length; a file that does not exist is made with it. Without one the file must exist.
    pub size: Option<Spanned<Size>>,
    /// When what is written is durable.
    #[serde(default)]
    pub cache: Caching,
    /// The unit of its addresses.
    #[serde(default)]
    pub block_size: BlockSize,
    /// Refuses writes.
    #[serde(default)]
    pub read_only: bool,
}

/// How a file leaf uses the page cache, and when a write is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Caching {
    /// Past the page cache (O_DIRECT); durable at a flush.
    #[default]
    Direct,
    /// Past the page cache, every write durable before it ends (O_DIRECT + O_DSYNC).
    DirectSync,
    /// Through the page cache, every write durable before it ends (O_DSYNC).
    WriteThrough,
    /// In the page cache; durable at a flush.
    WriteBack,
}

impl Caching {
    /// Whether I/O goes past the page cache.
    pub fn is_direct(self) -> bool {
        matches!(self, Caching::Direct | Caching::DirectSync)
    }

    /// Whether every write is durable when it ends.
    pub fn is_synchronous(self) -> bool {
        matches!(self, Caching::DirectSync | Caching::WriteThrough)
    }
}

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

impl Iscsi {
    /// Who proves what.
    pub fn chap(&self) -> ChapSettings<'_> {
        ChapSettings {
            chap: self.chap.as_deref(),
            mutual: self.mutual.as_deref(),
            algorithms: self.chap_algorithms.as_ref(),
        }
    }
}

fn seconds<const N: u64>() -> Spanned<Time> {
    Spanned::new(0..0, Time::from_duration(Duration::from_secs(N)))
}

/// `stripe = { unit = "64KiB", of = [ … ] }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stripe {
    /// What goes to one child before the next one's turn.
    /// A new stripe gets 64 KiB when it is not given; an existing one says its own.
    pub unit: Option<Spanned<Size>>,
    /// The children in order.
    pub of: Spanned<Vec<Node>>,
}

/// `cache = { size = "512MiB", of = … }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// The memory that it may hold.
    pub size: Spanned<Size>,
    /// The most that is read ahead of a sequential run; "0B" for nothing. The cache chooses when
    /// it is not given.
    pub read_ahead: Option<Spanned<Size>>,
    /// What is cached.
    pub of: Node,
}

/// `throttle = { rate = "1Gbit/s", of = … }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// Of the payload, in each direction.
    pub rate: Rate,
    /// Added to every request.
    pub latency: Option<Spanned<Time>>,
    /// What is at the end of the link.
    pub of: Node,
}

/// `fault = { rules = [ { on = "write", fail = "medium", skip = 3, times = 1 } ], of = … }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Looked at in order; the first that matches decides.
    #[serde(default)]
    pub rules: Vec<Spanned<FaultRule>>,
    /// What fails.
    pub of: Node,
}

/// Which requests fail, and how. Exactly one of `fail`, `delay` and `hang` is given.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// The operation that it matches; all when not given.
    pub on: Option<FaultOperation>,
    /// Matches are let pass this many times first.
    #[serde(default)]
    pub skip: u64,
    /// It acts this many times, then never again; without a limit when not given.
    pub times: Option<u64>,
    /// The request ends with this error.
    pub fail: Option<FaultKind>,
    /// The request begins this much later.
    pub delay: Option<Time>,
    /// The request never begins.
    #[serde(default)]
    pub hang: bool,
}

impl FaultRule {
    /// What it does; `None` unless exactly one action is given.
    pub fn action(&self) -> Option<FaultAction> {
        match (self.fail, self.delay, self.hang) {
            (Some(kind), None, false) => Some(FaultAction::Fail(kind)),
            (None, Some(time), false) => Some(FaultAction::Delay(time)),
            (None, None, true) => Some(FaultAction::Hang),
            _ => None,
        }
    }
}

/// What a [`FaultRule`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// Ends the request with an error.
    Fail(FaultKind),
    /// Begins it later.
    Delay(Time),
    /// Never begins it.
    Hang,
}

/// The operation that a [`FaultRule`] matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultOperation {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards and writes of zeroes.
    Discard,
}

/// The error of a [`FaultRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A failed medium.
    Medium,
    /// No space left.
    NoSpace,
    /// Nobody answers.
    Unreachable,
    /// No answer came in time.
    TimedOut,
}

/// `recorder = { of = { file = { … } } }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorder {
    /// A file leaf: the recorder goes beneath it.
    pub of: Node,
}

/// `stats = { of = … }`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stats {
    /// What is measured.
    pub of: Node,
}

/// The unit of a volume's addresses: 512 (the default: every initiator takes it) or 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize(u32);

impl BlockSize {
    /// 512 or 4096.
    pub fn bytes(self) -> u32 {
        self.0
    }
}

impl Default for BlockSize {
    fn default() -> Self {
        BlockSize(512)
    }
}

impl<'de> Deserialize<'de> for BlockSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = BlockSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block size: 512 or 4096, without quotes")
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<BlockSize, E> {
                match bytes {
                    512 | 4096 => Ok(BlockSize(bytes as u32)),
                    _ => Err(E::custom(format!(
                        "a block size of {bytes} is not offered; write 512 or 4096"
                    ))),
                }
            }
        }

        deserializer.deserialize_i64(Visitor)
    }
}
