//! Whole blocks: what a file must consist of.

use std::path::Path;

/// Refuses a file that is served whole and does not consist of whole blocks.
pub(super) fn check_blocks(path: &Path, len: u64, block: u32) -> Result<(), String> {
    let block = u64::from(block);
    let rest = len % block;
    if rest == 0 {
        return Ok(());
    }
    let (shown, above, below) = (path.display(), len.next_multiple_of(block), len - rest);
    Err(format!(
        "{shown} has {len} bytes, which are no whole number of blocks of {block} bytes; extend it by \
         zeroes (truncate -s {above} {shown}), or write size = \"{below}B\" to leave out its last \
         {rest} bytes"
    ))
}
