//! From the configuration to open trees: the one place that knows every kind of volume.
//!
//! A [`Graph`] opens each named volume once for the process; a [`Tree`] may go to any thread and
//! gives each lane its own volume. Leaves and layers without state that belongs to one lane (`ram`,
//! `file`, `stats`, a `stripe` of such) have an instance on every lane. What has one home (`cache`,
//! `throttle`, `iscsi`, `fault`, `recorder`, and a `file` that keeps an order between its requests)
//! lives on the lane that was named when the tree was opened; other lanes reach it by messages.

mod check;
mod disks;
mod home;
mod part;
mod remote;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use engine::{LaneFuture, LaneHandle};

use self::part::Part;
use crate::{
    Claim, ErrorKind, Result, Shape, SharedVolume,
    cache::{Cache, CacheConfig},
    claim::{Others, Owner},
    config::{
        self, ConfigError, FaultAction, FaultKind, FaultOperation, File, Kind, Node, Volumes, What,
    },
    initiator::IscsiDisk,
    layer::{
        fault::{Action, Fault, FaultHandle, Operation, Rule},
        stats::{NodeReport, StatsHandle},
        throttle::Throttle,
    },
    leaf::{
        file::{FileOptions, Grown, OpenFile},
        ram::Region,
    },
    recorder::{Recorder, Recording},
    stripe,
};

pub use check::Findings;
pub use part::Carried;

/// The volumes of a configuration, open or not.
#[derive(Debug)]
pub struct Graph {
    volumes: Volumes,
    base: PathBuf,
    named: BTreeMap<String, Weak<Part>>,
    /// The stripes, which are claimed until they are closed, whoever else has let go of them.
    stripes: Vec<(String, Arc<Part>)>,
    /// Those that were opened, to look at them again.
    files: Vec<Weak<OpenFile>>,
    disks: disks::Disks,
    handles: Handles,
    owner: Owner,
    /// What to do about other owners of a stripe's children.
    others: Others,
}

/// What reaches into open layers from outside. The key is the path of kinds from the name on, as
/// `db/cache/stripe/0/throttle/stats`.
#[derive(Clone, Debug, Default)]
pub struct Handles {
    /// Of all nodes: what was asked of them since they were opened.
    pub stats: BTreeMap<String, StatsHandle>,
    /// Of `fault` layers.
    pub faults: BTreeMap<String, FaultHandle>,
    /// Of `recorder` leaves.
    pub recordings: BTreeMap<String, Recording>,
}

/// An open volume, for all lanes of the process. It is closed when the last one who has it, or a
/// tree that it is a part of, lets go.
#[derive(Clone)]
pub struct Tree {
    name: Arc<str>,
    part: Arc<Part>,
}

impl Tree {
    /// What it is called in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it looks like.
    pub fn shape(&self) -> &Shape {
        self.part.shape()
    }

    /// The name that it carries itself, whatever the configuration calls it: that of the stripe or the
    /// remote disk that it is, or has below layers of one child.
    pub fn carried(&self) -> Option<&Carried> {
        self.part.carried()
    }

