//! What the user of the service may not use of a configuration that root checks: its secrets and disks. By the modes of the files;
//! lists of access control may allow more.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use toml::{Table, Value};
use volume::config::{Node, NodeForm, Volumes};

/// The group that the unit of the package adds, for disks that are devices.
const DISK_GROUP: &str = "disk";

/// A user of this machine.
struct User {
    name: String,
    uid: u32,
    groups: Vec<u32>,
}

/// A configuration, as far as files are concerned.
pub(crate) struct Used<'a> {
    /// Its file.
    pub(crate) configuration: &'a Path,
    /// What that says.
    pub(crate) text: &'a str,
    pub(crate) volumes: &'a Volumes,
    /// The directory in which the paths in it begin.
    pub(crate) base: &'a Path,
    /// Its state directory.
    pub(crate) state: &'a Path,
}

/// What `uid` may not use of all that is `used`: a line for each.
pub(crate) fn barred(uid: u32, used: &Used<'_>) -> Vec<String> {
    let Used {
        configuration,
        text,
        volumes,
        base,
        state,
    } = *used;
    let user = User::find(uid);
    let mut secrets = Vec::new();
    if let Ok(table) = text.parse::<Table>() {
        collect_secrets(&Value::Table(table), &mut secrets);
    }
    let secrets = secrets.into_iter().map(|path| (base.join(path), false));
    let read = std::iter::once((configuration.to_owned(), false)).chain(secrets);
    let files = volumes.0.values().flat_map(Node::all);
    let files = files.filter_map(|node| match &node.what {
        NodeForm::Inline(kind) => kind
            .identity()
            .file()
            .map(|file| (base.join(file.path.get_ref()), !file.read_only)),
        NodeForm::Named(_) => None,
    });
    let kept = fs::read_dir(state).into_iter().flatten().flatten();
    let kept = kept.map(|entry| entry.path()).filter(|path| path.is_file());
    let all = read.chain(files).chain(kept.map(|path| (path, true)));
    all.filter_map(|(path, writes)| user.barred_from(&path, writes))
        .collect()
}

fn collect_secrets(value: &Value, secrets: &mut Vec<String>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                match value.as_str() {
                    Some(path) if key == "secret_file" => secrets.push(path.to_owned()),
                    _ => collect_secrets(value, secrets),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|it| collect_secrets(it, secrets)),
        _ => {}
    }
}

impl User {
    fn find(uid: u32) -> User {
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let entry = passwd
            .lines()
            .map(fields)
            .find(|it| it.get(2).is_some_and(|it| *it == uid.to_string()));
        let field = |at: usize| entry.as_ref().and_then(|it| it.get(at)).cloned();
        let name = field(0).unwrap_or_else(|| uid.to_string());
        let mut groups: Vec<u32> = field(3)
            .and_then(|it| it.parse().ok())
            .into_iter()
            .collect();
        let table = fs::read_to_string("/etc/group").unwrap_or_default();
        for group in table.lines().map(fields).filter(|it| it.len() > 3) {
            if group[0] == DISK_GROUP || group[3].split(',').any(|member| member == name) {
                groups.extend(group[2].parse::<u32>());
            }
        }
        User { name, uid, groups }
    }

    /// Why it may not use the file at `path`, if there is one, and what to do.
    fn barred_from(&self, path: &Path, writes: bool) -> Option<String> {
        let file = path.canonicalize().ok()?;
        let (shown, name) = (path.display(), &self.name);
        let closed = |it: &PathBuf| it.metadata().is_ok_and(|found| !self.may(&found, 0o1));
        if let Some(closed) = file.ancestors().skip(1).map(Path::to_owned).find(closed) {
            let whose = closed.metadata().map_or("o", |found| self.class(&found).1);
            let closed = closed.display();
            return Some(format!(
                "{shown} cannot be used by {name}, who is to serve it: {closed} does not let that user pass; chmod {whose}+x {closed}"
            ));
        }
        let found = file.metadata().ok()?;
        let is_owner = found.uid() == self.uid;
        let (wanted, what, mend) = match writes {
            true if is_owner => (0o6, "written", format!("chmod u+rw {shown}")),
            true => (0o6, "written", format!("chown {name} {shown}")),
            false if is_owner => (0o4, "read", format!("chmod u+r {shown}")),
            false => (
                0o4,
                "read",
                format!("chgrp {name} {shown}; chmod 0640 {shown}"),
            ),
        };
        (!self.may(&found, wanted))
            .then(|| format!("{shown} cannot be {what} by {name}, who is to serve it: {mend}"))
    }

    fn may(&self, found: &fs::Metadata, wanted: u32) -> bool {
        found.mode() >> self.class(found).0 & wanted == wanted
    }

    /// Where in a mode its permissions are, and what chmod(1) calls those who have them.
    fn class(&self, found: &fs::Metadata) -> (u32, &'static str) {
        match (found.uid() == self.uid, self.groups.contains(&found.gid())) {
            (true, _) => (6, "u"),
            (false, true) => (3, "g"),
            (false, false) => (0, "o"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_another_user_may_not_use_is_named_with_the_mend() {
        let base = std::env::temp_dir().join(format!("sanstone-usable-{}", std::process::id()));
        fs::create_dir_all(&base).expect("room");
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).expect("ours");
        for (name, mode) in [
            ("key", 0o640),
            ("other.key", 0o644),
            ("disk", 0o644),
            ("open", 0o666),
        ] {
            let path = base.join(name);
            fs::write(&path, "x").expect("room");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        }
        let text = "[a]\nb = [{ secret_file = \"key\" }]\n[c]\nsecret_file = \"other.key\"\n";
        let volumes = "one.file = { path = \"disk\" }\ntwo.file = { path = \"open\" }\n\
                       three.file = { path = \"disk\", read_only = true }\nfour.file = { path = \"none\" }\n";
        let volumes: Volumes = toml::from_str(volumes).expect("they parse");
        let state = base.join("state");
        fs::create_dir_all(&state).expect("room");
        for name in ["key", "state/volumes.toml"] {
            let path = base.join(name);
            fs::write(&path, "x").expect("room");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        }
        let used = Used {
            configuration: &base.join("open"),
            text,
            volumes: &volumes,
            base: &base,
            state: &state,
        };
        let told = barred(4_000_000_000, &used);
        let at = |name: &str| base.join(name).display().to_string();
        let expected = [
            (at("key"), "cannot be read by 4000000000", "chmod 0640"),
            (
                at("disk"),
                "cannot be written by 4000000000",
                "chown 4000000000",
            ),
            (
                at("state/volumes.toml"),
                "cannot be written by 4000000000",
                "chown 4000000000",
            ),
        ];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (line, (path, why, mend)) in told.iter().zip(expected) {
            assert!(
                line.starts_with(&path) && line.contains(why) && line.contains(mend),
                "{line}"
            );
        }
        fs::set_permissions(&base, fs::Permissions::from_mode(0o700)).expect("ours");
        let told = barred(4_000_000_000, &used);
        assert!(
            told.iter()
                .all(|line| line.contains("does not let that user pass")),
            "{told:?}"
        );
        fs::remove_dir_all(&base).expect("ours");
    }
}
