//! Formats what was found as volumes of a configuration.

use std::collections::HashSet;

use volume::discovery::{FoundPortal, FoundTarget, IscsiUrl};

/// Maximum number of paths of a volume.
const PATHS_MAX: usize = 16;
/// Maximum length of a generated name, in bytes, before the suffix that makes it unique.
const NAME_BYTES_MAX: usize = 40;

/// Generates volumes with unique names.
#[derive(Default)]
pub(super) struct Volumes {
    names: HashSet<String>,
}

impl Volumes {
    /// The volume for `lun` of `target`, with these login settings. It is commented out if no configuration
    /// can express it.
    pub(super) fn volume(&mut self, target: &FoundTarget, lun: u16, login: &str) -> String {
        let url = format!("iscsi://{}/{}/{lun}", target.portals[0].portal, target.name);
        if let Err(why) = url.parse::<IscsiUrl>() {
            return format!("# no volume can use it: {why}\n");
        }
        let name = self.name(&target.name, lun);
        let (url, paths) = (quoted(&url), paths(&target.portals));
        format!("[volume.{name}]\niscsi = {{ url = {url}{paths}{login} }}\n")
    }

    /// A name from the end of the target's name, using only characters that a TOML key allows without quotes.
    fn name(&mut self, target_name: &str, lun: u16) -> String {
        let end = target_name.rsplit(':').next().unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = end.chars().map(plain).take(NAME_BYTES_MAX).collect();
        let name = match name.trim_matches('-') {
            "" => "disk",
            name => name,
        };
        let first = match lun {
            0 => name.to_owned(),
            lun => format!("{name}-lun{lun}"),
        };
        let others = (2..).map(|number| format!("{first}-{number}"));
        let mut names = std::iter::once(first.clone()).chain(others);
        let free = names.find(|name| self.names.insert(name.clone()));
        free.expect("numbers do not end")
    }
}

/// The `paths` setting, if the target has portals other than the one in the URL.
fn paths(portals: &[FoundPortal]) -> String {
    if portals.len() == 1 {
        return String::new();
    }
    let mut seen = HashSet::new();
    let portals = portals.iter().map(|found| found.portal.to_string());
    let portals = portals.filter(|portal| seen.insert(portal.clone()));
    let lines = portals.take(PATHS_MAX);
    let lines = lines.map(|portal| format!("  {{ portal = {} }},\n", quoted(&portal)));
    format!(", paths = [\n{}]", lines.collect::<String>())
}

/// Formats a TOML basic string.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted += &format!("\\u{:04X}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str, portals: &[&str]) -> FoundTarget {
        let found = |portal: &&str| FoundPortal {
            portal: portal.parse().expect("a portal"),
            group: Some(1),
        };
        FoundTarget {
            name: name.to_owned(),
            portals: portals.iter().map(found).collect(),
        }
    }

    #[test]
    fn a_target_with_several_portals_has_as_many_paths() {
        let login = ", chap = { user = \"db\", secret_file = \"/s\" }";
        let two = target("iqn.2026-11.example:a.b", &["10.0.1.2", "[fd00::2]:4000"]);
        let expected = "[volume.a-b-lun3]\n\
            iscsi = { url = \"iscsi://10.0.1.2:3260/iqn.2026-11.example:a.b/3\", paths = [\n  \
            { portal = \"10.0.1.2:3260\" },\n  \
            { portal = \"[fd00::2]:4000\" },\n], \
            chap = { user = \"db\", secret_file = \"/s\" } }\n";
        assert_eq!(Volumes::default().volume(&two, 3, login), expected);
    }

    #[test]
    fn every_volume_has_a_name_of_its_own() {
        let mut volumes = Volumes::default();
        let mut head = |name: &str, lun| {
            let text = volumes.volume(&target(name, &["h"]), lun, "");
            text.lines().next().map(str::to_owned)
        };
        for (name, lun, expected) in [
            ("iqn.a:db", 0, "[volume.db]"),
            ("iqn.b:db", 0, "[volume.db-2]"),
            ("iqn.a:db", 1, "[volume.db-lun1]"),
            ("iqn.a:\"]é", 0, "[volume.disk]"),
            ("naa.5", 0, "[volume.naa-5]"),
        ] {
            assert_eq!(head(name, lun).as_deref(), Some(expected));
        }
    }

    #[test]
    fn what_a_stranger_names_so_stays_text() {
        let mut volumes = Volumes::default();
        let quote = volumes.volume(&target("iqn.a:\"x\\", &["h"]), 0, "");
        assert!(quote.contains("iqn.a:\\\"x\\\\/0\" }"), "{quote}");
        for name in ["x", "iqn.a/b", "iqn.u@h"] {
            let refused = volumes.volume(&target(name, &["h"]), 0, "");
            assert!(
                refused.starts_with("# ") && refused.lines().count() == 1,
                "{refused}"
            );
        }
        assert_eq!(quoted("a\nb"), "\"a\\u000Ab\"");
    }
}