    /// The volume for the current lane.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when the lane that it lives on has ended.
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
            base: base.to_owned(),
            named: BTreeMap::new(),
            stripes: Vec::new(),
            files: Vec::new(),
            disks: disks::Disks::default(),
            handles: Handles::default(),
            owner: Owner::passing("a program that will not come back"),
            others: Others::Refuse,
        })
    }

    /// Opens from now on for `owner`, who claims the children of stripes.
    pub fn set_owner(&mut self, owner: Owner) {
        self.owner = owner;
    }

    /// What to do from now on about owners of stripes that may be alive.
    pub fn set_others(&mut self, others: Others) {
        self.others = others;
    }

    /// What reaches into the layers that are open.
    pub fn handles(&self) -> &Handles {
        &self.handles
    }

    /// What was asked of each node of the open trees, by its path.
    pub fn report(&self) -> NodeReport {
        let nodes = self.handles.stats.iter();
        NodeReport(
            nodes
                .map(|(path, counters)| (path.clone(), counters.snapshot()))
                .collect(),
        )
    }

    /// Opens the volume called `name`, or gives it again if it is open. What needs a home gets
    /// `home`, which must be running, and may be the current lane.
    ///
    /// # Errors
    /// What keeps it from opening, with the place in the configuration.
    pub async fn open(
        &mut self,
        name: &str,
        home: &LaneHandle,
    ) -> std::result::Result<Tree, ConfigError> {
        let reference = Node {
            span: 0..0,
            what: What::Named(name.to_owned()),
        };
        if !self.volumes.0.contains_key(name) {
            let error = self.volumes.find(name, &reference).map(drop);
            return Err(ConfigError::new(
                None,
                error
                    .err()
                    .map_or_else(String::new, |error| error.to_string()),
            ));
        }
        let part = self.open_node(&reference, name, home).await?;
        Ok(Tree {
            name: name.into(),
            part,
        })
    }

    /// Closes the open volumes in good order: claims are given up, and sessions logged out. For the
    /// end, when nothing is in flight and all is flushed. Says what could not be given up.
    pub async fn close(&mut self) -> Vec<String> {
        let mut failed = Vec::new();
        let named = std::mem::take(&mut self.named).into_iter();
        let named = named.filter_map(|(name, part)| Some((name, part.upgrade()?)));
        let mut parts: Vec<_> = named.collect();
        // What is part of another one is closed with it; what was left of a start that failed is not.
        let left = |(_, part): &(String, Arc<Part>)| Arc::strong_count(part) == 1;
        parts.extend(std::mem::take(&mut self.stripes).into_iter().filter(left));
        for (name, part) in parts {
            let closed = match part.on_lane().await {
                Ok(volume) => volume.close().await,
                Err(error) => Err(error),
            };
            failed.extend(
                closed
                    .err()
                    .map(|error| format!("volume \"{name}\": {error}")),
            );
        }
        failed
    }

    /// Looks how long the files of the open volumes are now. A leaf whose file became longer has the
    /// new length when this returns, on every lane, and what shows the leaf's length has it too.
    /// Blocks briefly: for somebody who asks, not for the data path.
    ///
    /// Gives those that grew, and why others were not followed: see [`OpenFile::look_at_length`].
    pub fn look_at_lengths(&self) -> Vec<Result<Grown>> {
        let open = self.files.iter().filter_map(Weak::upgrade);
        open.filter_map(|file| file.look_at_length().transpose())
            .collect()
    }

    /// Looks whether the paths of the open files still lead to them. Blocks briefly.
    ///
    /// Gives what to say of each that does not.
    pub fn look_at_paths(&self) -> Vec<String> {
        let open = self.files.iter().filter_map(Weak::upgrade);
        let gone = open.filter(|file| !file.is_at_its_path());
        gone.map(|file| {
            format!(
                "{} was removed, renamed or replaced while it is served: what is written goes to the \
                 file that it was, which is lost when the daemon stops unless it has another name; \
                 copy it from /proc/{}/fd before that",
                file.path().display(),
                std::process::id()
            )
        })
        .collect()
    }

    /// Opens `node`, which is at `path` in the graph.
    fn open_node<'a>(
        &'a mut self,
        node: &'a Node,
        path: &'a str,
        home: &'a LaneHandle,
    ) -> LaneFuture<'a, std::result::Result<Arc<Part>, ConfigError>> {
        LaneFuture::new(async move {
            let kind = match &node.what {
                What::Named(name) => return self.open_named(name, node, home).await,
                What::Inline(kind) => kind,
            };
            let path = format!("{path}/{}", kind.name());
            // The leaf of a recorder is opened by the recorder, which goes beneath it.
            let mut children = Vec::new();
            if !matches!(**kind, Kind::Recorder(_)) {
                let inner = kind.children();
                for (index, child) in inner.iter().enumerate() {
                    let child_path = if inner.len() > 1 {
                        format!("{path}/{index}")
                    } else {
                        path.clone()
                    };
                    children.push(self.open_node(child, &child_path, home).await?);
                }
            }
            let opened = self.open_kind(kind, children, path.clone(), home).await;
            if let Ok(part) = &opened {
                let counters = part.counters().clone();
                self.handles.stats.insert(path, counters);
            }
            opened.map_err(|error| {
                let span = match &**kind {
                    Kind::File(file) => file.path.span(),
                    Kind::Stripe(stripe) => stripe.of.span(),
                    Kind::Iscsi(iscsi) => iscsi.url.span(),
                    _ => node.span.clone(),
                };
                ConfigError::new(span, error.to_string())
            })
        })
    }

    async fn open_named(
        &mut self,
        name: &str,
        reference: &Node,
        home: &LaneHandle,
    ) -> std::result::Result<Arc<Part>, ConfigError> {
        if let Some(part) = self.named.get(name).and_then(Weak::upgrade) {
            return Ok(part);
        }
        let node = self.volumes.find(name, reference)?.clone();
        let part = self.open_node(&node, name, home).await?;
        self.named.insert(name.to_owned(), Arc::downgrade(&part));
        Ok(part)
    }

    async fn open_kind(
        &mut self,
        kind: &Kind,
        children: Vec<Arc<Part>>,
        path: String,
        home: &LaneHandle,
    ) -> Result<Arc<Part>> {
        match kind {
            Kind::Ram(ram) => {
                let region = Region::new(ram.size.get_ref().bytes(), ram.block_size.bytes())?;
                let shape = region.shape().clone();
                Ok(Part::leaf_on_every_lane(shape, move || {
                    Rc::new(region.on_lane())
                }))
            }
            Kind::File(file) => {
                let file = self.open_file(file).await?;
                if file.needs_home() {
                    return Part::at_home(home, children, move |_| {
                        LaneFuture::new(async move { Ok(Rc::new(file.on_lane()) as _) })
                    })
                    .await;
                }
                let shape = file.shape().clone();
                Ok(Part::leaf_on_every_lane(shape, move || {
                    Rc::new(file.on_lane())
                }))
            }
            Kind::Recorder(recorder) => {
                let What::Inline(leaf) = &recorder.of.what else {
                    return Err(recorder_without_file());
                };
                let Kind::File(file) = &**leaf else {
                    return Err(recorder_without_file());
                };
                let file = self.open_file(file).await?;
                let recording = self.handles.recordings.entry(path).or_default().clone();
                Part::at_home(home, children, move |_| {
                    LaneFuture::new(async move {
                        let leaf = file.on_lane_over(|medium| Recorder::new(medium, recording));
                        Ok(Rc::new(leaf) as _)
                    })
                })
                .await
            }
            Kind::Throttle(throttle) => {
                let rate = throttle.rate;
                let latency = throttle
                    .latency
                    .as_ref()
                    .map_or(Duration::ZERO, |latency| latency.get_ref().duration());
                one_at_home(home, children, move |inner| {
                    Rc::new(Throttle::new(inner, rate, latency))
                })
                .await
            }
            Kind::Fault(fault) => {
                let handle = self.handles.faults.entry(path).or_default().clone();
                handle.clear();
                let rules = fault.rules.iter().map(toml::Spanned::get_ref);
                for rule in rules.filter_map(fault_rule) {
                    handle.add(rule);
                }
                one_at_home(home, children, move |inner| {
                    Rc::new(Fault::new(inner, handle))
                })
                .await
            }
            // As every node is counted, it has nothing of its own to do.
            Kind::Stats(_) => Part::layer_on_every_lane(children, only).await,
            Kind::Iscsi(iscsi) => {
                let config = remote::config(iscsi, &self.base).await?;
                let identity = Arc::new(OnceLock::new());
                let told = identity.clone();
                let part = Part::at_home(home, children, move |_| {
                    LaneFuture::new(async move {
                        let disk = IscsiDisk::open(config).await?;
                        let _ = told.set(disk.identity().clone());
                        Ok(disk as _)
                    })
                })
                .await?;
                let volume = path.split('/').next().unwrap_or_default();
                let identity = identity.get().cloned().unwrap_or_default();
                if let Some(name) = identity.worldwide_name() {
                    part.carry(Carried::Remote(name));
                }
                self.disks
                    .add(volume, iscsi.url.get_ref(), identity, &part)?;
                Ok(part)
            }
            Kind::Stripe(stripe) => {
                let inner = named_children(stripe, &children).await?;
                let unit_bytes = stripe
                    .unit
                    .as_ref()
                    .map(|unit| unit.get_ref().bytes() as u32);
                let claim = self.new_claim(inner.len())?;
                let opened = stripe::Opened::claimed(&inner, unit_bytes, &claim).await?;
                let uuid = opened.uuid();
                let part = Part::layer_on_every_lane(children, move |inner| {
                    Ok(Rc::new(opened.on_lane(&inner)?))
                })
                .await?;
                part.carry(Carried::Stripe(uuid));
                self.stripes.push((path, part.clone()));
                Ok(part)
            }
            Kind::Cache(cache) => {
                let defaults = CacheConfig::default();
                let read_ahead = cache.read_ahead.as_ref().map(|size| size.get_ref().bytes());
                let config = CacheConfig {
                    size_bytes: cache.size.get_ref().bytes(),
                    read_ahead_max_bytes: read_ahead.unwrap_or(defaults.read_ahead_max_bytes),
                    ..defaults
                };
                Part::at_home(home, children, move |inner| {
                    LaneFuture::new(
                        async move { Ok(Rc::new(Cache::new(only(inner)?, &config)?) as _) },
                    )
                })
                .await
            }
        }
    }

    /// Writes the superblocks of the stripe called `name`, which makes its children one volume.
    ///
    /// # Errors
    /// When it is no stripe, or what [`stripe::create`] refuses.
    pub async fn create_stripe(
        &mut self,
        name: &str,
        home: &LaneHandle,
        options: &NewStripe,
    ) -> std::result::Result<(), ConfigError> {
        let reference = Node {
            span: 0..0,
            what: What::Named(name.to_owned()),
        };
        let node = self.volumes.find(name, &reference)?.clone();
        let Some(stripe) = find_stripe(&node) else {
            let message = format!(
                "volume \"{name}\" has no stripe in it: only stripes are created, other volumes are \
                 made when they are first served"
            );
            return Err(ConfigError::new(node.span.clone(), message));
        };
        let mut children = Vec::new();
        for (index, child) in stripe.of.get_ref().iter().enumerate() {
            let path = format!("{name}/stripe/{index}");
            children.push(self.open_node(child, &path, home).await?);
        }
        let told = |error: crate::Error| ConfigError::new(stripe.of.span(), error.to_string());
        let children = named_children(stripe, &children).await.map_err(told)?;
        let unit_bytes = stripe
            .unit
            .as_ref()
            .map(|unit| unit.get_ref().bytes() as u32);
        let options = stripe::CreateOptions {
            unit_bytes: unit_bytes.unwrap_or(stripe::UNIT_BYTES_DEFAULT),
            uuid: options.uuid,
            created_unix_s: options.created_unix_s,
            force: options.force,
        };
        // Whoever has a child is refused by name, also with force; nothing is written before.
        if !options.force {
            stripe::look(&children).await.map_err(told)?;
        }
        let claim = self.new_claim(children.len()).map_err(told)?;
        let claim = claim.overwriting(options.force);
        stripe::claim_all(&children, &claim).await.map_err(told)?;
        let created = stripe::create(&children, &options).await;
        stripe::give_up(&children).await;
        // Closed with the children that they are.
        self.stripes.clear();
        created.map_err(told)
    }

    fn new_claim(&self, children: usize) -> Result<Claim> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let since_unix_s = now.unwrap_or_default().as_secs();
        Claim::new(&self.owner, children, self.others, since_unix_s)
    }

    async fn open_file(&mut self, file: &File) -> Result<Arc<OpenFile>> {
        let file = OpenFile::open(&self.file_options(file)).await?;
        self.files.retain(|file| file.strong_count() > 0);
        self.files.push(Arc::downgrade(&file));
        Ok(file)
    }

    fn file_options(&self, file: &File) -> FileOptions {
        FileOptions {
            path: self.resolve(file),
            len_bytes: file.size.as_ref().map(|size| size.get_ref().bytes()),
            caching: file.cache,
            block_size_bytes: file.block_size.bytes(),
            read_only: file.read_only,
        }
    }

    fn resolve(&self, file: &File) -> PathBuf {
        self.base.join(file.path.get_ref())
    }
}

