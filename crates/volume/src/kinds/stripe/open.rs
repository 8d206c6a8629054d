//! Identifies the stripe or concat that a set of children forms: reads every superblock, accepts only the complete
//! set of one volume, and sorts the children into the order that the superblocks give. The order in the configuration
//! does not matter, so swapping two lines or two cables loses nothing.

use std::sync::Arc;

use uuid::Uuid;

use super::{
    Child, Stripe,
    claim::check_age,
    claim_all, give_up, joined,
    map::Map,
    members::Members,
    on_lane::OnLane,
    refuse,
    round_robin::RoundRobin,
    sequence::Sequence,
    superblock::{Layout, RESERVED_BYTES, Superblock},
};
use crate::{
    Discard, Error, ErrorKind, Len, ReadOnly, Result, SetClaim, Shape, SharedVolume,
    flush_failure::FlushFailure, part::Part,
};

/// A stripe or concat whose superblocks have been verified. It may be sent to any lane; [`OpenStripe::on_lane`] returns
/// the volume for a lane.
#[derive(Clone, Debug)]
pub struct OpenStripe(pub(super) Arc<StripeState>);

/// The layout that a configuration asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WantedLayout {
    /// A stripe, with this unit or any.
    Stripe(Option<u32>),
    Concat,
}

/// A child whose superblock is known.
pub(super) struct Listed {
    /// Its name in messages.
    pub(super) name: String,
    pub(super) superblock: Superblock,
}

impl WantedLayout {
    pub(super) fn name(self) -> &'static str {
        match self {
            WantedLayout::Stripe(_) => "stripe",
            WantedLayout::Concat => "concat",
        }
    }
}

/// The state shared by all lanes.
#[derive(Debug)]
pub(super) struct StripeState {
    pub(super) uuid: Uuid,
    pub(super) layout: Layout,
    pub(super) shape: Shape,
    /// Its children when it was opened.
    pub(super) members: Arc<Members>,
    pub(super) failed: FlushFailure,
    /// The claim on the children, on which all I/O depends; `None`: it was opened without.
    claim: Option<SetClaim>,
    /// Each child's position in the configuration, by child index, when it was opened.
    listed_at: Vec<usize>,
}

impl StripeState {
    /// Fails once a child is another owner's.
    pub(super) fn check_claim(&self) -> Result<()> {
        self.claim.as_ref().map_or(Ok(()), SetClaim::check)
    }

    /// The claim on its children.
    ///
    /// # Errors
    /// When it was opened without, as one of them is read-only.
    pub(super) fn claim(&self) -> Result<&SetClaim> {
        let why = "a child is read-only, so nothing can be written to it";
        let claim = self.claim.as_ref();
        claim.ok_or_else(|| Error::new(ErrorKind::ReadOnly, why))
    }

    /// Each child's position in the configuration, by child index, when it was opened.
    pub(super) fn listed_at(&self) -> &[usize] {
        &self.listed_at
    }

    /// From now on it is as long as `read`, what its superblocks say now; the last of its children are those that have `joined`.
    pub(super) fn extend(&self, read: &OpenStripe, joined: Vec<Arc<Part>>) {
        let members = self.members.newest();
        members.extend(&read.0.members, joined);
        // Whoever sees the length sees the children.
        self.shape.len.grow(read.shape().len_bytes());
    }
}

impl OpenStripe {
    /// Reads and verifies the superblocks of `children`, which may be in any order. With `unit_bytes`, the stripe
    /// must have been created with that unit.
    ///
    /// # Errors
    /// `Configuration` when a child is blank, foreign, damaged, of another version, stripe, count or unit, listed
    /// twice, or smaller than when the stripe was created; the child's own error when it cannot be read. Each names
    /// the child and the remedy.
    pub async fn open(children: &[Child], unit_bytes: Option<u32>) -> Result<OpenStripe> {
        OpenStripe::read(children, WantedLayout::Stripe(unit_bytes), None).await
    }

    /// As [`OpenStripe::open`], with `claim` on the children, from before the superblocks are trusted until the volumes
    /// are closed. A stripe with a read-only child is opened without a claim: nothing is written to it, and writes by
    /// others go unnoticed.
    ///
    /// # Errors
    /// As [`OpenStripe::open`]; `Claimed` when another owner has a child. What was claimed is released.
    pub async fn claimed(
        children: &[Child],
        unit_bytes: Option<u32>,
        claim: &SetClaim,
    ) -> Result<OpenStripe> {
        OpenStripe::claimed_as(children, WantedLayout::Stripe(unit_bytes), claim).await
    }

