//! What another configuration changes about a daemon, what of it is refused while the daemon serves, and where. Each
//! displays as a line for people; the sign of a change's line says what becomes of its place.

use std::{fmt, path::PathBuf};

use front::report::{Consequence, Fate};

/// A logical unit of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LunOf {
    /// The target's name.
    pub target: String,
    /// The LUN.
    pub number: u32,
    /// The name of its volume.
    pub volume: String,
}

/// Something that another configuration changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigChange {
    /// The limits, for new connections: the settings that are written differently, each as it was and as it is.
    Limits(Vec<String>),
    /// Whether digests are used, for new connections.
    Digests(Vec<String>),
    /// What the initiator of a discovery session must prove.
    DiscoveryAuthentication(Vec<String>),
    /// There is another volume.
    VolumeAdded(String),
    /// There is one volume less.
    VolumeRemoved(String),
    /// A volume that is not open all the time is another one.
    VolumeChanged(String, Vec<String>),
    /// A volume that stays open changes, as its kind says.
    VolumeLive(String),
    /// There is another target.
    TargetAdded(String),
    /// There is one target less.
    TargetRemoved(String),
    /// A setting of a target changes.
    TargetChanged {
        /// The target's name.
        target: String,
        /// The setting.
        setting: &'static str,
        /// What is written differently.
        written: Vec<String>,
    },
    /// A target has another LUN.
    LunAdded(LunOf),
    /// A target has one LUN less.
    LunRemoved(LunOf),
    /// A LUN shows another disk, or shows it otherwise.
    LunChanged {
        /// The LUN, with its volume from now on.
        lun: LunOf,
        /// What is different, as it was and as it is.
        from_to: String,
    },
    /// Something that whoever applies it should know.
    Warning(Warning),
}

/// What whoever applies a configuration should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Warning {
    /// Closing this volume discards its data.
    MemoryDiscarded(String),
    /// A LUN becomes another disk; `was` is the volume that it showed.
    OtherDisk {
        /// The LUN, with its volume from now on.
        lun: LunOf,
        /// The volume that it showed.
        was: String,
    },
    /// A volume that stays open has changed, but not all is well, as its kind says.
    VolumeLive(String),
    /// What becomes of sessions.
    Sessions(Consequence),
    /// Reservations of a disk end.
    Reservations {
        /// The disk's volume.
        volume: String,
        /// Which, and whose.
        what: String,
    },
    /// A claim on disks ends, and another daemon may claim them.
    Claim(String),
    /// The daemon stops, and did not wait for the end.
    Stopping,
}

/// Something that cannot change while the daemon serves, with what to do instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The state directory.
    #[error(
        "the state directory would become {}, but the daemon uses {}: write state = \"{}\", or \
         restart to apply it",
        is.display(), was.display(), resolved.display()
    )]
    StateDirectory {
        /// What it would become.
        is: PathBuf,
        /// What it is, as it is configured.
        was: PathBuf,
        /// What it is.
        resolved: PathBuf,
    },
    /// The directory that relative paths start from.
    #[error(
        "its relative paths would start in {}, but the served ones start in {}: move the file \
         there, or restart to apply it",
        is.display(), was.display()
    )]
    RelativePaths {
        /// What it would become.
        is: PathBuf,
        /// What it is.
        was: PathBuf,
    },
    /// A setting that is read at the start.
    #[error("{0}: set only at startup; restart to apply it")]
    AtStart(&'static str),
    /// A volume is not served any more, but is part of one that is.
    #[error(
        "volume \"{0}\" no longer has a LUN, but is still part of a volume that has \
         one: restart to apply it"
    )]
    StillPart(String),
    /// A volume is not served any more, but a part of it is.
    #[error(
        "volume \"{volume}\" is no longer served, but its part \"{part}\" still is: restart \
         to apply it"
    )]
    PartStays {
        /// The volume.
        volume: String,
        /// Its part.
        part: String,
    },
    /// A volume that stays open cannot change so, as its kind says.
    #[error("{0}")]
    VolumeLive(String),
    /// The volume that is attached is not there.
    #[error(
        "there is no volume \"{0}\", which is attached: write it as it was, or end its `attach`"
    )]
    AttachedMissing(String),
    /// A volume that would be closed is being sanitized.
    #[error("volume \"{0}\" is being sanitized: wait until the sanitize has finished")]
    Sanitizing(String),
}

