//! What comes before the lanes serve another configuration: [steps](ApplyStep), of which each has its way back. They are taken
//! in order, and what was begun goes back in the opposite order if one fails. A step that failed goes back as well: it may
//! have done a part.

use std::{collections::BTreeMap, path::PathBuf};

use uuid::Uuid;
use volume::{
    config::{ConfigError, Volumes},
    graph::{Changes, Live},
};

use super::{Daemon, deadline::Deadline, disk_spec};
use crate::{
    DaemonFailure, OpenRefusal,
    difference::Served,
    fronts::{self, Configured},
    open::{self, OpenVolumes, ReadyDisk, identities},
    record::Records,
    state::Before,
};

/// Makes the enum of the steps, and the list of them in the same order.
macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident,)*) => {
        /// A step before the lanes serve another configuration.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum ApplyStep {
            $($(#[$doc])* $step,)*
        }

        impl ApplyStep {
            /// In the order in which they are taken.
            const ALL: &[ApplyStep] = &[$(ApplyStep::$step),*];
        }
    };
}

steps! {
    /// The state directory, as it is, is remembered. Back: its files say again what they said.
    Remember,
    /// The graph has the new volumes. Back: the old ones.
    Volumes,
    /// Files are created on trial. Back: they are removed, with their records. A file that existed before keeps its new
    /// identity, because it carries the mark.
    Trial,
    /// All volumes are open, and no disk becomes another. Back: those that are not served are closed.
    Open,
    /// New disks are recorded; the way back is that of [`ApplyStep::Remember`].
    Record,
    /// It is noted who knows of the new disks' power-on. Back: that is forgotten.
    PowerOn,
    /// The fronts' ports have numbers; the way back is that of [`ApplyStep::Remember`].
    Ports,
    /// The lanes have the new disks. Back: they are removed.
    Units,
    /// The fronts have prepared; one that fails leaves nothing. Back: they discard that.
    Fronts,
    /// What changes about open volumes is prepared. Back: undone. It comes last, because a copy of a mirror that another disk
    /// replaces has left by then.
    Live,
}

/// The way to another configuration.
pub(super) struct Steps<'a, 'd> {
    daemon: &'a mut Daemon,
    next: &'a Served,
    changes: &'a Changes,
    deadline: &'a mut Deadline<'d>,
    /// The steps begun, in order.
    begun: Vec<ApplyStep>,
    before: Option<Before>,
    volumes: Option<Volumes>,
    removed: Vec<PathBuf>,
    opened: Option<OpenVolumes>,
    disks: Vec<ReadyDisk>,
    /// The disks that are not served yet.
    new: Vec<unit::DiskSpec>,
    records: Option<Records>,
    configured: Configured,
    /// The fronts have prepared all of it.
    is_configured: bool,
    live: Live,
}

/// What is ready to be served.
pub(super) struct Prepared {
    pub(super) disks: Vec<ReadyDisk>,
    /// The changes of open volumes, which are still to take effect.
    pub(super) live: Live,
}

impl<'a, 'd> Steps<'a, 'd> {
    /// From what `daemon` serves to `next`, with these `changes` of volumes that stay open.
    pub(super) fn new(
        daemon: &'a mut Daemon,
        next: &'a Served,
        changes: &'a Changes,
        deadline: &'a mut Deadline<'d>,
    ) -> Self {
        Steps {
            daemon,
            next,
            changes,
            deadline,
            begun: Vec::new(),
            before: None,
            volumes: None,
            removed: Vec::new(),
            opened: None,
            disks: Vec::new(),
            new: Vec::new(),
            records: None,
            configured: Vec::new(),
            is_configured: false,
            live: Live::default(),
        }
    }

    /// Takes all steps.
    ///
    /// # Errors
    /// Why one of them failed; all have gone back.
    pub(super) async fn take(mut self) -> Result<Prepared, DaemonFailure> {
        for &step in ApplyStep::ALL {
            self.begun.push(step);
            if let Err(failure) = self.forward(step).await {
                while let Some(step) = self.begun.pop() {
                    self.back(step).await;
                }
                return Err(failure);
            }
        }
        assert_eq!(self.begun, ApplyStep::ALL, "each step is taken once");
        Ok(Prepared {
            disks: self.disks,
            live: self.live,
        })
    }

    async fn forward(&mut self, step: ApplyStep) -> Result<(), DaemonFailure> {
        let config = &self.next.config;
        let daemon = &mut *self.daemon;
        match step {
            ApplyStep::Remember => {
                let reading = daemon.state.run(|state| state.before());
                self.before = Some(self.deadline.unless_given_up(reading).await??);
            }
            ApplyStep::Volumes => {
                let before = daemon.graph.replace_volumes(config.volumes().clone());
                self.volumes = Some(before.map_err(|error| config.wrong(&error))?);
            }
            ApplyStep::Trial => daemon.graph.begin_trial(),
            ApplyStep::Open => self.open().await?,
            ApplyStep::Record => self.record().await?,
            ApplyStep::PowerOn => {
                let records = self.records.as_ref().expect("they are recorded");
                for disk in self.disks.iter().filter(|disk| is_new(&self.new, disk)) {
                    if let Some(record) = records.disks.get(&disk.uuid) {
                        let begun = daemon.told.add_disk(disk, record);
                        self.deadline.unless_given_up(begun).await?;
                    }
                }
            }
            ApplyStep::Ports => {
                let configuring = fronts::configured(self.next, &daemon.state);
                self.configured = self.deadline.unless_given_up(configuring).await??;
            }
            ApplyStep::Live => {
                let preparing = daemon.graph.prepare(self.changes, &mut self.live);
                let prepared = self.deadline.unless_given_up(preparing).await?;
                prepared.map_err(|error| config.failed(&error))?;
            }
            ApplyStep::Units => {
                let added = daemon.units.add(&self.new).await;
                added.map_err(|error| config.failed(&ConfigError::new(None, error.to_string())))?;
            }
            ApplyStep::Fronts => {
                let configured = std::mem::take(&mut self.configured);
                let prepared = daemon.fronts.prepare(configured).await;
                prepared.map_err(|error| config.not_started(&error))?;
                self.is_configured = true;
            }
        }
        Ok(())
    }

