//! Adds paths to a disk that is in use, and removes them from it.
//!
//! A path that is added takes an initiator port that is free, and is used once it leads to the disk. A path that is removed
//! is used until another one works. Then it takes no more requests, those in flight end, and it is logged out. If it is
//! lost before that, it is brought back like any other for as long as it has left writes at the target.

use std::rc::Weak;

use engine::{Duration, LaneHandle, spawn, task, time};

use super::{
    config::Sessions,
    machine::{Event, PathEvent, PathPlace},
    path::Path,
    paths::Paths,
    unit::RemoteUnit,
};
use crate::{Error, ErrorKind, Result};

/// How much longer than its last command a session may take to end: the watchdog, and the logout.
const LOGOUT_MAX: Duration = Duration::from_secs(5);

impl Paths {
    /// For each of `sessions` the index of a wanted path that goes the same way, or of none.
    fn matched(&self, sessions: &Sessions) -> Vec<Option<usize>> {
        let mut left: Vec<usize> = (0..self.all().len()).collect();
        left.retain(|&index| self.all()[index].is_wanted());
        left.sort_by_key(|&index| {
            let path = &self.all()[index];
            (path.usable().is_none(), path.rank())
        });
        let matched = sessions.ways.iter().map(|way| {
            let goes_there = |&index: &usize| self.all()[index].way() == *way;
            let at = left.iter().position(goes_there)?;
            Some(left.remove(at))
        });
        matched.collect()
    }

    /// Begins those paths that `sessions` has and we have not. Returns them.
    fn begin_missing(&self, sessions: &Sessions) -> Result<Vec<&Path>> {
        let matched = self.matched(sessions);
        let free: Vec<_> = self.ports.iter().filter(|path| path.is_free()).collect();
        let missing = matched.iter().filter(|index| index.is_none()).count();
        if missing > free.len() {
            let message =
                "too many paths that were removed are still in use: try again when they are not";
            return Err(Error::new(ErrorKind::Configuration, message));
        }
        let stay = matched.iter().flatten().map(|&index| &self.ports[index]);
        let mut stay: Vec<&Path> = stay.collect();
        let mut free = free.into_iter();
        let mut begun = Vec::new();
        let numbered = sessions.ways.iter().enumerate();
        for (rank, way) in numbered.filter(|(rank, _)| matched[*rank].is_none()) {
            // Each way on every lane, and as many sessions on each lane.
            let here = |lane: usize| {
                let lane = self.lane(lane);
                stay.iter().filter(move |path| path.lane() == lane)
            };
            let load = |&lane: &usize| {
                let same = here(lane).filter(|path| path.way() == *way);
                (same.count(), here(lane).count())
            };
            let lane = (0..self.lanes.len().max(1)).min_by_key(load);
            let Some(path) = free.next() else { break };
            // Behind all others until it is adopted.
            let place = PathPlace {
                rank: PathPlace::LAST,
                is_spare: sessions.is_spare(rank),
            };
            self.begin(path, way, self.lane(lane.unwrap_or(0)), place);
            self.note_on(path, PathEvent::RecoveryBegins);
            stay.push(path);
            begun.push(path);
        }
        Ok(begun)
    }

    /// A lane for a path: `None` is the home lane.
    fn lane(&self, index: usize) -> Option<LaneHandle> {
        match index {
            0 => None,
            index => self.lanes.get(index).cloned(),
        }
    }

    /// From now on `sessions` are wanted, and no others. Returns the paths that are no longer wanted.
    fn adopt(&self, sessions: &Sessions) -> Vec<usize> {
        let matched = self.matched(sessions);
        let is_removed =
            |&index: &usize| self.all()[index].is_wanted() && !matched.contains(&Some(index));
        let removed: Vec<_> = (0..self.all().len()).filter(is_removed).collect();
        let numbered = matched.into_iter().enumerate();
        let places = numbered.filter_map(|(rank, index)| {
            let is_spare = sessions.is_spare(rank);
            Some((self.all()[index?].id(), PathPlace { rank, is_spare }))
        });
        self.note(Event::Adopted(places.collect()));
        let ping_timeout = &self.config().multipath.ping_timeout;
        ping_timeout.follow(sessions.have_another_way());
        self.sessions.replace(sessions.clone());
        self.tell_first();
        removed
    }
}