/// A layer at `home` over one child.
async fn one_at_home(
    home: &LaneHandle,
    children: Vec<Arc<Part>>,
    make: impl FnOnce(SharedVolume) -> SharedVolume + Send + 'static,
) -> Result<Arc<Part>> {
    Part::at_home(home, children, move |inner| {
        LaneFuture::new(async move { Ok(make(only(inner)?)) })
    })
    .await
}

fn only(mut volumes: Vec<SharedVolume>) -> Result<SharedVolume> {
    match (volumes.pop(), volumes.is_empty()) {
        (Some(volume), true) => Ok(volume),
        _ => Err(crate::Error::new(
            ErrorKind::Configuration,
            "this kind of volume is made of exactly one other",
        )),
    }
}

fn recorder_without_file() -> crate::Error {
    crate::Error::new(
        ErrorKind::Configuration,
        "a recorder goes beneath a file leaf; write of = { file = { path = … } }",
    )
}

/// What a new stripe is told.
#[derive(Clone, Debug)]
pub struct NewStripe {
    /// Its name for ever.
    pub uuid: uuid::Uuid,
    /// Now, in seconds since 1970.
    pub created_unix_s: u64,
    /// Overwrite whatever the children hold.
    pub force: bool,
}

/// The outermost stripe of a tree.
fn find_stripe(node: &Node) -> Option<&config::Stripe> {
    let What::Inline(kind) = &node.what else {
        return None;
    };
    match &**kind {
        Kind::Stripe(stripe) => Some(stripe),
        other => other.children().iter().find_map(find_stripe),
    }
}

