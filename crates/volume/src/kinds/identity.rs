//! How the disk that a volume is can be recognised when it is served again: what each kind answers, and what
//! superblocks tell before anything is opened.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use engine::LaneFuture;
use toml::Spanned;
use uuid::Uuid;

use super::{Kind, Node, NodeForm, Volumes, starts::Starts};
use crate::{Result, SetClaim, claim::Others, part::Part, values::ConfigError};

/// What the disk that a volume is can be recognised by when it is served again.
#[derive(Debug)]
pub enum VolumeIdentity<'a> {
    /// It is this file, which is marked with its identity, or this block device, which has a worldwide name.
    File(FileIdentity<'a>),
    /// It is a disk of another machine, which tells its worldwide name when it is open. If it has none, it is
    /// recognised by this place. No two kinds may use the same text for a place.
    Remote(String),
    /// The superblocks on its children name it.
    Superblocks(Superblocks<'a>),
    /// It is the disk of its only child, whose blocks it leaves where they are.
    Child(&'a Node),
    /// Nothing on it tells: it is recognised by its volume's name alone, whatever it contains.
    Name,
}

impl<'a> VolumeIdentity<'a> {
    /// The file or block device of this machine, if it is one.
    pub fn file(self) -> Option<FileIdentity<'a>> {
        match self {
            VolumeIdentity::File(file) => Some(file),
            _ => None,
        }
    }
}

/// A file or block device of this machine with the blocks of a volume.
#[derive(Clone, Copy, Debug)]
pub struct FileIdentity<'a> {
    /// As configured: relative to the directory of the configuration file.
    pub path: &'a Spanned<PathBuf>,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether it is created if it does not exist.
    pub is_made: bool,
}

/// A volume with superblocks on its children.
#[derive(Debug)]
pub struct Superblocks<'a>(pub(crate) Box<dyn HasSuperblocks + 'a>);

/// The parameters of new superblocks: those of a stripe or concat.
#[derive(Clone, Debug)]
pub struct NewStripe {
    /// The volume's permanent identity.
    pub uuid: Uuid,
    /// The current time, in seconds since 1970.
    pub created_unix_s: u64,
    /// Overwrite whatever the children hold.
    pub force: bool,
    /// For a mirror: whose data it has. `None`: it begins blank.
    pub from: Option<Source>,
}

/// Where the data of a mirror is. Copies are numbered as they are listed, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// On this copy: the mirror is new.
    Copy(usize),
    /// On the others: the mirror exists, and another disk takes the place of this copy.
    AllBut(usize),
}

/// What a kind of volume with superblocks on its children provides.
pub(crate) trait HasSuperblocks: fmt::Debug {
    /// The children, with their place in the text.
    fn children(&self) -> &Spanned<Vec<Node>>;

    /// Rejects what could be created but never served.
    ///
    /// # Errors
    /// The first child whose data does not last, with its place.
    fn check_lasting(&self, volumes: &Volumes) -> std::result::Result<(), ConfigError>;

    /// The volume's identity, if children that are files reveal it and agree. Paths are relative to `base`. Nothing is
    /// opened as a volume, locked or claimed.
    fn carried(&self, base: &Path, volumes: &Volumes, starts: &Starts) -> Option<Uuid>;

    /// What would keep the volume from opening, as far as its children that are files tell; it `may_grow` by others that are
    /// blank, if its kind may. Otherwise as [`HasSuperblocks::carried`].
    fn look_at_children(
        &self,
        base: &Path,
        volumes: &Volumes,
        starts: &Starts,
        may_grow: bool,
    ) -> Vec<ConfigError>;

    /// The volume's identity, from the superblocks of `children`, which are open. Claims nothing; `others` is what a
    /// claim would do. `None`: another owner's reservation hides it from everybody.
    fn identify<'b>(
        &'b self,
        children: &'b [Arc<Part>],
        others: Others,
    ) -> LaneFuture<'b, Result<Option<Uuid>>>;

    /// Writes the superblocks to `children`, which are open, under `claim`. A kind with a register keeps it in
    /// `state_directory`.
    fn create<'b>(
        &'b self,
        children: &'b [Arc<Part>],
        claim: SetClaim,
        new: &'b NewStripe,
        state_directory: Option<&'b Path>,
    ) -> LaneFuture<'b, Result<()>>;

    /// Gives the volume, which messages call `name`, the length that `children`, which are open, have room for now, under
    /// `claim` of `owner`. A kind with a register has it in `state_directory`.
    fn grow<'b>(
        &'b self,
        name: &'b str,
        children: &'b [Arc<Part>],
        claim: SetClaim,
        owner: Uuid,
        state_directory: Option<&'b Path>,
    ) -> LaneFuture<'b, Result<NewLength>>;
}

/// How long a volume was, and is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewLength {
    /// Before.
    pub from_bytes: u64,
    /// Now.
    pub to_bytes: u64,
}

impl Kind {
    /// What the disk is recognised by when it is served again.
    pub fn identity(&self) -> VolumeIdentity<'_> {
        self.settings().identity()
    }

    /// Whether it opens although some of its children do not.
    pub fn stands_without_children(&self) -> bool {
        self.settings().stands_without_children()
    }

    /// Whether the data that it keeps itself is gone when the process ends.
    pub fn is_volatile(&self) -> bool {
        self.settings().is_volatile()
    }
}

impl Node {
    /// The superblocks of its children, if it is described here and its kind has them.
    pub(crate) fn superblocks(&self) -> Option<Superblocks<'_>> {
        match &self.what {
            NodeForm::Inline(kind) => match kind.identity() {
                VolumeIdentity::Superblocks(superblocks) => Some(superblocks),
                _ => None,
            },
            NodeForm::Named(_) => None,
        }
    }

    /// The kind of a stripe, concat or mirror that is described inside it.
    pub(crate) fn inner_set(&self) -> Option<&'static str> {
        let all = self.all().into_iter().skip(1);
        let mut inner = all.filter(|node| node.superblocks().is_some());
        inner.find_map(|node| Some(node.inline()?.name()))
    }
}

impl Volumes {
    /// The identity that the superblocks of `node` carry, if one of its children is a file and reveals it. Paths are
    /// relative to `base`. Nothing is opened as a volume, locked or claimed.
    pub fn carried(&self, node: &Node, base: &Path, starts: &Starts) -> Option<Uuid> {
        node.superblocks()?.0.carried(base, self, starts)
    }

    /// What would keep volumes with superblocks within the volume called `name` from opening, as far as their children
    /// that are files tell. If this process may have them open, they `may_grow` by children that are blank. Paths are
    /// relative to `base`. Nothing is opened as a volume, locked or claimed.
    pub fn look_at_children(
        &self,
        name: &str,
        base: &Path,
        starts: &Starts,
        may_grow: bool,
    ) -> Vec<ConfigError> {
        let mut needed = Vec::new();
        self.add_needed(&self.0[name], &mut needed);
        let all = needed.into_iter().filter_map(Node::superblocks);
        let look = |of: Superblocks<'_>| of.0.look_at_children(base, self, starts, may_grow);
        all.flat_map(look).collect()
    }

    /// Adds to `needed` what `node` does not open without: a copy of a mirror may be away.
    fn add_needed<'a>(&'a self, node: &'a Node, needed: &mut Vec<&'a Node>) {
        let kind = match &node.what {
            NodeForm::Named(name) => return self.add_needed(&self.0[name], needed),
            NodeForm::Inline(kind) => kind,
        };
        needed.push(node);
        if !kind.stands_without_children() {
            let children = kind.children().iter();
            children.for_each(|child| self.add_needed(child, needed));
        }
    }
}
