//! Claims the children of a stripe one after the other, in list order, and all or none. If two owners start at once,
//! each may get a child that the other one needs too; then both release what they have, and neither waits for the
//! other.

use super::Child;
use crate::{Claim, Result};

/// Claims every child.
///
/// # Errors
/// That of the first child that refuses, with its name; those claimed before it are released again.
pub async fn claim_all(children: &[Child], claim: &Claim) -> Result<()> {
    for (index, child) in children.iter().enumerate() {
        child.check_len()?;
        let claimed = child.volume.claim(&claim.of_child(index)).await;
        if let Err(error) = claimed {
            // Not the one that refused, which another volume of this process may own.
            give_up(&children[..index]).await;
            return Err(child.blame(error));
        }
    }
    Ok(())
}

/// Closes children that are not going to be used.
pub async fn give_up(children: &[Child]) {
    for child in children {
        if let Err(error) = child.volume.close().await {
            tracing::warn!(child = child.name, %error, "a claim could not be released");
        }
    }
}
