//! `sanstone attach`: opens one volume and exposes it to this machine until SIGTERM or SIGINT and nobody has it any
//! more ([`release`]), or until its front has nothing left to serve. A second signal ends it at once. Clients of the
//! admin socket are answered meanwhile, even while mounting or unmounting the file system waits for the volume.

mod file_system;
mod holders;
mod leftovers;
mod release;
mod util_linux;

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use anyhow::anyhow;
use clap::Args;
use engine::{
    LaneFuture, LaneHandle,
    cross::{Receiver, Sender, channel},
    mounts::Mount,
    task::{self, Either},
};
use front::{Ended, Front, FrontConfig};
use front_fuse::Spec;
use front_nbd::{Address, Tls, TlsFiles};
use node::{Attachment, Config, Ending, Process, StopError, description::Attached};

use crate::{
    admin, descriptors,
    failure::VerbFailure,
    lanes::Lanes,
    log,
    requests::{self, Request, Requests},
    service,
    signals::{self, SignalRequest},
};
use file_system::{FileSystem, MountOptions, MountPoint};
use release::release;

/// How often a file is looked at that has not followed the length of its volume yet.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

/// `sanstone attach`.
#[derive(Args)]
pub(crate) struct AttachCall {
    /// The configuration file.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// The volume's name in it.
    volume: String,
    #[command(flatten)]
    to: To,
    #[command(flatten)]
    mount: MountOptions,
    #[command(flatten)]
    tls: TlsOptions,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
}

/// Where the volume appears.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct To {
    /// As the file PATH, by FUSE. It must be empty or not exist.
    #[arg(long, value_name = "PATH")]
    fuse: Option<PathBuf>,
    /// To NBD clients, at `unix:PATH` or at a host and port such as 127.0.0.1:10809. Of a name, each address that this
    /// machine has is used. Clients are not authenticated unless they need a certificate (--tls-client-ca).
    #[arg(long, value_name = "unix:PATH|HOST:PORT")]
    nbd: Option<Address>,
}

/// With what NBD clients are served by TLS, and not without.
#[derive(Args)]
struct TlsOptions {
    /// Serve NBD clients over TLS only, with the certificate in this PEM file and the chain to its authority.
    #[arg(long, value_name = "FILE", requires = "nbd", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Serve only clients with a certificate that an authority in this PEM file has signed.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_client_ca: Option<PathBuf>,
}

impl TlsOptions {
    fn load(&self, to: &To) -> Result<Option<Tls>, VerbFailure> {
        // If a required option conflicts with one that is given, Clap does not report it as missing.
        if self.tls_certificate.is_some() && to.nbd.is_none() {
            return Err(VerbFailure::Wrong(
                "--tls-certificate is for NBD clients: leave the TLS options out, or attach with --nbd".into(),
            ));
        }
        let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) else {
            return Ok(None);
        };
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: self.tls_client_ca.clone(),
        };
        let tls = Tls::load(&files).map_err(|error| VerbFailure::Wrong(error.to_string()))?;
        Ok(Some(tls))
    }
}

/// What makes the front of the open volume, once its place is taken.
type MakeFront = Box<dyn FnOnce(&Attachment) -> Box<dyn FrontConfig>>;

impl AttachCall {
    /// Claims the place before the volume is opened, so that a problem with it is found before anything is
    /// claimed. What a dead process has left there is removed, with its file system on the mount point. This is where the
    /// fronts that a volume can be attached with are known.
    async fn take(
        &self,
        mount_point: Option<&MountPoint>,
        tls: Option<Tls>,
    ) -> Result<MakeFront, VerbFailure> {
        let read_only = self.read_only;
        let clear_above = async |file: &Path, dead: &Mount| match mount_point {
            Some(point) => point.clear(file, dead).await,
            None => Ok(()),
        };
        match (&self.to.fuse, &self.to.nbd) {
            (Some(path), _) => {
                let place = front_fuse::MountPath::take(path, &clear_above).await?;
                Ok(Box::new(move |volume| {
                    let spec = Spec {
                        volume: volume.volume().to_owned(),
                        read_only,
                        relative_port: volume.relative_port(),
                    };
                    Box::new(front_fuse::FuseExport { spec, place })
                }))
            }
            (None, Some(address)) => {
                let place = front_nbd::Listeners::take(address).await?;
                Ok(Box::new(move |volume| {
                    let config = front_nbd::NbdConfig {
                        volume: volume.volume().to_owned(),
                        relative_port: volume.relative_port(),
                        read_only,
                        limits: front_nbd::NbdLimits::default(),
                        tls,
                    };
                    Box::new(front_nbd::NbdExport { config, place })
                }))
            }
            (None, None) => unreachable!("clap requires one of them"),
        }
    }

    /// Describes where `front` has the volume attached.
    fn describe(&self, front: &dyn Front) -> Attached {
        Attached {
            volume: self.volume.clone(),
            front: front.name().to_owned(),
            place: front.places().join(", "),
            read_only: self.read_only,
            broken_mount: None,
            is_stopping: false,
        }
    }
}

