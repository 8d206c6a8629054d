//! The state directory belongs to the daemon's user alone: whoever can change what is stored there can give one disk the
//! reservations of another; and a link in it would lead a daemon of root to files that are not its own. As PostgreSQL does
//! with its data directory, one that others may change is refused, whoever made it so.

use std::{io, path::Path};

use engine::store::{self, PathInfo, PathKind};

use crate::StateError;

/// Permission bits to change a file, or what lies in a directory: those of its group and of others.
const OTHERS_CHANGE: u32 = 0o022;
/// The mend that works for every file in it.
const ANOTHER: &str = "or name another state directory with state = \"…\"";

/// Checks that nobody else may change what is in `directory`, and that nothing of it leads elsewhere. It need not exist.
///
/// # Errors
/// Everything that speaks against it, with the mend.
pub(crate) fn check(directory: &Path) -> Result<(), StateError> {
    check_for(rustix::process::geteuid().as_raw(), directory)
}

/// As [`check`], for who only looks: root does so for a service with a user of its own, to whom the directory belongs.
///
/// # Errors
/// As [`check`].
pub(crate) fn look(directory: &Path) -> Result<(), StateError> {
    let user = stranger(directory).unwrap_or(rustix::process::geteuid().as_raw());
    check_for(user, directory)
}

/// Whose `directory` is, if this is root and it is not root's.
pub(crate) fn stranger(directory: &Path) -> Option<u32> {
    let is_root = rustix::process::geteuid().is_root();
    let found = is_root.then(|| store::look(directory).ok()).flatten()?;
    found.stranger_to(0)
}

