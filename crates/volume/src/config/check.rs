//! What parses and cannot be meant: sizes that are no whole blocks, names that nobody has, trees
//! that contain themselves. Nothing here looks at the system; the graph does.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;

use super::{
    ConfigError, File, Iscsi, Kind, Node, Ram, Size, Stripe, Volumes, What,
    url::{ISCSI_NAME_BYTES_MAX, is_iscsi_name},
};

/// Stripes and caches move data in pages; a finer unit would split every one.
const UNIT_BYTES: u64 = 4096;
/// More than any machine has paths for; keeps a typing error from opening thousands of sessions.
const CHILDREN_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 64;

impl Volumes {
    /// Refuses what cannot be meant.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place and what to write instead.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.errors().into_iter().next().map_or(Ok(()), Err)
    }

    /// All that cannot be meant, each with its place and what to write instead.
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut all_are_found = true;
        for (name, node) in &self.0 {
            errors.extend(check_name(name, node).err());
            for node in node.all() {
                errors.extend(match &node.what {
                    What::Named(name) => {
                        let found = self.find(name, node);
                        all_are_found &= found.is_ok();
                        found.err()
                    }
                    What::Inline(kind) => check_kind(kind).err(),
                });
            }
        }
        let mut done = BTreeSet::new();
        for name in self.0.keys().take_while(|_| all_are_found) {
            errors.extend(self.check_acyclic(name, &mut Vec::new(), &mut done).err());
        }
        errors
    }

    /// The volume called `name`.
    ///
    /// # Errors
    /// When there is none; the message lists those that there are. `at` is where it was named.
    pub fn find(&self, name: &str, at: &Node) -> Result<&Node, ConfigError> {
        self.0.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
            ConfigError::new(
                at.span.clone(),
                format!(
                    "there is no volume called \"{name}\"; {}",
                    match names.len() {
                        0 => format!("write a table [volume.{name}]"),
                        1 => format!("there is only \"{}\"", names[0]),
                        _ => format!("there are {}", names.join(", ")),
                    }
                ),
            )
        })
    }

    /// What the volume called `name` is made of, by name: itself and all that it refers to. Empty when
    /// there is no such volume.
    pub fn parts(&self, name: &str) -> BTreeSet<&str> {
        let mut parts = BTreeSet::new();
        let mut names = vec![name];
        while let Some(name) = names.pop() {
            let Some((name, node)) = self.0.get_key_value(name) else {
                continue;
            };
            if parts.insert(name.as_str()) {
                let mut named = Vec::new();
                collect_names(node, &mut named);
                names.extend(named.into_iter().map(|(name, _)| name));
            }
        }
        parts
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
                        "volume \"{child}\" would contain itself ({}); take one of these out",
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
        What::Named(name) => names.push((name, node)),
        What::Inline(kind) => kind
            .children()
            .iter()
            .for_each(|child| collect_names(child, names)),
    }
}

fn check_name(name: &str, node: &Node) -> Result<(), ConfigError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
        return Err(ConfigError::new(
            node.span.clone(),
            format!(
                "\"{name}\" cannot name a volume; use 1 to {NAME_BYTES_MAX} letters, digits, dots, \
                 dashes and underscores"
            ),
        ));
    }
    Ok(())
}

