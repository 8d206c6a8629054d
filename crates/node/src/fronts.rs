//! The fronts of a daemon. [`configured`] is the table of those that there are: nothing else here knows one by its kind.

use engine::LaneFuture;
use front::{Front, FrontConfig, Reporter, StartError, report::Consequence};
use front_iscsi::{Allow, LunSpec, ServerConfig, TargetSpec};
use unit::Units;

use crate::{DaemonFailure, config::TargetTable, difference::Served, shared_state::SharedState};

/// What a configuration asks of the fronts: one of each, in the order of every [`Fronts`].
pub(crate) type Configured = Vec<Box<dyn FrontConfig>>;

/// The fronts of `served`.
///
/// # Errors
/// Why the numbers of their ports cannot be stored.
pub(crate) async fn configured(
    served: &Served,
    state: &SharedState,
) -> Result<Configured, DaemonFailure> {
    let ports = port_names(served);
    let numbers = state.run(move |state| state.relative_ports(ports.iter().map(String::as_str)));
    Ok(with_numbers(served, numbers.await??))
}

/// The same to be [checked](Fronts::check) only: no number is stored for a port.
pub(crate) fn to_check(served: &Served) -> Configured {
    with_numbers(served, port_names(served).iter().map(|_| 0).collect())
}

/// The fronts of `served`, whose ports have these `numbers`.
fn with_numbers(served: &Served, numbers: Vec<u16>) -> Configured {
    vec![Box::new(iscsi(served, numbers))]
}

/// The names of target ports (RFC 7143 §4.4.4), under which their numbers are stored.
fn port_names(served: &Served) -> Vec<String> {
    let tables = served.targets.iter();
    let names = tables.flat_map(|table| {
        let groups = table.portal_groups.iter();
        groups.map(|group| format!("{},t,0x{:04x}", table.name, group.tag))
    });
    names.collect()
}

/// The fronts that serve.
pub(crate) struct Fronts(Vec<Box<dyn Front>>);

impl Fronts {
    /// Starts all of them.
    ///
    /// # Errors
    /// The first that does not start; none serves then.
    pub(crate) async fn start(configured: Configured, units: &Units) -> Result<Fronts, StartError> {
        let mut fronts = Fronts(Vec::new());
        for config in configured {
            match config.start(units).await {
                Ok(front) => fronts.0.push(front),
                Err(error) => {
                    fronts.stop().await;
                    return Err(error);
                }
            }
        }
        Ok(fronts)
    }

    /// Where clients reach them.
    pub(crate) fn places(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|front| front.places())
    }

    /// Checks whether they could serve at the addresses of `configured`, without a trace.
    ///
    /// # Errors
    /// The first that could not.
    pub(crate) async fn check(&self, configured: Configured) -> Result<(), StartError> {
        for (front, config) in self.0.iter().zip(configured) {
            front.check(config).await?;
        }
        Ok(())
    }

    /// What the sessions would notice of `configured`.
    pub(crate) async fn consequences(&self, configured: Configured) -> Vec<Consequence> {
        let mut all = Vec::new();
        for (front, config) in self.0.iter().zip(configured) {
            all.extend(front.consequences(config).await);
        }
        all
    }

    /// Has all of them prepare to serve `configured`.
    ///
    /// # Errors
    /// The first that cannot; none has prepared anything then.
    pub(crate) async fn prepare(&mut self, configured: Configured) -> Result<(), StartError> {
        assert_eq!(configured.len(), self.0.len(), "there is one of each kind");
        for (index, config) in configured.into_iter().enumerate() {
            if let Err(error) = self.0[index].prepare(config).await {
                for front in &mut self.0[..index] {
                    front.discard().await;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Has all of them discard what they have prepared.
    pub(crate) async fn discard(&mut self) {
        for front in &mut self.0 {
            front.discard().await;
        }
    }

    /// Has all of them serve what they have prepared. The returned future completes when what is no longer served has
    /// ended.
    pub(crate) fn commit(&mut self) -> LaneFuture<'static, ()> {
        let over: Vec<_> = self.0.iter_mut().map(|front| front.commit()).collect();
        LaneFuture::new(async move {
            for over in over {
                over.await;
            }
        })
    }

    /// Handles that report what they serve now.
    pub(crate) fn reporters(&self) -> Vec<Box<dyn Reporter>> {
        self.0.iter().map(|front| front.reporter()).collect()
    }

    /// Ends all of them.
    pub(crate) async fn stop(self) {
        for front in self.0 {
            front.stop().await;
        }
    }
}

/// The configuration of the iSCSI front.
fn iscsi(served: &Served, numbers: Vec<u16>) -> ServerConfig {
    let mut numbers = numbers.into_iter();
    let targets = served.targets.iter().cloned();
    ServerConfig {
        targets: targets
            .map(|table| target_spec(table, &mut numbers))
            .collect(),
        discovery: served.discovery.clone(),
        digests: served.config.digests(),
        limits: served.config.limits().clone(),
    }
}

/// A target; its ports take the next of these `numbers`.
fn target_spec(table: TargetTable, numbers: &mut impl Iterator<Item = u16>) -> TargetSpec {
    let luns = table.luns.into_iter().map(|(number, lun)| {
        let spec = LunSpec {
            volume: lun.volume,
            removable: lun.removable,
            read_only: lun.read_only,
        };
        (number, spec)
    });
    let mut portal_groups = table.portal_groups;
    for (group, number) in portal_groups.iter_mut().zip(numbers) {
        group.relative_port = number;
    }
    TargetSpec {
        name: table.name,
        portal_groups,
        luns: luns.collect(),
        allow: table.allow.map_or(Allow::Everyone, |names| {
            Allow::Names(names.into_iter().collect())
        }),
        allow_from: table.allow_from,
        chap: table.chap,
        redirect: table.redirect,
    }
}
