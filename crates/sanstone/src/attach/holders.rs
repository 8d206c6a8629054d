//! Finds out who has a file or a directory of this attachment: processes that have it open, mapped, or as their working
//! directory, mounts of it in any mount namespace, and loop devices, with who has those in turn.
//!
//! Whoever stands still may be one of them, or the storage that they wait for may be ours. So nothing is opened or
//! looked at here that could wait for a file system: only what the kernel says in /proc and /sys.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use engine::{
    loops::loops_within,
    mounts::{Mount, mounts_seen_by},
};

/// The most holders of one kind to name.
const NAMED_MAX: usize = 5;

/// Describes for people who has the mounted file or directory, as `process 123 (bash)`.
pub(super) fn holders_of(mount: &Mount) -> String {
    let system = System::look();
    let mut found = system.users(&SearchedDevice::mount(mount, &system), mount);
    found.extend(system.loops(mount));
    match found.is_empty() {
        true => {
            "something that cannot be identified here, such as a process in another PID namespace"
                .to_owned()
        }
        false => list(&found),
    }
}

/// Describes who has a loop device: mounts of it, processes, and devices above it.
fn holders_of_loop(device: &Path, system: &System) -> Vec<String> {
    let name = device.file_name().unwrap_or_default();
    let sysfs = Path::new("/sys/block").join(name);
    let mut found = Vec::new();
    for (number, shown) in numbers(&sysfs) {
        let own = Mount {
            // That of no mount.
            id: 0,
            device: number,
            point: Path::new("/dev").join(shown),
            kind: String::new(),
            source: device.to_owned(),
        };
        found.extend(system.users(&SearchedDevice::device(&own, system), &own));
    }
    let above = entries(&sysfs.join("holders"));
    found.extend(above.iter().map(|above| {
        let name = fs::read_to_string(above.join("dm/name")).unwrap_or_default();
        let above = above.file_name().unwrap_or_default().to_string_lossy();
        format!("{above} {}", name.trim()).trim_end().to_owned()
    }));
    if found.is_empty() {
        found.extend(alive_on(name).map(|kind| {
            format!(
                "its {kind} file system, which is mounted nowhere and still alive: a process may have a file of it open, \
                 or it is frozen; if so, mount it again and thaw it with `fsfreeze -u`"
            )
        }));
    }
    found
}

/// The device and its partitions: their numbers and names.
fn numbers(sysfs: &Path) -> Vec<(String, String)> {
    let all = [sysfs.to_owned()].into_iter().chain(entries(sysfs));
    let numbered = all.filter_map(|it| {
        let number = fs::read_to_string(it.join("dev")).ok()?;
        let name = it.file_name()?.to_string_lossy().into_owned();
        Some((number.trim().to_owned(), name))
    });
    numbered.collect()
}

/// The kind of the file system on the device of this name, if it exists in the kernel.
fn alive_on(name: &std::ffi::OsStr) -> Option<String> {
    let kinds = entries(Path::new("/sys/fs"));
    let mut kinds = kinds.into_iter().filter(|kind| kind.join(name).exists());
    let kind = kinds.next()?;
    Some(kind.file_name()?.to_string_lossy().into_owned())
}

/// What is looked for.
struct SearchedDevice {
    /// The mounts of it, of all namespaces.
    ids: BTreeSet<u64>,
    /// Where processes of this mount namespace have it.
    points: Vec<PathBuf>,
    /// It is a device, and not what is mounted from one.
    is_device: bool,
}

impl SearchedDevice {
    fn mount(mount: &Mount, system: &System) -> SearchedDevice {
        let mut held = SearchedDevice::device(mount, system);
        held.ids.insert(mount.id);
        held.is_device = false;
        held
    }

    /// Whatever is mounted from the device of `own`, and its path.
    fn device(own: &Mount, system: &System) -> SearchedDevice {
        let all = system.tables.values().flat_map(|table| &table.mounts);
        let ids = all.filter(|it| it.device == own.device).map(|it| it.id);
        SearchedDevice {
            ids: ids.collect(),
            points: vec![own.point.clone()],
            is_device: true,
        }
    }
}

/// The mounts of one mount namespace, and the first process that was found in it.
struct MountTable {
    process: PathBuf,
    mounts: Vec<Mount>,
}

/// What the kernel says of this machine now.
struct System {
    processes: Vec<PathBuf>,
    /// By the name of the namespace.
    tables: BTreeMap<PathBuf, MountTable>,
    /// The namespace of this process.
    own: PathBuf,
}