    /// The same for a concat.
    ///
    /// # Errors
    /// As [`OpenStripe::claimed`].
    pub async fn claimed_concat(children: &[Child], claim: &SetClaim) -> Result<OpenStripe> {
        OpenStripe::claimed_as(children, WantedLayout::Concat, claim).await
    }

    pub(super) async fn claimed_as(
        children: &[Child],
        wanted: WantedLayout,
        claim: &SetClaim,
    ) -> Result<OpenStripe> {
        if children
            .iter()
            .any(|child| child.volume.shape().read_only.is_on())
        {
            let opened = OpenStripe::read(children, wanted, None).await?;
            check_age(children).await?;
            return Ok(opened);
        }
        // Labels are written only to children of this volume, so check first. A child reserved by another owner cannot
        // be read by anyone else; claiming it will report that owner.
        match OpenStripe::read(children, wanted, None).await {
            Err(error) if error.kind() != ErrorKind::ReservationConflict => return Err(error),
            _ => {}
        }
        claim_all(children, claim).await?;
        let opened = OpenStripe::read(children, wanted, Some(claim)).await;
        let opened = match (opened, wanted) {
            (Ok(opened), WantedLayout::Concat) => joined::finish(children).await.map(|()| opened),
            (opened, _) => opened,
        };
        if opened.is_err() {
            give_up(children).await;
        }
        opened
    }

    pub(super) async fn read(
        children: &[Child],
        wanted: WantedLayout,
        claim: Option<&SetClaim>,
    ) -> Result<OpenStripe> {
        let mut found = Vec::with_capacity(children.len());
        for child in children {
            found.push(Listed {
                name: child.name.clone(),
                superblock: child.read_superblock(wanted.name()).await?,
            });
        }
        OpenStripe::of(children, found, wanted, claim)
    }

    /// The volume that `children` form, even if another owner has reserved them, and if one is older, where that is accepted.
    /// Claims nothing. `None`: a reservation hides it from everybody.
    pub(super) async fn look(
        children: &[Child],
        wanted: WantedLayout,
        accepts_older: bool,
    ) -> Result<Option<OpenStripe>> {
        let mut found = Vec::with_capacity(children.len());
        for child in children {
            let name = child.name.clone();
            match child.look_at_superblock(wanted.name()).await? {
                Some(superblock) => found.push(Listed { name, superblock }),
                None => return Ok(None),
            }
        }
        let opened = OpenStripe::of(children, found, wanted, None)?;
        if !accepts_older {
            check_age(children).await?;
        }
        Ok(Some(opened))
    }

    /// The volume of `children`, whose superblocks were `found`.
    fn of(
        children: &[Child],
        found: Vec<Listed>,
        wanted: WantedLayout,
        claim: Option<&SetClaim>,
    ) -> Result<OpenStripe> {
        check_together(&found, children.len(), wanted)?;
        let superblocks: Vec<_> = found.into_iter().map(|it| it.superblock).collect();
        let Some(first) = superblocks.first().cloned() else {
            return Err(Error::new(
                ErrorKind::Configuration,
                format!(
                    "a {} without children is not possible; list those it was created with",
                    wanted.name()
                ),
            ));
        };
        for (child, superblock) in children.iter().zip(&superblocks) {
            check_fits(child, superblock)?;
        }
        // The count matches and no index occurs twice, so every index is present.
        let mut listed_at: Vec<usize> = (0..children.len()).collect();
        listed_at.sort_by_key(|&listed| superblocks[listed].child_index);
        let map = match first.layout {
            Layout::Stripe { unit_bytes } => {
                Map::RoundRobin(RoundRobin::new(unit_bytes, children.len()))
            }
            Layout::Concat => {
                let in_order = listed_at.iter().map(|&i| superblocks[i].usable_bytes);
                Map::Sequence(Sequence::new(in_order))
            }
        };
        let smallest = superblocks.iter().map(|it| it.usable_bytes).min();
        let len_bytes = match &map {
            Map::RoundRobin(_) => smallest.unwrap_or(0) * children.len() as u64,
            Map::Sequence(sequence) => sequence.len_bytes(),
        };
        Ok(OpenStripe(Arc::new(StripeState {
            uuid: first.volume,
            layout: first.layout,
            shape: shape(children, &first.layout, len_bytes),
            members: Members::new(
                map,
                listed_at
                    .iter()
                    .map(|&i| children[i].name.clone())
                    .collect(),
            ),
            failed: FlushFailure::default(),
            claim: claim.cloned(),
            listed_at,
        })))
    }

