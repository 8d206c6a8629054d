//! Messages about disks that are recorded in another state directory next to the configuration.

use std::process;

use uuid::Uuid;

use super::{IdentityContext, MARK, id_of};
use crate::{
    record::Record,
    survey::{FoundAtPath, Leaf, Sibling, SurveyMark},
};

impl IdentityContext<'_> {
    /// The message for a marked file that a neighbouring state directory has recorded under another name, if the disk
    /// is still there: the file is a hard link or a copy. In that case no configuration was renamed.
    pub(super) fn second_file(
        &self,
        leaf: &Leaf,
        (uuid, record): (&Uuid, &Record),
        sibling: &Sibling,
    ) -> Option<String> {
        let old = record.path().filter(|old| *old != leaf.path)?;
        let id = id_of(&leaf.found)?;
        let there = (self.at)(old);
        let (path, shown) = (leaf.path.display(), old.display());
        let directory = sibling.directory.display();
        let volume = &record.volume;
        if id_of(&there) == Some(id) {
            return Some(format!(
                "{path} and {shown} are one file (a hard link), and {directory} records it as disk \
                 {uuid}, volume \"{volume}\": serve it from one configuration; for a disk of its own, \
                 copy the file and name the copy"
            ));
        }
        let is_copy =
            matches!(there, FoundAtPath::File { mark: SurveyMark::Disk(it), .. } if it == *uuid);
        is_copy.then(|| {
            format!(
                "{path} is a copy of {shown}: both are marked as disk {uuid}, which {directory} records \
                 as volume \"{volume}\", and initiators would take both for one disk; `setfattr -x \
                 {MARK} {path}` makes the copy a disk of its own"
            )
        })
    }

    /// The message for a disk recorded in a neighbouring state directory. `leaves` are its files: if a process has one
    /// of them open, that is more useful to know than what was recorded.
    pub(super) fn elsewhere(
        &self,
        leaves: &[Leaf],
        what: &str,
        sibling: &Sibling,
        (uuid, record): (&Uuid, &Record),
        otherwise: &str,
    ) -> String {
        let mut leaves = leaves.iter();
        let in_use = leaves.find_map(|leaf| Some((&leaf.path, (self.holder)(&leaf.path)?)));
        let in_use = in_use.filter(|(_, pid)| *pid != process::id());
        if let Some((path, pid)) = in_use {
            return format!(
                "{} is in use by process {pid}; stop that one, or serve another file",
                path.display()
            );
        }
        let directory = sibling.directory.display();
        let name = sibling.directory.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let rename = match self.state_exists {
            true => String::new(),
            false => format!("mv {directory} {} or ", self.state.display()),
        };
        format!(
            "{what}, which is recorded not in {} but in {directory}, as volume \"{}\": if the \
             configuration was renamed, {rename}write state = \"{}\" (no daemon may be using it); if \
             it {otherwise}, {}",
            self.state.display(),
            record.volume,
            name,
            sibling.records.forget(uuid, record)
        )
    }
}