fn check_kind(kind: &Kind) -> Result<(), ConfigError> {
    match kind {
        Kind::Ram(Ram { size, block_size }) => check_blocks(size, block_size.bytes()),
        Kind::File(file) => check_file(file),
        Kind::Iscsi(iscsi) => check_iscsi(iscsi),
        Kind::Stripe(stripe) => check_stripe(stripe),
        Kind::Cache(cache) => {
            if cache.size.get_ref().bytes() < UNIT_BYTES {
                return Err(error_at(
                    &cache.size,
                    format!("a cache of {} holds nothing; write 64MiB or more", cache.size.get_ref()),
                ));
            }
            match &cache.read_ahead {
                Some(ahead) if ahead.get_ref() > cache.size.get_ref() => Err(error_at(
                    ahead,
                    format!(
                        "what is read ahead ({}) does not fit into the cache ({})",
                        ahead.get_ref(),
                        cache.size.get_ref()
                    ),
                )),
                _ => Ok(()),
            }
        }
        Kind::Fault(fault) => fault.rules.iter().try_for_each(|rule| {
            if rule.get_ref().action().is_none() {
                return Err(error_at(
                    rule,
                    "a fault rule does one thing; write one of fail = \"medium\", delay = \"5ms\" and \
                     hang = true",
                ));
            }
            Ok(())
        }),
        Kind::Recorder(recorder) => match &recorder.of.what {
            What::Inline(kind) if matches!(**kind, Kind::File(_)) => Ok(()),
            _ => Err(ConfigError::new(
                recorder.of.span.clone(),
                "a recorder goes beneath a file leaf; write of = { file = { path = … } }",
            )),
        },
        Kind::Throttle(_) | Kind::Stats(_) => Ok(()),
    }
}

fn check_iscsi(iscsi: &Iscsi) -> Result<(), ConfigError> {
    for time in [&iscsi.connect_timeout, &iscsi.request_timeout] {
        if time.get_ref().duration().is_zero() {
            return Err(error_at(
                time,
                "a time limit of 0 lets nothing happen; write 5s",
            ));
        }
    }
    match &iscsi.initiator {
        Some(name) if !is_iscsi_name(name.get_ref()) => Err(error_at(
            name,
            format!(
                "initiator = \"{}\" is not an iSCSI name, which begins with iqn., eui. or naa., has no \
                 space in it and is not longer than {ISCSI_NAME_BYTES_MAX} bytes; write one as \
                 \"iqn.2026-11.io.sanstone:dbhost\", or nothing for this host's own",
                name.get_ref()
            ),
        )),
        _ => Ok(()),
    }
}

fn check_file(file: &File) -> Result<(), ConfigError> {
    if file.path.get_ref().as_os_str().is_empty() {
        return Err(error_at(&file.path, "the path is empty; write the file's"));
    }
    match &file.size {
        Some(size) => check_blocks(size, file.block_size.bytes()),
        None => Ok(()),
    }
}

fn check_stripe(stripe: &Stripe) -> Result<(), ConfigError> {
    if let Some(unit) = &stripe.unit {
        let bytes = unit.get_ref().bytes();
        if !bytes.is_power_of_two() || !(UNIT_BYTES..=1 << 30).contains(&bytes) {
            return Err(error_at(
                unit,
                format!(
                    "a stripe unit of {} is not offered; write a power of two from 4KiB to 1GiB",
                    unit.get_ref()
                ),
            ));
        }
    }
    let children = stripe.of.get_ref();
    if children.is_empty() || children.len() > CHILDREN_MAX {
        return Err(error_at(
            &stripe.of,
            format!(
                "a stripe of {} volumes is not offered; name 1 to {CHILDREN_MAX}",
                children.len()
            ),
        ));
    }
    let mut seen = BTreeMap::new();
    for child in children {
        if let What::Named(name) = &child.what {
            if seen.insert(name, ()).is_some() {
                return Err(ConfigError::new(
                    child.span.clone(),
                    format!(
                        "the stripe names \"{name}\" twice, so that its halves would overwrite each \
                         other; name each volume once"
                    ),
                ));
            }
        }
    }
    Ok(())
}

fn check_blocks(size: &Spanned<Size>, block_bytes: u32) -> Result<(), ConfigError> {
    let bytes = size.get_ref().bytes();
    let block = u64::from(block_bytes);
    if bytes == 0 || bytes % block != 0 {
        let below = Size::from_bytes((bytes / block * block).max(block));
        return Err(error_at(
            size,
            format!(
                "a size of {} is not a whole number of blocks of {block} bytes; write \"{below}\"",
                size.get_ref()
            ),
        ));
    }
    Ok(())
}

fn error_at<T>(value: &Spanned<T>, message: impl Into<String>) -> ConfigError {
    ConfigError::new(value.span(), message)
}
