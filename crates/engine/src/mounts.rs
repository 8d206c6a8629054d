//! What is mounted where, as a process sees it (`/proc/PID/mountinfo`).

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// One mount of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The number that the kernel has given this mount, whatever its mount namespace. It is free for another one when
    /// the mount is gone.
    pub id: u64,
    /// The number of the device that holds its file system, as `MAJOR:MINOR`.
    pub device: String,
    /// The mount point.
    pub point: PathBuf,
    /// The type of its file system.
    pub kind: String,
    /// The source of the mount: a device, or a name.
    pub source: PathBuf,
}

/// All mounts, the most recent first.
///
/// # Errors
/// Any error the system reports.
pub fn mounts() -> io::Result<Vec<Mount>> {
    mounts_seen_by(Path::new("/proc/self"))
}

/// All mounts in the mount namespace of a process, whose directory in `/proc` this is, the most recent first.
///
/// # Errors
/// Any error the system reports.
pub fn mounts_seen_by(process: &Path) -> io::Result<Vec<Mount>> {
    let table = fs::read(process.join("mountinfo"))?;
    let lines = table.rsplit(|byte| *byte == b'\n');
    Ok(lines.filter_map(parse).collect())
}

/// The top mount at `path`, if something is mounted there.
///
/// # Errors
/// Any error the system reports.
pub fn mount_at(path: &Path) -> io::Result<Option<Mount>> {
    let mut mounts = mounts()?.into_iter();
    Ok(mounts.find(|mount| mount.point == path))
}

/// Whether nothing can be written to the file system of `mount` any more: by its options, among which a kernel shows what it has
/// come to after an error, too; or as nothing is told of it any more, which is how XFS ends. `false` if it is not mounted.
///
/// # Errors
/// Any error the system reports.
pub fn is_read_only(mount: &Mount) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut lines = table.rsplit(|byte| *byte == b'\n');
    let line = lines.find(|line| parse(line).is_some_and(|it| mount.is(&it)));
    Ok(line.is_some_and(|line| shows_read_only(line) || is_shut_down(&mount.point)))
}

/// Whether the file system at `point` has shut down. Its root is in memory: that is told without its disk.
fn is_shut_down(point: &Path) -> bool {
    let looked = point.metadata();
    looked.is_err_and(|error| error.raw_os_error() == Some(libc::EIO))
}

/// Whether a line of mountinfo has such an option, of the mount or, at its end, of the file system.
fn shows_read_only(line: &[u8]) -> bool {
    const NO_WRITES: [&[u8]; 3] = [b"ro", b"emergency_ro", b"shutdown"];
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let of_mount = words.get(5).into_iter();
    let options = of_mount.chain(words.last());
    let mut options = options.flat_map(|words| words.split(|byte| *byte == b','));
    options.any(|option| NO_WRITES.contains(&option))
}

impl Mount {
    /// Whether `other` is this mount, wherever it is now. The kernel gives both numbers to the next mount as soon as this
    /// one is gone, so what tells them apart for certain is a source that no two mounts share.
    pub fn is(&self, other: &Mount) -> bool {
        (self.id, &self.device, &self.source) == (other.id, &other.device, &other.source)
    }

    /// Where this mount is now, as `mounts` has it, and what is mounted over it there, if anything is.
    pub fn find<'a>(&self, mounts: &'a [Mount]) -> Option<(&'a Mount, Option<&'a Mount>)> {
        let here = mounts.iter().find(|mount| self.is(mount))?;
        let top = mounts.iter().find(|mount| mount.point == here.point);
        Some((here, top.filter(|top| !self.is(top))))
    }
}

/// A line of mountinfo: `ID PARENT DEVICE ROOT POINT OPTIONS … - TYPE SOURCE …`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let device = String::from_utf8_lossy(words.nth(1)?).into_owned();
    let point = unescaped(words.nth(1)?);
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    Some(Mount {
        id,
        device,
        point,
        kind: String::from_utf8_lossy(words.next()?).into_owned(),
        source: unescaped(words.next()?),
    })
}

/// A path of the table, in which spaces and other special characters are octal escapes.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text;
    while let Some((first, rest)) = left.split_first() {
        let octal = rest.get(..3).filter(|_| *first == b'\\');
        let value = octal.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(value.unwrap_or(*first));
        left = match value {
            Some(_) => &rest[3..],
            None => rest,
        };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_mount_point_may_have_any_name() {
        let path = unescaped(b"/a\\040b/\\134c\\011\\");
        assert_eq!(path.as_os_str().as_bytes(), b"/a b/\\c\t\\");
        let line = b"36 35 0:40 / /a\\040b rw,nosuid shared:1 - fuse.x san\\040stone rw,fd=3";
        let expected = Mount {
            id: 36,
            device: "0:40".to_owned(),
            point: "/a b".into(),
            kind: "fuse.x".to_owned(),
            source: "san stone".into(),
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(b"36 35"), None);
    }

    #[test]
    fn what_an_error_has_made_read_only_is_known_by_its_options() {
        for (options, of_file_system, is_so) in [
            ("rw,relatime", "rw,errors=remount-ro", false),
            ("rw,relatime", "ro,errors=remount-ro", true),
            ("rw", "rw,emergency_ro", true),
            ("ro", "rw", true),
            ("rw", "rw,shutdown", true),
        ] {
            let line = format!(
                "36 35 7:0 / /srv/db {options} shared:1 - ext4 /dev/loop0 {of_file_system}"
            );
            assert_eq!(shows_read_only(line.as_bytes()), is_so, "{line}");
        }
    }

    #[test]
    fn a_mount_is_found_where_it_was_moved_and_beneath_another() {
        let line = |id: &str, point: &str| {
            let line = format!("{id} 35 0:40 / {point} rw - fuse.x x rw");
            parse(line.as_bytes()).expect("a mount")
        };
        let ours = line("36", "/a");
        let other = line("37", "/a");
        // The most recent first.
        let covered = [other.clone(), ours.clone()];
        assert_eq!(ours.find(&covered), Some((&ours, Some(&other))));
        let moved = [line("36", "/b"), other.clone()];
        assert_eq!(ours.find(&moved), Some((&moved[0], None)));
        assert_eq!(ours.find(&[other]), None);
        let reused = Mount {
            device: "0:41".to_owned(),
            ..ours.clone()
        };
        assert_eq!(ours.find(&[reused]), None);
        let next = Mount {
            source: "y".into(),
            ..ours.clone()
        };
        assert_eq!(ours.find(&[next]), None);
    }
}
