//! Parsing of a target's LUNs: a list or a table, of names or of tables.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

/// The accepted forms of `luns`, for error messages.
pub(super) const FORMS: &str =
    "volumes by number, such as { 0 = \"log\" }, or a list of them, such as [\"log\"]";

/// `luns = ["log", "scratch"]`, or `{ 0 = "log", 7 = "scratch" }`.
#[derive(Debug)]
pub(super) enum Luns {
    List(Vec<Spanned<LunEntry>>),
    Table(BTreeMap<Spanned<String>, Spanned<LunEntry>>),
}

impl Luns {
    /// All entries, without their numbers.
    pub(super) fn all(&self) -> Vec<&Spanned<LunEntry>> {
        match self {
            Luns::List(list) => list.iter().collect(),
            Luns::Table(table) => table.values().collect(),
        }
    }
}

/// `"log"`, or `{ volume = "log", read_only = true }`: a volume, and how this target shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LunEntry {
    pub(crate) volume: String,
    pub(crate) removable: bool,
    pub(crate) read_only: bool,
}

impl<'de> Deserialize<'de> for LunEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct LunTable {
            volume: String,
            #[serde(default)]
            removable: bool,
            #[serde(default)]
            read_only: bool,
        }

        struct LunEntryVisitor;

        impl<'de> de::Visitor<'de> for LunEntryVisitor {
            type Value = LunEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a volume's name, such as \"log\", or { volume = \"log\", read_only = true \
                     }",
                )
            }

            fn visit_str<E: de::Error>(self, volume: &str) -> Result<LunEntry, E> {
                Ok(LunEntry {
                    volume: volume.to_owned(),
                    removable: false,
                    read_only: false,
                })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<LunEntry, A::Error> {
                let table: LunTable =
                    Deserialize::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(LunEntry {
                    volume: table.volume,
                    removable: table.removable,
                    read_only: table.read_only,
                })
            }
        }

        deserializer.deserialize_any(LunEntryVisitor)
    }
}

impl<'de> Deserialize<'de> for Luns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LunsVisitor;

        impl<'de> de::Visitor<'de> for LunsVisitor {
            type Value = Luns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(FORMS)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<Luns, A::Error> {
                Deserialize::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(Luns::List)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Luns, A::Error> {
                Deserialize::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(Luns::Table)
            }
        }

        deserializer.deserialize_any(LunsVisitor)
    }
}
