//! Nodes of the tree: the sum of all kinds, and how a node is read from a string or a table.

use std::{collections::BTreeMap, fmt, ops::Range};

use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::kinds::{Cache, Fault, File, Iscsi, Ram, Recorder, Stats, Stripe, Throttle};

/// All `[volume.NAME]` tables of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volumes(pub BTreeMap<String, Node>);

impl<'de> Deserialize<'de> for Volumes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(Volumes)
    }
}

/// A volume in the configuration, and the bytes of the text that describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where in the text it is.
    pub span: Range<usize>,
    /// What it is.
    pub what: What,
}

impl Node {
    /// What a message calls it: its name, its path or URL, or its kind.
    pub fn describe(&self) -> String {
        match &self.what {
            What::Named(name) => name.clone(),
            What::Inline(kind) => match &**kind {
                Kind::File(file) => file.path.get_ref().display().to_string(),
                Kind::Iscsi(iscsi) => iscsi.url.get_ref().to_string(),
                other => match other.children() {
                    [child] => format!("{} of {}", other.name(), child.describe()),
                    _ => other.name().to_owned(),
                },
            },
        }
    }
}

/// A reference or a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The volume of another `[volume.NAME]`.
    Named(String),
    /// One described here.
    Inline(Box<Kind>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<What>::deserialize(deserializer)?;
        Ok(Node {
            span: spanned.span(),
            what: spanned.into_inner(),
        })
    }
}

impl Node {
    /// This one and all that is described in it, parents first; references are not followed.
    pub fn all(&self) -> Vec<&Node> {
        let mut all = vec![self];
        if let What::Inline(kind) = &self.what {
            all.extend(kind.children().iter().flat_map(Node::all));
        }
        all
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:literal => $variant:ident,)*) => {
        /// Every kind of volume with its settings.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $variant($variant),)*
        }

        impl Kind {
            /// What the kind is called in a configuration.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Kind::$variant(_) => $name,)*
                }
            }

            fn from_entry<'de, A: de::MapAccess<'de>>(
                name: &str,
                map: &mut A,
            ) -> Result<Kind, A::Error> {
                match name {
                    $($name => map.next_value().map(Kind::$variant),)*
                    // Refused where its value stands, so that the error has that place.
                    "path" | "size" | "url" => map.next_value_seed(Refuse(format!(
                        "{name} is a setting of a kind of volume; write {}",
                        match name {
                            "url" => "iscsi = { url = \"iscsi://…\" }",
                            "size" => "ram = { size = \"1GiB\" }, or file = { path = \"…\", size = \"1GiB\" }",
                            _ => "file = { path = \"…\" }",
                        }
                    ))),
                    "type" | "kind" => map.next_value_seed(Refuse(format!(
                        "a volume's {name} is the key of its settings; in place of {name} = \"file\" and \
                         path = \"…\" write file = {{ path = \"…\" }}"
                    ))),
                    other => map.next_value_seed(Refuse(format!(
                        "\"{other}\" is not a kind of volume; the kinds are {}",
                        [$($name),*].join(", ")
                    ))),
                }
            }
        }
    };
}

kinds! {
    /// In memory; gone when the process ends.
    "ram" => Ram,
    /// A file or a block device.
    "file" => File,
    /// A disk of an iSCSI target.
    "iscsi" => Iscsi,
    /// Several volumes of equal length, their blocks dealt out in turn.
    "stripe" => Stripe,
    /// Memory in front of a volume.
    "cache" => Cache,
    /// A volume behind a link of limited rate.
    "throttle" => Throttle,
    /// A volume that fails as told.
    "fault" => Fault,
    /// A file whose writes and flushes are logged.
    "recorder" => Recorder,
    /// A volume whose requests are counted and timed.
    "stats" => Stats,
}

/// Refuses a value with this message, whatever it is.
struct Refuse(String);

impl<'de> de::DeserializeSeed<'de> for Refuse {
    type Value = Kind;

    fn deserialize<D: Deserializer<'de>>(self, _: D) -> Result<Kind, D::Error> {
        Err(de::Error::custom(self.0))
    }
}

impl Kind {
    /// The nodes it is made of, in order.
    pub fn children(&self) -> &[Node] {
        match self {
            Kind::Ram(_) | Kind::File(_) | Kind::Iscsi(_) => &[],
            Kind::Stripe(stripe) => stripe.of.get_ref(),
            Kind::Cache(cache) => std::slice::from_ref(&cache.of),
            Kind::Throttle(throttle) => std::slice::from_ref(&throttle.of),
            Kind::Fault(fault) => std::slice::from_ref(&fault.of),
            Kind::Recorder(recorder) => std::slice::from_ref(&recorder.of),
            Kind::Stats(stats) => std::slice::from_ref(&stats.of),
        }
    }
}

impl<'de> Deserialize<'de> for What {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = What;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a volume: the name of one in quotes, or a table as { ram = { size = \"1GiB\" } }",
                )
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<What, E> {
                Ok(What::Named(name.to_owned()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<What, A::Error> {
                let Some(name) = map.next_key::<String>()? else {
                    return Err(de::Error::custom(
                        "a volume needs a kind; write one as ram = { size = \"1GiB\" }",
                    ));
                };
                let kind = Kind::from_entry(&name, &mut map)?;
                if let Some(second) = map.next_key::<String>()? {
                    return Err(de::Error::custom(format!(
                        "a volume has one kind, but here are \"{name}\" and \"{second}\"; settings of \
                         \"{name}\" go inside its braces, another volume into a table of its own"
                    )));
                }
                Ok(What::Inline(Box::new(kind)))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
