//! Disks recognised by an identity they carry: the name in a stripe's superblock, or what a device
//! or remote disk is known by everywhere. Disks that carry none, such as memory, are recognised by
//! their volume's name.

use std::{collections::BTreeSet, path::Path};

use uuid::Uuid;
use volume::config::ConfigError;

use super::{Identity, IdentityContext, Judged, Level, Note};
use crate::{
    record::{DiskKind, Record, Records},
    survey::Asked,
};

impl IdentityContext<'_> {
    /// The recorded disks among `all`. `carried` returns the identity that each carries.
    pub(crate) fn taken(
        &self,
        all: &[Asked],
        identities: &[Identity],
        carried: impl Fn(usize) -> Option<Uuid>,
    ) -> BTreeSet<Uuid> {
        let known = all.iter().zip(identities).enumerate();
        let known = known.filter_map(|(index, (asked, identity))| match identity {
            Identity::Known(uuid) => Some(*uuid),
            Identity::New => None,
            Identity::Carried => Some(*self.recorded(asked, carried(index))?.0),
        });
        known.collect()
    }

    /// As [`IdentityContext::judge_carried`], for those of `all` whose carried identity is known before they are open.
    /// Returns the notes about them.
    ///
    /// # Errors
    /// All reasons why they must not be served, each with a remedy.
    pub(crate) fn judge_before(
        &self,
        all: &[Asked],
        identities: &[Identity],
    ) -> Result<Vec<Note>, Vec<ConfigError>> {
        let is_told = |asked: &Asked| match asked.kind {
            DiskKind::Superblocks(_) => asked.carried.is_some(),
            DiskKind::Remote(_) => false,
            DiskKind::File | DiskKind::Device | DiskKind::Named | DiskKind::View => true,
        };
        // A recorded disk may turn out to be a volume whose identity is unknown until it is open.
        if !self.records.is_new && !all.iter().all(is_told) {
            return Ok(Vec::new());
        }
        let taken = self.taken(all, identities, |index| all[index].carried);
        let (mut notes, mut errors) = (Vec::new(), Vec::new());
        for asked in all {
            let is_made_of_others = matches!(asked.kind, DiskKind::Superblocks(_));
            if is_made_of_others && asked.carried.is_some() {
                match self.judge_carried(asked, asked.carried, &taken) {
                    Ok((_, found)) => notes.extend(found),
                    Err(error) => errors.push(error),
                }
            }
        }
        match errors.is_empty() {
            true => Ok(notes),
            false => Err(errors),
        }
    }

    /// The recorded disk that carries `carried`, or that is recorded at the place of a disk that carries nothing.
    pub(crate) fn recorded(
        &self,
        asked: &Asked,
        carried: Option<Uuid>,
    ) -> Option<(&Uuid, &Record)> {
        recorded_in(self.records, asked, carried)
    }

    /// Decides which disk an open volume is, by the identity it carries or by its name. The disks
    /// in `taken` have been found, as this volume or as another one.
    ///
    /// # Errors
    /// Why it must not be served, with a remedy.
    pub(crate) fn judge_carried(
        &self,
        asked: &Asked,
        carried: Option<Uuid>,
        taken: &BTreeSet<Uuid>,
    ) -> Result<(Identity, Vec<Note>), ConfigError> {
        let mut judged = Judged::default();
        if asked.kind == DiskKind::Device && carried.is_none() {
            let text = format!(
                "volume \"{}\" is a device without a world wide name: it is recognised only by its \
                 path; name it by a stable one, such as /dev/disk/by-path/…",
                asked.volume
            );
            judged.note(Level::Warn, &asked.span, text);
        }
        let of_kind = |record: &Record| record.kind.is_none_or(|kind| asked.kind.may_be(kind));
        let mut records = self.records.disks.iter();
        let named = records.find(|(uuid, record)| {
            let is_named = record.volume == asked.volume && !taken.contains(uuid);
            is_named && (of_kind(record) || record.is_lasting() && !asked.kind.is_of_a_name())
        });
        let identity = match (self.recorded(asked, carried), named, carried) {
            (Some((uuid, record)), ..) => {
                if record.volume != asked.volume {
                    let (old, new) = (&record.volume, &asked.volume);
                    let text = format!(
                        "volume \"{new}\" is disk {uuid} as before: its volume was called \"{old}\""
                    );
                    judged.note(Level::Info, &asked.span, text);
                }
                Identity::Known(*uuid)
            }
            (None, Some(disk), _) if !of_kind(disk.1) => {
                self.refuse_other_kind(asked, disk, &mut judged);
                Identity::New
            }
            (None, Some((uuid, record)), Some(carried)) if record.carried.is_some() => {
                let message = format!(
                    "volume \"{}\" has been served as disk {uuid} and is another one now, which \
                     carries {carried}: give this one another name; to serve it in place of that disk, \
                     {}; if it is the same disk, write carried = \"{carried}\" in that table",
                    asked.volume,
                    self.forget(uuid, record)
                );
                judged.refuse(&asked.span, message);
                Identity::New
            }
            (None, Some(disk), _) => match (&disk.1.place, &asked.place) {
                (Some(old), Some(new)) if !is_in_place(disk.1, asked) => {
                    self.refuse_other_place(asked, disk, (old, new), &mut judged);
                    Identity::New
                }
                _ => Identity::Known(*disk.0),
            },
            (None, None, _) => {
                if !asked.kind.is_of_a_name() {
                    self.check_nameless(asked, &asked.span, &mut judged);
                    self.check_carried_elsewhere(asked, carried, &mut judged);
                }
                match (asked.kind, carried) {
                    (DiskKind::Remote(_), _) | (_, None) => Identity::New,
                    (_, Some(carried)) => Identity::Known(carried),
                }
            }
        };
        match judged.errors.pop() {
            Some(error) => Err(error),
            None => Ok((identity, judged.notes)),
        }
    }

    /// Refuses a disk at another place if either side lacks an identity: they may be two disks.
    fn refuse_other_place(
        &self,
        asked: &Asked,
        (uuid, record): (&Uuid, &Record),
        (old, new): (&str, &str),
        judged: &mut Judged,
    ) {
        let message = format!(
            "volume \"{}\" has been served as disk {uuid} from {old}, and is {new} now, which may be \
             another one: give it another name; to serve it in place of that disk, {}; if it is the \
             same disk, write place = \"{new}\" in that table",
            asked.volume,
            self.forget(uuid, record)
        );
        judged.refuse(&asked.span, message);
    }

    fn check_carried_elsewhere(&self, asked: &Asked, carried: Option<Uuid>, judged: &mut Judged) {
        let mut siblings = self.siblings.iter();
        let sibling = siblings
            .find_map(|sibling| Some((sibling, recorded_in(&sibling.records, asked, carried)?)));
        let Some((sibling, disk)) = sibling else {
            return;
        };
        let message = self.elsewhere(
            &asked.leaves,
            &format!("volume \"{}\" is disk {}", asked.volume, disk.0),
            sibling,
            disk,
            "should be served without its reservations and saved mode pages",
        );
        match self.records.is_new {
            true => judged.refuse(&asked.span, message),
            false => judged.note(Level::Warn, &asked.span, message),
        }
    }
}

