//! The server's TLS configuration, loaded from PEM files: its certificate and key and, if clients must authenticate,
//! the CAs that sign their certificates.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use engine::store;
use rustls::{
    CertificateError, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};

use crate::validity::{Date, Validity};

/// More than any of the files has, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// The PEM files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, followed by any intermediate CA certificates.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// If set, clients must present a certificate signed by one of these CAs.
    pub client_ca: Option<PathBuf>,
}

/// A loaded TLS server configuration.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

/// Why TLS cannot be offered: which file is to blame, and what would fix it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// A file is not valid PEM.
    #[error("{0} is not a valid PEM file: {1}")]
    NotPem(PathBuf, pem::Error),
    /// A file contains no certificate.
    #[error(
        "{0} contains no certificate: it needs a section that begins with -----BEGIN \
         CERTIFICATE-----"
    )]
    NoCertificate(PathBuf),
    /// A file contains no private key.
    #[error(
        "{0} contains no private key: it needs a section that begins with -----BEGIN PRIVATE \
         KEY-----; decrypt an encrypted key with: openssl pkey -in {0} -out KEY.pem"
    )]
    NoKey(PathBuf),
    /// A private key belongs to somebody else.
    #[error(
        "the private key in {0} belongs to user {1}, who can read and exchange it; copy it to a file of this process's user, \
         which alone may read it (chmod 600)"
    )]
    Stranger(PathBuf, u32),
    /// A private key cannot be used.
    #[error(
        "the private key in {0} cannot be used: {1}; use RSA (2048 bits or more), ECDSA (P-256, \
         P-384) or Ed25519"
    )]
    Key(PathBuf, rustls::Error),
    /// The certificate does not match the private key, or cannot be used.
    #[error("the certificate in {0} does not match the private key in {1}: {2}")]
    Pair(PathBuf, PathBuf, rustls::Error),
    /// The client CA certificates cannot be used.
    #[error("the certificates in {0} cannot be used to verify clients: {1}")]
    ClientCa(PathBuf, String),
}

impl Tls {
    /// Loads the files.
    ///
    /// # Errors
    /// [`TlsError`]
    pub fn load(files: &TlsFiles) -> Result<Tls, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(&files.certificate)?;
        if let Some(doubt) = Validity::of(&chain[0]).and_then(|it| it.doubt(Date::now())) {
            let file = files.certificate.display();
            tracing::warn!(%file, "clients will refuse the certificate: {doubt}");
        }
        let key = key(&files.key)?;
        let looked = store::look(&files.key).ok();
        if let Some(owner) = looked.and_then(|it| it.stranger()) {
            return Err(TlsError::Stranger(files.key.clone(), owner));
        }
        if let Some(doubt) = exposure(&files.key) {
            let file = files.key.display();
            tracing::warn!(%file, "{doubt}");
        }
        provider
            .key_provider
            .load_private_key(key.clone_key())
            .map_err(|error| TlsError::Key(files.key.clone(), error))?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("the provider has cipher suites for them");
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let unusable =
                    |why: &dyn fmt::Display| TlsError::ClientCa(path.clone(), why.to_string());
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| unusable(&error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder
                    .with_client_cert_verifier(verifier.build().map_err(|error| unusable(&error))?)
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| TlsError::Pair(files.certificate.clone(), files.key.clone(), error))?;
        // Connections are long-lived, so session resumption is not worth keeping state for.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Tls(Arc::new(config)))
    }

    /// What a connection's machine is made with.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.0.clone()
    }
}

/// For who has made the configuration otherwise than from files.
impl From<Arc<ServerConfig>> for Tls {
    fn from(config: Arc<ServerConfig>) -> Tls {
        Tls(config)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// Explains a TLS failure, turning rustls' seconds since 1970 into dates.
pub fn explain(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(cause)) = cause else {
        return error.to_string();
    };
    match cause {
        CertificateError::ExpiredContext { time, not_after } => format!(
            "invalid peer certificate: it was valid until {}, and the time is now {}",
            Date::from_unix(not_after.as_secs()),
            Date::from_unix(time.as_secs())
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "invalid peer certificate: it is valid from {}, and the time is now {}",
            Date::from_unix(not_before.as_secs()),
            Date::from_unix(time.as_secs())
        ),
        _ => error.to_string(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    store::read_input(path, BYTES_MAX).map_err(|error| TlsError::Unreadable(path.to_owned(), error))
}

/// What is wrong with the permissions of a private key. It is not refused, as most servers do not: keys lie where other
/// programs put them, and an upgrade must not take a disk away.
fn exposure(path: &Path) -> Option<String> {
    /// Others do anything with it, or its group changes it.
    const EXPOSED: u32 = 0o027;
    let mode = store::look(path).ok()?.mode & 0o777;
    (mode & EXPOSED != 0).then(|| {
        let shown = path.display();
        format!(
            "the private key is open to other users (mode {mode:04o}), who can pass themselves off as this server; run: \
             chmod 600 {shown}"
        )
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|error| TlsError::NotPem(path.to_owned(), error))?;
    match found.is_empty() {
        true => Err(TlsError::NoCertificate(path.to_owned())),
        false => Ok(found),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::NoKey(path.to_owned()),
        error => TlsError::NotPem(path.to_owned(), error),
    })
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::UnixTime;

    use super::*;

    #[test]
    fn a_device_is_none_of_these() {
        let files = TlsFiles {
            certificate: "/dev/zero".into(),
            key: "/dev/zero".into(),
            client_ca: None,
        };
        let error = Tls::load(&files).expect_err("no file").to_string();
        assert!(error.contains("/dev/zero"), "{error}");
        assert!(error.contains("not a file"), "{error}");
    }

    #[test]
    fn a_private_key_that_others_may_use_is_told_of() {
        use std::{fs, os::unix::fs::PermissionsExt};
        let name = format!("sanstone-key-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, "").expect("room");
        for (mode, is_told) in [
            (0o600, false),
            (0o640, false),
            (0o644, true),
            (0o604, true),
            (0o660, true),
        ] {
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(&path, permissions).expect("it is ours");
            let told = exposure(&path);
            assert_eq!(told.is_some(), is_told, "{mode:o}: {told:?}");
            assert!(
                told.is_none_or(|told| told.contains("chmod 600")),
                "{mode:o}"
            );
        }
        fs::remove_file(&path).expect("it is there");
        assert_eq!(exposure(&path), None);
    }

    #[test]
    fn a_certificate_that_has_expired_is_told_of_with_dates() {
        let at = |seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let expired = CertificateError::ExpiredContext {
            time: at(1_795_429_398),
            not_after: at(0),
        };
        let error = io::Error::other(rustls::Error::InvalidCertificate(expired));
        let told = "invalid peer certificate: it was valid until 1970-01-01 00:00:00 UTC, and the time is now \
                    2026-11-23 10:23:18 UTC";
        assert_eq!(explain(&error), told);
        assert_eq!(explain(&io::Error::other("else")), "else");
    }
}
