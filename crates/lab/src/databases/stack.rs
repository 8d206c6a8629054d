//! The storage under a database: a directory, or a file system on a file, on a device or on a volume that our
//! own `sanstone attach` exposes as a file. Dropping it removes all layers, from the top down.

use std::{
    fs::{self, File},
    path::{self, Path, PathBuf},
    process::Command,
    rc::Rc,
    time::Duration,
};

use rustix::fs::Advice;
use tempfile::{NamedTempFile, TempDir};

use super::{
    bed::Bed,
    child::Child,
    counted::{DeviceTimes, IoSnapshot, shown},
    mounts::Namespace,
    scratch,
};
use crate::{
    LabError, LabResult,
    load::Stop,
    machine,
    programs::{dying_arguments, inherit_own, tool},
    statements::Traffic,
};

/// How long `attach` may take to start.
const ATTACH_LIMIT: Duration = Duration::from_secs(120);

/// The name, in a configuration of ours, of a volume with a cache in front of it.
const CACHED: &str = "sanstone-lab-cached";

/// The storage of one database.
pub(crate) struct Stack {
    name: String,
    namespace: Option<Rc<Namespace>>,
    attach: Option<Attach>,
    /// The mounted file system and the device it is on.
    mounted: Option<(PathBuf, PathBuf)>,
    data: PathBuf,
    /// For sockets and logs; removed with its contents.
    directory: TempDir,
    /// Removed together with the database in it.
    _data: Option<TempDir>,
}

/// A process that shows a volume as a file.
struct Attach {
    child: Child,
    binary: PathBuf,
}

impl Stack {
    /// Creates it, with a cache of `cache_bytes` in front of a volume, if given. Everything on a disk or
    /// volume is lost.
    pub(crate) fn new(
        name: &str,
        bed: &Bed,
        namespace: Option<&Rc<Namespace>>,
        cache_bytes: u64,
        stop: &Stop,
    ) -> LabResult<Stack> {
        let namespace = namespace.filter(|_| bed.is_mounted()).cloned();
        let directory = scratch::directory()?;
        let mut stack = Stack {
            name: name.to_owned(),
            namespace,
            attach: None,
            mounted: None,
            data: directory.path().join("files"),
            directory,
            _data: None,
        };
        match bed {
            Bed::Directory(parent) => {
                let data = scratch::new_in(parent)?;
                scratch::check_open(data.path()).map_err(|error| {
                    LabError::Call(format!("--on {}: {error}", parent.display()))
                })?;
                stack.data = data.path().to_owned();
                stack._data = Some(data);
            }
            Bed::Disk(path) => stack.mount(path, stop)?,
            Bed::Volume {
                binary,
                configuration,
                volume,
            } => {
                let cached = (cache_bytes > 0)
                    .then(|| {
                        derived(configuration, |table| {
                            with_cache(table, volume, cache_bytes)
                        })
                    })
                    .transpose()?;
                let file = match &cached {
                    Some(cached) => stack.attach(binary, (cached.path(), CACHED), stop)?,
                    None => stack.attach(binary, (configuration, volume), stop)?,
                };
                stack.mount(&file, stop)?;
            }
        }
        Ok(stack)
    }

    fn attach(
        &mut self,
        binary: &Path,
        (configuration, volume): (&Path, &str),
        stop: &Stop,
    ) -> LabResult<PathBuf> {
        let file = self.directory.path().join("disk");
        let mut command = self.dying(binary, false)?;
        inherit_own(&mut command);
        command
            .args(["attach", "-c"])
            .arg(configuration)
            .arg(volume);
        command.arg("--fuse").arg(&file);
        let log = self.directory.path().join("attach.log");
        let mut child = Child::start("sanstone attach", &mut command, &log)?;
        let result = child.wait_until(ATTACH_LIMIT, stop, |child| {
            child.said().contains(" attached ")
        });
        self.attach = Some(Attach {
            child,
            binary: binary.to_owned(),
        });
        result.map(|()| file)
    }

    fn mount(&mut self, on: &Path, stop: &Stop) -> LabResult<()> {
        let at = self.data.clone();
        fs::create_dir(&at).map_err(|source| LabError::File {
            path: at.clone(),
            source,
        })?;
        let Some(namespace) = &self.namespace else {
            return Err(LabError::Target(
                "there is no mount namespace for a file system".into(),
            ));
        };
        let device = namespace.mount_new(on, &at, stop)?;
        self.mounted = Some((at, device));
        Ok(())
    }

    /// The name that the user gave.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The directory for the database's files.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// The directory for everything else.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A command that runs `program` where the files are visible, and is killed when this program dies. If `as_nobody`,
    /// it runs as that user.
    pub(super) fn dying(&self, program: &Path, as_nobody: bool) -> LabResult<Command> {
        let setpriv = tool("setpriv")?;
        let mut command = match &self.namespace {
            Some(namespace) => namespace.command(&setpriv),
            None => engine::programs::command(&setpriv),
        };
        command.args(dying_arguments(program, as_nobody));
        Ok(command)
    }

    /// A path where the files are visible, as this program can open it.
    pub(super) fn seen(&self, path: &Path) -> PathBuf {
        match &self.namespace {
            Some(namespace) => namespace.seen(path),
            None => path.to_owned(),
        }
    }

    /// Processor time of the process that attaches the volume, in nanoseconds.
    pub(crate) fn attach_ns(&self) -> Option<u64> {
        self.attach
            .as_ref()
            .map(|attach| machine::family_ns(attach.child.pid()))
    }

