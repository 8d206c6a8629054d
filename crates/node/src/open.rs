//! The order of a start. Everything is inspected before anything is created. Then the state directory
//! is created and locked, the volumes are opened, the disks recorded, and their files marked. Each
//! step is durable before the next, and the caller serves only after the last, so a power cut in
//! between leaves either a disk with its identity or one that no initiator has seen. Records come before
//! marks: a mark that no record knows would be taken for the disk of another state directory.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use engine::{LaneHandle, blocking, store};
use uuid::Uuid;
use volume::{
    config::{ConfigError, Starts},
    graph::{Carried, Graph, Tree},
};

use crate::{
    ServedSite, StateError,
    error::OpenRefusal,
    identity::{Identity, IdentityContext, Level, Note},
    process::Process,
    record::{DiskKind, Record, Records, new_identity},
    state::{StateDirectory, sharer},
    survey::{Asked, FoundAtPath, Leaf, Sibling, SurveyMark, asked, derived, found, siblings},
};

/// A disk that is ready to be served.
#[derive(Debug)]
pub struct ReadyDisk {
    /// The volume.
    pub tree: Tree,
    /// Its identity for initiators.
    pub uuid: Uuid,
}

/// The identities of `disks`, by the names of their volumes.
pub(crate) fn identities(disks: &[ReadyDisk]) -> impl Iterator<Item = (String, Uuid)> + '_ {
    let disks = disks.iter();
    disks.map(|disk| (disk.tree.name().to_owned(), disk.uuid))
}

/// The disks that are there, and their identities as far as they can be told without opening them.
pub(crate) struct Survey {
    pub(crate) all: Vec<Asked>,
    siblings: Vec<Sibling>,
    state_exists: bool,
    sharer: Option<PathBuf>,
    pub(crate) identities: Vec<Identity>,
    notes: Vec<Note>,
    /// What is to be said before they are open of what they carry.
    notes_before: Vec<Note>,
    /// Whether sets may have children that are not there yet.
    may_grow: bool,
}

impl Survey {
    /// Looks at what `site` serves and at what lies beside it: every disk of it may have to be waited for. What this process
    /// may have open already `may_grow`, by children that are not there yet.
    ///
    /// # Errors
    /// What keeps it from being served.
    pub(crate) fn make(
        site: &ServedSite<'_>,
        records: &Records,
        starts: &Starts,
        may_grow: bool,
    ) -> Result<Survey, OpenRefusal> {
        let mut survey = Survey {
            all: asked(site, records, starts),
            siblings: siblings(site),
            state_exists: store::look(site.state).is_ok(),
            sharer: sharer(site),
            identities: Vec::new(),
            notes: Vec::new(),
            notes_before: Vec::new(),
            may_grow,
        };
        let known = survey.known(site, records);
        let (identities, notes) = known.judge(&survey.all).map_err(OpenRefusal::Volumes)?;
        let before = known.judge_before(&survey.all, &identities);
        let notes_before = before.map_err(OpenRefusal::Volumes)?;
        (survey.identities, survey.notes, survey.notes_before) = (identities, notes, notes_before);
        Ok(survey)
    }

    /// As [`Survey::make`], where it holds up no lane.
    /// A child of a set that is missing is found when it is opened.
    async fn make_aside(site: &ServedSite<'_>, records: &Records) -> Result<Survey, OpenRefusal> {
        let (site, records) = (site.to_send(), records.clone());
        let make = move || Survey::make(&site.site(), &records, &Starts::default(), true);
        let made = blocking::run(blocking::WorkKind::Files, make).await;
        made.map_err(StateError::io("looking at the disks".to_owned()))?
    }

    pub(crate) fn known<'a>(
        &'a self,
        site: &'a ServedSite<'_>,
        records: &'a Records,
    ) -> IdentityContext<'a> {
        IdentityContext {
            records,
            siblings: &self.siblings,
            state: site.state,
            state_exists: self.state_exists,
            sharer: self.sharer.as_deref(),
            volumes: site.volumes,
            at: &found,
            holder: &store::lock_holder,
            may_grow: self.may_grow,
        }
    }
}

/// Determines which disks `site` serves, as far as possible without opening them; what this process may have open already
/// `may_grow`. Changes nothing.
///
/// # Errors
/// All reasons why they must not be served.
pub fn look(site: &ServedSite<'_>, may_grow: bool) -> Result<Vec<Note>, OpenRefusal> {
    StateDirectory::look(site.state)?;
    let records = Records::read(site.state)?;
    let starts = Starts::default();
    let survey = Survey::make(site, &records, &starts, may_grow)?;
    let (volumes, base) = (site.volumes, site.base());
    let served = site.served.iter();
    let errors: Vec<_> = served
        .flat_map(|name| volumes.look_at_children(name, &base, &starts, may_grow))
        .collect();
    match errors.is_empty() {
        true => Ok([survey.notes, survey.notes_before].concat()),
        false => Err(OpenRefusal::Volumes(errors)),
    }
}

