//! Changes of the register: each is sent until it is answered.

use ::mirror::{
    MirrorEvent,
    register::{Record, RegisterRefusal, Swap},
};
use engine::time;

use super::{Driver, RETRY};
use crate::{
    Error, ErrorKind, Result,
    planted::{Bug, is_planted},
};

impl Driver {
    /// Sends `swap` until it is answered.
    pub(super) async fn swap(&self, swap: Swap) {
        let mut is_told = false;
        let began = time::now();
        self.swapping.replace(Some((began, None)));
        loop {
            match self.swapped(swap).await {
                Ok(found) => {
                    if is_told {
                        tracing::info!(mirror = self.name, "the register has changed");
                    }
                    self.swapping.take();
                    return self.tell(MirrorEvent::Swapped(found));
                }
                Err(_) if is_planted(Bug::UnansweredIsMade) => {
                    return self.tell(MirrorEvent::Swapped(swap.new));
                }
                Err(error) if self.check().is_ok() => {
                    if !is_told {
                        tracing::error!(mirror = self.name, %error, "the register cannot be changed, which is tried again");
                        is_told = true;
                    }
                    self.swapping.replace(Some((began, Some(error))));
                    time::sleep(RETRY).await;
                }
                Err(_) => return,
            }
        }
    }

    /// Refuses to let a copy leave that works while the register cannot take it out: all requests would wait for that.
    pub(in super::super) async fn ask_register(&self) -> Result<()> {
        let (register, limit) = (self.register.describe(), self.limits.copy);
        let why = match time::timeout(limit, self.register.read()).await {
            Some(Ok(Some(_))) => return Ok(()),
            Some(Ok(None)) => "it has no record of this mirror".to_owned(),
            Some(Err(error)) => error.to_string(),
            None => format!("it has not answered within {:?}", time::brief(limit)),
        };
        let message = format!(
            "{register} has to take the copy out of the set, and cannot; apply this again when it is back: {why}"
        );
        Err(Error::new(ErrorKind::Unreachable, message))
    }

    /// What the register holds after `swap`.
    ///
    /// # Errors
    /// When that is not known, or it is older than what the mirror has seen: nobody else has it then.
    async fn swapped(&self, swap: Swap) -> Result<Record> {
        let found = self.register.swap(swap).await?;
        match found.check(swap.expect.mirror, Some(&swap.expect)) {
            Err(why @ RegisterRefusal::Older { .. }) => {
                let why = Error::new(ErrorKind::Configuration, why.to_string());
                Err(why.context(self.register.describe()))
            }
            _ => Ok(found),
        }
    }
}
