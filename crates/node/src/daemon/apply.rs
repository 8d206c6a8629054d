//! Switching a running daemon to another configuration: all of it, or nothing. New volumes are opened and recorded first,
//! then every lane switches, then what is no longer served is flushed and closed. Each step may have to wait for a disk,
//! and each can be cut short when the daemon is to stop.

use engine::{LaneFuture, blocking};
use volume::graph::Graph;

use super::{
    Daemon,
    deadline::Deadline,
    steps::{Prepared, Steps},
};
use crate::{
    DaemonFailure, StateError,
    changed::{ConfigChange, Refused, Warning},
    config::Config,
    difference::{Difference, Served},
    fronts,
    open::identities,
    shared_state::SharedState,
};

/// What [`lengthen`] will do to what has room now.
pub(crate) fn may_lengthen(graph: &Graph) -> impl Iterator<Item = ConfigChange> {
    let told = graph.may_lengthen().into_iter();
    told.map(ConfigChange::VolumeLive)
}

/// Has the sets in use take the length that their disks have now.
pub(crate) async fn lengthen(graph: &Graph, state: &SharedState) -> Vec<ConfigChange> {
    let (made, failed) = graph.lengthen().await;
    if !made.is_empty() {
        state.note_growth().await;
    }
    let made = made.into_iter().map(ConfigChange::VolumeLive);
    let failed = failed.into_iter().map(Warning::VolumeLive);
    made.chain(failed.map(ConfigChange::Warning)).collect()
}

impl Daemon {
    /// Switches to `config`, which must have been [loaded to be served](Config::load_to_serve), and returns
    /// the changes. Sessions that are not affected notice nothing. Returns after everything no
    /// longer served has ended, been flushed and released. A dry run changes nothing.
    ///
    /// Once `give_up` is ready, because the daemon is to be [stopped](Daemon::stop), this ends within seconds, even if
    /// a disk hangs. As long as the lanes do not serve `config`, nothing changes, which is an error. After that, the
    /// change is complete except that what is no longer served may not have been flushed and closed; a warning says so.
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
    ) -> Result<Vec<ConfigChange>, DaemonFailure> {
        let mut deadline = Deadline::new(LaneFuture::new(give_up));
        // It reads the files of the secrets.
        let reading = blocking::run(blocking::WorkKind::Files, || Served::new(config));
        let read = deadline.unless_given_up(reading).await?;
        let next = read.map_err(StateError::io("reading the secrets".to_owned()))??;
        let comparing = Difference::between(&self.served, &next);
        let Difference {
            mut made,
            mut refused,
            live,
            ..
        } = deadline.unless_given_up(comparing).await??;
        let (was_served, is_served) = (self.served.volumes(), next.volumes());
        let gone: Vec<String> = was_served.difference(&is_served).cloned().collect();
        // From now on: a sanitize takes hours, and its volume would be closed under it.
        let no_sanitize = self.units.bar_sanitize(&gone);
        if let Err(running) = &no_sanitize {
            refused.extend(running.iter().cloned().map(Refused::Sanitizing));
        }
        let barred = self.graph.in_the_way_of(&live).into_iter();
        refused.extend(barred.map(Refused::VolumeLive));
        if !refused.is_empty() {
            let path = next.config.path().to_owned();
            return Err(DaemonFailure::Refused { path, refused });
        }
        let noticed = deadline.unless_given_up(self.noticed(&next)).await?;
        made.extend(noticed.into_iter().map(ConfigChange::Warning));
        if is_dry_run {
            let tried = self.fronts.check(fronts::to_check(&next)).await;
            tried.map_err(|error| next.config.not_started(&error))?;
            made.extend(may_lengthen(&self.graph));
            return Ok(made);
        }
        let steps = Steps::new(self, &next, &live, &mut deadline);
        let Prepared { disks, live } = steps.take().await?;
        let over = self.fronts.commit();
        self.graph.keep_made();
        live.take_effect().await;
        self.graph.forget_replaced(&live);
        deadline.wait(self.state.note_growth()).await;
        self.units.tell_changes();
        self.served = next;
        let known = std::mem::replace(&mut self.disks, disks);
        match deadline.wait(over).await {
            Some(()) => {
                self.let_go(&gone, &mut deadline).await;
                // Not before: a volume that nobody holds any more would not have been closed.
                drop(known);
            }
            // It is used, so only the stop may close it, which waits until it is not.
            None => self.disks.extend(known),
        }
        let warnings = deadline.wait(live.finish()).await.into_iter().flatten();
        made.extend(warnings.map(|warning| ConfigChange::Warning(Warning::VolumeLive(warning))));
        let longer = lengthen(&self.graph, &self.state);
        made.extend(deadline.wait(longer).await.into_iter().flatten());
        if deadline.is_given_up {
            made.push(ConfigChange::Warning(Warning::Stopping));
        }
        let served = identities(&self.disks).collect();
        *self.unit_files.served() = served;
        Ok(made)
    }

    /// Flushes and closes what is no longer served; `gone` are the names of its disks.
    async fn let_go(&mut self, gone: &[String], deadline: &mut Deadline<'_>) {
        if deadline.wait(self.units.remove(gone)).await.is_none() {
            let volumes = gone.join(", ");
            tracing::warn!(volumes, "the last flush of a removed volume has not ended");
        }
        self.close_unserved(deadline).await;
    }

    /// Closes the volumes that are not served.
    pub(super) async fn close_unserved(&mut self, deadline: &mut Deadline<'_>) {
        for volume in self.graph.take_all_but(&self.served.open()) {
            match deadline.wait(volume.close()).await {
                Some(Ok(())) => {}
                Some(Err(failed)) => tracing::warn!("{failed}"),
                None => tracing::warn!(volume = volume.name(), "a volume has not closed in time"),
            }
        }
    }
}