/// Attaches a volume until told to stop.
pub(crate) fn run(call: &AttachCall) -> Result<(), VerbFailure> {
    // Done first: until the handlers are installed, SIGHUP would end the process.
    let (teller, told) = channel();
    signals::listen(&teller, false)?;
    let config = Config::load(&call.config)?;
    let waiting = config.waiting();
    let tls = call.tls.load(&call.to)?;
    let limits = front_nbd::NbdLimits::default();
    descriptors::raise((limits.connections_max + 2 * limits.handshakes_max) as u64);
    log::abort_at_panic();
    // The setting is inherited by threads that this one starts.
    let flusher = rustix::process::configure_io_flusher_behavior(true);
    let lanes = Lanes::start(config.lanes(), waiting)?;
    let handles = lanes.handles();
    service::watch(&handles)?;
    let attached = lanes.first.block_on(attach(
        call,
        config,
        tls,
        &handles,
        (teller, &told),
        flusher,
    ));
    lanes.stop();
    attached
}

async fn attach(
    call: &AttachCall,
    config: Config,
    tls: Option<Tls>,
    lanes: &[LaneHandle],
    (teller, wanted): (Sender<Request>, &Receiver<Request>),
    flusher: rustix::io::Result<()>,
) -> Result<(), VerbFailure> {
    let mount_point = call.mount.find()?;
    let make_front = call.take(mount_point.as_ref(), tls).await?;
    let mount_point = mount_point.map(MountPoint::checked).transpose()?;
    let process = Process::attaching(config.path(), &call.volume);
    let mut requests = Requests::new(wanted);
    service::starting(&format!("opening volume {}", call.volume));
    let opening = Attachment::open(config, &call.volume, &process, lanes);
    let mut volume = requests.see_started(opening).await?;
    let (changed, changes) = channel();
    let of_volume = changed.clone();
    volume.tell_changes(move || {
        // Nobody listens any more when it ends.
        let _ = of_volume.send(());
    });
    let started = match make_front(&volume).start(volume.units()).await {
        Ok(front) => {
            let seen = teller.clone();
            let name = call.volume.clone();
            let load = move |path: &Path| {
                let (config, notes) = Config::load_to_attach_anew(path, &name)?;
                Ok((Box::new(config), notes))
            };
            // The volume is served even without it.
            let asked = requests::asked(teller, Arc::new(load));
            let admin = admin::AdminServer::start(volume.own_directory(), asked);
            let (front_name, place) = (front.name(), front.places().join(", "));
            tracing::info!(
                volume = volume.volume(),
                front = front_name,
                place,
                "attached"
            );
            warn_of_standstill(flusher);
            let status = format!("volume {} is attached", volume.volume());
            service::report_health(status, move |answer| {
                seen.send(Request::View(answer)).is_ok()
            })?;
            let desk = Desk {
                attached: call.describe(&*front),
                volume: &mut volume,
                requests,
                changes: &changes,
                is_stopping: false,
            };
            let served = serve(&*front, mount_point, desk).await;
            if let Some(admin) = admin {
                admin.stop();
            }
            Ending::of(volume.units()).clients(front.stop()).await;
            served
        }
        Err(error) => Err(error.into()),
    };
    // Whatever the outcome, give up the claim.
    let flushed = volume.stop().await;
    if let Err(hung @ StopError::Hung { .. }) = flushed {
        signals::end_at_once(hung);
    }
    started?;
    flushed?;
    tracing::info!("stopped");
    Ok(())
}

/// Mounts the file system, if requested, and serves the volume until told to stop and nobody has it any more.
async fn serve(
    front: &dyn Front,
    mount_point: Option<MountPoint>,
    mut desk: Desk<'_>,
) -> Result<(), VerbFailure> {
    let file_system = match desk.see_out(mounted(front, mount_point), None).await {
        Ok(file_system) => file_system,
        Err(error) => {
            tracing::error!("{error:#}");
            // Somebody may have opened the file meanwhile.
            let _ = desk.see_out(release(front, None), None).await;
            return Err(error.into());
        }
    };
    service::serving(&format!("volume {} is attached", desk.volume.volume()));
    let seen = file_system.as_ref();
    let lost = match desk.attend(front.ended(), seen).await {
        Some(lost @ Ended::Lost(_)) => Some(lost),
        ended => {
            if ended.is_some() {
                tracing::info!("the file has been unmounted by somebody else");
            }
            tracing::info!(
                "stopping: finishing the accepted requests; a second SIGTERM or SIGINT ends at once"
            );
            service::stopping();
            desk.attached.is_stopping = true;
            desk.see_out(release(front, seen), seen).await.err()
        }
    };
    match lost {
        None => Ok(()),
        Some(lost) => {
            if let Some(file_system) = file_system {
                file_system.detach().await;
            }
            Err(anyhow!("{lost}: programs that have the volume open get errors").into())
        }
    }
}

