//! Finds the daily files in what the user names: CSV files, plain or gzip, zip archives of them as Backblaze publishes
//! them, and pipes. Each is read several times (a look at all of it, the table on every disk), so what a pipe delivers is
//! first copied to a file without a name.

use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use flate2::{Crc, bufread::MultiGzDecoder, read::DeflateDecoder};
use zip::{CompressionMethod, ZipArchive};

use crate::{LabError, LabResult, nameless::nameless_file};

/// How much is read at once.
const BUFFER_BYTES: usize = 1 << 16;

/// What compressed files begin with that nothing here reads, and what unpacks them.
const PACKED: [(&[u8], &str, &str); 4] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstd -d"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz", "xz -d"),
    (b"BZh", "bzip2", "bzip2 -d"),
    (&[b'7', b'z', 0xbc, 0xaf], "7-Zip", "7z x"),
];

/// A daily file, which may be opened again and again.
#[derive(Clone)]
pub struct DailyFile {
    /// As the user knows it.
    shown: PathBuf,
    opened: PathBuf,
    /// What a pipe has delivered.
    _copied: Option<Arc<File>>,
    packed: Option<Packed>,
}

/// A file in an archive.
#[derive(Clone, Copy)]
struct Packed {
    at: u64,
    len: u64,
    is_deflated: bool,
    crc32: u32,
}

impl fmt::Debug for DailyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown, f)
    }
}

impl DailyFile {
    /// Those in each of `paths`; those of an archive in the order of their names, which are their days.
    ///
    /// # Errors
    /// One cannot be read, or is packed in a way that is not read here.
    pub fn all_in(paths: &[PathBuf]) -> LabResult<Vec<DailyFile>> {
        let mut all = Vec::new();
        for path in paths {
            all.extend(DailyFile::in_one(path)?);
        }
        Ok(all)
    }

    fn in_one(path: &Path) -> LabResult<Vec<DailyFile>> {
        let failed = |source| LabError::File {
            path: path.into(),
            source,
        };
        let opened = File::open(path);
        let mut source =
            opened.map_err(|error| LabError::Call(format!("{}: {error}", path.display())))?;
        let kind = source.metadata().map_err(failed)?;
        if kind.is_dir() {
            return Err(LabError::Call(format!(
                "{}: this is a directory; name the files in it",
                path.display()
            )));
        }
        let mut file = DailyFile {
            shown: path.into(),
            opened: path.into(),
            _copied: None,
            packed: None,
        };
        if !kind.is_file() {
            let mut copy = nameless_file(&std::env::temp_dir())?;
            io::copy(&mut source, &mut copy).map_err(failed)?;
            file.opened = format!("/proc/self/fd/{}", copy.as_raw_fd()).into();
            file._copied = Some(Arc::new(copy));
        }
        let mut start = Vec::new();
        let opened = File::open(&file.opened).map_err(failed)?;
        opened.take(8).read_to_end(&mut start).map_err(failed)?;
        if let Some((_, name, unpack)) = PACKED.iter().find(|(magic, ..)| start.starts_with(magic))
        {
            let path = path.display();
            return Err(LabError::Call(format!(
                "{path}: it is compressed with {name}, which is not read here; unpack it first: {unpack} {path}"
            )));
        }
        match start.starts_with(b"PK") {
            true => file.in_archive(),
            false => Ok(vec![file]),
        }
    }

    /// The daily files of this archive.
    fn in_archive(&self) -> LabResult<Vec<DailyFile>> {
        let wrong = |what: &dyn fmt::Display| {
            let path = self.shown.display();
            LabError::Call(format!("{path}: this zip archive cannot be read: {what}"))
        };
        let file = File::open(&self.opened).map_err(|error| wrong(&error))?;
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| {
            wrong(&format!(
                "{error}; if it was not downloaded to its end, do that again"
            ))
        })?;
        let mut all = Vec::new();
        for index in 0..archive.len() {
            let entry = archive.by_index_raw(index).map_err(|error| wrong(&error))?;
            let Some(name) = daily_name(entry.name()) else {
                continue;
            };
            let is_deflated = match entry.compression() {
                CompressionMethod::Stored => false,
                #[allow(
                    deprecated,
                    reason = "without its features the crate has no name for it"
                )]
                CompressionMethod::Unsupported(DEFLATE) => true,
                other => {
                    return Err(wrong(&format!(
                        "{name} is packed by {other}; unpack it first"
                    )));
                }
            };
            if entry.encrypted() {
                return Err(wrong(&format!("{name} is encrypted; unpack it first")));
            }
            let at = entry.data_start().ok_or_else(|| wrong(&name))?;
            let packed = Packed {
                at,
                len: entry.compressed_size(),
                is_deflated,
                crc32: entry.crc32(),
            };
            all.push((
                name.to_owned(),
                DailyFile {
                    shown: self.shown.join(entry.name()),
                    packed: Some(packed),
                    ..self.clone()
                },
            ));
        }
        if all.is_empty() {
            return Err(wrong(&"it has no .csv file"));
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(all.into_iter().map(|(_, file)| file).collect())
    }

    /// Its path, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.shown
    }

    /// Its bytes, unpacked.
    ///
    /// # Errors
    /// Any error the system reports.
    pub(super) fn open(&self) -> io::Result<Box<dyn Read>> {
        let mut file = File::open(&self.opened)?;
        let bytes: Box<dyn Read> = match self.packed {
            None => Box::new(file),
            Some(packed) => {
                file.seek(SeekFrom::Start(packed.at))?;
                let file = BufReader::with_capacity(BUFFER_BYTES, file).take(packed.len);
                let bytes: Box<dyn Read> = match packed.is_deflated {
                    true => Box::new(DeflateDecoder::new(file)),
                    false => Box::new(file),
                };
                Box::new(Checked {
                    bytes,
                    crc: Crc::new(),
                    crc32: packed.crc32,
                })
            }
        };
        let mut bytes = BufReader::with_capacity(BUFFER_BYTES, bytes);
        Ok(match bytes.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
            true => Box::new(MultiGzDecoder::new(bytes)),
            false => Box::new(bytes),
        })
    }
}

/// The number of the method "deflate" (APPNOTE.TXT 4.4.5).
const DEFLATE: u16 = 8;

/// The name, without its folders, of a daily file in an archive; `None` if it is something else, such as what macOS adds.
fn daily_name(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    let lower = name.to_ascii_lowercase();
    let is_daily = lower.ends_with(".csv") || lower.ends_with(".csv.gz");
    (is_daily && !name.starts_with('.') && !path.contains("__MACOSX/")).then_some(name)
}

/// Bytes whose checksum is compared at their end.
struct Checked {
    bytes: Box<dyn Read>,
    crc: Crc,
    crc32: u32,
}

impl Read for Checked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(buffer)?;
        self.crc.update(&buffer[..count]);
        match count == 0 && !buffer.is_empty() && self.crc.sum() != self.crc32 {
            true => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its checksum in the archive is another; download the archive again",
            )),
            false => Ok(count),
        }
    }
}
