//! Turns a configuration into open trees of volumes.
//!
//! A [`Graph`] opens each named volume once per process; a [`Tree`] may be sent to any thread and gives each lane its
//! own volume. Leaves and layers without lane-bound state (`ram`, `file`, `stats`, a `stripe` of such) have an
//! instance on every lane. Others (`cache`, `throttle`, `iscsi`, `fault`) have a single instance on a home lane,
//! which other lanes reach by messages. The caller chooses the home of a tree when it opens the tree; the children of
//! a node with several are placed on the following lanes, to spread the work. This and all other differences between
//! kinds are implemented in their folders in [`kinds`](crate::kinds): a kind is given an `Opening` and returns an
//! open `Part`.

mod create;
mod lengths;
mod live;
mod missing;
mod report;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use engine::{Duration, LaneFuture, LaneHandle, blocking, task};

use crate::{
    Result, Shape, SharedVolume,
    announcer::Announcer,
    claim::Owner,
    kinds::{
        Kind, Node, NodeForm, VolumeIdentity, Volumes,
        file::{Grown, OpenFile, OpenFiles},
        iscsi::Remotes,
    },
    part::{self, Context, Opening, Part},
    stats::{NodeReport, StatsHandle},
    values::ConfigError,
};

use self::missing::MissingChild;
pub use self::{
    create::Identified,
    live::{Changes, Live},
    report::NodeView,
};
pub use crate::{
    kinds::{Findings, NewLength, NewStripe, Source},
    part::{Carried, Facts, Handles},
};

/// How long the file system of an open file may take to answer what has become of the file.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// The volumes of a configuration, open or not.
#[derive(Debug)]
pub struct Graph {
    volumes: Volumes,
    named: BTreeMap<String, Weak<Part>>,
    /// What open volumes go on without until it opens.
    missing: Vec<MissingChild>,
    context: Context,
}

/// An open volume, for all lanes of the process. It is closed when its last user, or the last tree that contains it,
/// is dropped.
#[derive(Clone)]
pub struct Tree {
    name: Arc<str>,
    part: Arc<Part>,
}

/// An open volume that was taken out of its graph to be closed.
#[derive(Debug)]
pub struct Closing {
    name: String,
    part: Arc<Part>,
}

impl Closing {
    /// Its name in the configuration, or its path there.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Closes it cleanly: releases its claims and logs its sessions out.
    ///
    /// # Errors
    /// A message about what could not be closed.
    pub async fn close(&self) -> std::result::Result<(), String> {
        let closed = match self.part.on_lane().await {
            Ok(volume) => volume.close().await,
            Err(error) => Err(error),
        };
        closed.map_err(|error| format!("volume \"{}\": {error}", self.name))
    }
}

impl Tree {
    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The volume's shape.
    pub fn shape(&self) -> &Shape {
        self.part.shape()
    }

    /// The persistent name that it carries, whatever the configuration calls it: that of the stripe or remote disk
    /// that it is, or that lies below single-child layers.
    pub fn carried(&self) -> Option<&Carried> {
        self.part.carried()
    }

    /// The lane that it lives on, if there is just one, to which every other lane has to send its requests.
    pub fn only_lane(&self) -> Option<&LaneHandle> {
        self.part.only_lane()
    }

    /// The volume for the current lane.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) when the lane that it lives on has ended.
    pub async fn on_lane(&self) -> Result<SharedVolume> {
        self.part.on_lane().await
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tree({}, {:?})", self.name, self.shape())
    }
}

impl Graph {
    /// The graph of `volumes`, whose paths are relative to `base`.
    ///
    /// # Errors
    /// As [`Volumes::check`].
    pub fn new(volumes: Volumes, base: &Path) -> std::result::Result<Self, ConfigError> {
        volumes.check()?;
        Ok(Graph {
            volumes,
            named: BTreeMap::new(),
            missing: Vec::new(),
            context: Context::new(base),
        })
    }

    /// Checks whether the volumes would open. Nothing is changed, created or locked.
    pub fn check(&self) -> Findings {
        self.volumes.look(&self.context.base, false)
    }

    /// As [`Graph::check`], for volumes some of which this process may have open: these may [grow](Changes).
    pub fn check_again(&self) -> Findings {
        self.volumes.look(&self.context.base, true)
    }

    /// Sets the owner that claims the children of stripes opened from now on.
    pub fn set_owner(&mut self, owner: Owner) {
        self.context.owner = owner;
    }

    /// The identity of that owner.
    pub fn owner(&self) -> uuid::Uuid {
        self.context.owner.uuid()
    }

