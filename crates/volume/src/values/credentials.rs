//! CHAP accounts in a configuration: a name, and where its secret is. The secret is never in the configuration
//! itself, which gets copied, shown and put under version control.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use engine::store;
use serde::Deserialize;
use toml::Spanned;

use super::ConfigError;

/// Longer than any secret: a longer file is rejected.
const FILE_BYTES_MAX: usize = 4096;
/// Permission bits that give others access.
const OTHERS: u32 = 0o007;
/// The group may read the file, which is how a service account gets access to a file of root (0640), but must not
/// write it.
const GROUP_WRITES: u32 = 0o020;

/// `{ user = "db", secret_file = "db.secret" }`, or `{ user = "db", credential = "db" }` for a credential provided by
/// systemd.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// The name that goes with the secret (CHAP_N).
    pub user: Spanned<String>,
    /// A file whose only line is the secret; relative to the configuration file.
    pub secret_file: Option<Spanned<PathBuf>>,
    /// The name of a file in `$CREDENTIALS_DIRECTORY`.
    pub credential: Option<Spanned<String>>,
}

/// A CHAP algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChapAlgorithm {
    /// MD5, which every initiator supports.
    Md5,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA3-256.
    #[serde(rename = "sha3-256")]
    Sha3,
}

/// CHAP settings, which a target, discovery and an `iscsi` leaf have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChapSettings<'a> {
    /// The credentials that authenticate the initiator.
    pub chap: Option<&'a Spanned<Credentials>>,
    /// For a target: credentials that it accepts in the place of `chap`, until its initiators have changed to those.
    pub old: Option<&'a Spanned<Credentials>>,
    /// The credentials that authenticate the target.
    pub mutual: Option<&'a Spanned<Credentials>>,
    /// The permitted algorithms; all if omitted.
    pub algorithms: Option<&'a Spanned<Vec<ChapAlgorithm>>>,
}

impl ChapSettings<'_> {
    /// Reads the secrets; paths are relative to `base`. `None` when no authentication is configured.
    ///
    /// # Errors
    /// What is wrong with the settings or a secret's file, with the place and the remedy.
    pub fn read(&self, base: &Path) -> Result<Option<Arc<iscsi::Chap>>, ConfigError> {
        let Some(chap) = self.chap else {
            let (alone, message) = match (self.mutual, self.old, self.algorithms) {
                (None, Some(old), _) => (
                    old.span(),
                    "old_chap is accepted beside chap, and there is none; add chap = { … } with the new secret",
                ),
                (Some(mutual), ..) => (
                    mutual.span(),
                    "a target authenticates itself only to initiators that have done so; add chap \
                     = { … }",
                ),
                (None, None, Some(algorithms)) => (
                    algorithms.span(),
                    "chap_algorithms has no effect without chap; add chap = { … }, or remove it",
                ),
                (None, None, None) => return Ok(None),
            };
            return Err(ConfigError::new(alone, message));
        };
        let initiator = chap.get_ref().read(base)?;
        let target = self.mutual.map(|mutual| mutual.get_ref().read(base));
        let span = self.mutual.unwrap_or(chap).span();
        let wrong = |error: iscsi::Error| ConfigError::new(span.clone(), error.to_string());
        let mut read = iscsi::Chap::new(initiator, target.transpose()?).map_err(wrong)?;
        if let Some(old) = self.old {
            let account = old.get_ref().read(base)?;
            let wrong = |error: iscsi::Error| ConfigError::new(old.span(), error.to_string());
            read = read.with_old(account).map_err(wrong)?;
        }
        if let Some(algorithms) = self.algorithms {
            let allowed: Vec<_> = algorithms
                .get_ref()
                .iter()
                .map(|a| a.of_protocol())
                .collect();
            let none = |_| {
                let message = "no algorithm is allowed; write [\"sha256\", \"md5\"], or remove it to allow \
                     all";
                ConfigError::new(algorithms.span(), message)
            };
            read = read.with_algorithms(&allowed).map_err(none)?;
        }
        Ok(Some(Arc::new(read)))
    }
}

impl ChapAlgorithm {
    fn of_protocol(self) -> iscsi::ChapAlgorithm {
        match self {
            ChapAlgorithm::Md5 => iscsi::ChapAlgorithm::Md5,
            ChapAlgorithm::Sha1 => iscsi::ChapAlgorithm::Sha1,
            ChapAlgorithm::Sha256 => iscsi::ChapAlgorithm::Sha256,
            ChapAlgorithm::Sha3 => iscsi::ChapAlgorithm::Sha3_256,
        }
    }
}

