//! What a front serves and to whom, as `show --json` prints it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a front serves and to whom. A front without targets and sessions reports none.
#[derive(Clone, Debug, Default)]
pub struct FrontReport {
    /// Its targets, by name.
    pub targets: BTreeMap<String, ReportedTarget>,
    /// Its sessions, by initiator.
    pub sessions: Vec<ReportedSession>,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportedTarget {
    /// Its portal groups.
    pub portal_groups: Vec<PortalGroup>,
    /// Its logical units, by number.
    pub luns: BTreeMap<u32, ReportedLun>,
    /// Who may log in; absent: everyone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub allow: Option<Vec<String>>,
    /// Networks from which to log in; empty: anywhere.
    pub allow_from: Vec<String>,
    /// Whether initiators must authenticate.
    pub chap: bool,
    /// Where initiators are redirected to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub redirect: Option<String>,
}

/// Portals that share their sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortalGroup {
    /// TargetPortalGroupTag.
    pub tag: u16,
    /// Relative target port identifier.
    pub target_port: u16,
    /// The addresses it listens on.
    pub portals: Vec<String>,
}

/// A logical unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportedLun {
    /// Its volume.
    pub volume: String,
    /// Whether this LUN refuses writes.
    pub read_only: bool,
    /// Whether initiators may eject it.
    pub removable: bool,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportedSession {
    /// The initiator's name.
    pub initiator: String,
    /// Its address.
    pub peer: String,
    /// The portal it connected to.
    pub portal: String,
    /// Absent for a discovery session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<String>,
    /// The tag of the portal group; 0 for discovery.
    pub portal_group_tag: u16,
    /// The thread that serves it.
    pub lane: usize,
    /// Whether headers carry CRC32C.
    pub header_digest: bool,
    /// Whether data segments carry CRC32C.
    pub data_digest: bool,
    /// Its age.
    pub age_s: f64,
    /// Commands in progress.
    pub outstanding: usize,
    /// `old`: it has authenticated with the secret that its target still accepts beside the new one; `gone`: with one that its
    /// target does not accept any more, so its next login fails unless the initiator knows the new one. Absent: neither.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub secret: Option<String>,
}

/// What another configuration does to sessions of one initiator with one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consequence {
    /// The target.
    pub target: String,
    /// The initiator.
    pub initiator: String,
    /// How many sessions.
    pub sessions: usize,
    /// What becomes of them.
    pub fate: Fate,
}

/// What becomes of a session when another configuration is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It ends, for this reason.
    Ends(&'static str),
    /// It stays, and has no LUN of this number any more: what its initiator still asks of it fails.
    LosesLun(u32),
    /// It stays. Its initiator has authenticated with a secret that is no longer accepted, so its next login fails unless it
    /// knows the new one by then.
    GoneSecret,
    /// It stays. Its initiator has authenticated with the secret that is still accepted beside the new one.
    OldSecret,
}
