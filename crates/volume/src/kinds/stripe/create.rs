//! Creates a stripe or concat from blank children.

use engine::{Buf, Payload, task::join_all};
use uuid::Uuid;

use super::{
    Child,
    place::PerChild,
    superblock::{
        CHILDREN_MAX, Layout, RESERVED_BYTES, SUPERBLOCK_BYTES, Superblock, UNIT_BYTES_MAX,
        UNIT_BYTES_MIN,
    },
};
use crate::{
    Durability, Error, ErrorKind, Result,
    claim::{LABEL_AT, holds_label},
};

/// The parameters of a new stripe or concat.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// How data is laid out on the children.
    pub layout: Layout,
    /// The volume's permanent identity, e.g. `Uuid::new_v4()`.
    pub uuid: Uuid,
    /// The current time, in seconds since 1970.
    pub created_unix_s: u64,
    /// Overwrite whatever the children hold.
    pub force: bool,
}

/// Writes a superblock to each child, durably. Child `i` of the list becomes child `i` permanently; each child of a
/// stripe contributes the data length of the smallest, each child of a concat all it has. Nothing is written unless
/// all children are suitable. Whether two are the same disk shows only after writing; in that case, or after an I/O
/// error, the children's previous content is restored.
///
/// # Errors
/// `Configuration` when the unit or a child is unsuitable, when a child holds a superblock or anything else but
/// zeroes in its first MiB (without `force`), or when two children are the same disk; the child's own error when an
/// I/O fails. Each names the child.
pub async fn create(children: &[Child], options: &CreateOptions) -> Result<()> {
    check_options(children.len(), options)?;
    let unit = options.layout.grain_bytes();
    let mut usable_bytes = Vec::new();
    let mut before = Vec::new();
    for child in children {
        let usable = usable_bytes_of(child, unit)?;
        usable_bytes.push(usable);
        let start = child.volume.read(0, RESERVED_BYTES as usize).await;
        let start = start.map_err(|error| child.blame(error))?;
        if !options.force {
            check_blank(child, &start)?;
        }
        // What follows is the owner's label: ours, or none.
        before.push(start.slice(0..LABEL_AT as usize));
    }
    if let Layout::Stripe { .. } = options.layout {
        let smallest = usable_bytes.iter().min().copied().unwrap_or(0);
        usable_bytes.fill(smallest);
    }
    let superblocks: Vec<Superblock> = (0..)
        .zip(usable_bytes)
        .map(|(child_index, usable_bytes)| Superblock {
            volume: options.uuid,
            child_index,
            child_count: children.len() as u32,
            layout: options.layout,
            usable_bytes,
            created_unix_s: options.created_unix_s,
        })
        .collect();
    let starts = superblocks.iter().map(|superblock| {
        let mut start = Payload::from(Buf::copy_of(&superblock.encode()));
        start.append(Payload::zeroes(LABEL_AT as usize - SUPERBLOCK_BYTES));
        start
    });
    let made = match write_all(children, starts).await {
        Ok(()) => check_distinct(children, &superblocks).await,
        failed => failed,
    };
    let Err(error) = made else { return Ok(()) };
    match write_all(children, before.into_iter()).await {
        Ok(()) => Err(error),
        Err(second) => Err(error.context(format_args!(
            "the children's first MiB could not be restored ({second}) after this"
        ))),
    }
}

/// How much of a child can be data, in units of `unit` bytes.
///
/// # Errors
/// `Configuration` when it is too short or has larger blocks, `ReadOnly`; with the child.
pub(super) fn usable_bytes_of(child: &Child, unit: u64) -> Result<u64> {
    let shape = child.volume.shape();
    let usable = shape.len_bytes().saturating_sub(RESERVED_BYTES) / unit * unit;
    if usable == 0 {
        return Err(child.refuse(format!(
            "it has {} bytes; a child needs its first {RESERVED_BYTES} for the superblock and \
             at least one unit of {unit} for data",
            shape.len_bytes()
        )));
    }
    if u64::from(shape.physical_block_bytes) > unit {
        return Err(child.refuse(format!(
            "its blocks of {} bytes are larger than the unit of {unit}; choose a larger unit",
            shape.physical_block_bytes
        )));
    }
    if shape.read_only.is_on() {
        return Err(child.refuse("it is read-only"));
    }
    Ok(usable)
}