impl RemoteUnit {
    /// Adds the paths that `next` has and we have not, and logs in over them. Those that we have beside stay for now.
    /// Returns what is wrong with paths that cannot be used yet, and are retried.
    ///
    /// # Errors
    /// When a path leads to another disk, or when `next` leaves out a path, and none of its own works.
    pub(super) async fn add_paths(&self, next: &Sessions) -> Result<Vec<String>> {
        let begun = self.paths.begin_missing(next)?;
        self.paths.tell_paths();
        if !begun.is_empty() {
            self.handle(Event::AccessDoubted);
            // A lone path that was lost, and on which a new one may depend, is no longer alone.
            self.bring_back();
        }
        let opened = begun.iter().map(async |path| {
            let opened = self.open_path(path).await;
            self.on_path(path, PathEvent::RecoveryEnds);
            opened
        });
        let opened = task::join_all(opened.map(Box::pin)).await;
        self.bring_back();
        let mut problems = Vec::new();
        for (path, opened) in begun.into_iter().zip(opened) {
            problems.extend(
                opened?.map(|error| {
                    format!("the path to {} does not work yet: {error}", path.address())
                }),
            );
        }
        let stay = self.paths.matched(next).into_iter().flatten();
        let stay: Vec<_> = stay.map(|index| &self.paths.all()[index]).collect();
        let leaves_out = stay.len() < self.paths.wanted().count();
        if leaves_out && !stay.iter().any(|path| path.live().is_some()) {
            let why = stay.iter().find_map(|path| path.error());
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let message = format!("none of the paths that would be left works{why}");
            return Err(Error::new(ErrorKind::Unreachable, message));
        }
        Ok(problems)
    }

    /// From now on `next` are the sessions of the disk. The others end as soon as they are not needed.
    pub(super) fn adopt_paths(&self, next: &Sessions) {
        let removed = self.paths.adopt(next);
        for index in removed {
            let (target_name, address) = (
                &self.config().target_name,
                self.paths.all()[index].address(),
            );
            tracing::info!(target_name, %address, "a path is no longer used");
            spawn(part_with(self.me.clone(), index));
        }
        if !self.paths.is_at_rest() {
            self.bring_back();
        }
    }

    /// Removes the paths that were added and not adopted.
    pub(super) fn remove_added_paths(&self) {
        let sessions = self.paths.sessions.borrow().clone();
        self.adopt_paths(&sessions);
    }

    /// Waits until nothing is left of removed paths, for about as long as their last requests may take. Returns what is
    /// left.
    pub(super) async fn parted(&self) -> Vec<String> {
        let limit = self.config().request_timeout + LOGOUT_MAX;
        let left = || {
            self.paths
                .all()
                .iter()
                .filter(|path| !path.is_wanted() && !path.is_gone())
        };
        let changed = self.paths.changed();
        let parted = changed.wait_for(|| left().next().is_none().then_some(()));
        let _ = time::timeout(limit, parted).await;
        let is_left = |path: &Path| {
            let why = match path.ghost() {
                Some(_) => {
                    "it was lost with writes in flight, which the target has not aborted yet"
                }
                None => "requests are in flight there, or no other path works",
            };
            format!("the path to {} is still in use: {why}", path.address())
        };
        left().map(is_left).collect()
    }
}

/// Ends the session of a path that is no longer wanted, once another path can do its work.
async fn part_with(unit: Weak<RemoteUnit>, index: usize) {
    loop {
        let Some(this) = unit.upgrade() else { return };
        let changed = this.paths.changed();
        let notified = changed.notified();
        let Some(nexus) = this.paths.all()[index].live() else {
            return;
        };
        if this.paths.wanted().any(|path| path.usable().is_some()) {
            // What follows is done as if the target had asked for a logout.
            nexus.link().retire().await;
            return;
        }
        drop(this);
        notified.await;
    }
}
