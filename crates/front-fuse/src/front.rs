//! The front: mounts the file, serves it on every lane, and unmounts it.

use std::{cell::OnceCell, collections::BTreeMap, io, path::Path, rc::Rc, sync::Arc};

use engine::{
    blocking,
    cross::{Receiver, Sender, channel, oneshot},
    device::SharedDevice,
    mounts::Mount,
};
use front::Ended;
use unit::{LaneUnits, Luns, TargetPort, Unit, Units, no_commands};

use crate::{
    abi::MINOR_PARALLEL_WRITES,
    changes::Changes,
    crew::{self, Crew},
    lane::{Greeting, LaneEnd, LaneFront, REQUESTS_MAX},
    mount::{self, Unmounted},
    place::MountPath,
    session::FileProperties,
    transfer::{LUN, Transfer},
};

/// The longest read and write announced to the kernel, in bytes. The kernel allows longer ones only
/// if the administrator raises fs.fuse.max_pages_limit.
const IO_MAX_BYTES: u32 = 1 << 20;
/// The additional bytes that an I/O not in whole blocks may need.
const EDGES_BYTES: u32 = 8 << 10;
/// The name of the unit's target port.
const PORT_NAME: &str = "iqn.2026-11.io.sanstone:attach";

/// What to serve.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The name of its disk among the units.
    pub volume: String,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// A relative port identifier that no other front uses.
    pub relative_port: u16,
}

/// Why a front did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The disk cannot be shown.
    #[error("{0}")]
    Unit(String),
    /// The file cannot be mounted.
    #[error("mounting: {0}")]
    Mount(String),
    /// The kernel speaks another protocol version, or does not respond.
    #[error("the kernel's FUSE version {0} is not supported; Linux 6.1 or later is required")]
    Version(String),
}

impl From<LaneEnd> for Ended {
    fn from(end: LaneEnd) -> Ended {
        match end {
            LaneEnd::Unmounted | LaneEnd::Stopped => Ended::Released,
            LaneEnd::Aborted => Ended::Lost("somebody has aborted the FUSE connection".to_owned()),
            LaneEnd::Failed(error) => Ended::Lost(format!("the FUSE device failed: {error}")),
        }
    }
}

/// A file being served.
#[derive(Debug)]
pub struct FuseFront {
    place: MountPath,
    mount: Mount,
    block_size_bytes: u32,
    /// Dropping these stops the lanes.
    stop: Vec<Sender<()>>,
    /// Each lane reports why it ended.
    ends: Receiver<LaneEnd>,
    /// Why the first one did.
    ended: OnceCell<Ended>,
}

