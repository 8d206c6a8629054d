//! `sanstone volume create`: writes the superblocks of a stripe's children.

use std::path::Path;

use crate::failure::Failure;

pub(crate) fn run(_config: &Path, _name: &str, _force: bool) -> Result<(), Failure> {
    unreachable!()
}