    /// The volume for I/O on the current lane, over this lane's `children`: the same ones in the same order as when
    /// it was opened.
    ///
    /// # Errors
    /// `Configuration` when their number differs.
    pub fn on_lane(&self, children: &[SharedVolume]) -> Result<Stripe> {
        if children.len() != self.0.listed_at.len() {
            return Err(Error::new(
                ErrorKind::Configuration,
                format!(
                    "{} children for a {} of {}",
                    children.len(),
                    self.0.layout.name(),
                    self.0.listed_at.len()
                ),
            ));
        }
        let in_order = self.0.listed_at.iter().map(|&i| children[i].clone());
        Ok(Stripe {
            state: self.0.clone(),
            opened: OnLane::new(self.0.members.clone(), in_order.collect()),
        })
    }

    /// The claim on its children; `None`: it was opened without.
    pub fn claim(&self) -> Option<&SetClaim> {
        self.0.claim.as_ref()
    }

    /// How its data is laid out.
    pub(crate) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// The identity that it got when it was created.
    pub fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    /// The volume's shape.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }
}

/// A size as written in a configuration.
fn written(bytes: u32) -> String {
    match bytes {
        bytes if bytes % (1 << 20) == 0 => format!("{}MiB", bytes >> 20),
        bytes if bytes % (1 << 10) == 0 => format!("{}KiB", bytes >> 10),
        bytes => format!("{bytes}B"),
    }
}

/// Reports which children are missing, if the listed ones belong to one volume.
fn check_complete(found: &[Listed]) -> Result<()> {
    let mut superblocks = found.iter().map(|it| &it.superblock);
    let Some(first) = superblocks.next() else {
        return Ok(());
    };
    let is_of_one =
        |other: &Superblock| other.volume == first.volume && other.child_count == first.child_count;
    let (count, listed) = (first.child_count, found.len());
    if !superblocks.all(is_of_one) || listed >= count as usize {
        return Ok(());
    }
    let missing: Vec<String> = (0..count)
        .filter(|index| {
            let mut others = found.iter();
            others.all(|it| it.superblock.child_index != *index)
        })
        .map(|index| index.to_string())
        .collect();
    let (number, verb) = match &missing[..] {
        [_] => ("child", "is"),
        _ => ("children", "are"),
    };
    Err(Error::new(
        ErrorKind::Configuration,
        format!(
            "{} {} has {count} children, numbered from 0, and {listed} are listed: {number} {} \
             {verb} missing; list all {count}, in any order",
            first.layout.name(),
            first.volume,
            missing.join(", ")
        ),
    ))
}

/// Checks that the children `found` belong to one volume of the `wanted` layout. `listed` is the number of children
/// in the configuration, some of which may not have been found.
pub(super) fn check_together(found: &[Listed], listed: usize, wanted: WantedLayout) -> Result<()> {
    let Some(first) = found.first() else {
        return Ok(());
    };
    if found.len() == listed {
        check_complete(found)?;
    }
    let may_join = may_join(found, listed);
    for (at, child) in found.iter().enumerate() {
        check_agrees(child, listed, first, may_join)?;
        let Superblock {
            child_index: index,
            child_count: count,
            ..
        } = child.superblock;
        let mut before = found[..at].iter();
        if let Some(other) = before.find(|other| other.superblock.child_index == index) {
            let other = &other.name;
            let why = format!(
                "it and {other} both claim to be child {index} of {count}; list each disk once, \
                 and no copies of it"
            );
            return Err(refuse(&child.name, why));
        }
    }
    let volume = first.superblock.volume;
    match (wanted, first.superblock.layout) {
        (WantedLayout::Stripe(Some(wanted)), Layout::Stripe { unit_bytes })
            if wanted != unit_bytes =>
        {
            let (wanted, unit) = (written(wanted), written(unit_bytes));
            let message = format!(
                "the configuration has a stripe unit of {wanted}, but stripe {volume} was created \
                 with another one; write unit = \"{unit}\""
            );
            Err(Error::new(ErrorKind::Configuration, message))
        }
        _ => Ok(()),
    }
}

/// Whether children may say that they are fewer than are `listed`, because others have [joined](super::join) them and these say so, or
/// have not been found.
fn may_join(found: &[Listed], listed: usize) -> bool {
    let counts = || found.iter().map(|it| it.superblock.child_count);
    let is_concat = |it: &Listed| it.superblock.layout == Layout::Concat;
    let all = listed as u32;
    let before = counts().filter(|count| *count != all).min();
    found.iter().all(is_concat)
        && (found.len() < listed || counts().any(|count| count == all))
        && counts().all(|count| count == all || Some(count) == before && count < all)
}

