//! Switching a running daemon to another configuration: all of it, or nothing. New volumes are opened and recorded first,
//! then every lane switches, then what is no longer served is flushed and closed. Each step may have to wait for a disk,
//! and each can be cut short when the daemon is to stop.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use engine::{
    LaneFuture, blocking,
    task::{self, Either},
    time,
};
use volume::{
    config::{ConfigError, Volumes},
    graph::{Changes, Live},
};

use super::{Daemon, disk_spec};
use crate::{
    Error, Failure, Refusal,
    config::Config,
    difference::{Difference, Served},
    fronts,
    open::{self, Disk, identities},
    record::Records,
    state::Before,
};

/// How long each wait of a change that is given up may still take: enough for everything that does not hang.
const GIVE_UP_PATIENCE: Duration = Duration::from_secs(5);

impl Daemon {
    /// Switches to `config`, which must have been [loaded to be served](Config::load_to_serve), and returns
    /// the changes, one line each. Sessions that are not affected notice nothing. Returns after everything no
    /// longer served has ended, been flushed and released. A dry run changes nothing.
    ///
    /// Once `give_up` is ready, because the daemon is to be [stopped](Daemon::stop), this ends within seconds, even if
    /// a disk hangs. As long as the lanes do not serve `config`, nothing changes, which is an error. After that, the
    /// change is complete except that what is no longer served may not have been flushed and closed; a line says so.
    ///
    /// Do not drop the future before its end: half a change would stay in the files.
    ///
    /// # Errors
    /// Changes that are not possible while serving, or that failed; nothing has changed then.
    pub async fn apply(
        &mut self,
        config: Config,
        is_dry_run: bool,
        give_up: impl Future<Output = ()>,
    ) -> Result<Vec<String>, Failure> {
        let mut patience = Patience::new(LaneFuture::new(give_up));
        // It reads the files of the secrets.
        let reading = blocking::run(blocking::Kind::Files, || Served::new(config));
        let read = patience.unless_given_up(reading).await?;
        let next = read.map_err(Error::io("reading the secrets".to_owned()))??;
        let comparing = Difference::between(&self.served, &next);
        let Difference {
            mut lines,
            mut refused,
            live,
        } = patience.unless_given_up(comparing).await??;
        let (was_served, is_served) = (self.served.volumes(), next.volumes());
        let gone: Vec<String> = was_served.difference(&is_served).cloned().collect();
        // From now on: a sanitize takes hours, and its volume would be closed under it.
        let no_sanitize = self.units.bar_sanitize(&gone);
        if let Err(running) = &no_sanitize {
            let wait = "is being sanitized: wait until the sanitize has finished";
            let running = running.iter();
            refused.extend(running.map(|name| format!("volume \"{name}\" {wait}")));
        }
        if !refused.is_empty() {
            let path = next.config.path().display();
            let refused = refused.iter().map(|refused| format!("{path}: {refused}"));
            return Err(Failure::Wrong(refused.collect::<Vec<_>>().join("\n")));
        }
        if is_dry_run {
            let tried = self.fronts.check(fronts::to_check(&next)).await;
            tried.map_err(|error| next.config.not_started(&error))?;
            return Ok(lines);
        }
        let reading = self.state.run(|state| state.before());
        let stored = patience.unless_given_up(reading).await??;
        let before = self.graph.replace_volumes(next.config.volumes().clone());
        let before = before.map_err(|error| next.config.wrong(&error))?;
        self.graph.begin_trial();
        let changed = self
            .change_to(&next, &stored.records, &live, &mut patience)
            .await;
        let Switched { disks, over, live } = match changed {
            Ok(changed) => changed,
            Err(failure) => {
                self.go_back(before, stored, &mut patience).await;
                return Err(failure);
            }
        };
        self.graph.keep_made();
        live.take_effect().await;
        patience.wait(self.state.note_growth()).await;
        self.units.tell_changes();
        self.served = next;
        let known = std::mem::replace(&mut self.disks, disks);
        match patience.wait(over).await {
            Some(()) => {
                self.let_go(&gone, &mut patience).await;
                // Not before: a volume that nobody holds any more would not have been closed.
                drop(known);
            }
            // It is used, so only the stop may close it, which waits until it is not.
            None => self.disks.extend(known),
        }
        let warnings = patience.wait(live.finish()).await.into_iter().flatten();
        lines.extend(warnings.map(|warning| format!("! {warning}")));
        if patience.is_given_up {
            let line =
                "! the daemon stops: what is no longer served may not have been flushed and closed";
            lines.push(line.to_owned());
        }
        let served = identities(&self.disks).collect();
        *self.unit_files.served() = served;
        Ok(lines)
    }