async fn mounted(
    front: &dyn Front,
    mount_point: Option<MountPoint>,
) -> anyhow::Result<Option<FileSystem>> {
    match mount_point.zip(front.file()) {
        Some((point, file)) => {
            let mounting = point.mount(file.path(), file.block_size_bytes());
            mounting.await.map(Some)
        }
        None => Ok(None),
    }
}

/// What is attached, and those who want something of it.
struct Desk<'a> {
    volume: &'a mut Attachment,
    /// Where it is attached.
    attached: Attached,
    requests: Requests<'a>,
    /// The volume may have changed by itself, as when a remote disk has grown.
    changes: &'a Receiver<()>,
    /// Whether it was told to stop and that has not been heard yet.
    is_stopping: bool,
}

impl Desk<'_> {
    /// Handles what this process is asked for until `until` ends; the `file_system` is mounted from the volume. Returns `None`
    /// if told to stop before.
    async fn attend<T>(
        &mut self,
        until: impl Future<Output = T>,
        file_system: Option<&FileSystem>,
    ) -> Option<T> {
        let mut until = pin!(until);
        loop {
            if std::mem::take(&mut self.is_stopping) {
                return None;
            }
            let moved = moved(self.changes, file_system, self.volume.len_bytes());
            let looks_at = self.volume.looks_for_missing_at();
            let asked = task::either(self.requests.next_before(looks_at), moved);
            match task::either(until.as_mut(), asked).await {
                Either::One(output) => return Some(output),
                Either::Other(Either::One(Some(request))) => {
                    self.handle(request, file_system).await;
                }
                Either::Other(Either::One(None)) => {
                    let onlooker = self.volume.onlooker(self.attached.clone());
                    let looking = self.volume.look_for_missing();
                    self.is_stopping = self.requests.run_beside(looking, &onlooker).await;
                }
                Either::Other(Either::Other(())) => {}
            }
            let len_bytes = self.volume.len_bytes();
            if let Some(file_system) = file_system.filter(|it| !it.is_as_long_as(len_bytes)) {
                file_system.follow_length(len_bytes).await;
            }
        }
    }

    async fn handle(&mut self, request: Option<Request>, file_system: Option<&FileSystem>) {
        let broken = file_system.and_then(FileSystem::broken);
        self.attached.broken_mount = broken.map(|path| path.display().to_string());
        match request {
            Some(Request::Told(SignalRequest::LookAgain)) => {
                if !self.volume.look_again().await {
                    tracing::info!("SIGHUP: no file or remote disk has changed");
                }
            }
            Some(Request::Told(SignalRequest::Report)) => {
                tracing::info!("where the time went\n{}", self.volume.report());
            }
            Some(Request::View(answer)) => {
                let onlooker = self.volume.onlooker(self.attached.clone());
                // The client may have gone.
                let _ = answer.send(onlooker.view().await);
            }
            Some(Request::Apply(request)) => {
                let onlooker = self.volume.onlooker(self.attached.clone());
                let is_dry_run = request.is_dry_run;
                let volume = &mut *self.volume;
                let applying = self
                    .requests
                    .apply(request, &onlooker, move |config, give_up| {
                        LaneFuture::new(volume.apply(*config, is_dry_run, give_up))
                    });
                self.is_stopping = applying.await;
            }
            Some(Request::Told(SignalRequest::Stop)) | None => self.is_stopping = true,
        }
    }

    /// As [`Desk::attend`], but `until` ends before it stops, or after it was told to.
    async fn see_out<T>(
        &mut self,
        until: impl Future<Output = T>,
        file_system: Option<&FileSystem>,
    ) -> T {
        let (mut until, mut was_told) = (pin!(until), false);
        loop {
            match self.attend(until.as_mut(), file_system).await {
                Some(output) => {
                    self.is_stopping |= was_told;
                    return output;
                }
                None => was_told = true,
            }
        }
    }
}

/// Waits until the volume, which is `len_bytes` long, may have changed, or until it is time to look whether the file has
/// followed it, and the device of the `file_system` can.
async fn moved(changes: &Receiver<()>, file_system: Option<&FileSystem>, len_bytes: u64) {
    if file_system.is_some_and(|it| !it.is_as_long_as(len_bytes)) {
        return engine::time::sleep(FOLLOW_EVERY).await;
    }
    // This function's caller keeps a sender.
    let _ = changes.receive().await;
}

/// Warns if PR_SET_IO_FLUSHER was refused. Allocations of this process must not write back to a file system
/// that may be on the volume, because that write would wait for this very process.
fn warn_of_standstill(flusher: rustix::io::Result<()>) {
    if let Err(error) = flusher {
        tracing::warn!(
            %error,
            "this process lacks CAP_SYS_RESOURCE to declare that file systems may depend on it \
             (PR_SET_IO_FLUSHER): when memory is short, a file system on the volume may hang"
        );
    }
}