impl Credentials {
    /// Credentials from a command line, which have no place in a configuration.
    pub fn in_file(user: String, secret_file: PathBuf) -> Spanned<Credentials> {
        let credentials = Credentials {
            user: Spanned::new(0..0, user),
            secret_file: Some(Spanned::new(0..0, secret_file)),
            credential: None,
        };
        Spanned::new(0..0, credentials)
    }

    fn read(&self, base: &Path) -> Result<iscsi::ChapAccount, ConfigError> {
        let (secret, span) = match (&self.secret_file, &self.credential) {
            (Some(file), None) => (secret(&base.join(file.get_ref())), file.span()),
            (None, Some(name)) => (credential(name.get_ref()), name.span()),
            _ => {
                return Err(ConfigError::new(
                    self.user.span(),
                    "a secret has one source; write either secret_file = \"FILE\" or credential = \
                     \"NAME\"",
                ));
            }
        };
        let secret = secret.map_err(|message| ConfigError::new(span, message))?;
        let account = iscsi::ChapAccount::new(self.user.get_ref().clone(), secret);
        account.map_err(|_| {
            let message = format!(
                "user is not a valid CHAP name ({} bytes); write 1 to 255 bytes without a zero \
                 byte",
                self.user.get_ref().len()
            );
            ConfigError::new(self.user.span(), message)
        })
    }
}

/// The credentials that systemd would give a service, and that this process does without: see [`imagine_credentials`].
static IMAGINED: OnceLock<Mutex<BTreeSet<String>>> = OnceLock::new();

/// From now on a credential counts as given although systemd has given this process none: it only checks what a service
/// will read.
pub fn imagine_credentials() {
    if std::env::var_os("CREDENTIALS_DIRECTORY").is_none() {
        IMAGINED.get_or_init(Mutex::default);
    }
}

/// The names of those that were read since then.
pub fn imagined_credentials() -> Vec<String> {
    let imagined = IMAGINED.get().map(lock);
    imagined.map_or_else(Vec::new, |names| names.iter().cloned().collect())
}

fn lock(names: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A secret that systemd has put into a file (LoadCredential= in the unit).
fn credential(name: &str) -> Result<iscsi::ChapSecret, String> {
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(format!(
            "\"{name}\" is not a credential's name; write one without a slash"
        ));
    }
    if let Some(imagined) = IMAGINED.get() {
        lock(imagined).insert(name.to_owned());
        let unlike_others = format!("the secret of {name:.200}");
        return iscsi::ChapSecret::new(unlike_others.as_bytes()).map_err(|error| error.to_string());
    }
    let Some(directory) = std::env::var_os("CREDENTIALS_DIRECTORY") else {
        return Err(format!(
            "credential \"{name}\" comes from systemd, which has not set CREDENTIALS_DIRECTORY; add \
             LoadCredential={name}:/path/to/secret to the unit, or use secret_file"
        ));
    };
    let path = Path::new(&directory).join(name);
    if store::look(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Err(format!(
            "credential \"{name}\" is not among those that systemd has given; add LoadCredential={name}:/path/to/secret to \
             the unit and restart it, as it gets them when it starts, or use secret_file, which is read without that"
        ));
    }
    secret(&path)
}