/// The disk in `records` that carries `carried`, or that is recorded at the place of a disk that carries nothing.
/// Some remote disks report their identity only at times; they are recognised by their place if either side lacks it.
fn recorded_in<'a>(
    records: &'a Records,
    asked: &Asked,
    carried: Option<Uuid>,
) -> Option<(&'a Uuid, &'a Record)> {
    let by_name = |it: Uuid| {
        let mut disks = records.disks.iter();
        disks.find(|(uuid, record)| **uuid == it || record.carried == Some(it))
    };
    let by_place = || {
        let disks = records.disks.iter().filter(|(_, record)| {
            let is_there = record.kind == Some(asked.kind.word()) && is_in_place(record, asked);
            let is_nameless = record.carried.is_none() && matches!(asked.kind, DiskKind::Remote(_));
            is_there && (carried.is_none() || is_nameless)
        });
        disks.max_by_key(|(_, record)| record.place == asked.place)
    };
    carried.and_then(by_name).or_else(by_place)
}

/// Whether a disk was recorded where `asked` is: at its place, or for a device, where that leads.
fn is_in_place(record: &Record, asked: &Asked) -> bool {
    let Some(recorded) = &record.place else {
        return false;
    };
    let leaf = asked.leaves.first();
    let device = leaf.filter(|_| asked.kind == DiskKind::Device);
    asked.place.as_ref() == Some(recorded)
        || device.is_some_and(|leaf| leaf.path == Path::new(recorded))
}
