//! Files that loop devices are on.

use std::path::Path;

use engine::store;

/// Refuses a file to which others write through a loop device: a file system that is mounted there would not know of our
/// writes. No lock keeps them out.
pub(super) fn check_no_loop(path: &Path, is_read_only: bool) -> Result<(), String> {
    let found = store::loop_of(path).filter(|it| !it.is_read_only && !is_read_only);
    let Some(found) = found else {
        return Ok(());
    };
    let (shown, device) = (path.display(), found.path.display());
    let (used, unmount) = match found.mounted {
        Some(at) => {
            let at = at.display();
            (
                format!(", mounted at {at},"),
                format!("unmount it (umount {at}), release"),
            )
        }
        None => (String::new(), "release".to_owned()),
    };
    Err(format!(
        "{shown} is in use by the loop device {device}{used} and both would overwrite each other; {unmount} the loop device \
         (losetup -d {device}), or name another file"
    ))
}