/// Refuses children that are not blank, before anything is written to them. A child that is claimed or cannot be read
/// is skipped: claiming it will report the owner.
///
/// # Errors
/// `Configuration`, with the child and what it holds.
pub async fn look(children: &[Child]) -> Result<()> {
    for child in children {
        child.check_len()?;
        match child.volume.read(0, RESERVED_BYTES as usize).await {
            Ok(start) if !holds_label(&start) => check_blank(child, &start)?,
            _ => {}
        }
    }
    Ok(())
}

fn check_options(children: usize, options: &CreateOptions) -> Result<()> {
    if let Layout::Stripe { unit_bytes: unit } = options.layout {
        if !unit.is_power_of_two() || !(UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&unit) {
            return Err(Error::new(
                ErrorKind::Configuration,
                format!(
                    "a stripe unit of {unit} bytes is not supported; use a power of two from \
                     {UNIT_BYTES_MIN} to {UNIT_BYTES_MAX}, such as \"64KiB\""
                ),
            ));
        }
    }
    if !(1..=CHILDREN_MAX).contains(&children) {
        let name = options.layout.name();
        return Err(Error::new(
            ErrorKind::Configuration,
            format!("a {name} of {children} children is not possible; use 1 to {CHILDREN_MAX}"),
        ));
    }
    Ok(())
}

pub(super) fn check_blank(child: &Child, start: &Payload) -> Result<()> {
    if let Ok(found) = Superblock::decode(&start.slice(0..SUPERBLOCK_BYTES).to_vec()) {
        return Err(child.refuse(format!(
            "it is already child {} of {} of {} {}; use another disk, or --force to give up that \
             volume's data",
            found.child_index,
            found.child_count,
            found.layout.name(),
            found.volume
        )));
    }
    let unmarked = match holds_label(start) {
        true => start.slice(0..LABEL_AT as usize),
        false => start.clone(),
    };
    let mut at = 0;
    for slice in unmarked.slices() {
        if let Some(within) = slice.iter().position(|&byte| byte != 0) {
            return Err(child.refuse(format!(
                "it holds data (a nonzero byte at {}); use a blank disk, or --force to overwrite \
                 it",
                at + within
            )));
        }
        at += slice.len();
    }
    Ok(())
}

/// Writes the first MiB of each child, up to the mark.
async fn write_all(children: &[Child], starts: impl Iterator<Item = Payload>) -> Result<()> {
    let writes = children
        .iter()
        .zip(starts)
        .map(|(child, start)| child.volume.write(0, start, Durability::Fua));
    ended(children, join_all(writes).await)?;
    let flushes = children.iter().map(|child| child.volume.flush());
    ended(children, join_all(flushes).await)
}

fn ended(children: &[Child], results: PerChild<Result<()>>) -> Result<()> {
    for (child, result) in children.iter().zip(results) {
        result.map_err(|error| child.blame(error))?;
    }
    Ok(())
}

/// If one disk has two names, both now show the superblock that was written last.
pub(super) async fn check_distinct(children: &[Child], superblocks: &[Superblock]) -> Result<()> {
    for (child, superblock) in children.iter().zip(superblocks) {
        let found = child.read_superblock(superblock.layout.name()).await?;
        if found == *superblock {
            continue;
        }
        let same = superblocks.iter().position(|it| *it == found);
        if let Some(same) = same.and_then(|same| children.get(same)) {
            return Err(child.refuse(format!(
                "it is the same disk as {}; give each child its own disk",
                same.name
            )));
        }
        return Err(child.refuse("reading it back does not return what was just written"));
    }
    Ok(())
}
