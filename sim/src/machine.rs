//! What the simulated machines that run a program from a configuration have in common: the configuration, and being
//! switched on and off.

use std::{cell::Cell, path::Path};

use engine::sim::Host;
use node::{Config, DaemonFailure, Process};
use uuid::Uuid;
use volume::{claim::Others, graph::NewStripe};

/// How a machine is brought down.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum End {
    /// The program is told to stop, as by SIGTERM; once it has stopped, the power is cut.
    Stopped,
    /// The program is killed; what it had written survives in the page cache, because the system stays up.
    Killed,
    /// The power is cut.
    PowerCut,
}

/// A machine and the configuration of its program.
pub(crate) struct Machine {
    pub(crate) host: Host,
    /// What the program is, for others who find its claims.
    what: &'static str,
    config: &'static str,
    /// How often it has been switched on.
    boots: Cell<u128>,
}

impl Machine {
    /// Writes `text` to the file `config` of `host`, for a program that is `what`.
    pub(crate) fn new(host: Host, what: &'static str, config: &'static str, text: &str) -> Machine {
        let machine = Machine {
            host,
            what,
            config,
            boots: Cell::new(1),
        };
        machine.configure(text);
        machine
    }

    /// Writes `text` to the configuration.
    pub(crate) fn configure(&self, text: &str) {
        self.host.put_file(self.config, text.as_bytes());
    }

    pub(crate) fn process(&self) -> Process {
        Process {
            boot: Uuid::from_u128(self.boots.get()),
            name: format!("{} on {:?}", self.what, self.host),
        }
    }

    /// Does what `sanstone volume create` does for the stripe called `volume`, with `--force` or without.
    pub(crate) async fn create_stripe(&self, volume: &'static str, force: bool) {
        let (process, config) = (self.process(), Path::new(self.config));
        let home = self.host.lane(0);
        let created = self.host.spawn(async move {
            let new = NewStripe {
                uuid: Uuid::from_u128(0x57),
                created_unix_s: 0,
                force,
                from: None,
            };
            node::create_stripe(&Config::load(config)?, &process, volume, &home, &new).await
        });
        created.await.unwrap_or_else(|failure| panic!("{failure}"));
    }

    /// Does what `sanstone volume take-over` does for `volume`, with `--force` or without, on a machine whose program does
    /// not run.
    ///
    /// # Errors
    /// Why it was not taken over.
    pub(crate) async fn take_over(
        &self,
        volume: &'static str,
        force: bool,
    ) -> Result<(), DaemonFailure> {
        let (process, config) = (self.process(), Path::new(self.config));
        let home = self.host.lane(0);
        let others = match force {
            true => Others::Overrule,
            false => Others::Fence,
        };
        let taken = self.host.spawn(async move {
            let taken =
                node::take_over(&Config::load(config)?, &process, volume, &home, others).await;
            taken.map(drop)
        });
        taken.await
    }

    /// Brings it down; a program that had to stop has done so.
    pub(crate) fn end(&self, how: End) {
        match how {
            End::Killed => self.host.kill(),
            End::Stopped | End::PowerCut => {
                self.host.power_cut();
                self.boots.set(self.boots.get() + 1);
            }
        }
    }
}