    /// What has been counted below the files, also by the target's process, if its id is given.
    pub(crate) fn counted(&self, target: Option<u32>) -> IoSnapshot {
        let attach = self.attach.as_ref();
        let shown_by = |pid| shown(&attach?.binary, pid);
        IoSnapshot {
            device: self.device_fields().as_deref().map(DeviceTimes::of),
            is_attached: attach.is_some(),
            attach: attach.and_then(|attach| shown_by(attach.child.pid())),
            target: target.and_then(shown_by),
        }
    }

    /// I/Os and flushes that the file system's device has completed.
    pub(crate) fn ios(&self) -> Option<u64> {
        let fields = self.device_fields()?;
        // Reads, writes and flushes.
        Some(
            [0, 4, 15]
                .iter()
                .filter_map(|field| fields.get(*field))
                .sum(),
        )
    }

    /// What the file system's device has transferred.
    pub(crate) fn traffic(&self) -> Option<Traffic> {
        const SECTOR_BYTES: u64 = 512;
        let fields = self.device_fields()?;
        let bytes = |field: usize| fields.get(field).copied().unwrap_or(0) * SECTOR_BYTES;
        Some(Traffic {
            read_bytes: bytes(2),
            written_bytes: bytes(6),
        })
    }

    /// The device's counters, in the order of Documentation/block/stat.rst.
    fn device_fields(&self) -> Option<Vec<u64>> {
        let (_, device) = self.mounted.as_ref()?;
        let name = device.file_name()?.to_str()?;
        let text = fs::read_to_string(format!("/sys/class/block/{name}/stat")).ok()?;
        Some(text.split_whitespace().flat_map(str::parse).collect())
    }

    /// Writes the cached pages of the database's files to their medium and evicts them, so that the next
    /// reads come from the medium.
    ///
    /// # Errors
    /// The file system's error.
    pub(crate) fn forget_pages(&self) -> LabResult<()> {
        let mut directories = vec![self.seen(&self.data)];
        while let Some(directory) = directories.pop() {
            let failed = |source| LabError::File {
                path: directory.clone(),
                source,
            };
            for entry in fs::read_dir(&directory).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let kind = entry.file_type().map_err(failed)?;
                if kind.is_dir() {
                    directories.push(entry.path());
                    continue;
                }
                // The server may remove its files at any time, so one that cannot be opened is skipped.
                let Some(file) = kind.is_file().then(|| File::open(entry.path()).ok()) else {
                    continue;
                };
                if let Some(file) = file {
                    file.sync_data().map_err(failed)?;
                    let forgotten = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
                    forgotten.map_err(|error| failed(error.into()))?;
                }
            }
        }
        Ok(())
    }
}

/// Writes a changed copy of a configuration next to the original, because paths in it are relative to its
/// location. It keeps the original's state directory unless `change` sets another.
pub(crate) fn derived(
    configuration: &Path,
    change: impl FnOnce(&mut toml::Table),
) -> LabResult<NamedTempFile> {
    let failed = |source| LabError::File {
        path: configuration.to_owned(),
        source,
    };
    let text = fs::read_to_string(configuration).map_err(failed)?;
    let mut table: toml::Table = toml::from_str(&text)
        .map_err(|error| LabError::Call(format!("{}: {error}", configuration.display())))?;
    // The default state directory is named after the configuration.
    let state = path::absolute(configuration).map_err(failed)?;
    let state = state.with_extension("state").to_string_lossy().into_owned();
    table.entry("state").or_insert(state.into());
    change(&mut table);
    let copy = tempfile::Builder::new()
        .prefix("sanstone-lab-")
        .suffix(".toml")
        .tempfile_in(configuration.parent().unwrap_or(Path::new(".")))
        .map_err(failed)?;
    fs::write(copy.path(), table.to_string()).map_err(failed)?;
    Ok(copy)
}

/// Adds a volume: a cache in front of `volume`.
fn with_cache(table: &mut toml::Table, volume: &str, cache_bytes: u64) {
    let settings = toml::Table::from_iter([
        ("size".to_owned(), format!("{cache_bytes}B").into()),
        ("of".to_owned(), volume.into()),
        // Nobody else uses what is being measured.
        ("only_writer".to_owned(), true.into()),
    ]);
    let cached = toml::Table::from_iter([("cache".to_owned(), settings.into())]);
    if let Some(toml::Value::Table(volumes)) = table.get_mut("volume") {
        volumes.insert(CACHED.to_owned(), cached.into());
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let (Some((at, _)), Some(namespace)) = (self.mounted.take(), &self.namespace) {
            namespace.unmount(&at);
        }
        // Ending it removes its own mount.
        self.attach = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_state_directory_of_its_configuration() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let configuration = directory.path().join("db.toml");
        let state_of = |text: &str| {
            fs::write(&configuration, text).expect("it is ours");
            let copy = derived(&configuration, |table| with_cache(table, "db", 1 << 20));
            let copy = copy.expect("it is TOML");
            let text = fs::read_to_string(copy.path()).expect("it is there");
            let table: toml::Table = text.parse().expect("it is TOML");
            let cached = &table["volume"][CACHED]["cache"];
            assert_eq!(cached["of"].as_str(), Some("db"), "{text}");
            let state = table["state"].as_str().expect("it has one");
            copy.path().with_file_name(state)
        };
        let volume = "[volume.db]\nram = { size = \"8MiB\" }\n";
        assert_eq!(state_of(volume), directory.path().join("db.state"));
        let named = format!("state = \"here\"\n{volume}");
        assert_eq!(state_of(&named), directory.path().join("here"));
    }
}
