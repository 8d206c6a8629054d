//! Nodes of the configuration tree, and how they are parsed from a string or a table.
//!
//! Two nodes are equal if they mean the same, wherever in the text they are.

use std::{collections::BTreeMap, fmt, ops::Range};

use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::Kind;

/// All `[volume.NAME]` tables of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volumes(pub BTreeMap<String, Node>);

impl<'de> Deserialize<'de> for Volumes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(Volumes)
    }
}

/// A volume in the configuration, with its position in the text.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its bytes in the text.
    pub span: Range<usize>,
    /// What it is.
    pub what: NodeForm,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.what == other.what
    }
}

impl Eq for Node {}

impl Node {
    /// A reference to the volume called `name` that is not in the text.
    pub(crate) fn named(name: &str) -> Self {
        Node {
            span: 0..0,
            what: NodeForm::Named(name.to_owned()),
        }
    }

    /// The volume that is described here; `None`: it is described elsewhere.
    pub(crate) fn inline(&self) -> Option<&Kind> {
        match &self.what {
            NodeForm::Named(_) => None,
            NodeForm::Inline(kind) => Some(kind),
        }
    }

    /// The name of the volume that it refers to.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.what {
            NodeForm::Named(name) => Some(name),
            NodeForm::Inline(_) => None,
        }
    }

    /// What a message calls it: its name, its path or URL, or its kind.
    pub fn describe(&self) -> String {
        match &self.what {
            NodeForm::Named(name) => name.clone(),
            NodeForm::Inline(kind) => match (kind.settings().describe(), kind.children()) {
                (Some(name), _) => name,
                (None, [child]) => format!("{} of {}", kind.name(), child.describe()),
                (None, _) => kind.name().to_owned(),
            },
        }
    }
}

/// A reference or an inline description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeForm {
    /// The volume of another `[volume.NAME]`.
    Named(String),
    /// One described here.
    Inline(Box<Kind>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<NodeForm>::deserialize(deserializer)?;
        Ok(Node {
            span: spanned.span(),
            what: spanned.into_inner(),
        })
    }
}

impl Node {
    /// This node and everything described inside it, parents first; references are not followed.
    pub fn all(&self) -> Vec<&Node> {
        let mut all = vec![self];
        if let NodeForm::Inline(kind) = &self.what {
            all.extend(kind.children().iter().flat_map(Node::all));
        }
        all
    }
}

impl<'de> Deserialize<'de> for NodeForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;

        impl<'de> de::Visitor<'de> for NodeVisitor {
            type Value = NodeForm;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a volume: its name in quotes, or a table such as { ram = { size = \"1GiB\" } \
                     }",
                )
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<NodeForm, E> {
                Ok(NodeForm::Named(name.to_owned()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<NodeForm, A::Error> {
                let Some(name) = map.next_key::<String>()? else {
                    return Err(de::Error::custom(
                        "a volume needs a kind, such as ram = { size = \"1GiB\" }",
                    ));
                };
                let kind = Kind::read(&name, &mut map)?;
                if let Some(second) = map.next_key::<String>()? {
                    return Err(de::Error::custom(format!(
                        "a volume has one kind, but this one has \"{name}\" and \"{second}\"; put \
                         settings of \"{name}\" inside its braces, and another volume into its own \
                         table"
                    )));
                }
                Ok(NodeForm::Inline(Box::new(kind)))
            }
        }

        deserializer.deserialize_any(NodeVisitor)
    }
}