fn check_for(user: u32, directory: &Path) -> Result<(), StateError> {
    let shown = directory.display();
    let failed = |error| StateError::io(format!("looking at the state directory {shown}"))(error);
    let found = match store::look(directory) {
        Ok(found) if found.kind == PathKind::Directory => found,
        // What else keeps it from being used is said when it is opened.
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let mut wrong = Vec::new();
    if let Some(why) = exposed(&found, user) {
        wrong.push(format!("the state directory {shown} {why}"));
    }
    let entries = match store::list(directory) {
        Ok(entries) => entries,
        // It cannot be used by this user either.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries.iter().filter(|entry| is_of_state(entry)) {
        if let Some(why) = unusable(entry, user).map_err(failed)? {
            wrong.push(format!("{} {why}", entry.display()));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let service = match stranger(directory) {
        Some(owner) if owner != user => {
            format!("if it is that of a service, run this as its user {owner}; otherwise ")
        }
        _ => String::new(),
    };
    let mend = format!(
        "{service}check whether its files are the daemon's, remove what is not, and run: chown -R {user} {shown}; chmod -R go-w \
         {shown}; {ANOTHER}"
    );
    Err(StateError::Refused(format!("{}; {mend}", wrong.join("; "))))
}

/// Whether a daemon keeps something under this name in its state directory. Anything else there is not its business.
fn is_of_state(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let whole = name.strip_suffix(".new").unwrap_or(&name);
    let is_table = ["ports", "volumes", "owner"].contains(&whole.trim_end_matches(".toml"));
    let is_of_disk = ["unit-", "told-"].iter().any(|it| whole.starts_with(it));
    is_table || is_of_disk || ["lock", "served.lock", "admin.sock"].contains(&whole)
}

/// Why a file of a state directory must not be used by `user`.
fn unusable(path: &Path, user: u32) -> io::Result<Option<String>> {
    if store::is_link(path)? {
        return Ok(Some("is a symbolic link, which is not followed".to_owned()));
    }
    let found = match store::look(path) {
        Ok(found) => found,
        // A daemon replaces its files.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_socket = path
        .to_string_lossy()
        .trim_end_matches(".new")
        .ends_with(".sock");
    let expected = match is_socket {
        true => PathKind::Socket,
        false => PathKind::File,
    };
    Ok(match found.kind == expected {
        true => exposed(&found, user),
        false => Some(format!("is {}", found.kind.name())),
    })
}

/// How somebody other than `user` and root may change it.
fn exposed(found: &PathInfo, user: u32) -> Option<String> {
    if let Some(owner) = found.stranger_to(user) {
        return Some(format!(
            "belongs to user {owner}, who can change it, and the daemon runs as user {user}"
        ));
    }
    let mode = found.mode;
    let is_exposed = mode & OTHERS_CHANGE != 0;
    is_exposed.then(|| format!("can be changed by other users (mode {:04o})", mode & 0o7777))
}

#[cfg(test)]
mod tests {
    use std::{
        env, fs,
        os::unix::fs::{PermissionsExt, symlink},
        path::PathBuf,
        process,
    };

    use super::*;
    use crate::StateDirectory;

    const ROOT: u32 = 0;

    struct Scratch(PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// An empty directory of the real system, which has links and users.
    fn scratch(name: &str) -> Scratch {
        let path = env::temp_dir().join(format!("sanstone-private-{name}-{}", process::id()));
        fs::create_dir(&path).expect("room");
        Scratch(path)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    fn refused(directory: &Path, parts: &[&str]) {
        for error in [
            StateDirectory::look(directory).expect_err("it is looked at"),
            StateDirectory::open(directory, false).expect_err("it is opened"),
        ] {
            let error = error.to_string();
            for part in [parts, &["chown -R", "state = \"…\""]].concat() {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
    }

    #[test]
    fn a_directory_or_a_file_in_it_that_others_may_change_is_refused() {
        let scratch = scratch("modes");
        let directory = scratch.0.join("state");
        StateDirectory::open(&directory, false).expect("its own");
        let mode = |path: &Path| {
            fs::metadata(path)
                .expect("it is there")
                .permissions()
                .mode()
        };
        assert_eq!(mode(&directory) & OTHERS_CHANGE, 0);
        for mode in [0o777, 0o775, 0o757, 0o1777] {
            set_mode(&directory, mode);
            refused(
                &directory,
                &["changed by other users", &format!("{mode:04o}")],
            );
        }
        set_mode(&directory, 0o755);
        let file = directory.join("ports.toml");
        fs::write(&file, "version = 1\n").expect("room");
        for mode in [0o666, 0o664, 0o606] {
            set_mode(&file, mode);
            refused(&directory, &["ports.toml can be changed"]);
        }
        set_mode(&file, 0o644);
        // Somebody else's, which no daemon reads.
        fs::write(directory.join("notes"), "").expect("room");
        set_mode(&directory.join("notes"), 0o666);
        StateDirectory::open(&directory, false).expect("its own again");
    }

    #[test]
    fn nothing_in_it_leads_elsewhere() {
        let scratch = scratch("links");
        let (directory, other) = (scratch.0.join("state"), scratch.0.join("other"));
        let names = [
            "lock",
            "served.lock",
            "ports.toml",
            "ports.new",
            "volumes.toml",
            "volumes.new",
            "owner.toml",
            "owner.new",
            "admin.sock",
            "admin.sock.new",
            "unit-6f9619ff-8b86-4011-b42d-00c04fc964ff",
            "told-6f9619ff-8b86-4011-b42d-00c04fc964ff.new",
        ];
        for to in [other.clone(), scratch.0.join("none")] {
            fs::write(&other, "precious").expect("room");
            for name in names {
                fs::create_dir_all(&directory).expect("room");
                set_mode(&directory, 0o755);
                symlink(&to, directory.join(name)).expect("room");
                refused(&directory, &[name, "symbolic link"]);
                fs::remove_dir_all(&directory).expect("it is there");
            }
        }
        assert_eq!(fs::read(&other).expect("it is there"), b"precious");
        fs::create_dir(&directory).expect("room");
        set_mode(&directory, 0o755);
        fs::create_dir(directory.join("ports.toml")).expect("room");
        refused(&directory, &["ports.toml is a directory"]);
    }

    /// As root; others own what they make.
    #[test]
    fn root_looks_at_that_of_another_user_and_does_not_use_it() {
        let scratch = scratch("service");
        let directory = scratch.0.join("state");
        fs::create_dir(&directory).expect("room");
        set_mode(&directory, 0o700);
        let file = directory.join("ports.toml");
        fs::write(&file, "version = 1\n").expect("room");
        let give = |path: &Path| std::os::unix::fs::chown(path, Some(7), None);
        if give(&file).is_err() || give(&directory).is_err() {
            return;
        }
        StateDirectory::look(&directory).expect("a service of user 7 has it");
        let error = StateDirectory::open(&directory, false).expect_err("root is another user");
        let error = error.to_string();
        assert!(error.contains("run this as its user 7"), "{error}");
        // A third one's is nobody's.
        std::os::unix::fs::chown(&file, Some(8), None).expect("root may");
        let error = StateDirectory::look(&directory).expect_err("user 8 can change it");
        assert!(error.to_string().contains("belongs to user 8"), "{error}");
    }

    #[test]
    fn only_the_user_of_the_daemon_and_root_may_own_it() {
        let of = |owner, mode| PathInfo {
            kind: PathKind::Directory,
            len_bytes: 0,
            id: (0, 0),
            mode,
            owner,
        };
        for owner in [ROOT, 7] {
            assert_eq!(exposed(&of(owner, 0o755), 7), None);
        }
        for (owner, user) in [(7, ROOT), (8, 7)] {
            let why = exposed(&of(owner, 0o700), user).expect("another's");
            assert!(why.contains(&format!("belongs to user {owner}")), "{why}");
        }
    }
}