impl System {
    fn look() -> System {
        let is_process = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            name.iter().all(u8::is_ascii_digit)
        };
        let processes: Vec<_> = entries(Path::new("/proc"))
            .into_iter()
            .filter(is_process)
            .collect();
        let mut tables = BTreeMap::new();
        for process in &processes {
            let Some(namespace) = namespace(process) else {
                continue;
            };
            tables.entry(namespace).or_insert_with(|| MountTable {
                process: process.clone(),
                mounts: mounts_seen_by(process).unwrap_or_default(),
            });
        }
        System {
            processes,
            tables,
            own: namespace(Path::new("/proc/self")).unwrap_or_default(),
        }
    }

    /// The processes that have it, and the mounts of it other than `own`.
    fn users(&self, held: &SearchedDevice, own: &Mount) -> Vec<String> {
        let users: Vec<_> = self
            .processes
            .iter()
            .filter(|it| self.uses(it, held))
            .collect();
        let mut found: Vec<String> = users.iter().take(NAMED_MAX).map(|it| named(it)).collect();
        if users.len() > NAMED_MAX {
            found.push(format!("{} more processes", users.len() - NAMED_MAX));
        }
        for (namespace, table) in &self.tables {
            let others = table
                .mounts
                .iter()
                .filter(|it| it.device == own.device && !own.is(it));
            for mount in others {
                let point = mount.point.display();
                found.push(match *namespace == self.own {
                    true => format!("a mount on {point}"),
                    false => format!(
                        "a mount on {point}, in the mount namespace of {}",
                        named(&table.process)
                    ),
                });
            }
        }
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let swaps = swaps
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        let swaps =
            swaps.filter(|swap| held.points.iter().any(|at| Path::new(swap).starts_with(at)));
        found.extend(swaps.map(|swap| format!("swap on {swap}")));
        found
    }

    fn uses(&self, process: &Path, held: &SearchedDevice) -> bool {
        // The same path may be another file elsewhere, but hardly another device.
        let is_here = held.is_device || namespace(process).is_some_and(|it| it == self.own);
        let leads_there = |link: &Path| {
            let to = fs::read_link(link).unwrap_or_default();
            is_here && held.points.iter().any(|point| to.starts_with(point))
        };
        let links = ["cwd", "root", "exe"].map(|name| process.join(name));
        // Mapped files count too, as their descriptors may already be closed.
        let mapped = entries(&process.join("map_files"));
        let files = entries(&process.join("fd"));
        let has_open = |file: &Path| {
            let Some(name) = file.file_name() else {
                return false;
            };
            let about = fs::read_to_string(process.join("fdinfo").join(name)).unwrap_or_default();
            match mount_of(&about) {
                Some(id) if held.ids.contains(&id) => true,
                // A device has its path, and a file that was opened before something was mounted over it has, too.
                _ => held.is_device && leads_there(file),
            }
        };
        links.iter().chain(&mapped).any(|link| leads_there(link))
            || files.iter().any(|file| has_open(file))
    }

    /// The loop devices on files of `mount`, on any path of it, and who has them.
    fn loops(&self, mount: &Mount) -> Vec<String> {
        let all = self.tables.values().flat_map(|table| &table.mounts);
        let points = all
            .filter(|it| it.device == mount.device)
            .map(|it| &it.point);
        let points: BTreeSet<&PathBuf> = points.chain([&mount.point]).collect();
        let on_it = points
            .iter()
            .flat_map(|point| loops_within(point).unwrap_or_default());
        let devices: BTreeSet<PathBuf> = on_it.collect();
        let describe = |device: PathBuf| {
            let shown = device.display();
            match holders_of_loop(&device, self) {
                above if above.is_empty() => {
                    format!("the loop device {shown} (losetup -d {shown})")
                }
                above => format!(
                    "the loop device {shown}, which is in use by {}",
                    list(&above)
                ),
            }
        };
        devices.into_iter().map(describe).collect()
    }
}

/// The number of the mount that an open file lies in, from what /proc says of the file.
fn mount_of(about: &str) -> Option<u64> {
    let mut lines = about
        .lines()
        .filter_map(|line| line.strip_prefix("mnt_id:"));
    lines.next()?.trim().parse().ok()
}

fn namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/mnt")).ok()
}

fn named(process: &Path) -> String {
    let id = process.file_name().unwrap_or_default().to_string_lossy();
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    format!("process {id} ({})", name.trim())
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn list(found: &[String]) -> String {
    let mut text = found
        .iter()
        .take(NAMED_MAX)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if found.len() > NAMED_MAX {
        let _ = write!(text, " and {} more", found.len() - NAMED_MAX);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use engine::mounts::mounts;

    use super::*;

    /// The mount in which `path` lies, as if it were mounted on it.
    fn mounted_on(path: &Path) -> Mount {
        let all = mounts().expect("they can be read");
        let around = all.into_iter().filter(|it| path.starts_with(&it.point));
        let around = around.max_by_key(|it| it.point.as_os_str().len());
        Mount {
            // No file lies in it.
            id: u64::MAX,
            device: "0:0".to_owned(),
            point: path.to_owned(),
            ..around.expect("there is a root")
        }
    }

    #[test]
    fn who_works_in_a_directory_is_named() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = scratch.path().canonicalize().expect("it is there");
        let mount = mounted_on(&directory);
        assert!(holders_of(&mount).contains("cannot be identified"));
        let mut user = Command::new("sleep");
        let mut user = user
            .arg("600")
            .current_dir(&directory)
            .spawn()
            .expect("it runs");
        let users = holders_of(&mount);
        let named = format!("process {} (", user.id());
        user.kill().expect("it is ours");
        user.wait().expect("it is ours");
        assert!(users.contains(&named), "{users}");
    }

    #[test]
    fn who_has_a_file_of_a_mount_open_is_named_wherever_the_mount_is() {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = fs::File::create(scratch.path().join("file")).expect("a file");
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).expect("it is open");
        let mount = Mount {
            id: mount_of(&about).expect("it lies in a mount"),
            point: "/no/such/path".into(),
            ..mounted_on(scratch.path())
        };
        let system = System::look();
        let held = SearchedDevice::mount(&mount, &system);
        let me = Path::new("/proc").join(std::process::id().to_string());
        assert!(system.uses(&me, &held));
        let other = Mount {
            id: u64::MAX,
            ..mount
        };
        assert!(!system.uses(&me, &SearchedDevice::mount(&other, &system)));
    }

    #[test]
    fn long_lists_are_cut() {
        let found: Vec<String> = (1..=7)
            .map(|index| format!("process {index} (a)"))
            .collect();
        let text = list(&found);
        assert!(text.ends_with("process 5 (a) and 2 more"), "{text}");
    }
}