impl FuseFront {
    /// Mounts the volume at `place` and serves it on all lanes of `units`.
    ///
    /// # Errors
    /// [`StartError`]; nothing is mounted then.
    pub async fn start(
        spec: &Spec,
        place: MountPath,
        units: &Units,
    ) -> Result<FuseFront, StartError> {
        let (uid, gid, mode) = place.owner().map_err(not_mounted)?;
        let facts = facts(spec, units).await.map_err(StartError::Unit)?;
        let session = FileProperties {
            read_only: facts.read_only,
            takes_discards: facts.takes_discards,
            io_max_bytes: facts.io_max_bytes,
            max_background: max_background(units.lanes()),
            mode,
            uid,
            gid,
        };
        let changes = Arc::new(Changes::new(units.lanes(), facts.len_bytes));
        let path = place.path().to_owned();
        let source = mount::unique_source().map_err(not_mounted)?;
        let mounting = move || mount::mount(&path, &source, mode, facts.read_only);
        let mounted = blocking::run(blocking::WorkKind::Files, mounting).await;
        let (device, mount) = mounted.map_err(not_mounted)?.map_err(StartError::Mount)?;
        let (end, ends) = channel();
        let (greet, greeted) = channel();
        let mut front = FuseFront {
            place,
            mount,
            block_size_bytes: facts.block_size_bytes,
            stop: Vec::new(),
            ends,
            ended: OnceCell::new(),
        };
        let mut own = Some(device);
        for (lane, crew) in Crew::of(units.lanes()).into_iter().enumerate() {
            let Some(device) = device_of(&mut own, lane + 1 == units.lanes()) else {
                continue;
            };
            let (stop, stopped) = channel();
            front.stop.push(stop);
            let (spec, lane_end, greet) = (spec.clone(), end.clone(), greet.clone());
            let changes = changes.clone();
            units.enter(lane, move |units| async move {
                let end = match enter(&spec, &units, lane) {
                    Ok(transfer) => {
                        let crew = (crew, greet);
                        serve((units, transfer), session, changes, (device, crew), stopped).await
                    }
                    Err(error) => LaneEnd::Failed(io::Error::other(error)),
                };
                let _ = lane_end.send(end);
            });
        }
        drop((end, greet));
        match greeted.receive().await {
            Some(greeting) if greeting.is_taken => {
                tell(&front.place, &greeting);
                Ok(front)
            }
            greeting => {
                let version = greeting.map_or("(no answer)".to_owned(), |greeting| {
                    format!("{}.{}", greeting.version.0, greeting.version.1)
                });
                front.stop().await;
                Err(StartError::Version(version))
            }
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// The size of the volume's blocks. Smaller requests, and those that are not aligned to it, cost more.
    pub fn block_size_bytes(&self) -> u32 {
        self.block_size_bytes
    }

    /// The mount of the file, as it was when it was mounted.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Waits until the file is no longer served, and says why. The kernel ends the connection only when nobody has
    /// the file any more, wherever they are.
    pub async fn ended(&self) -> Ended {
        if let Some(ended) = self.ended.get() {
            return ended.clone();
        }
        let end = self.ends.receive().await.unwrap_or(LaneEnd::Stopped);
        self.ended.get_or_init(|| end.into()).clone()
    }

    /// Unmounts the file from its path, unless somebody uses it there. It goes on being served: there may be others
    /// who have it ([`ended`](Self::ended)).
    pub async fn unmount(&self) -> Unmounted {
        self.unmount_now(false).await
    }

    async fn unmount_now(&self, lazily: bool) -> Unmounted {
        let mount = self.mount.clone();
        let unmounting = move || mount::unmount_where_it_is(&mount, lazily);
        // The kernel may write back mapped pages, so the lanes keep serving meanwhile.
        let unmounted = blocking::run(blocking::WorkKind::Files, unmounting).await;
        unmounted.unwrap_or_else(|error| Unmounted::No(error.to_string()))
    }

    /// Takes the file away, and finishes the requests already taken. Programs that still have it get errors from then
    /// on.
    pub async fn stop(self) {
        if let Unmounted::No(error) = self.unmount_now(true).await {
            tracing::error!(path = %self.path().display(), %error, "unmounting failed");
        }
        drop(self.stop);
        while let Some(end) = self.ends.receive().await {
            tracing::debug!(?end, "a lane has ended");
        }
    }
}

fn not_mounted(error: io::Error) -> StartError {
    StartError::Mount(error.to_string())
}

/// Enough for the next requests to be queued in the kernel while every lane is fully busy.
fn max_background(lanes: usize) -> u16 {
    u16::try_from(4 * REQUESTS_MAX * lanes).unwrap_or(u16::MAX)
}

/// A descriptor for a lane: a clone if possible; the last lane takes the original.
fn device_of(first: &mut Option<SharedDevice>, is_last: bool) -> Option<SharedDevice> {
    if is_last {
        return first.take();
    }
    let first = first.as_ref()?;
    match first.another() {
        Ok(another) => Some(another),
        Err(error) => {
            tracing::debug!(%error, "lanes share a descriptor of the FUSE device");
            Some(first.clone())
        }
    }
}

fn tell(place: &MountPath, greeting: &Greeting) {
    let (major, minor) = greeting.version;
    let path = place.path().display();
    tracing::debug!(%path, major, minor, "the kernel has answered");
    if minor < MINOR_PARALLEL_WRITES {
        tracing::warn!(
            %path,
            "this kernel sends the writes to a FUSE file one at a time, even with direct I/O; \
             Linux 6.2 and later send them in parallel"
        );
    }
}

/// Properties that are the same on all lanes.
struct FileFacts {
    read_only: bool,
    takes_discards: bool,
    io_max_bytes: u32,
    block_size_bytes: u32,
    len_bytes: u64,
}

async fn facts(spec: &Spec, units: &Units) -> Result<FileFacts, String> {
    let (done, answer) = oneshot();
    let spec = spec.clone();
    units.enter(0, move |units| async move {
        let looked = show(&spec, &units).map(|unit| FileFacts {
            read_only: spec.read_only || unit.shape().read_only.is_on(),
            takes_discards: unit.shape().discard.is_some(),
            io_max_bytes: IO_MAX_BYTES.min(units.transfer_max_bytes() - EDGES_BYTES),
            block_size_bytes: unit.block_size_bytes(),
            len_bytes: unit.len_bytes(),
        });
        done.send(looked);
    });
    let outcome = answer.outcome().await;
    outcome.unwrap_or_else(|unanswered| Err(unanswered.to_string()))
}

fn show(spec: &Spec, units: &LaneUnits) -> Result<Rc<Unit>, String> {
    let port = TargetPort {
        target_name: PORT_NAME.to_owned(),
        portal_group_tag: 1,
        relative_port: spec.relative_port,
        port_group: 1,
    };
    units.unit(&spec.volume, port, spec.read_only, false)
}

/// Opens access to the disk on `lane`.
fn enter(spec: &Spec, units: &Rc<LaneUnits>, lane: usize) -> Result<Transfer, String> {
    let unit = show(spec, units)?;
    let luns: Rc<Luns> = Rc::new(BTreeMap::from([(LUN, unit.clone())]));
    let nexus = units.enter("attach", &luns, no_commands());
    let port = format!("{PORT_NAME}-{lane},i,0x000000000000");
    unit.logical.borrow().establish(nexus.id, &port);
    // Discard the power-on attention: only later events matter.
    nexus.take_attention(LUN);
    Ok(Transfer::new(units.clone(), nexus, unit.block_size_bytes()))
}

async fn serve(
    (units, transfer): (Rc<LaneUnits>, Transfer),
    session: FileProperties,
    changes: Arc<Changes>,
    (device, crew): (SharedDevice, (crew::Membership, Sender<Greeting>)),
    stop: Receiver<()>,
) -> LaneEnd {
    let nexus = transfer.nexus.clone();
    let front = LaneFront::new(device.on_lane(), session, transfer, changes, crew);
    drop(device);
    let end = front.serve(stop).await;
    units.leave(&nexus).await;
    end
}

#[cfg(test)]
mod tests;
