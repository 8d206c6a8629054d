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
    List(Vec<Spanned<Lun>>),
    Table(BTreeMap<Spanned<String>, Spanned<Lun>>),
}

impl Luns {
    /// All entries, without their numbers.
    pub(super) fn all(&self) -> Vec<&Spanned<Lun>> {
        match self {
            Luns::List(list) => list.iter().collect(),
            Luns::Table(table) => table.values().collect(),
        }
    }
}

/// `"log"`, or `{ volume = "log", read_only = true }`: a volume, and how this target shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lun {
    pub(crate) volume: String,
    pub(crate) removable: bool,
    pub(crate) read_only: bool,
}

impl<'de> Deserialize<'de> for Lun {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            volume: String,
            #[serde(default)]
            removable: bool,
            #[serde(default)]
            read_only: bool,
        }

        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Lun;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a volume's name, such as \"log\", or { volume = \"log\", read_only = true \
                     }",
                )
            }

            fn visit_str<E: de::Error>(self, volume: &str) -> Result<Lun, E> {
                Ok(Lun {
                    volume: volume.to_owned(),
                    removable: false,
                    read_only: false,
                })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Lun, A::Error> {
                let table: Table =
                    Deserialize::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Lun {
                    volume: table.volume,
                    removable: table.removable,
                    read_only: table.read_only,
                })
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Luns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
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

        deserializer.deserialize_any(Visitor)
    }
}