/// Opens the state directory of `site`, unless its volumes are refused: a directory that was created
/// then would not count as new the next time. `with_parents` also creates missing parents.
///
/// # Errors
/// Why the directory cannot be used, or why its volumes must not be served.
pub fn prepare(site: &ServedSite<'_>, with_parents: bool) -> Result<StateDirectory, OpenRefusal> {
    look(site, false)?;
    Ok(StateDirectory::open_to_serve(site.state, with_parents)?)
}

/// Opens what `site` serves for `process`, and records it in `state`. The volumes' home lanes are
/// assigned round-robin from `lanes`.
///
/// # Errors
/// Whatever keeps it from being served.
pub async fn open(
    site: &ServedSite<'_>,
    process: &Process,
    state: &mut StateDirectory,
    graph: &mut Graph,
    lanes: &[LaneHandle],
) -> Result<Vec<ReadyDisk>, OpenRefusal> {
    graph.set_owner(process.owner(Some(state))?);
    graph.set_state_directory(site.state);
    graph.set_lanes(lanes);
    let records = state.records().clone();
    let opened = open_all(site, &records, graph, lanes).await?;
    state.keep_opened(site, opened)
}

/// The open volumes of a configuration.
pub(crate) struct OpenVolumes {
    pub(crate) disks: Vec<ReadyDisk>,
    /// The records of disks from now on. What has yet to be marked does not count as marked.
    records: Records,
    /// The files of disks that are one file each.
    files: Vec<(Leaf, Uuid)>,
    notes: Vec<Note>,
}

/// Opens what `site` serves, or returns it if already open. The volumes' home lanes are assigned
/// round-robin from `lanes`. `records` has the known disks.
///
/// # Errors
/// Whatever keeps it from being served.
pub(crate) async fn open_all(
    site: &ServedSite<'_>,
    records: &Records,
    graph: &mut Graph,
    lanes: &[LaneHandle],
) -> Result<OpenVolumes, OpenRefusal> {
    // Nothing is claimed if a volume is refused. Notes about the others follow once they are open.
    let survey = Survey::make_aside(site, records).await?;
    let known = survey.known(site, records);
    let mut notes = survey.notes.clone();
    let mut trees = Vec::new();
    for (asked, home) in survey.all.iter().zip(lanes.iter().cycle()) {
        let tree = graph.open(&asked.volume, home).await;
        trees.push(tree.map_err(OpenRefusal::Opening)?);
    }
    let carried = |asked: &Asked, tree: &Tree| match asked.kind {
        DiskKind::View => None,
        _ => match tree.carried() {
            Some(Carried::Stripe(uuid)) => Some(*uuid),
            Some(Carried::Remote(name)) => Some(derived(&["remote", name])),
            None => asked.carried,
        },
    };
    let taken = known.taken(&survey.all, &survey.identities, |index| {
        carried(&survey.all[index], &trees[index])
    });
    let (mut disks, mut files) = (Vec::<ReadyDisk>::new(), Vec::new());
    let mut records = records.clone();
    for ((asked, tree), identity) in survey.all.iter().zip(trees).zip(&survey.identities) {
        let carried = carried(asked, &tree);
        let identity = match identity {
            Identity::Carried => {
                let judged = known.judge_carried(asked, carried, &taken);
                let (identity, found) =
                    judged.map_err(|error| OpenRefusal::Volumes(vec![error]))?;
                notes.extend(found);
                identity
            }
            judged => *judged,
        };
        let uuid = match identity {
            Identity::Known(uuid) => uuid,
            Identity::New | Identity::Carried => {
                match of_this_daemon(asked, carried, graph.owner()) {
                    Some(uuid) => uuid,
                    None => new_identity()?,
                }
            }
        };
        let mut record = record_of(asked, carried);
        if let (DiskKind::File, Some(leaf)) = (asked.kind, asked.leaves.first()) {
            if let (
                Identity::New,
                FoundAtPath::File {
                    is_blank: false, ..
                },
            ) = (identity, &leaf.found)
            {
                let path = leaf.path.display();
                let text = format!(
                    "{path} has no mark, and {} records no disk there: it becomes a new disk, {uuid}; \
                     if it is a copy, the original keeps its own identity",
                    site.state.display()
                );
                let text = ConfigError::new(leaf.span.clone(), text);
                notes.push(Note {
                    level: Level::Info,
                    text,
                });
            }
            let known = records.disks.get(&uuid);
            record.marked = is_marked(leaf, uuid) || known.is_some_and(|record| record.marked);
            files.push((leaf.clone(), uuid));
        }
        if let Some(other) = disks.iter().find(|disk| disk.uuid == uuid) {
            let other = other.tree.name();
            let message = format!(
                "volumes \"{other}\" and \"{}\" are one disk, {uuid}: serve one of them",
                asked.volume
            );
            let error = ConfigError::new(asked.span.clone(), message);
            return Err(OpenRefusal::Volumes(vec![error]));
        }
        records.disks.insert(uuid, record);
        disks.push(ReadyDisk { tree, uuid });
    }
    Ok(OpenVolumes {
        disks,
        records,
        files,
        notes,
    })
}