/// Checks that a child belongs to the same volume as the `first` one.
fn check_agrees(child: &Listed, listed: usize, first: &Listed, may_join: bool) -> Result<()> {
    let Listed { name, superblock } = child;
    let (first_name, first) = (&first.name, &first.superblock);
    let Superblock {
        child_index: index,
        child_count: count,
        volume,
        ..
    } = superblock;
    let kind = superblock.layout.name();
    if *volume != first.volume {
        let why = format!(
            "it belongs to {kind} {volume} as child {index} of {count}, but {first_name} belongs to \
             {kind} {}; list the children of one {kind}",
            first.volume
        );
        return Err(refuse(name, why));
    }
    if *count as usize != listed && !may_join {
        let mend = match superblock.layout {
            Layout::Concat if (*count as usize) < listed => {
                "; `sanstone volume grow -c FILE NAME` adds the others to it"
            }
            _ => "",
        };
        let why = format!(
            "it is child {index} of a {kind} of {count}, but {listed} are listed; list all {count} \
             and no others{mend}"
        );
        return Err(refuse(name, why));
    }
    let same_layout = Superblock {
        child_index: first.child_index,
        child_count: first.child_count,
        // Those of a stripe differ where it was being grown: the smallest holds.
        usable_bytes: first.usable_bytes,
        ..superblock.clone()
    };
    if same_layout != *first {
        let why = format!(
            "its superblock and that of {first_name} belong to the same {kind} but disagree (units \
             of {} and {} bytes, created at {} and {}); restore the older one's first MiB from a copy",
            superblock.layout.grain_bytes(),
            first.layout.grain_bytes(),
            superblock.created_unix_s,
            first.created_unix_s,
        );
        return Err(refuse(name, why));
    }
    Ok(())
}

/// Checks that a child is long enough for its superblock.
fn check_fits(child: &Child, superblock: &Superblock) -> Result<()> {
    let kind = superblock.layout.name();
    let shape = child.volume.shape();
    // The superblock was validated: no sum or product of its values overflows.
    let needed = RESERVED_BYTES + superblock.usable_bytes;
    if shape.len_bytes() < needed {
        return Err(child.refuse(format!(
            "it has {} bytes, but had at least {needed} when the {kind} was created; restore its \
             size",
            shape.len_bytes()
        )));
    }
    let unit = superblock.layout.grain_bytes();
    if u64::from(shape.physical_block_bytes) > unit {
        return Err(child.refuse(format!(
            "its blocks of {} bytes are larger than the {kind}'s unit of {unit}; use it with the \
             smaller blocks it had",
            shape.physical_block_bytes
        )));
    }
    Ok(())
}

/// The shape of the volume of `children`.
pub(super) fn shape(children: &[Child], layout: &Layout, len_bytes: u64) -> Shape {
    let shapes = || children.iter().map(|child| child.volume.shape());
    let count = children.len() as u32;
    let most = |of: fn(&Shape) -> u32| shapes().map(of).max().unwrap_or(0);
    Shape {
        block_size_bytes: most(|shape| shape.block_size_bytes),
        physical_block_bytes: most(|shape| shape.physical_block_bytes),
        // Independent of the children's lengths: when a child grows, the volume does not, because the superblocks fix
        // its size.
        len: Len::new(len_bytes),
        volatile_cache: shapes().any(|shape| shape.volatile_cache),
        read_only: ReadOnly::new(shapes().any(|shape| shape.read_only.is_on())),
        discard: shapes()
            .map(|shape| shape.discard)
            .reduce(|a, b| {
                let (a, b) = (a?, b?);
                Some(Discard {
                    granularity_bytes: a.granularity_bytes.max(b.granularity_bytes),
                    reads_zeroes: a.reads_zeroes && b.reads_zeroes,
                })
            })
            .flatten()
            .map(|discard| Discard {
                granularity_bytes: match *layout {
                    // A granule of several units on each child corresponds to that much on every child, hence this
                    // much of the volume.
                    Layout::Stripe { unit_bytes } if discard.granularity_bytes > unit_bytes => {
                        discard.granularity_bytes.saturating_mul(count)
                    }
                    _ => discard.granularity_bytes,
                },
                ..discard
            }),
        optimal_io_bytes: match *layout {
            Layout::Stripe { unit_bytes } => unit_bytes.saturating_mul(count),
            Layout::Concat => most(|shape| shape.optimal_io_bytes),
        },
        compare_and_write_max_bytes: 0,
    }
}
