//! The second step of [adding children](super::join) to a concat: its old children say how many there are now. Whoever opens it
//! does what is left of that.

use super::{
    Child,
    superblock::{Layout, Superblock},
    write_superblock,
};
use crate::Result;

/// Has every child of a concat say how many there are: those listed, which belong together and are claimed.
pub(super) async fn finish(children: &[Child]) -> Result<()> {
    let child_count = children.len() as u32;
    for child in children {
        let superblock = child.read_superblock(Layout::Concat.name()).await?;
        assert!(superblock.child_count <= child_count, "they were checked");
        if superblock.child_count < child_count {
            let joined = Superblock {
                child_count,
                ..superblock
            };
            write_superblock(child, &joined).await?;
        }
    }
    Ok(())
}