/// The identity of a remote disk that was never served from here, through the daemon of `owner`. Another daemon shows the
/// same disk under another one: reservations and unit attentions are each daemon's own, so no initiator may take
/// what two of them serve for two paths to one logical unit.
fn of_this_daemon(asked: &Asked, carried: Option<Uuid>, owner: Uuid) -> Option<Uuid> {
    let DiskKind::Remote(kind) = asked.kind else {
        return None;
    };
    let disk = carried.map(|carried| carried.to_string());
    let disk = disk.or_else(|| asked.place.clone())?;
    Some(derived(&[kind, &owner.to_string(), &disk]))
}

impl StateDirectory {
    /// Records the disks that `site` serves, and marks their files. Those served before keep their identities as well.
    ///
    /// # Errors
    /// If that fails. Then only those disks are recorded in addition that have been marked.
    pub(crate) fn keep_opened(
        &mut self,
        site: &ServedSite<'_>,
        opened: OpenVolumes,
    ) -> Result<Vec<ReadyDisk>, OpenRefusal> {
        let OpenVolumes {
            disks,
            mut records,
            files,
            notes,
        } = opened;
        for (leaf, uuid) in &files {
            if let Some(record) = records.disks.get_mut(uuid) {
                record.bytes = store::look(&leaf.path).ok().map(|look| look.len_bytes);
            }
        }
        let before = self.before();
        // What cannot be stored may be in the file all the same.
        let kept = self.set_records(records.clone());
        let kept = kept.and_then(|()| {
            let marked = mark_all(&files, &mut records);
            // If one fails, the others are marked all the same.
            let stored = self.set_records(records.clone());
            marked.and(stored)
        });
        if let Err(error) = kept {
            self.take_back(before, &records, &[]);
            return Err(error.into());
        }
        self.serves(site)?;
        let distinct: BTreeSet<_> = disks.iter().map(|disk| disk.uuid).collect();
        assert_eq!(
            distinct.len(),
            disks.len(),
            "two disks would share their reservations"
        );
        self.unit_files.served().extend(identities(&disks));
        for note in &notes {
            match note.level {
                Level::Info => tracing::info!("{}", note.text),
                Level::Warn => tracing::warn!("{}", note.text),
            }
        }
        Ok(disks)
    }

    /// Records the lengths of the files that have grown while they are served: a shorter file is another one.
    pub(crate) fn note_growth(&mut self) -> Result<(), StateError> {
        let mut records = self.records().clone();
        let served = self.unit_files.served().values().copied().collect();
        records.note_growth(&served);
        self.set_records(records)
    }
}

/// Marks the files of the recorded disks, and has `records` say which of them are marked.
fn mark_all(files: &[(Leaf, Uuid)], records: &mut Records) -> Result<(), StateError> {
    files.iter().try_for_each(|(leaf, uuid)| {
        let is_marked = mark(leaf, *uuid)?;
        if let Some(record) = records.disks.get_mut(uuid) {
            record.marked = is_marked;
        }
        Ok(())
    })
}

fn record_of(asked: &Asked, carried: Option<Uuid>) -> Record {
    let text = |path: Option<&Path>| path.unwrap_or(Path::new("")).to_string_lossy().into_owned();
    let leaves = || asked.leaves.iter();
    Record {
        volume: asked.volume.clone(),
        kind: Some(asked.kind.word()),
        carried,
        place: asked.place.clone(),
        marked: false,
        bytes: None,
        paths: leaves().map(|leaf| text(Some(&leaf.path))).collect(),
        relative_paths: leaves()
            .map(|leaf| text(leaf.relative.as_deref()))
            .collect(),
    }
}

/// Whether the file of `leaf` was marked with the identity when it was looked at.
fn is_marked(leaf: &Leaf, uuid: Uuid) -> bool {
    matches!(&leaf.found, FoundAtPath::File { mark: SurveyMark::Disk(mark), .. } if *mark == uuid)
}

/// Marks the open file of `leaf` with its identity if possible; returns whether it is marked.
fn mark(leaf: &Leaf, uuid: Uuid) -> Result<bool, StateError> {
    if is_marked(leaf, uuid) {
        return Ok(true);
    }
    if leaf.read_only {
        return Ok(false);
    }
    let path = leaf.path.display();
    // The file is open now, so nobody else serves it. But somebody may have between the inspection and the opening.
    if let Ok(Some(other)) = store::mark(&leaf.path) {
        return Err(StateError::Refused(format!(
            "{path} was marked as disk {} by another process just now; start again",
            String::from_utf8_lossy(&other)
        )));
    }
    match store::set_mark(&leaf.path, uuid.to_string().as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::Unsupported => Ok(false),
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::StorageFull => {
                tracing::warn!(
                    "{path} cannot be marked as disk {uuid} ({error}): it is recognised only by its \
                     path and its volume's name"
                );
                Ok(false)
            }
            _ => Err(StateError::io(format!("marking {path} as disk {uuid}"))(
                error,
            )),
        },
    }
}
