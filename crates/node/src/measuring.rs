//! Volumes of a configuration that are measured, rather than served: under an owner's name that is used once, except for a
//! mirror, which is used by the daemon whose state directory has its register, or in its stead while it does not run.

use std::cell::OnceCell;

use volume::{
    claim::{Owner, boot_id, name_of},
    graph::Graph,
};

use crate::{DaemonFailure, config::Config, state::StateDirectory};

/// Who measures. While this lives, no daemon can use the mirrors that are measured.
#[derive(Debug)]
pub struct Measuring<'a> {
    config: &'a Config,
    state: OnceCell<StateDirectory>,
}

impl Measuring<'_> {
    /// Measures volumes of `config`.
    pub fn new(config: &Config) -> Measuring<'_> {
        Measuring {
            config,
            state: OnceCell::new(),
        }
    }

    /// A graph in which the volume called `name` can be opened.
    ///
    /// # Errors
    /// If it is a mirror, and a daemon uses its state directory.
    pub fn graph(&self, name: &str) -> Result<Graph, DaemonFailure> {
        let who = name_of("sanstone lab");
        let mut graph = self.config.graph()?;
        if !graph.keeps_register(name) {
            graph.set_owner(Owner::passing(who));
            return Ok(graph);
        }
        let directory = self.config.state_directory();
        let state = match self.state.get() {
            Some(state) => state,
            None => {
                let state = StateDirectory::open(&directory, false)?;
                self.state.get_or_init(|| state)
            }
        };
        graph.set_owner(Owner::new(state.owner()?, boot_id(), who));
        graph.set_state_directory(&directory);
        Ok(graph)
    }
}
