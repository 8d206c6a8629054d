//! `lab run`: a profile on what is named, from the call to its findings.

use std::{io, rc::Rc, time::Duration};

use engine::{Lane, LaneConfig, LaneHandle, buf};

use crate::{
    Error, Result,
    load::{Stop, fill_to},
    machine,
    profile::{Profile, Runner},
    progress::Progress,
    report::Findings,
    target::{Configured, On, Opening, Target},
};

/// Free memory for buffers that a lane keeps.
const BUFFERS_BYTES: usize = 64 << 20;

/// How a profile is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What it is run on, all together.
    pub on: Vec<On>,
    /// Whether data on it may be lost.
    pub overwrite: bool,
    /// A process whose processor time counts.
    pub pid: Option<u32>,
    /// Whether fio runs each load as well.
    pub with_fio: bool,
}

/// Runs a profile.
///
/// # Errors
/// The call cannot be meant, or something that is measured fails.
pub fn run(
    profile: &Profile,
    options: &Options,
    configured: Option<&Configured<'_>>,
    stop: &Stop,
    progress: Progress,
) -> Result<Findings> {
    let experiment = profile.experiment();
    let needs = experiment.needs();
    let lane = lane()?;
    let opening = Opening {
        sessions: needs.sessions.div_ceil(options.on.len().max(1)),
        made_bytes: needs.size_bytes,
        writes: needs.writes,
        overwrite: options.overwrite,
        is_watched: true,
    };
    let (names, targets) = open(&lane, &options.on, configured, opening, stop, progress)?;
    if options.with_fio && targets[0].path.is_none() {
        let name = targets[0].name.clone();
        close(&lane, targets);
        return Err(Error::Call(format!(
            "--with fio: fio opens files and block devices, and {name} is neither"
        )));
    }
    let stage = progress.stage(&profile.name, Some(experiment.steps() as u64));
    let mut runner = Runner::new(&lane, targets, stop.clone(), stage);
    runner.pid = options.pid;
    runner.with_fio = options.with_fio;
    runner.verified = experiment.verifies().then_some(needs.size_bytes);
    let found = experiment.run(&mut runner);
    let found = found.map(|mut findings| {
        findings.profile = profile.name.clone();
        findings.on = names;
        findings.about = experiment.about().to_owned();
        findings
    });
    end(&lane, runner, found)
}

/// Completes what was found, if anything was, and closes what was opened for it.
pub(crate) fn end(lane: &Lane, runner: Runner, found: Result<Findings>) -> Result<Findings> {
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

/// The lane that everything is opened and loaded on.
pub(crate) fn lane() -> Result<Rc<Lane>> {
    buf::keep_at_most(BUFFERS_BYTES);
    let started = Lane::new(&LaneConfig::default());
    let started = started.map(Rc::new);
    started.map_err(|error: io::Error| Error::Target(format!("starting a lane: {error}")))
}

/// Opens what is named. What was made for the run is written to once, so that no read finds a hole.
pub(crate) fn open(
    lane: &Lane,
    on: &[On],
    configured: Option<&Configured<'_>>,
    opening: Opening,
    stop: &Stop,
    progress: Progress,
) -> Result<(Vec<String>, Vec<Target>)> {
    let on = match (on, configured) {
        ([], Some(configured)) => match &configured.names[..] {
            [only] => vec![On::Name(only.clone())],
            names => {
                return Err(Error::Call(format!(
                    "say which volume to measure: --on with one of {}",
                    names.join(", ")
                )));
            }
        },
        ([], None) => {
            return Err(Error::Call(
                "say what to measure: --on with a file, a block device, an iSCSI URL, or with -c a volume of \
                 that configuration"
                    .into(),
            ));
        }
        (on, _) => on.to_vec(),
    };
    let home = lane.handle();
    let mut targets = Vec::new();
    for on in &on {
        let opened = open_one(lane, &home, on, configured, opening, stop, progress);
        match opened {
            Ok(target) => targets.push(target),
            Err(error) => {
                close(lane, targets);
                return Err(error);
            }
        }
    }
    let names = targets.iter().map(|target| target.name.clone());
    Ok((names.collect(), targets))
}

fn open_one(
    lane: &Lane,
    home: &LaneHandle,
    on: &On,
    configured: Option<&Configured<'_>>,
    opening: Opening,
    stop: &Stop,
    progress: Progress,
) -> Result<Target> {
    let target = lane.block_on(Target::open(on, configured, home, opening))?;
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
            Err(Error::Target(format!("filling {}: {error}", on.name())))
        }
    }
}

/// Closes all of them.
pub(crate) fn close(lane: &Lane, targets: Vec<Target>) {
    for target in targets {
        lane.block_on(target.close());
    }
    // What ends beside (a session's goodbye) has a moment to do so.
    lane.block_on(async { engine::time::sleep(Duration::from_millis(1)).await });
}
