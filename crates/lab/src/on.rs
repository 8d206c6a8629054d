//! What a user names to be measured: a volume, a file or device, or a disk of an iSCSI target with what we log in as.
//!
//! A secret, which a URL may have as in libiscsi's tools (`iscsi://USER%SECRET@HOST/…`), is only ever in a file that nobody
//! else can read: no message, report or argument of a process has it.

use std::{
    fmt, fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    str::FromStr,
};

use tempfile::TempDir;

use crate::{LabError, LabResult};

/// What `--on` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum On {
    /// A disk of an iSCSI target.
    Url(Remote),
    /// A volume of the configuration, or a file or device.
    Name(String),
}

/// A disk of an iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Without the account. What an account would be, but is not understood, is hidden.
    url: String,
    /// The account in the URL.
    account: Option<(String, Secret)>,
    /// The settings of an `iscsi` volume that say as what to log in, each preceded by a comma.
    login: String,
}

/// A secret that is not shown.
#[derive(Clone, PartialEq, Eq)]
struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl FromStr for On {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<On, Self::Err> {
        if let Some((scheme, rest)) = text.split_once("://") {
            return Ok(On::Url(Remote::of(scheme, rest)));
        }
        // What was meant to be a URL is refused as one. It is no name: whoever shows a name would show the secret.
        let is_url = text.starts_with("iscsi:");
        let url = match text.rsplit_once('@') {
            Some((account, rest)) if is_url || account.contains('%') => format!("…@{rest}"),
            _ if is_url => text.to_owned(),
            _ => return Ok(On::Name(text.to_owned())),
        };
        Ok(On::Url(Remote {
            url,
            account: None,
            login: String::new(),
        }))
    }
}

impl Remote {
    fn of(scheme: &str, rest: &str) -> Remote {
        // A secret may contain any character; what follows it has no @.
        let (account, rest) = match rest.rsplit_once('@') {
            Some((account, rest)) => (Some(account), rest),
            None => (None, rest),
        };
        let account = account.map(|account| account.split_once('%'));
        Remote {
            url: match account {
                Some(None) => format!("{scheme}://…@{rest}"),
                _ => format!("{scheme}://{rest}"),
            },
            account: account
                .flatten()
                .map(|(user, secret)| (user.into(), Secret(secret.into()))),
            login: String::new(),
        }
    }

    /// An `iscsi` volume's settings for it, and the private directory with the file of its secret, if it has one.
    ///
    /// # Errors
    /// It is no URL, there are two accounts, or the file cannot be written.
    pub(crate) fn settings(&self) -> LabResult<(String, Option<TempDir>)> {
        if !self.url.contains("://") {
            return Err(LabError::Call(format!(
                "--on {}: this is no iSCSI URL; write iscsi://HOST[:PORT]/TARGET/LUN, or \
                 iscsi://USER%SECRET@HOST[:PORT]/TARGET/LUN",
                self.url
            )));
        }
        let mut private = None;
        let mut settings = format!("url = {}{}", quoted(&self.url), self.login);
        if let Some((user, Secret(secret))) = &self.account {
            if self.login.contains("chap = ") {
                return Err(LabError::Call(format!(
                    "--on {}: it names a user, and so does --chap-user: leave one of them out",
                    self.url
                )));
            }
            let failed = |source| LabError::File {
                path: std::env::temp_dir(),
                source,
            };
            let directory = tempfile::tempdir().map_err(failed)?;
            let path = directory.path().join("secret");
            write_private(&path, secret).map_err(failed)?;
            private = Some(directory);
            settings += &format!(
                ", chap = {{ user = {}, secret_file = {} }}",
                quoted(user),
                quoted(&path.to_string_lossy())
            );
        }
        Ok((format!("iscsi = {{ {settings} }}"), private))
    }
}

impl On {
    /// The name as the user wrote it, without an account.
    pub fn name(&self) -> &str {
        match self {
            On::Url(remote) => &remote.url,
            On::Name(name) => name,
        }
    }

    /// The same, logging in to a target with `login`: settings of an `iscsi` volume, each preceded by a comma.
    #[must_use]
    pub fn logging_in(self, login: &str) -> On {
        match self {
            On::Url(remote) => On::Url(Remote {
                login: login.to_owned(),
                ..remote
            }),
            on @ On::Name(_) => on,
        }
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn on(text: &str) -> On {
        text.parse().expect("anything is something")
    }

    #[test]
    fn a_secret_in_a_url_is_in_a_private_file_and_nowhere_else() {
        let named = on("iscsi://me%s3/cr%t@a@10.0.0.1:3260/iqn.2026-11.io.sanstone:a/0");
        let shown = "iscsi://10.0.0.1:3260/iqn.2026-11.io.sanstone:a/0";
        assert_eq!(named.name(), shown);
        assert!(!format!("{named:?}").contains("s3"), "{named:?}");
        let On::Url(remote) = &named else {
            panic!("{named:?}")
        };
        let (settings, private) = remote.settings().expect("room");
        let private = private.expect("it has a secret");
        let path = private.path().join("secret");
        let expected = format!(
            "iscsi = {{ url = \"{shown}\", chap = {{ user = \"me\", secret_file = \"{}\" }} }}",
            path.display()
        );
        assert_eq!(settings, expected);
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "s3/cr%t@a");
        let mode = fs::metadata(&path)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let twice = named.logging_in(", chap = { user = \"u\", secret_file = \"f\" }");
        let On::Url(twice) = twice else { panic!() };
        let error = twice.settings().expect_err("two users").to_string();
        assert!(
            error.contains("--chap-user") && !error.contains("s3"),
            "{error}"
        );
    }

    #[test]
    fn a_user_without_a_secret_is_hidden() {
        assert_eq!(
            on("iscsi://hush@10.0.0.1/iqn.a:b/0").name(),
            "iscsi://…@10.0.0.1/iqn.a:b/0"
        );
        assert_eq!(on("./a@b.img"), On::Name("./a@b.img".into()));
        for text in [
            "iscsi:/u%hush@10.0.0.1/iqn.a:b/0",
            "u%hush@10.0.0.1/iqn.a:b/0",
        ] {
            assert_eq!(on(text).name(), "…@10.0.0.1/iqn.a:b/0");
            let On::Url(remote) = on(text) else {
                panic!("{text}")
            };
            let error = remote.settings().expect_err("no URL").to_string();
            assert!(
                error.contains("iscsi://USER%SECRET@HOST") && !error.contains("hush"),
                "{error}"
            );
        }
        assert_eq!(
            on("iscsi:/10.0.0.1/iqn.a:b/0").name(),
            "iscsi:/10.0.0.1/iqn.a:b/0"
        );
    }

    #[test]
    fn a_login_is_part_of_the_settings() {
        let On::Url(remote) = on("iscsi://h/iqn.a:b/0").logging_in(", initiator = \"iqn.c:d\"")
        else {
            panic!()
        };
        let (settings, private) = remote.settings().expect("nothing is written");
        assert!(private.is_none());
        assert_eq!(
            settings,
            "iscsi = { url = \"iscsi://h/iqn.a:b/0\", initiator = \"iqn.c:d\" }"
        );
    }
}
