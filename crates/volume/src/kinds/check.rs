//! Validates configurations that parse but make no sense: unknown names, cyclic trees, and settings that their kind
//! rejects. Nothing here looks at the system; [`Graph::check`](crate::graph::Graph::check) does.

use std::{collections::BTreeSet, ptr};

use super::{Node, NodeForm, Volumes};
use crate::values::ConfigError;

const NAME_BYTES_MAX: usize = 64;

impl Volumes {
    /// Rejects configurations that make no sense.
    ///
    /// # Errors
    /// The first problem, with its place and what to write instead.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.errors().into_iter().next().map_or(Ok(()), Err)
    }

    /// All problems, each with its place and what to write instead.
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut tree_errors = Vec::new();
        let mut all_are_found = true;
        for (name, node) in &self.0 {
            errors.extend(check_name(name, node).err());
            for node in node.all() {
                errors.extend(match &node.what {
                    NodeForm::Named(name) => {
                        let found = self.find(name, node);
                        all_are_found &= found.is_ok();
                        found.err()
                    }
                    NodeForm::Inline(kind) => kind.settings().check().err(),
                });
            }
        }
        let mut done = BTreeSet::new();
        for name in self.0.keys().take_while(|_| all_are_found) {
            errors.extend(self.check_acyclic(name, &mut Vec::new(), &mut done).err());
        }
        // These checks need trees that are acyclic and valid in themselves.
        for (name, node) in self.0.iter().take_while(|_| errors.is_empty()) {
            tree_errors.extend(self.check_reached_once(name, node).err());
            for node in node.all() {
                tree_errors.extend(self.check_own(node).err());
                let kind = node.inline().map(|kind| kind.settings().check_named(self));
                tree_errors.extend(kind.and_then(Result::err));
            }
        }
        errors.extend(tree_errors);
        errors
    }

    /// The volume called `name`.
    ///
    /// # Errors
    /// When there is none; the message lists the existing ones. `at` is where it was named.
    pub fn find(&self, name: &str, at: &Node) -> Result<&Node, ConfigError> {
        self.0.get(name).ok_or_else(|| {
            let names = self.0.keys().map(|name| name.escape_debug().to_string());
            let names: Vec<String> = names.collect();
            let name = name.escape_debug();
            ConfigError::new(
                at.span.clone(),
                format!(
                    "there is no volume called \"{name}\"; {}",
                    match names.len() {
                        0 => format!("add a table [volume.{name}]"),
                        1 => format!("there is only \"{}\"", names[0]),
                        _ => format!("there are {}", names.join(", ")),
                    }
                ),
            )
        })
    }

    /// The names of all volumes that the volume called `name` consists of: itself and, transitively, all that it
    /// refers to. Empty when there is no such volume.
    pub fn parts(&self, name: &str) -> BTreeSet<&str> {
        self.reached_from(name, collected_names)
    }

    /// Those of its [parts](Volumes::parts) that nobody else may use at the same time.
    pub fn own_parts(&self, name: &str) -> BTreeSet<&str> {
        self.reached_from(name, unshared_names)
    }

    fn reached_from(&self, name: &str, names_in: fn(&Node) -> Names<'_>) -> BTreeSet<&str> {
        let mut parts = BTreeSet::new();
        let mut names = vec![name];
        while let Some(name) = names.pop() {
            let Some((name, node)) = self.0.get_key_value(name) else {
                continue;
            };
            if parts.insert(name.as_str()) {
                names.extend(names_in(node).into_iter().map(|(name, _)| name));
            }
        }
        parts
    }

    /// The volume called `name`, and those that it is made of.
    pub(crate) fn only(&self, name: &str) -> Volumes {
        let parts = self.parts(name).into_iter();
        let found = parts.filter_map(|part| self.0.get_key_value(part));
        Volumes(
            found
                .map(|(name, node)| (name.clone(), node.clone()))
                .collect(),
        )
    }

    /// Where the volume called `name` is named as a part that is not [shared](super::Settings::shared_child).
    pub(crate) fn named_as_a_part(&self, name: &str) -> Option<&Node> {
        let mut all = self.0.values().flat_map(unshared_names);
        all.find_map(|(part, reference)| (part == name).then_some(reference))
    }

    /// Rejects a tree that reaches a volume in two ways: writes through one of them would bypass caches on the other.
    fn check_reached_once(&self, name: &str, node: &Node) -> Result<(), ConfigError> {
        let mut seen = BTreeSet::new();
        let mut nodes = vec![node];
        while let Some(node) = nodes.pop() {
            for (child, reference) in unshared_names(node) {
                if !seen.insert(child) {
                    let message = format!(
                        "\"{name}\" reaches \"{child}\" in two ways, whose writes would overwrite \
                         each other and bypass each other's caches; name it once"
                    );
                    return Err(ConfigError::new(reference.span.clone(), message));
                }
                nodes.extend(self.0.get(child));
            }
        }
        Ok(())
    }

    /// Rejects a cache in front of a disk that others may write to: only a claim would tell when they do.
    fn check_own(&self, node: &Node) -> Result<(), ConfigError> {
        let NodeForm::Inline(kind) = &node.what else {
            return Ok(());
        };
        let settings = kind.settings();
        if !settings.needs_only_writer() {
            return Ok(());
        }
        let mut shared = settings.children().iter().map(|child| self.shared(child));
        match shared.find_map(|found| found) {
            None => Ok(()),
            Some(disk) => {
                let message = format!(
                    "the {} does not see what others write to {}; set only_writer = true in it if \
                     nobody else ever writes there, or put it above a stripe, which keeps others \
                     out (a stripe of one disk does, too)",
                    kind.name(),
                    disk.describe()
                );
                let span = settings.span().unwrap_or_else(|| node.span.clone());
                Err(ConfigError::new(span, message))
            }
        }
    }

    /// A node at or below `node` that others may write to, with nothing in between that keeps them out.
    fn shared<'a>(&'a self, node: &'a Node) -> Option<&'a Node> {
        match &node.what {
            NodeForm::Named(name) => self.shared(self.0.get(name)?),
            NodeForm::Inline(kind) if kind.settings().is_shared() => Some(node),
            NodeForm::Inline(kind) if kind.settings().claims_children() => None,
            NodeForm::Inline(kind) => kind.children().iter().find_map(|child| self.shared(child)),
        }
    }

    fn check_acyclic<'a>(
        &'a self,
        name: &'a str,
        path: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> Result<(), ConfigError> {
        if !done.insert(name) {
            return Ok(());
        }
        path.push(name);
        let mut named = Vec::new();
        collect_names(&self.0[name], &mut named);
        for (child, node) in named {
            if let Some(start) = path.iter().position(|&above| above == child) {
                let mut circle = path[start..].to_vec();
                circle.push(child);
                return Err(ConfigError::new(
                    node.span.clone(),
                    format!(
                        "volume \"{child}\" would contain itself ({}); remove one of these",
                        circle.join(" of ")
                    ),
                ));
            }
            self.check_acyclic(child, path, done)?;
        }
        path.pop();
        Ok(())
    }
}