    /// Sets the directory in which registers of mirrors are kept. The caller holds its lock.
    pub fn set_state_directory(&mut self, directory: &Path) {
        self.context.state_directory = Some(directory.to_owned());
    }

    /// Shows claims in `directory`, which exists, to other processes that have the owner's identity, and looks there for theirs.
    pub fn show_claims(&mut self, directory: &Path) {
        self.context.claims = Some(directory.to_owned());
    }

    /// Whether the volume called `name` contains a mirror or uses one, which has a register.
    pub fn keeps_register(&self, name: &str) -> bool {
        let node = self.volumes.0.get(name);
        let nodes = node.into_iter().flat_map(Node::all);
        nodes.into_iter().any(|node| match &node.what {
            NodeForm::Named(name) => self.keeps_register(name),
            NodeForm::Inline(kind) => matches!(**kind, Kind::Mirror(_)),
        })
    }

    /// Sets the lanes over which volumes opened from now on are spread; they must run for as long as those are open.
    pub fn set_lanes(&mut self, lanes: &[LaneHandle]) {
        self.context.lanes = lanes.to_vec();
    }

    /// Whether volumes opened from now on will be [watched](crate::layers): if so, targets are asked to report their
    /// stage times.
    pub fn set_watched(&mut self, is_watched: bool) {
        self.context.is_watched = is_watched;
    }

    /// Handles on the open layers.
    pub fn handles(&self) -> &Handles {
        &self.context.handles
    }

    /// The request counters of each node of the open trees, by path.
    pub fn report(&self) -> NodeReport {
        let nodes = self.context.handles.all::<StatsHandle>().into_iter();
        NodeReport(
            nodes
                .map(|(path, counters)| (path, counters.snapshot()))
                .collect(),
        )
    }

    /// Logs what the file leaf at `path`, such as `db/cache/file`, asks of its medium, starting when it is opened.
    #[cfg(any(test, feature = "testing"))]
    pub fn record(&mut self, path: &str) -> crate::kinds::file::recorder::Recording {
        self.context.handles.given(path)
    }

    /// Opens the volume called `name`, or returns it again if it is open. A node that needs a home gets `home`, a
    /// running lane, which may be the current one; children beyond the first get the lanes after it in
    /// [`Graph::set_lanes`].
    ///
    /// # Errors
    /// What keeps it from opening, with the place in the configuration.
    pub async fn open(
        &mut self,
        name: &str,
        home: &LaneHandle,
    ) -> std::result::Result<Tree, ConfigError> {
        let lanes = self.context.lanes_from(home);
        let part = self.open_named(name, &Node::named(name), &lanes).await?;
        Ok(Tree {
            name: name.into(),
            part,
        })
    }

    /// Replaces the configured volumes, and returns the previous ones. Open volumes stay open unchanged.
    ///
    /// # Errors
    /// As [`Graph::new`].
    pub fn replace_volumes(
        &mut self,
        volumes: Volumes,
    ) -> std::result::Result<Volumes, ConfigError> {
        volumes.check()?;
        self.look_soon();
        Ok(std::mem::replace(&mut self.volumes, volumes))
    }

    /// Starts a trial: files created from now on may have to be removed again, until [`Graph::keep_made`] or
    /// [`Graph::remove_made`].
    pub fn begin_trial(&mut self) {
        self.context.kept.of::<OpenFiles>().begin_trial();
    }

    /// Keeps the files created since [`Graph::begin_trial`].
    pub fn keep_made(&mut self) {
        self.context.kept.of::<OpenFiles>().end_trial();
    }

    /// Removes the files created since [`Graph::begin_trial`], where it holds up no lane, and returns their resolved
    /// paths. Their volumes are closed and were never used. A file that is still being created is removed when it is.
    pub async fn remove_made(&mut self) -> Vec<PathBuf> {
        let Some(made) = self.context.kept.of::<OpenFiles>().end_trial() else {
            return Vec::new();
        };
        let removed = blocking::run(blocking::WorkKind::Files, move || made.undo()).await;
        removed.unwrap_or_else(|error| {
            tracing::warn!(%error, "the files created by a failed attempt could not be removed");
            Vec::new()
        })
    }

    /// Closes the open volumes cleanly: releases claims and logs sessions out. To be called at the end, when nothing
    /// is in flight and all is flushed. Returns messages about what could not be closed.
    pub async fn close(&mut self) -> Vec<String> {
        let mut failed = Vec::new();
        for volume in self.take_all_but(&BTreeSet::new()) {
            failed.extend(volume.close().await.err());
        }
        failed
    }

