//! Claims the children of a stripe as their [`Ownership`](set::Ownership) orders it: all or none.

use set::{FoundLabel, LABEL_AT, Label, OwnershipEnd};

use uuid::Uuid;

use super::{Child, notes};
use crate::{Error, Result, SetClaim, claim::FormerOwners, member};

/// Claims every child.
///
/// # Errors
/// That of the first child that refuses, with its name, or the child that is an older copy; those claimed before it
/// are released again.
pub async fn claim_all(children: &[Child], claim: &SetClaim) -> Result<()> {
    let mut refused = None;
    while let Some((at, order)) = claim.select() {
        let child = &children[at];
        claim.apply(match follow(child, order, claim, at).await {
            Ok(report) => report,
            Err(error) => {
                refused.get_or_insert(error);
                set::OrderReport::Failed
            }
        });
    }
    match (refused, claim.end().and_then(|end| older(end, children))) {
        (Some(error), _) | (None, Some(error)) => Err(error),
        (None, None) => claim.check(),
    }
}

/// Claims `children` that were added to a set, of which the first has this number there.
///
/// # Errors
/// That of the first child that refuses, with its name; when the claim on the set no longer stands.
pub(super) async fn claim_added(children: &[Child], claim: &SetClaim, first: usize) -> Result<()> {
    let mut refused = None;
    while let Some((at, order)) = claim.select() {
        claim.apply(match (order, at.checked_sub(first)) {
            (set::MemberOrder::Take | set::MemberOrder::Label(_), Some(added)) => {
                match follow(&children[added], order, claim, at).await {
                    Ok(report) => report,
                    Err(error) => {
                        refused.get_or_insert(error);
                        set::OrderReport::Failed
                    }
                }
            }
            // The set is lost; who has its children open closes them.
            _ => set::OrderReport::Failed,
        });
    }
    refused.map_or_else(|| claim.check(), Err)
}

/// Whether what `children` are claimed by are former owners of the mirror of which they are a copy, as these have noted there.
pub(super) async fn are_left(children: &[Child], own: Uuid, by: &FormerOwners) -> Result<bool> {
    for child in children {
        let label = child.read_block(LABEL_AT).await?.unwrap_or_default();
        let owner = match Label::decode(&label) {
            FoundLabel::Label(label) if label.is_released() || label.owner == own => continue,
            FoundLabel::Label(label) => label.owner,
            _ => return Ok(false),
        };
        let mut is_left = false;
        for slot in 0..2 {
            let note = child.read_block(notes::place(slot)).await?;
            is_left |= note.is_some_and(|note| by.includes(owner, &note));
        }
        if !is_left {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn follow(
    child: &Child,
    order: set::MemberOrder,
    claim: &SetClaim,
    at: usize,
) -> Result<set::OrderReport> {
    let order = match order {
        set::MemberOrder::Take => {
            child.check_len()?;
            member::Order::Take(claim.of_child(at))
        }
        set::MemberOrder::Label(_) => member::Order::Label(claim.of_child(at)),
        set::MemberOrder::Release => {
            give_up(std::slice::from_ref(child)).await;
            return Ok(set::OrderReport::Released);
        }
    };
    let report = child.volume.member(order).await;
    Ok(match report.map_err(|error| child.blame(error))? {
        member::Report::Taken(generation) => set::OrderReport::Taken(generation),
        _ => set::OrderReport::Labelled,
    })
}

/// Refuses children of which one is an older copy, by their labels as they are: for those that are not claimed.
///
/// # Errors
/// `Configuration`, with the child; the child's own error when it cannot be read.
pub(super) async fn check_age(children: &[Child]) -> Result<()> {
    let mut generations = Vec::with_capacity(children.len());
    for child in children {
        let found = Label::decode(&child.read_block(LABEL_AT).await?.unwrap_or_default());
        // Without a label it is a volume that needs none, or whose stripe was never claimed.
        let is_known = matches!(found, FoundLabel::Label(_));
        generations.push(is_known.then(|| found.generation()));
    }
    let older = set::first_older(&generations).and_then(|end| older(end, children));
    older.map_or(Ok(()), Err)
}

/// The error for a child that is an older copy, if that is the `end`.
fn older(end: OwnershipEnd, children: &[Child]) -> Option<Error> {
    let OwnershipEnd::Older {
        member,
        claimed,
        newest,
        complete,
    } = end
    else {
        return None;
    };
    Some(children[member].refuse(format!(
        "it is an older copy: it was last in use in generation {claimed} of its volume, and {} says that every child \
         was in generation {complete}; put back the disk that was used since, or all children as they were at one \
         moment (`sanstone volume take-over -c FILE NAME --force` accepts this one as it is, which mixes old data with \
         new)",
        children[newest].name
    )))
}

/// Closes children that are not going to be used.
pub async fn give_up(children: &[Child]) {
    for child in children {
        if let Err(error) = child.volume.close().await {
            tracing::warn!(child = child.name, %error, "a claim could not be released");
        }
    }
}