fn collect_names<'a>(node: &'a Node, names: &mut Vec<(&'a str, &'a Node)>) {
    match &node.what {
        NodeForm::Named(name) => names.push((name, node)),
        NodeForm::Inline(kind) => kind
            .children()
            .iter()
            .for_each(|child| collect_names(child, names)),
    }
}

/// The volumes that a node refers to, each with the reference.
type Names<'a> = Vec<(&'a str, &'a Node)>;

fn collected_names(node: &Node) -> Names<'_> {
    let mut named = Vec::new();
    collect_names(node, &mut named);
    named
}

/// Those of [`collected_names`] that nobody else may use.
fn unshared_names(node: &Node) -> Names<'_> {
    let mut named = collected_names(node);
    let kinds = node.all().into_iter().filter_map(Node::inline);
    let shared: Vec<_> = kinds
        .filter_map(|kind| kind.settings().shared_child())
        .collect();
    named.retain(|(_, reference)| !shared.iter().any(|it| ptr::eq(*it, *reference)));
    named
}

fn check_name(name: &str, node: &Node) -> Result<(), ConfigError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_directory = name == "." || name == "..";
    if is_directory || name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed)
    {
        return Err(ConfigError::new(
            node.span.clone(),
            format!(
                "\"{}\" is not a valid volume name; use 1 to {NAME_BYTES_MAX} letters, digits, \
                 dots, dashes and underscores",
                name.escape_debug()
            ),
        ));
    }
    Ok(())
}