    /// Takes all open volumes out of the graph except those whose names are in `kept`, so that they can be closed one
    /// by one, in this order, as by [`Graph::close`].
    pub fn take_all_but(&mut self, kept: &BTreeSet<String>) -> Vec<Closing> {
        let (stays, named) = std::mem::take(&mut self.named)
            .into_iter()
            .partition(|(name, _)| kept.contains(name));
        self.named = stays;
        let named: BTreeMap<_, Weak<Part>> = named;
        let named = named.into_iter();
        let named = named.filter_map(|(name, part)| Some((name, part.upgrade()?)));
        let mut parts: Vec<_> = named.collect();
        let until_closed = std::mem::take(&mut self.context.until_closed);
        let is_kept = |(path, _): &(String, _)| kept.contains(volume_of(path));
        let (stays, until_closed): (Vec<_>, Vec<_>) = until_closed.into_iter().partition(is_kept);
        self.context.until_closed = stays;
        // Parts of another volume are closed with it; leftovers of a failed start are not, so close them here.
        let left = |(_, part): &(String, Arc<Part>)| Arc::strong_count(part) == 1;
        parts.extend(until_closed.into_iter().filter(left));
        // Whoever uses others ends before they do.
        parts.sort_by_key(|(_, part)| Reverse(part.depth()));
        let parts = parts.into_iter();
        parts.map(|(name, part)| Closing { name, part }).collect()
    }

    /// Checks the current length of the open volumes' files. If a file has grown, its leaf has the new length when
    /// this returns, on every lane, and so has everything that shows the leaf's length. For an explicit request, not for
    /// the data path.
    ///
    /// Returns those that grew, and why others were not followed: see
    /// [`OpenFile::follow_length`](crate::kinds::file::OpenFile::follow_length). Returns soon, even if a file system
    /// hangs; its files are not followed then. Space that is to be set aside for what a file has grown may be so later.
    pub async fn look_at_lengths(&self) -> Vec<Result<Grown>> {
        let mut all = Vec::new();
        for (file, found) in self.ask_files(OpenFile::len_bytes_now).await {
            let followed = file.follow_length(found.and_then(|len| len));
            if matches!(followed, Ok(Some(_))) && file.is_set_aside() {
                engine::spawn(async move {
                    if let Err(error) = file.set_aside().await {
                        tracing::error!("{error}");
                    }
                });
            }
            all.extend(followed.transpose());
        }
        all
    }

    /// Calls `teller`, from any thread, whenever the shape of an open volume may have changed without a request of ours;
    /// `None`: nobody is told any more.
    pub fn tell_changes(&mut self, teller: Option<Arc<dyn Fn() + Send + Sync>>) {
        self.context.kept.of::<Announcer>().set(teller);
    }

    /// Checks whether the open files may be written, and whether their direct I/O is direct; and asks the remote disks for
    /// what may have changed there: length, write protection, cache. All volumes follow. For an explicit request, not for
    /// the data path.
    ///
    /// Returns a message for each change. Returns soon, even if a file system or a target hangs, which is not followed
    /// then.
    pub async fn look_at_devices(&self) -> Vec<String> {
        let states = self.ask_files(OpenFile::state_now).await.into_iter();
        let found = states.filter_map(|(file, found)| file.follow_state(found.ok()?.ok()?));
        let mut found: Vec<_> = found.collect();
        if let Some(remotes) = self.context.kept.get::<Remotes>() {
            found.extend(remotes.look_again(LOOK_LIMIT).await);
        }
        found
    }

    /// Checks whether the paths of the open files still lead to them.
    ///
    /// Returns a message for each that does not. Returns soon, even if a file system hangs; that is a message, too.
    pub async fn look_at_paths(&self) -> Vec<String> {
        let found = self.ask_files(OpenFile::is_at_its_path).await.into_iter();
        let problem = |(file, found): (Arc<OpenFile>, io::Result<bool>)| {
            let path = file.path().display();
            match found {
                Ok(true) => None,
                Ok(false) => Some(format!(
                    "{path} was removed, renamed or replaced while it is served: writes still go to the \
                     original file, which is lost when the daemon stops unless it has another name; \
                     copy it from /proc/{}/fd before that",
                    std::process::id()
                )),
                Err(error) => Some(format!(
                    "whether {path} still leads to the file that is served could not be determined: {error}"
                )),
            }
        };
        found.filter_map(problem).collect()
    }

