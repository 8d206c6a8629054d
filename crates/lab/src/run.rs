//! `lab run`: runs a profile on what the user named, from the options to the findings.

use std::{
    fs, io,
    path::{self, Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use serde_json::{Value, json};

use engine::{Lane, LaneConfig, LaneHandle, buf, store::follow_links};

use crate::{
    LabError, LabResult,
    databases::{Bed, derived},
    fio,
    load::{Stop, fill_to},
    machine,
    on::On,
    profile::{Journal, Profile, Runner},
    progress::ProgressOutput,
    report::Findings,
    target::{Configured, MeasuredDisk, Needs, Opening},
};

/// Free buffer memory that a lane may keep.
const BUFFERS_BYTES: usize = 64 << 20;

/// How a profile is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the profile runs on, all together.
    pub on: Vec<On>,
    /// Whether existing data may be destroyed.
    pub overwrite: bool,
    /// A process whose processor time is measured as well.
    pub pid: Option<u32>,
    /// Whether fio runs each load as well.
    pub with_fio: bool,
    /// Path of this program, used to attach volumes.
    pub binary: PathBuf,
    /// The JSON of an interrupted run to continue.
    pub resume: Option<Value>,
}

/// Receives the JSON of a run after each step, as it would be if the run ended there.
pub type Keep<'a> = &'a dyn Fn(&Value);

/// The conclusion of the run to be resumed, if nothing is left to measure; `volumes` are those of the configuration.
///
/// # Errors
/// The JSON is of another run.
pub fn finished(
    profile: &Profile,
    options: &Options,
    volumes: Option<&[String]>,
) -> LabResult<Option<String>> {
    let Some(json) = &options.resume else {
        return Ok(None);
    };
    Journal::of(json, profile)?;
    check_same_disks(json, &named(&options.on, volumes)?)?;
    let answer = json["answer"].as_str().map(str::to_owned);
    Ok(answer.filter(|_| json["interrupted"] == false))
}

/// Refuses to continue a run on other disks than it was begun on.
fn check_same_disks(json: &Value, on: &[On]) -> LabResult<()> {
    let names: Vec<&str> = on.iter().map(On::name).collect();
    let (before, now) = (&json["on"], json!(names));
    match *before == now {
        true => Ok(()),
        false => Err(LabError::Call(format!(
            "--resume: the run in the --json file was on {before}, and this one would be on {now}: name the same \
             with --on, or another file with --json"
        ))),
    }
}

/// Runs a profile.
///
/// # Errors
/// The options are invalid, or something that is measured fails.
pub fn run(
    profile: &Profile,
    options: &Options,
    configured: Option<&Configured<'_>>,
    stop: &Stop,
    progress: ProgressOutput,
    keep: Keep<'_>,
) -> LabResult<Findings> {
    let experiment = profile.experiment();
    let resumed = options
        .resume
        .as_ref()
        .map(|json| Journal::of(json, profile));
    let journal = resumed.transpose()?.unwrap_or_default();
    let on = named(&options.on, configured.map(|configured| &*configured.names))?;
    if let Some(json) = &options.resume {
        check_same_disks(json, &on)?;
    }
    if options.with_fio {
        fio::check(experiment.verifies())?;
    }
    experiment.survey(stop, progress)?;
    let needs = experiment.needs();
    let lane = lane()?;
    let opening = Opening {
        sessions: needs.sessions.div_ceil(options.on.len().max(1)),
        made_bytes: needs.size_bytes,
        writes: needs.writes,
        overwrite: options.overwrite,
        is_watched: true,
    };
    let names: Vec<String> = on.iter().map(|on| on.name().to_owned()).collect();
    let (beds, targets) = match experiment.opens_volumes() {
        true => (None, open(&lane, &on, configured, opening, stop, progress)?),
        false => (
            Some(Beds::new(&lane, on, options, configured, opening)?),
            Vec::new(),
        ),
    };
    let verified = experiment.verifies().then_some(needs.size_bytes);
    let checked = check_fio(options.with_fio, &names.join(", "), &targets)
        .and_then(|()| experiment.check_disks(&targets))
        .and_then(|()| mark(&lane, &targets, opening, verified))
        .and_then(|()| match &beds {
            Some(beds) => beds.mark(&lane, configured, opening),
            None => Ok(()),
        });
    if let Err(error) = checked {
        close(&lane, targets);
        return Err(error);
    }
    let notes = to_know(&lane, &targets, needs);
    let begun = Findings {
        profile: profile.name.clone(),
        settings: profile.text.clone(),
        on: names,
        about: experiment.about().to_owned(),
        ..Findings::default()
    };
    let stage = progress.stage(&profile.name, Some(experiment.steps() as u64));
    let mut runner = Runner::new(&lane, targets, stop.clone(), stage);
    let unfinished = Findings {
        answer: "The run was ended before it was over.".into(),
        is_interrupted: true,
        ..begun.clone()
    };
    runner.keeper = Some(Box::new(move |steps| {
        let mut json = unfinished.json();
        json["steps"] = steps;
        keep(&json);
    }));
    runner.journal = journal;
    // From here on its file is that of this run, however it ends.
    if let Some(keeper) = &runner.keeper {
        keeper(runner.journal.steps());
    }
    runner.beds = beds.iter().flat_map(|beds| beds.beds.clone()).collect();
    runner.pid = options.pid;
    runner.with_fio = options.with_fio;
    runner.verified = verified;
    let found = experiment.run(&mut runner);
    let found = found.map(|mut findings| {
        findings.notes.extend(notes);
        Findings {
            profile: begun.profile,
            settings: begun.settings,
            on: begun.on,
            about: begun.about,
            ..findings
        }
    });
    let found = end(&lane, runner, found);
    if let Some(beds) = beds {
        beds.leave(&lane, configured, opening);
    }
    found
}

/// Refuses what fio, if it `is_to_run`, cannot open; `name` names the disks.
pub(crate) fn check_fio(is_to_run: bool, name: &str, targets: &[MeasuredDisk]) -> LabResult<()> {
    match is_to_run && targets.first().is_none_or(|target| target.path.is_none()) {
        true => Err(LabError::Call(format!(
            "--with fio: fio opens files and block devices, and {name} is neither"
        ))),
        false => Ok(()),
    }
}

/// Marks all of them, as the last step before they are measured: whatever can be refused has been.
pub(crate) fn mark(
    lane: &Lane,
    targets: &[MeasuredDisk],
    opening: Opening,
    verified: Option<u64>,
) -> LabResult<()> {
    for target in targets {
        target.luns(1, verified)?;
    }
    for target in targets {
        lane.block_on(target.mark(opening))?;
    }
    Ok(())
}

/// Copies the volume records from one state directory to another, so that disks a daemon has served before
/// are recognised there.
fn copy_records(from: &Path, to: &Path) -> LabResult<()> {
    const RECORDS: &str = "volumes.toml";
    let records = from.join(RECORDS);
    match fs::copy(&records, to.join(RECORDS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LabError::File {
            path: records,
            source: error,
        }),
        _ => Ok(()),
    }
}

/// What databases with their own file system are placed on, and everything created for that.
struct Beds {
    on: Vec<On>,
    beds: Vec<(String, Bed)>,
    /// Files created for the run.
    made: Vec<PathBuf>,
    /// Whether a volume already uses the original configuration. A state directory belongs to one process at
    /// a time, so further volumes get their own.
    has_volume: bool,
    /// State directories, and configurations of disks of targets.
    directories: Vec<tempfile::TempDir>,
    /// Copies of the configuration, one for each volume after the first.
    configurations: Vec<tempfile::NamedTempFile>,
}

impl Beds {
    /// Finds what the user named, and checks that all of it may be written to.
    fn new(
        lane: &Lane,
        on: Vec<On>,
        options: &Options,
        configured: Option<&Configured<'_>>,
        opening: Opening,
    ) -> LabResult<Beds> {
        let mut beds = Beds {
            on,
            beds: Vec::new(),
            made: Vec::new(),
            has_volume: false,
            directories: Vec::new(),
            configurations: Vec::new(),
        };
        for on in beds.on.clone() {
            let bed = beds.bed(&on, options, configured, opening)?;
            beds.beds.push((on.name().to_owned(), bed));
        }
        beds.visit(lane, configured, opening, |_| Ok(()))?;
        Ok(beds)
    }

    /// Marks disks and volumes whose data may be destroyed.
    fn mark(
        &self,
        lane: &Lane,
        configured: Option<&Configured<'_>>,
        opening: Opening,
    ) -> LabResult<()> {
        match opening.overwrite {
            true => self.visit(lane, configured, opening, |target| {
                lane.block_on(target.mark(opening))
            }),
            false => Ok(()),
        }
    }

    /// Opens each disk that was there before the run, which refuses those that hold data, and closes it after `work`.
    fn visit(
        &self,
        lane: &Lane,
        configured: Option<&Configured<'_>>,
        opening: Opening,
        mut work: impl FnMut(&MeasuredDisk) -> LabResult<()>,
    ) -> LabResult<()> {
        for (on, (_, bed)) in self.on.iter().zip(&self.beds) {
            let is_made = matches!(bed, Bed::Disk(path) if self.made.contains(path));
            if is_made || matches!(bed, Bed::Directory(_)) {
                continue;
            }
            let home = lane.handle();
            let target = lane.block_on(MeasuredDisk::open(on, configured, &home, opening))?;
            let worked = work(&target);
            close(lane, vec![target]);
            worked?;
        }
        Ok(())
    }

    fn bed(
        &mut self,
        on: &On,
        options: &Options,
        configured: Option<&Configured<'_>>,
        opening: Opening,
    ) -> LabResult<Bed> {
        let file = |path: &Path, source| LabError::File {
            path: path.to_owned(),
            source,
        };
        let volume = |configuration: &Path, volume: &str| -> LabResult<Bed> {
            let whole = path::absolute(configuration);
            Ok(Bed::Volume {
                binary: options.binary.clone(),
                configuration: whole.map_err(|source| file(configuration, source))?,
                volume: volume.to_owned(),
            })
        };
        match (on, configured) {
            (On::Url(remote), _) => {
                let directory = tempfile::tempdir();
                let directory =
                    directory.map_err(|source| file(Path::new("a directory"), source))?;
                let configuration = directory.path().join("disk.toml");
                let (disk, private) = remote.settings()?;
                self.directories.extend(private);
                let text = format!("state = \"state\"\n[volume.disk]\n{disk}\n");
                fs::write(&configuration, text).map_err(|source| file(&configuration, source))?;
                self.directories.push(directory);
                volume(&configuration, "disk")
            }
            (On::Name(name), Some(configured)) if configured.names.contains(name) => {
                match self.has_volume {
                    false => {
                        self.has_volume = true;
                        volume(configured.path, name)
                    }
                    true => {
                        let state = tempfile::tempdir()
                            .map_err(|source| file(Path::new("a directory"), source))?;
                        let shown = state.path().to_string_lossy().into_owned();
                        let mut original = None;
                        let copy = derived(configured.path, |table| {
                            original = table.insert("state".into(), shown.into());
                        })?;
                        if let Some(original) = original.as_ref().and_then(toml::Value::as_str) {
                            copy_records(&copy.path().with_file_name(original), state.path())?;
                        }
                        let bed = volume(copy.path(), name);
                        self.directories.push(state);
                        self.configurations.push(copy);
                        bed
                    }
                }
            }
            (On::Name(name), _) => {
                let path = path::absolute(name).and_then(|path| follow_links(&path));
                let path = path.map_err(|source| file(Path::new(name), source))?;
                if path.is_dir() {
                    return Ok(Bed::Directory(path));
                }
                if !path.exists() {
                    let made = fs::File::create_new(&path);
                    let made = made.map_err(|source| file(&path, source))?;
                    self.made.push(path.clone());
                    let long = made.set_len(opening.made_bytes);
                    long.map_err(|source| file(&path, source))?;
                }
                Ok(Bed::Disk(path))
            }
        }
    }

    /// Marks disks and volumes so that a later run knows that they hold nobody's data.
    fn leave(self, lane: &Lane, configured: Option<&Configured<'_>>, opening: Opening) {
        let overwrite = Opening {
            overwrite: true,
            ..opening
        };
        // If this fails, the later run will ask for --overwrite.
        let _ = self.mark(lane, configured, overwrite);
    }
}

impl Drop for Beds {
    fn drop(&mut self) {
        for path in &self.made {
            let _ = fs::remove_file(path);
        }
    }
}

/// Completes the findings, if there are any, and closes everything opened for the run.
pub(crate) fn end(
    lane: &Lane,
    mut runner: Runner,
    found: LabResult<Findings>,
) -> LabResult<Findings> {
    let found = found.map(|mut findings| {
        findings.machine = machine::facts();
        runner.finish(&mut findings);
        findings
    });
    let Runner { targets, stage, .. } = runner;
    stage.done("");
    close(lane, targets);
    found
}

/// The lane on which everything is opened and loaded.
pub(crate) fn lane() -> LabResult<Rc<Lane>> {
    buf::keep_at_most(BUFFERS_BYTES);
    let started = Lane::new(&LaneConfig::default());
    let started = started.map(Rc::new);
    started.map_err(|error: io::Error| LabError::Target(format!("starting a lane: {error}")))
}

/// Opens what is named. Anything created for the run is filled first, so that no read finds a hole.
pub(crate) fn open(
    lane: &Lane,
    on: &[On],
    configured: Option<&Configured<'_>>,
    opening: Opening,
    stop: &Stop,
    progress: ProgressOutput,
) -> LabResult<Vec<MeasuredDisk>> {
    let home = lane.handle();
    let mut targets = Vec::new();
    for on in on {
        let opened = open_one(lane, &home, on, configured, opening, stop, progress);
        match opened {
            Ok(target) => targets.push(target),
            Err(error) => {
                close(lane, targets);
                return Err(error);
            }
        }
    }
    Ok(targets)
}

/// What to measure: what the user named, or the only volume in the configuration.
pub(crate) fn named(on: &[On], volumes: Option<&[String]>) -> LabResult<Vec<On>> {
    match (on, volumes) {
        ([], Some([only])) => Ok(vec![On::Name(only.clone())]),
        ([], Some(names)) => Err(LabError::Call(format!(
            "name the volume to measure: --on with one of {}",
            names.join(", ")
        ))),
        ([], None) => Err(LabError::Call(
            "name what to measure: --on with a file, a block device, an iSCSI URL, or with -c a \
             volume of that configuration"
                .into(),
        )),
        (on, volumes) => {
            on.iter().try_for_each(|on| check_name(on, volumes))?;
            Ok(on.to_vec())
        }
    }
}

/// Refuses what is probably a mistyped volume name, for which a file would be created.
fn check_name(on: &On, volumes: Option<&[String]>) -> LabResult<()> {
    let (On::Name(name), Some(names)) = (on, volumes) else {
        return Ok(());
    };
    let is_blank = name.trim().is_empty();
    if is_blank || names.contains(name) || name.contains('/') || Path::new(name).exists() {
        return Ok(());
    }
    Err(LabError::Call(format!(
        "--on {name}: neither a volume of the configuration (it has {}) nor a file; to have a file created, write \
         a path with a /, such as ./{name}",
        names.join(", ")
    )))
}

/// Caveats to show before the figures.
pub(crate) fn to_know(lane: &Lane, targets: &[MeasuredDisk], needs: Needs) -> Vec<String> {
    let of_one = |target| lane.block_on(MeasuredDisk::to_know(target, needs));
    targets.iter().flat_map(of_one).collect()
}

fn open_one(
    lane: &Lane,
    home: &LaneHandle,
    on: &On,
    configured: Option<&Configured<'_>>,
    opening: Opening,
    stop: &Stop,
    progress: ProgressOutput,
) -> LabResult<MeasuredDisk> {
    let target = lane.block_on(MeasuredDisk::open(on, configured, home, opening))?;
    if !target.is_made() {
        return Ok(target);
    }
    let len = target.len_bytes();
    let stage = progress.stage(&format!("filling {}", on.name()), Some(len));
    let told = |written| stage.set(written);
    let filled = lane.block_on(fill_to(&**target.volume(), len, stop, told));
    let filled = match filled {
        Ok(()) => lane.block_on(async { target.volume().flush().await }),
        Err(error) => Err(error),
    };
    stage.done("");
    match filled {
        Ok(()) => Ok(target),
        Err(error) => {
            close(lane, vec![target]);
            Err(LabError::Target(format!("filling {}: {error}", on.name())))
        }
    }
}

/// Closes all of them.
pub(crate) fn close(lane: &Lane, targets: Vec<MeasuredDisk>) {
    for target in targets {
        lane.block_on(target.close());
    }
    // Gives background work, such as a session's logout, a moment to finish.
    lane.block_on(async { engine::time::sleep(Duration::from_millis(1)).await });
}
