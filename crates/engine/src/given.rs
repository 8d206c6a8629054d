//! Input that whoever started this process has handed to it: a pipe or a terminal that is open already, under a name such
//! as `/dev/stdin` or `/dev/fd/63`, which a shell writes for `<(…)`. It comes to an end when its writer closes it; a writer
//! that does not is not waited for forever. A pipe that has a name in a file system is not input: nobody may ever open its
//! other end.

use std::{
    fs,
    io::{self, ErrorKind, Read},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use crate::reactor::too_long;

/// How long its writer may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Bytes read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Whether `path` names an open descriptor of this process.
pub(crate) fn is_given(path: &Path) -> bool {
    let directories = [Path::new("/dev/fd"), Path::new("/proc/self/fd")];
    let is_number = path.file_name().is_some_and(|name| {
        let name = name.as_encoded_bytes();
        !name.is_empty() && name.iter().all(u8::is_ascii_digit)
    });
    path == Path::new("/dev/stdin")
        || is_number && path.parent().is_some_and(|of| directories.contains(&of))
}

/// Reads what comes from `path`, which [is given](is_given), to its end.
///
/// # Errors
/// `TimedOut` if it does not end within `limit`, that it is longer than `max` bytes, or the system's.
pub(crate) fn read(path: &Path, max: usize, limit: Duration) -> io::Result<Vec<u8>> {
    let until = Instant::now() + limit;
    let mut options = fs::File::options();
    let mut file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let (mut bytes, mut piece) = (Vec::new(), vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(&file, until, limit)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if bytes.len() > max {
            return Err(too_long(max as u64));
        }
    }
}

/// Waits until there is something to read.
fn wait(file: &fs::File, until: Instant, limit: Duration) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let mut asked = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let left_ms = libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: one pollfd, which lives through the call.
    match unsafe { libc::poll(&raw mut asked, 1, left_ms) } {
        0 => {
            let message = format!("whoever writes to it has not closed it within {limit:?}");
            Err(io::Error::new(ErrorKind::TimedOut, message))
        }
        1.. => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::FromRawFd};

    use super::*;

    #[test]
    fn only_names_of_open_descriptors_are_given() {
        for (path, expected) in [
            ("/dev/stdin", true),
            ("/dev/fd/63", true),
            ("/proc/self/fd/0", true),
            ("/dev/fd/", false),
            ("/dev/fd/6a", false),
            ("/dev/fd/../fd", false),
            ("/tmp/fd/6", false),
            ("stdin", false),
        ] {
            assert_eq!(is_given(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_pipe_is_read_to_its_end_within_bounds() {
        let pipe = || {
            let mut ends = [0; 2];
            // SAFETY: room for two descriptors, which are new and nobody else's.
            let [reader, writer] = unsafe {
                assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
                ends.map(|end| fs::File::from_raw_fd(end))
            };
            let path = format!("/dev/fd/{}", reader.as_raw_fd());
            (reader, writer, path)
        };
        let (_reader, mut writer, path) = pipe();
        writer.write_all(b"text").expect("room");
        let silent = read(Path::new(&path), 9, Duration::from_millis(1));
        let silent = silent.expect_err("nobody has closed it");
        assert_eq!(silent.kind(), ErrorKind::TimedOut, "{silent}");
        writer.write_all(b"more").expect("room");
        drop(writer);
        let text = read(Path::new(&path), 9, LIMIT).expect("it has ended");
        assert_eq!(text, b"more");
        let (_reader, mut writer, path) = pipe();
        writer.write_all(b"0123456789").expect("room");
        let long = read(Path::new(&path), 9, LIMIT).expect_err("it is longer");
        assert_ne!(long.kind(), ErrorKind::TimedOut, "{long}");
    }
}