/// What is written differently, after `before`; nothing if it is only written elsewhere, as a secret in its file.
fn listed(before: &str, written: &[String]) -> String {
    match written.is_empty() {
        true => String::new(),
        false => format!("{before}{}", written.join("; ")),
    }
}

impl fmt::Display for LunOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LunOf {
            target,
            number,
            volume,
        } = self;
        write!(f, "target {target}: LUN {number}, {volume}")
    }
}

impl fmt::Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigChange::Limits(written) => {
                write!(f, "~ limits, for new connections{}", listed(": ", written))
            }
            ConfigChange::Digests(written) => {
                write!(f, "~ digests, for new connections{}", listed(": ", written))
            }
            ConfigChange::DiscoveryAuthentication(written) => {
                write!(f, "~ discovery: authentication{}", listed(": ", written))
            }
            ConfigChange::VolumeAdded(name) => write!(f, "+ volume {name}"),
            ConfigChange::VolumeRemoved(name) => write!(f, "- volume {name}"),
            ConfigChange::VolumeChanged(name, written) => {
                write!(f, "~ volume {name}{}", listed(": ", written))
            }
            ConfigChange::VolumeLive(change) => write!(f, "~ {change}"),
            ConfigChange::TargetAdded(name) => write!(f, "+ target {name}"),
            ConfigChange::TargetRemoved(name) => write!(f, "- target {name}: its sessions end"),
            ConfigChange::TargetChanged {
                target,
                setting,
                written,
            } => match written.first() {
                // A setting that is written in one place names itself.
                Some(first) if first.starts_with(setting) => {
                    write!(f, "~ target {target}: {}", listed("", written))
                }
                _ => write!(f, "~ target {target}: {setting}{}", listed(": ", written)),
            },
            ConfigChange::LunAdded(lun) => write!(f, "+ {lun}"),
            ConfigChange::LunRemoved(lun) => write!(f, "- {lun}"),
            ConfigChange::LunChanged { lun, from_to } => write!(f, "~ {lun}: {from_to}"),
            ConfigChange::Warning(warning) => write!(f, "! {warning}"),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::MemoryDiscarded(name) => write!(
                f,
                "volume {name}: closing it discards its data, which is only in memory"
            ),
            Warning::OtherDisk { lun, was } => write!(
                f,
                "target {}: LUN {} becomes another disk: the sessions that have it end, and an initiator that still \
                 uses {was} would write to {}",
                lun.target, lun.number, lun.volume
            ),
            Warning::VolumeLive(warning) => f.write_str(warning),
            Warning::Reservations { volume, what } => write!(f, "volume {volume}: {what}"),
            Warning::Claim(path) => write!(
                f,
                "{path}: its claim ends, and another daemon may use its disks"
            ),
            Warning::Sessions(consequence) => {
                let Consequence {
                    target,
                    initiator,
                    sessions,
                    fate,
                } = consequence;
                let (plural, their, verb) = match sessions {
                    1 => ("", "its", "ends"),
                    _ => ("s", "their", "end"),
                };
                write!(
                    f,
                    "target {target}: {sessions} session{plural} of {initiator} "
                )?;
                match fate {
                    Fate::Ends(why) => write!(f, "{verb}: {why}"),
                    Fate::LosesLun(number) => write!(
                        f,
                        "will not have LUN {number} any more: what {their} initiator still asks of it fails"
                    ),
                    Fate::OldSecret => f.write_str(
                        "still with the old secret: give it the new one, have it log in again, then remove `old_chap`",
                    ),
                    Fate::GoneSecret => write!(
                        f,
                        "with a secret that is not accepted any more: {their} next login fails, unless the initiator knows \
                         the new one by then; write the old one as `old_chap` until then",
                    ),
                }
            }
            Warning::Stopping => f.write_str(
                "the daemon stops: what is no longer served may not have been flushed and closed",
            ),
        }
    }
}
