//! The kinds of volume: one folder for each, and the table of them.
//!
//! A folder contains everything particular to its kind. Its `settings.rs` has the settings as users write them, their
//! validation, and how such a volume is opened: the [`Settings`] trait, which is all that the rest of the crate uses.
//! How to add a kind is in CONTRIBUTING.md.

pub mod cache;
pub(crate) mod change;
mod check;
pub mod concat;
pub mod fault;
pub mod file;
mod given;
mod identity;
pub mod iscsi;
mod look;
pub mod mirror;
mod node;
pub mod ram;
mod settings;
pub mod starts;
pub mod stats;
pub mod stripe;
pub mod throttle;

use serde::de;

use crate::values::Size;

use self::change::Change;
pub use self::{
    given::Leaf,
    identity::{FileIdentity, NewLength, NewStripe, Source, Superblocks, VolumeIdentity},
    look::Findings,
    node::{Node, NodeForm, Volumes},
};
pub(crate) use self::{
    identity::HasSuperblocks,
    look::{Look, USE_IT_TWICE},
    settings::Settings,
};

/// Builds the enum of all kinds from `FOLDER => Settings`; the folder name is also the kind's name in a
/// configuration.
macro_rules! kinds {
    ($($(#[$doc:meta])* $folder:ident => $settings:ident,)*) => {
        /// A volume of any kind, with its settings.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[expect(
            clippy::large_enum_variant,
            reason = "there is one for each node of a configuration"
        )]
        pub enum Kind {
            $($(#[$doc])* $settings($folder::settings::$settings),)*
            /// Given by the program: see [`Volumes::give`].
            Given(given::Leaf),
        }

        impl Kind {
            /// The names of all kinds that a configuration can describe.
            pub const NAMES: &[&str] = &[$(stringify!($folder)),*];

            /// The kind's name in a configuration.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Kind::$settings(_) => stringify!($folder),)*
                    Kind::Given(_) => "given",
                }
            }

            /// What becomes of its own settings if they are replaced by those of `new` while it is open.
            pub(crate) fn change(&self, new: &Kind) -> Change {
                match (self, new) {
                    $((Kind::$settings(old), Kind::$settings(new)) => old.over(new).change(new),)*
                    _ => Change::between(self, new),
                }
            }

            pub(crate) fn settings(&self) -> &dyn Settings {
                match self {
                    $(Kind::$settings(settings) => settings,)*
                    Kind::Given(leaf) => leaf,
                }
            }

            /// Parses the settings of the kind called `name`.
            pub(crate) fn read<'de, A: de::MapAccess<'de>>(
                name: &str,
                map: &mut A,
            ) -> Result<Kind, A::Error> {
                $(if name == stringify!($folder) {
                    return map.next_value().map(Kind::$settings);
                })*
                // Rejected where its value is, so that the error has that position.
                map.next_value_seed(Refuse(no_kind(name)))
            }
        }
    };
}

kinds! {
    /// In memory; gone when the process ends.
    ram => Ram,
    /// A file or a block device.
    file => File,
    /// A disk on an iSCSI target.
    iscsi => Iscsi,
    /// Several volumes of equal length, with their blocks interleaved.
    stripe => Stripe,
    /// Several volumes of any length, one after the other.
    concat => Concat,
    /// Two copies, on each of which every write is.
    mirror => Mirror,
    /// A memory cache in front of a volume.
    cache => Cache,
    /// A volume behind a link of limited rate.
    throttle => Throttle,
    /// A volume that fails on demand.
    fault => Fault,
    /// A volume whose requests are counted and timed.
    stats => Stats,
}

impl Kind {
    /// Its child nodes, in order.
    pub fn children(&self) -> &[Node] {
        self.settings().children()
    }

    /// For a disk of another machine: who logs in there, and how, for people.
    pub fn login(&self) -> Option<String> {
        self.settings().login()
    }

    /// The memory that it may use.
    pub fn memory(&self) -> Option<&toml::Spanned<Size>> {
        self.settings().memory()
    }
}

/// The error message for an unknown kind.
fn no_kind(name: &str) -> String {
    let mend = match name {
        "url" => "iscsi = { url = \"iscsi://…\" }",
        "size" => "ram = { size = \"1GiB\" }, or file = { path = \"…\", size = \"1GiB\" }",
        "path" => "file = { path = \"…\" }",
        "type" | "kind" => {
            return format!(
                "a volume's {name} is the key of its settings: instead of {name} = \"file\" and \
                 path = \"…\" write file = {{ path = \"…\" }}"
            );
        }
        _ => {
            return format!(
                "\"{name}\" is not a kind of volume; the kinds are {}",
                Kind::NAMES.join(", ")
            );
        }
    };
    format!("{name} is a setting of a kind of volume; write {mend}")
}

/// Rejects any value with this message.
struct Refuse(String);

impl<'de> de::DeserializeSeed<'de> for Refuse {
    type Value = Kind;

    fn deserialize<D: de::Deserializer<'de>>(self, _: D) -> Result<Kind, D::Error> {
        Err(de::Error::custom(self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_kind_has_a_row_and_a_page_in_the_guide() {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
        let read = |page: &str| std::fs::read_to_string(guide.join(page)).expect(page);
        let configuration = read("configuration.md");
        for name in Kind::NAMES {
            let page = format!("{name}.md");
            let row = configuration
                .lines()
                .find(|line| line.starts_with(&format!("| `{name}` | `")));
            let row = row.unwrap_or_else(|| panic!("no row for `{name}` in the table of volumes"));
            assert!(row.contains(&format!("({page})")), "{row}");
            let heading = format!("# `{name}`");
            let has_heading = read(&page).starts_with(&heading);
            assert!(
                has_heading,
                "docs/guide/{page} does not begin with {heading}"
            );
        }
    }
}