fn secret(path: &Path) -> Result<iscsi::ChapSecret, String> {
    let shown = path.display();
    let unreadable = |error| {
        format!(
            "the secret in {shown} cannot be read: {error}; write the path of a file that this user may read"
        )
    };
    let (look, bytes) = store::read_start(path, FILE_BYTES_MAX).map_err(unreadable)?;
    if look.kind != store::PathKind::File {
        return Err(format!(
            "{shown} is not a file; name one whose only line is the secret"
        ));
    }
    if let Some(owner) = look.stranger() {
        return Err(format!(
            "the secret in {shown} belongs to user {owner}, who can read and change it; run: chown \"$(id -u)\" {shown}, as \
             the user that reads it"
        ));
    }
    let mode = look.mode & 0o777;
    if mode & OTHERS != 0 {
        return Err(format!(
            "the secret in {shown} is open to every user (mode {mode:04o}); run: chmod 600 {shown}"
        ));
    }
    if mode & GROUP_WRITES != 0 {
        return Err(format!(
            "the secret in {shown} can be changed by its group (mode {mode:04o}); run: chmod g-w {shown}"
        ));
    }
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        return Err(format!(
            "{shown} begins with a byte order mark, which would be part of the secret; save it \
             without one (sed -i '1s/^\\xEF\\xBB\\xBF//' {shown})"
        ));
    }
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.contains(&0) {
        return Err(format!(
            "{shown} contains a zero byte, which cannot be entered on an initiator; generate a \
             secret with: openssl rand -hex 16"
        ));
    }
    if line.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return Err(format!(
            "{shown} has more than one line; it must contain only the secret"
        ));
    }
    iscsi::ChapSecret::new(line).map_err(|_| {
        format!(
            "the secret in {shown} has {} bytes, and CHAP needs 12 to 255; generate one with: \
             openssl rand -hex 16",
            line.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::scratch::Scratch;

    #[derive(Deserialize)]
    struct Table {
        chap: Option<Spanned<Credentials>>,
        old_chap: Option<Spanned<Credentials>>,
        mutual: Option<Spanned<Credentials>>,
        algorithms: Option<Spanned<Vec<ChapAlgorithm>>>,
    }

    fn read(text: &str, base: &Path) -> Result<Option<Arc<iscsi::Chap>>, ConfigError> {
        let table: Table = toml::from_str(text).expect("it parses");
        let settings = ChapSettings {
            chap: table.chap.as_ref(),
            old: table.old_chap.as_ref(),
            mutual: table.mutual.as_ref(),
            algorithms: table.algorithms.as_ref(),
        };
        settings.read(base)
    }

    fn write(base: &Path, name: &str, contents: &[u8], mode: u32) {
        let path = base.join(name);
        fs::write(&path, contents).expect("a scratch file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
    }

    #[test]
    fn a_secret_is_the_only_line_of_a_private_file() {
        let scratch = Scratch::new();
        let base = scratch.path();
        write(base, "plain", b"sixteen bytes ok", 0o600);
        write(base, "line", b"sixteen bytes ok\r\n", 0o640);
        write(base, "other", b"another secret!\n", 0o400);
        let chap = |name| format!("chap = {{ user = \"db\", secret_file = \"{name}\" }}\n");
        let plain = read(&chap("plain"), base).expect("it is right");
        assert_eq!(plain, read(&chap("line"), base).expect("it is right"));
        assert_ne!(plain, read(&chap("other"), base).expect("it is right"));
        assert_eq!(read("", base).expect("nothing is right too"), None);
        let both = format!(
            "{}mutual = {{ user = \"t\", secret_file = \"other\" }}",
            chap("plain")
        );
        read(&both, base).expect("two secrets");
        let old = |name| format!("old_chap = {{ user = \"db\", secret_file = \"{name}\" }}\n");
        let changing = read(&format!("{}{}", chap("plain"), old("other")), base);
        assert_ne!(plain, changing.expect("an old secret and a new one"));

        for (name, contents, mode, part) in [
            ("open", &b"sixteen bytes ok"[..], 0o644, "chmod 600"),
            ("group", b"sixteen bytes ok", 0o660, "chmod g-w"),
            ("short", b"elevenbytes\n", 0o600, "has 11 bytes"),
            ("empty", b"", 0o600, "has 0 bytes"),
            ("zero", b"sixteen bytes\0ok", 0o600, "contains a zero byte"),
            (
                "bom",
                b"\xEF\xBB\xBFsixteen bytes ok\n",
                0o600,
                "byte order mark",
            ),
            ("long", &[b'x'; 5000], 0o600, "12 to 255"),
            (
                "lines",
                b"sixteen bytes ok\nand more\n",
                0o600,
                "more than one line",
            ),
        ] {
            write(base, name, contents, mode);
            let error = read(&chap(name), base).expect_err(name);
            assert!(error.message().contains(part), "{}", error.message());
            assert!(!error.message().contains("sixteen"), "{}", error.message());
        }
        let same = format!(
            "{}mutual = {{ user = \"t\", secret_file = \"line\" }}",
            chap("plain")
        );
        for (text, part) in [
            (&*same, "same secret"),
            (&chap("missing"), "cannot be read"),
            (&chap("."), "is not a file"),
            (
                "mutual = { user = \"t\", secret_file = \"plain\" }",
                "add chap",
            ),
            (&old("other"), "with the new secret"),
            (
                &format!("{}{}", chap("plain"), old("line")),
                "the old account is the new one",
            ),
            ("algorithms = [\"md5\"]", "or remove it"),
            ("chap = { user = \"u\" }", "either secret_file"),
            (
                "chap = { user = \"u\", credential = \"../x\" }",
                "without a slash",
            ),
            (
                "chap = { user = \"u\", secret_file = \"plain\", credential = \"x\" }",
                "either secret_file",
            ),
            (
                "chap = { user = \"\", secret_file = \"plain\" }",
                "CHAP name",
            ),
            (&format!("{}algorithms = []", chap("plain")), "no algorithm"),
        ] {
            let error = read(text, base).expect_err(text);
            assert!(error.message().contains(part), "{}", error.message());
        }
    }
}