    /// Opens what is new. Volumes that are no longer served stay open.
    async fn open(&mut self) -> Result<(), DaemonFailure> {
        let config = &self.next.config;
        let served: Vec<String> = self.next.volumes().into_iter().collect();
        let directory = config.state_directory();
        let site = config.site(&directory, &served);
        let records = &self.before.as_ref().expect("it is remembered").records;
        let daemon = &mut *self.daemon;
        let opening = open::open_all(&site, records, &mut daemon.graph, &daemon.lanes);
        let opened = self.deadline.unless_given_up(opening).await?;
        let opened = opened.map_err(|refusal| config.refused(refusal))?;
        let known: BTreeMap<_, _> = identities(&daemon.disks).collect();
        for disk in &opened.disks {
            let name = disk.tree.name();
            if known.get(name).is_some_and(|uuid| *uuid != disk.uuid) {
                let message =
                    format!("volume \"{name}\" would become another disk: restart to apply this");
                return Err(DaemonFailure::Failed(message));
            }
        }
        self.opened = Some(opened);
        Ok(())
    }

    /// Records what was opened.
    async fn record(&mut self) -> Result<(), DaemonFailure> {
        let config = &self.next.config;
        let served: Vec<String> = self.next.volumes().into_iter().collect();
        let directory = config.state_directory();
        let site = config.site(&directory, &served).to_send();
        let known: BTreeMap<String, Uuid> = identities(&self.daemon.disks).collect();
        let opened = self.opened.take().expect("it is open");
        let keeping = self.daemon.state.run(move |state| {
            let disks = state.keep_opened(&site.site(), opened)?;
            let is_new = |disk: &&ReadyDisk| !known.contains_key(disk.tree.name());
            let new = disks.iter().filter(is_new);
            let new = new.map(|disk| disk_spec(disk, &state.unit_files));
            let new = new.collect::<Result<Vec<_>, _>>()?;
            Ok::<_, OpenRefusal>((disks, new, state.records().clone()))
        });
        let kept = self.deadline.unless_given_up(keeping).await??;
        let (disks, new, records) = kept.map_err(|refusal| config.refused(refusal))?;
        (self.disks, self.new, self.records) = (disks, new, Some(records));
        Ok(())
    }

    async fn back(&mut self, step: ApplyStep) {
        let daemon = &mut *self.daemon;
        match step {
            ApplyStep::Record | ApplyStep::Ports => {}
            ApplyStep::Fronts => {
                if self.is_configured {
                    daemon.fronts.discard().await;
                }
            }
            ApplyStep::Units => {
                let added: Vec<String> = self.new.iter().map(|spec| spec.name.clone()).collect();
                self.deadline.wait(daemon.units.remove(&added)).await;
            }
            ApplyStep::Live => {
                let live = std::mem::take(&mut self.live);
                if self.deadline.wait(daemon.graph.undo(live)).await.is_none() {
                    tracing::warn!("what a failed change has prepared is still being undone");
                }
            }
            ApplyStep::PowerOn => {
                let served = daemon.served.volumes();
                let forgetting = daemon.told.forget_all_but(&served);
                self.deadline.wait(forgetting).await;
            }
            ApplyStep::Open => {
                daemon.close_unserved(self.deadline).await;
                // Not before: a volume that nobody holds any more would not have been closed.
                self.opened = None;
                self.disks.clear();
                self.new.clear();
            }
            ApplyStep::Trial => {
                let removed = self.deadline.wait(daemon.graph.remove_made()).await;
                self.removed = removed.unwrap_or_else(|| {
                    tracing::warn!(
                        "the files that a failed change has created are still being removed"
                    );
                    Vec::new()
                });
            }
            ApplyStep::Volumes => {
                let replaced = self.volumes.take();
                if replaced.is_some_and(|before| daemon.graph.replace_volumes(before).is_err()) {
                    tracing::error!(
                        "the previous volumes could not be restored after a failed change: restart \
                         the daemon"
                    );
                }
            }
            ApplyStep::Remember => self.restore_state().await,
        }
    }

    /// The state directory says again what it said.
    async fn restore_state(&mut self) {
        let Some(before) = self.before.take() else {
            return;
        };
        let daemon = &mut *self.daemon;
        *daemon.unit_files.served() = identities(&daemon.disks).collect();
        let names: Vec<String> = daemon.served.volumes().into_iter().collect();
        let directory = daemon.state_directory();
        let site = daemon.config().site(&directory, &names).to_send();
        let removed = std::mem::take(&mut self.removed);
        let back = daemon.state.run(move |state| {
            let later = state.records().clone();
            state.take_back(before, &later, &removed);
            state.serves(&site.site())
        });
        let back = match self.deadline.wait(back).await {
            Some(back) => back
                .and_then(|served| served)
                .map_err(|error| error.to_string()),
            None => Err("it is still being written".to_owned()),
        };
        if let Err(error) = back {
            tracing::warn!(
                error,
                "the state directory still names the configuration of the failed change"
            );
        }
    }
}

fn is_new(new: &[unit::DiskSpec], disk: &ReadyDisk) -> bool {
    new.iter().any(|spec| spec.name == disk.tree.name())
}
