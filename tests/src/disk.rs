//! An iSCSI disk to test initiators on, served by Sanstone or by another target.
//!
//! `SANSTONE_TEST_TARGET=tgt` runs the same tests against a target that is known to work: a test that fails there is
//! itself wrong.

use crate::directory::Directory;
use crate::istgt::Istgt;
use crate::lio::{Backing, Lio};
use crate::sanstone::Sanstone;
use crate::tgt::Tgt;

/// The targets that can serve a [`Disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This project's binary.
    Sanstone,
    /// Debian's `tgt`.
    Tgt,
    /// Debian's `istgt`.
    Istgt,
    /// The Linux kernel's target, in a virtual machine.
    Lio,
}

impl Target {
    /// The one that `SANSTONE_TEST_TARGET` names, or Sanstone.
    ///
    /// # Panics
    /// If it names none of them.
    pub fn chosen() -> Target {
        match std::env::var("SANSTONE_TEST_TARGET").as_deref() {
            Err(_) | Ok("" | "sanstone") => Target::Sanstone,
            Ok("tgt") => Target::Tgt,
            Ok("istgt") => Target::Istgt,
            Ok("lio") => Target::Lio,
            Ok(other) => panic!("SANSTONE_TEST_TARGET={other}: write sanstone, tgt, istgt or lio"),
        }
    }

    /// Its name as `SANSTONE_TEST_TARGET` writes it.
    pub fn name(self) -> &'static str {
        match self {
            Target::Sanstone => "sanstone",
            Target::Tgt => "tgt",
            Target::Istgt => "istgt",
            Target::Lio => "lio",
        }
    }
}

/// A disk of zeroes and the target that serves it, which is stopped when the disk is dropped.
#[derive(Debug)]
pub struct Disk {
    /// `iscsi://HOST:PORT/IQN/LUN`
    pub url: String,
    /// `iscsi://HOST:PORT`
    pub portal: String,
    /// The serving process.
    pub pid: u32,
    /// Held for its `Drop`, which stops the process and removes its files.
    _server: Box<dyn std::fmt::Debug + Send + Sync>,
}

impl Disk {
    /// A disk of `size_bytes` (whole MiB), file-backed, on the chosen target.
    ///
    /// # Panics
    /// If the target does not come up.
    pub fn new(size_bytes: u64) -> Disk {
        Disk::with_settings("", size_bytes)
    }

    /// The same with settings for Sanstone's daemon, as lines of its configuration; other targets
    /// have no such settings.
    ///
    /// # Panics
    /// If the target does not come up.
    pub fn with_settings(settings_toml: &str, size_bytes: u64) -> Disk {
        match Target::chosen() {
            Target::Sanstone => Disk::on_sanstone(settings_toml, size_bytes),
            other => Disk::on(other, size_bytes)
                .unwrap_or_else(|| panic!("{} cannot be had here", other.name())),
        }
    }

    /// The same on the target given. If that target is not available, the test is [skipped](crate::skip).
    ///
    /// # Panics
    /// If the target does not come up.
    pub fn on(target: Target, size_bytes: u64) -> Option<Disk> {
        Some(match target {
            Target::Sanstone => Disk::on_sanstone("", size_bytes),
            Target::Tgt => {
                let directory = Directory::new();
                let mut server = Tgt::start();
                let url = server.add_disk(&directory.sparse("disk.img", size_bytes));
                let (portal, pid) = (server.portal(), server.pid());
                Disk {
                    url,
                    portal,
                    pid,
                    _server: Box::new((server, directory)),
                }
            }
            Target::Istgt => {
                let Some(server) = Istgt::start(size_bytes) else {
                    crate::skip("istgt is not installed here");
                    return None;
                };
                let url = server.url();
                let portal = url.rsplitn(3, '/').last().unwrap_or_default().to_owned();
                Disk {
                    url,
                    portal,
                    pid: server.pid(),
                    _server: Box::new(server),
                }
            }
            Target::Lio => {
                let server = Lio::serve(Backing::File, size_bytes, 512)?;
                Disk {
                    url: server.url(),
                    portal: format!("iscsi://{}", server.portals()[0]),
                    pid: server.pid(),
                    _server: Box::new(server),
                }
            }
        })
    }

    fn on_sanstone(settings_toml: &str, size_bytes: u64) -> Disk {
        let directory = Directory::new();
        let configuration = format!(
            "{settings_toml}[volume.disk]\nfile = {{ path = \"disk.img\", size = \"{}MiB\", cache = \"write-back\" }}\n",
            size_bytes >> 20
        );
        let server = Sanstone::serve(directory.path(), &configuration, &["disk"]).owning(directory);
        Disk {
            url: server.url(0),
            portal: server.portal(),
            pid: server.pid(),
            _server: Box::new(server),
        }
    }

    /// The portal as `HOST:PORT`.
    pub fn address(&self) -> &str {
        self.portal.trim_start_matches("iscsi://")
    }

    /// The target's name and the LUN, from the URL.
    ///
    /// # Panics
    /// If the URL has no such parts, which the constructor excludes.
    pub fn target_and_lun(&self) -> (&str, u8) {
        let mut parts = self.url.rsplitn(3, '/');
        let lun = parts
            .next()
            .and_then(|lun| lun.parse().ok())
            .expect("a URL ends with its LUN");
        (parts.next().expect("a URL names its target"), lun)
    }
}