    /// Asks each open file a question that blocks, where it holds up no lane, and for [`LOOK_LIMIT`] at most.
    async fn ask_files<T: Send + 'static>(
        &self,
        ask: fn(&OpenFile) -> T,
    ) -> Vec<(Arc<OpenFile>, io::Result<T>)> {
        let files = self.context.kept.get::<OpenFiles>();
        let open = files.into_iter().flat_map(OpenFiles::open);
        let asked = open.map(|file| {
            Box::pin(async move {
                let asked = file.clone();
                let work = move || ask(&asked);
                let answer =
                    blocking::run_within(LOOK_LIMIT, blocking::WorkKind::Looks, work).await;
                (file, answer)
            })
        });
        task::join_all(asked).await.into_vec()
    }

    /// Opens a child as [`Graph::open_node`] does, which is a copy of a mirror, or a part of one, or not.
    async fn open_below(
        &mut self,
        child: &Node,
        path: &str,
        lanes: &[LaneHandle],
        is_in_copy: bool,
    ) -> std::result::Result<Arc<Part>, ConfigError> {
        let before = std::mem::replace(&mut self.context.is_in_copy, is_in_copy);
        let opened = self.open_node(child, path, lanes).await;
        self.context.is_in_copy = before;
        opened
    }

    /// Opens `node`, which is at `path` in the graph, on `lanes`, the first of which is its home.
    fn open_node<'a>(
        &'a mut self,
        node: &'a Node,
        path: &'a str,
        lanes: &'a [LaneHandle],
    ) -> LaneFuture<'a, std::result::Result<Arc<Part>, ConfigError>> {
        LaneFuture::new(async move {
            let kind = match &node.what {
                NodeForm::Named(name) => return self.open_named(name, node, lanes).await,
                NodeForm::Inline(kind) => kind,
            };
            let may_come_later = std::mem::take(&mut self.context.may_come_later);
            let path = format!("{path}/{}", kind.name());
            let settings = kind.settings();
            let (mut children, mut missing) = (Vec::new(), Vec::new());
            let is_in_copy = self.context.is_in_copy;
            // What makes it a volume is on its children, so a blank one is none.
            let may_make = self.context.may_make;
            let has_superblocks = matches!(settings.identity(), VolumeIdentity::Superblocks(_));
            for (index, (child, child_path)) in child_paths(kind, &path).enumerate() {
                let lanes = part::rotated(lanes, index);
                self.context.may_come_later = settings.stands_without_children();
                self.context.may_make = may_make && !has_superblocks;
                let is_in_copy = is_in_copy || settings.stands_without_children();
                let opened = self
                    .open_below(child, &child_path, &lanes, is_in_copy)
                    .await;
                self.context.may_make = may_make;
                match opened {
                    Ok(part) => children.push(part),
                    Err(error) if settings.stands_without_children() => {
                        tracing::warn!(volume = child_path, %error, "it is not there yet");
                        let part = Part::missing(&error);
                        let child = MissingChild::new(child_path, lanes, &part);
                        self.missing.push(child);
                        children.push(part);
                        missing.push(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            if missing.len() == children.len() {
                if let Some(error) = missing.pop() {
                    return Err(error);
                }
            }
            let opening = Opening {
                context: &mut self.context,
                lanes,
                path: path.clone(),
                children,
                may_come_later,
            };
            let opened = settings.open(opening).await;
            if let Ok(part) = &opened {
                part.settle_at(&path);
                let handles = &mut self.context.handles;
                handles.put(path.clone(), part.shape().clone());
                handles.put(path, part.counters().clone());
            }
            opened.map_err(|error| {
                let span = settings.span().unwrap_or_else(|| node.span.clone());
                ConfigError::new(span, error.to_string())
            })
        })
    }

    async fn open_named(
        &mut self,
        name: &str,
        reference: &Node,
        lanes: &[LaneHandle],
    ) -> std::result::Result<Arc<Part>, ConfigError> {
        if let Some(part) = self.named.get(name).and_then(Weak::upgrade) {
            return Ok(part);
        }
        let node = self.volumes.find(name, reference)?.clone();
        let part = self.open_node(&node, name, lanes).await?;
        self.named.insert(name.to_owned(), Arc::downgrade(&part));
        Ok(part)
    }
}

/// The name of the volume that the node at `path` belongs to.
fn volume_of(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// The children of `kind` at `path`, with the path of each in the graph.
fn child_paths<'a>(kind: &'a Kind, path: &str) -> impl Iterator<Item = (&'a Node, String)> {
    let children = kind.children();
    let are_numbered = kind.settings().numbers_children();
    let path_of = move |index| match are_numbered {
        true => format!("{path}/{index}"),
        false => path.to_owned(),
    };
    let children = children.iter().enumerate();
    children.map(move |(index, child)| (child, path_of(index)))
}