/// A stripe's children on the current lane, as messages call them.
async fn named_children(
    stripe: &config::Stripe,
    children: &[Arc<Part>],
) -> Result<Vec<stripe::Child>> {
    let mut named = Vec::new();
    for (index, (node, part)) in stripe.of.get_ref().iter().zip(children).enumerate() {
        let volume = part.on_lane().await?;
        let name = format!("{index} ({})", node.describe());
        named.push(stripe::Child { name, volume });
    }
    Ok(named)
}

fn fault_rule(rule: &crate::config::FaultRule) -> Option<Rule> {
    let action = match rule.action()? {
        FaultAction::Fail(FaultKind::Medium) => Action::Fail(ErrorKind::Medium),
        FaultAction::Fail(FaultKind::NoSpace) => Action::Fail(ErrorKind::NoSpace),
        FaultAction::Fail(FaultKind::Unreachable) => Action::Fail(ErrorKind::Unreachable),
        FaultAction::Fail(FaultKind::TimedOut) => Action::Fail(ErrorKind::TimedOut),
        FaultAction::Delay(time) => Action::Delay(time.duration()),
        FaultAction::Hang => Action::Hang,
    };
    Some(Rule {
        on: rule.on.map(|on| match on {
            FaultOperation::Read => Operation::Read,
            FaultOperation::Write => Operation::Write,
            FaultOperation::Flush => Operation::Flush,
            FaultOperation::Discard => Operation::Discard,
        }),
        skip: rule.skip,
        times: rule.times,
        ..Rule::always(action)
    })
}