    /// Opens what is new in `next`, prepares what changes about open volumes, and has the lanes serve all of it. Volumes
    /// that are no longer served stay open.
    async fn change_to(
        &mut self,
        next: &Served,
        records: &Records,
        changes: &Changes,
        patience: &mut Patience<'_>,
    ) -> Result<Switched, Failure> {
        let config = &next.config;
        let served: Vec<String> = next.volumes().into_iter().collect();
        let directory = config.state_directory();
        let site = config.site(&directory, &served);
        let refused = |refusal| config.refused(refusal);
        let opening = open::open_all(&site, records, &mut self.graph, &self.lanes);
        let opened = patience.unless_given_up(opening).await?.map_err(refused)?;
        let known: BTreeMap<_, _> = identities(&self.disks).collect();
        for disk in &opened.disks {
            let name = disk.tree.name();
            if known.get(name).is_some_and(|uuid| *uuid != disk.uuid) {
                let message =
                    format!("volume \"{name}\" would become another disk: restart to apply this");
                return Err(Failure::Failed(message));
            }
        }
        let site = site.to_send();
        let keeping = self.state.run(move |state| {
            let disks = state.keep_opened(&site.site(), opened)?;
            let is_new = |disk: &&Disk| !known.contains_key(disk.tree.name());
            let new = disks.iter().filter(is_new);
            let new = new.map(|disk| disk_spec(disk, &state.unit_files));
            let new = new.collect::<Result<Vec<_>, _>>()?;
            Ok::<_, Refusal>((disks, new, state.records().clone()))
        });
        let kept = patience.unless_given_up(keeping).await??;
        let (disks, new, records) = kept.map_err(refused)?;
        let is_new = |disk: &&Disk| new.iter().any(|spec| spec.name == disk.tree.name());
        for disk in disks.iter().filter(is_new) {
            if let Some(record) = records.disks.get(&disk.uuid) {
                let begun = self.told.add_disk(disk, record);
                patience.unless_given_up(begun).await?;
            }
        }
        let configuring = fronts::configured(next, &self.state);
        let configured = patience.unless_given_up(configuring).await??;
        let mut live = Live::default();
        let switched = async {
            let preparing = self.graph.prepare(changes, &mut live);
            let prepared = patience.unless_given_up(preparing).await?;
            prepared.map_err(|error| config.failed(&error))?;
            let added = self.units.add(&new).await;
            added.map_err(|error| config.failed(&ConfigError::new(None, error.to_string())))?;
            match self.fronts.prepare(configured).await {
                Ok(()) => Ok(self.fronts.commit()),
                Err(error) => {
                    let added: Vec<String> = new.into_iter().map(|spec| spec.name).collect();
                    patience.wait(self.units.remove(&added)).await;
                    Err(config.not_started(&error))
                }
            }
        };
        match switched.await {
            Ok(over) => Ok(Switched { disks, over, live }),
            Err(failure) => {
                if patience.wait(live.undo()).await.is_none() {
                    tracing::warn!("what a failed change has prepared is still being undone");
                }
                Err(failure)
            }
        }
    }

    /// Flushes and closes what is no longer served; `gone` are the names of its disks.
    async fn let_go(&mut self, gone: &[String], patience: &mut Patience<'_>) {
        if patience.wait(self.units.remove(gone)).await.is_none() {
            let volumes = gone.join(", ");
            tracing::warn!(volumes, "the last flush of a removed volume has not ended");
        }
        self.close_unserved(patience).await;
    }

    /// Closes the volumes that are not served.
    async fn close_unserved(&mut self, patience: &mut Patience<'_>) {
        for volume in self.graph.take_all_but(&self.served.open()) {
            match patience.wait(volume.close()).await {
                Some(Ok(())) => {}
                Some(Err(failed)) => tracing::warn!("{failed}"),
                None => tracing::warn!(volume = volume.name(), "a volume has not closed in time"),
            }
        }
    }

    /// Undoes a failed change. Files that it created are removed, with their records. A file that existed
    /// before keeps its new identity, because it carries the mark.
    async fn go_back(&mut self, volumes: Volumes, stored: Before, patience: &mut Patience<'_>) {
        self.close_unserved(patience).await;
        let served = self.served.volumes();
        patience.wait(self.told.forget_all_but(&served)).await;
        let removed = patience.wait(self.graph.remove_made()).await;
        let removed = removed.unwrap_or_else(|| {
            tracing::warn!("the files that a failed change has created are still being removed");
            Vec::new()
        });
        if self.graph.replace_volumes(volumes).is_err() {
            tracing::error!(
                "the previous volumes could not be restored after a failed change: restart \
                 the daemon"
            );
        }
        let served = identities(&self.disks).collect();
        *self.unit_files.served() = served;
        let names: Vec<String> = self.served.volumes().into_iter().collect();
        let directory = self.state_directory();
        let site = self.config().site(&directory, &names).to_send();
        let back = self.state.run(move |state| {
            let later = state.records().clone();
            state.take_back(stored, &later, &removed);
            state.serves(&site.site())
        });
        let back = match patience.wait(back).await {
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

/// What the lanes serve once they have switched.
struct Switched {
    disks: Vec<Disk>,
    /// Completes when nothing uses any more what is no longer served.
    over: LaneFuture<'static, ()>,
    /// The changes of open volumes, which are still to take effect.
    live: Live,
}

/// How long the waits of a change may take: any time, until it is given up.
struct Patience<'a> {
    give_up: LaneFuture<'a, ()>,
    is_given_up: bool,
}

impl<'a> Patience<'a> {
    fn new(give_up: LaneFuture<'a, ()>) -> Self {
        Patience {
            give_up,
            is_given_up: false,
        }
    }

    /// The output of `work`; `None` if it did not end within [`GIVE_UP_PATIENCE`] after the change was given up.
    async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        if !self.is_given_up {
            match task::either(work.as_mut(), &mut self.give_up).await {
                Either::One(output) => return Some(output),
                Either::Other(()) => self.is_given_up = true,
            }
        }
        time::timeout(GIVE_UP_PATIENCE, work).await
    }

    /// The output of `work`, a step before the lanes serve the new configuration.
    ///
    /// # Errors
    /// If the change was given up. All the same `work` has had time to end, so that what it began can be undone in order.
    async fn unless_given_up<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let output = self.wait(work).await.filter(|_| !self.is_given_up);
        output.ok_or_else(|| {
            let message = "the daemon is stopping, and nothing has changed";
            Failure::Failed(message.to_owned())
        })
    }
}
