//! What a database lies on: a directory, or a file system on a file, a device or a volume that a `sanstone
//! attach` of ours shows as a file. All of it goes when it is dropped, from the top to the bottom.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    time::Duration,
};

use tempfile::TempDir;

use super::{
    child::{Child, dying_with_us},
    mounts::Namespace,
    server::open_to_all,
};
use crate::{Error, Result, machine};

/// How long `attach` may take to come up.
const ATTACH_LIMIT: Duration = Duration::from_secs(120);

/// What a database is put on.
#[derive(Clone, Debug)]
pub(crate) enum Bed {
    /// In a new directory in this one.
    Directory(PathBuf),
    /// On a file system on this file or device.
    Disk(PathBuf),
    /// On a file system on this volume of a configuration, attached by this program.
    Volume {
        binary: PathBuf,
        configuration: PathBuf,
        volume: String,
    },
}

/// A place for a database.
pub(crate) struct Stack {
    name: String,
    namespace: Option<Rc<Namespace>>,
    attach: Option<Child>,
    /// The mounted file system, and the device that it is on.
    mounted: Option<(PathBuf, PathBuf)>,
    data: PathBuf,
    /// For sockets and logs, and removed with all that is in it.
    directory: TempDir,
    /// Removed with the database in it.
    _data: Option<TempDir>,
}

impl Stack {
    /// Makes it. Whatever was on a disk or volume is lost.
    pub(crate) fn new(name: &str, bed: &Bed, namespace: Option<Rc<Namespace>>) -> Result<Stack> {
        let temporary = |parent: &Path| {
            let directory = tempfile::Builder::new()
                .prefix("sanstone-oltp-")
                .tempdir_in(parent);
            directory.map_err(|source| Error::File {
                path: parent.to_owned(),
                source,
            })
        };
        let directory = temporary(&std::env::temp_dir())?;
        open_to_all(directory.path())?;
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
                let data = temporary(parent)?;
                open_to_all(data.path())?;
                stack.data = data.path().to_owned();
                stack._data = Some(data);
            }
            Bed::Disk(path) => stack.mount(path)?,
            Bed::Volume {
                binary,
                configuration,
                volume,
            } => {
                let file = stack.attach(binary, configuration, volume)?;
                stack.mount(&file)?;
            }
        }
        Ok(stack)
    }

    fn attach(&mut self, binary: &Path, configuration: &Path, volume: &str) -> Result<PathBuf> {
        let file = self.directory.path().join("disk");
        let mut command = dying_with_us(self.command(), binary, false);
        command
            .args(["attach", "-c"])
            .arg(configuration)
            .arg(volume);
        command.arg("--fuse").arg(&file);
        let log = self.directory.path().join("attach.log");
        let mut attach = Child::start("sanstone attach", &mut command, &log)?;
        let result = attach.wait_until(ATTACH_LIMIT, |attach| attach.said().contains(" attached "));
        self.attach = Some(attach);
        result.map(|()| file)
    }

    fn mount(&mut self, on: &Path) -> Result<()> {
        let at = self.data.clone();
        fs::create_dir(&at).map_err(|source| Error::File {
            path: at.clone(),
            source,
        })?;
        let Some(namespace) = &self.namespace else {
            return Err(Error::Target(
                "there is nowhere to mount a file system".into(),
            ));
        };
        let device = namespace.mount_new(on, &at)?;
        self.mounted = Some((at, device));
        Ok(())
    }

    /// What the user calls it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where the database's files go.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// Where all else goes.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A command that runs the program whose name and arguments follow where its files are seen.
    pub(super) fn command(&self) -> Command {
        match &self.namespace {
            Some(namespace) => namespace.command(),
            None => Command::new("env"),
        }
    }

    /// Processor time of what attaches the volume, in nanoseconds.
    pub(crate) fn attach_ns(&self) -> Option<u64> {
        self.attach
            .as_ref()
            .map(|attach| machine::family_ns(attach.pid()))
    }

    /// I/Os and flushes that the file system's device has had.
    pub(crate) fn ios(&self) -> Option<u64> {
        let (_, device) = self.mounted.as_ref()?;
        let name = device.file_name()?.to_str()?;
        let text = fs::read_to_string(format!("/sys/class/block/{name}/stat")).ok()?;
        let fields: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        // Reads, writes and flushes of Documentation/block/stat.rst.
        Some(
            [0, 4, 15]
                .iter()
                .filter_map(|field| fields.get(*field))
                .sum(),
        )
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let (Some((at, _)), Some(namespace)) = (self.mounted.take(), &self.namespace) {
            namespace.unmount(&at);
        }
        // It takes its own mount away.
        self.attach = None;
    }
}
