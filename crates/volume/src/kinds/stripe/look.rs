//! What can be told about a stripe or concat without opening it, from the superblocks of those children that are
//! files. Nothing is created, locked or claimed.

use std::path::Path;

use uuid::Uuid;

use super::{
    check_len,
    open::{Listed, check_together},
    refuse,
    settings::Family,
    superblock::{Superblock, SuperblockRefusal},
    superblock_of,
};
use crate::{
    Result,
    kinds::{
        FileIdentity, Node, NodeForm, VolumeIdentity, Volumes,
        starts::{Start, Starts},
    },
    values::ConfigError,
};

impl Family<'_> {
    /// What would keep the volume from opening, as far as its children that are files tell, of which some `may_be_blank`, as they
    /// are yet to [join](super::join_in_use). Paths are relative to `base`.
    pub(super) fn errors_in_files(
        &self,
        base: &Path,
        volumes: &Volumes,
        starts: &Starts,
        may_be_blank: bool,
    ) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut found = Vec::new();
        for (index, node) in self.of.get_ref().iter().enumerate() {
            let Some(file) = file_of(node, volumes) else {
                continue;
            };
            if may_be_blank && is_blank(&file, (base, starts)) {
                continue;
            }
            let name = self.name_of(index, node);
            match listed(name, self.kind(), &file, (base, starts)) {
                Ok(listed) => found.extend(listed),
                Err(error) => {
                    // Point at where it is listed, because the fix is in the volume that lists it.
                    let place = match &node.what {
                        NodeForm::Named(_) => node.span.clone(),
                        NodeForm::Inline(_) => file.path.span(),
                    };
                    errors.push(ConfigError::new(place, error.to_string()));
                }
            }
        }
        if errors.is_empty() {
            let together = check_together(&found, self.of.get_ref().len(), self.wanted);
            let of_all = together.map_err(|error| ConfigError::at(self.of, error.to_string()));
            errors.extend(of_all.err());
        }
        errors
    }

    /// The volume's identity, if children that are files reveal it and agree.
    pub(super) fn identity_in_files(
        &self,
        base: &Path,
        volumes: &Volumes,
        starts: &Starts,
    ) -> Option<Uuid> {
        let nodes = self.of.get_ref().iter();
        let mut told = nodes.filter_map(|node| {
            let file = file_of(node, volumes)?;
            let listed = listed(String::new(), self.kind(), &file, (base, starts)).ok()??;
            Some(listed.superblock.volume)
        });
        let first = told.next()?;
        told.all(|it| it == first).then_some(first)
    }
}

/// The file that `node` is, or has below layers that leave its blocks in place.
fn file_of<'a>(mut node: &'a Node, volumes: &'a Volumes) -> Option<FileIdentity<'a>> {
    loop {
        match &node.what {
            NodeForm::Named(name) => node = volumes.0.get(name)?,
            NodeForm::Inline(kind) => match kind.identity() {
                VolumeIdentity::File(file) => return Some(file),
                VolumeIdentity::Child(child) => node = child,
                VolumeIdentity::Remote(_)
                | VolumeIdentity::Superblocks(_)
                | VolumeIdentity::Name => return None,
            },
        }
    }
}

/// Whether the child in `file` is there and blank, or would be created.
fn is_blank(file: &FileIdentity<'_>, (base, starts): (&Path, &Starts)) -> bool {
    match starts.of(&base.join(file.path.get_ref())) {
        Start::Block { block, .. } => {
            matches!(Superblock::decode(&block), Err(SuperblockRefusal::Blank))
        }
        Start::Nothing => file.is_made,
        Start::Unknown => false,
    }
}

/// The superblock of the child in `file`. `None`: it cannot be determined, or the file's problem is already reported
/// elsewhere.
fn listed(
    name: String,
    kind: &'static str,
    file: &FileIdentity<'_>,
    (base, starts): (&Path, &Starts),
) -> Result<Option<Listed>> {
    let (block, file_len_bytes) = match starts.of(&base.join(file.path.get_ref())) {
        Start::Block {
            block,
            file_len_bytes,
        } => (block, file_len_bytes),
        Start::Nothing if file.is_made => {
            let why = "it does not exist, or is empty, and would be created blank: mount its file \
                       system, or restore it; to make it part of a new volume, run `sanstone volume \
                       create -c FILE NAME`";
            return Err(refuse(&name, why));
        }
        Start::Nothing | Start::Unknown => return Ok(None),
    };
    if let Some(len_bytes) = file_len_bytes {
        check_len(&name, len_bytes)?;
    }
    let superblock = superblock_of(&name, &block, kind)?;
    Ok(Some(Listed { name, superblock }))
}
