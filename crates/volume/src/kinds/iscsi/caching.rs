//! Asks the disk for its mode parameters: when it is opened, again whenever they may have changed, and before a write is
//! refused because it was protected. [`machine`](super::machine) has what follows from them.

use std::{rc::Rc, sync::atomic::Ordering::Relaxed};

use super::{
    cdb::{self, Cdb},
    claim::Told,
    inquiry,
    machine::{Event, Mode, Subject},
    nexus::Nexus,
    session::Data,
    unit::Unit,
};
use crate::Result;

/// The caching mode page.
const PAGE: u8 = 0x08;
const ALL_PAGES: u8 = 0x3f;
/// The most that is read of the mode pages with their header.
pub(super) const LEN: u8 = 192;

/// The commands that read the mode parameters, until one is answered. A disk that has no caching page still says in its
/// header whether it is write-protected.
pub(super) fn queries() -> [Cdb; 2] {
    [PAGE, ALL_PAGES].map(|page| cdb::mode_sense_6(page, LEN))
}

impl Mode {
    /// Parses the answer to one of the [`queries`]; `None`: it is no mode parameter list.
    pub(super) fn parse(mode: &[u8]) -> Option<Mode> {
        const WRITE_PROTECT: u8 = 0x80;
        const DPOFUA: u8 = 0x10;
        const WCE: u8 = 0x04;
        let [_, _, flags, descriptors, rest @ ..] = mode else {
            return None;
        };
        let caching = find(rest.get(usize::from(*descriptors)..).unwrap_or_default());
        let caching = caching.and_then(|page| page.get(2));
        Some(Mode {
            is_volatile: caching.is_none_or(|byte| byte & WCE != 0),
            is_protected: flags & WRITE_PROTECT != 0,
            takes_fua: flags & DPOFUA != 0,
        })
    }
}

/// The caching page among mode pages (SPC-4 7.5.7).
fn find(mut pages: &[u8]) -> Option<&[u8]> {
    const SUBPAGE: u8 = 0x40;
    loop {
        let [code, second, ..] = *pages else {
            return None;
        };
        let len = match code & SUBPAGE {
            0 => 2 + usize::from(second),
            _ => 4 + usize::from(u16::from_be_bytes([*pages.get(2)?, *pages.get(3)?])),
        };
        if code & 0x7f == PAGE {
            return Some(pages);
        }
        pages = pages.get(len..)?;
    }
}

impl Unit {
    /// The mode parameters may have changed: they are looked at before the next command.
    pub(super) fn doubt_cache(&self) {
        self.handle(Event::Doubted(Subject::Mode));
    }

    /// Reads the mode parameters again over `nexus`, if there is a doubt. If a disk which was opened as one without a
    /// volatile cache has one, writes and flushes fail from now on. If another initiator has reserved the disk, the doubt
    /// stays and the commands are sent all the same: the conflict ends most of them, but no flush succeeds.
    ///
    /// # Errors
    /// When the target does not answer in time.
    pub(super) async fn settle_cache(&self, nexus: &Rc<Nexus>) -> Result<()> {
        if !self.machine.borrow().is_open(Subject::Mode) {
            return Ok(());
        }
        let events = self.machine.borrow().events(Subject::Mode);
        let mut refused = String::new();
        for query in queries() {
            match self.tell(nexus, &query, Data::In(LEN.into())).await {
                Ok(Told::Good(data)) => {
                    if let Some(mode) = Mode::parse(&data) {
                        self.handle(Event::Mode(mode));
                        refused.clear();
                        break;
                    }
                }
                Ok(Told::Refused(why)) => refused = why,
                Ok(Told::Conflict) => return Ok(()),
                Err(_) if nexus.is_over() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if self.machine.borrow().writes_through() && !refused.is_empty() {
            tracing::warn!(
                target_name = self.config().target_name,
                why = refused,
                "the target no longer says whether the disk has a volatile write cache; it had none"
            );
        }
        self.handle(Event::Settled(Subject::Mode, events));
        Ok(())
    }

    /// Asks the disk, which is known as write-protected, whether it still is. It tells of a change only with the answer to
    /// some command, and perhaps nobody sends any: the writes are refused here.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) async fn look_at_protection(&self) -> Result<()> {
        let patience = &mut self.patience();
        for query in queries() {
            let data = inquiry::read_if_known(self, &query, LEN.into(), patience).await?;
            if let Some(mode) = Mode::parse(&data) {
                self.handle(Event::Mode(mode));
                break;
            }
        }
        Ok(())
    }

    /// The mode parameters are no longer what they were.
    pub(super) fn follow(&self, mode: Mode) {
        let (Some(facts), target_name) = (self.facts.get(), &self.config().target_name) else {
            return;
        };
        facts.takes_fua.store(mode.takes_fua, Relaxed);
        if facts.shape.read_only.is_on() != mode.is_protected {
            facts.shape.read_only.set(mode.is_protected);
            match mode.is_protected {
                true => tracing::warn!(target_name, "the target has write-protected the disk"),
                false => tracing::info!(target_name, "the disk is no longer write-protected"),
            }
            self.announce();
        }
    }

    /// There is a volatile write cache that is not flushed.
    pub(super) fn refuse_writes(&self) {
        tracing::error!(
            target_name = self.config().target_name,
            "the disk has a volatile write cache now, and had none: writes are refused"
        );
        self.unflushed.find_cache();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_parameters_are_read_wherever_the_caching_page_is() {
        let mode = |is_volatile, is_protected, takes_fua| {
            Some(Mode {
                is_volatile,
                is_protected,
                takes_fua,
            })
        };
        for (data, expected) in [
            (&[6, 0, 0, 0, 0x08, 1, 4][..], mode(true, false, false)),
            (&[6, 0, 0x10, 0, 0x08, 1, 0], mode(false, false, true)),
            (&[6, 0, 0x90, 0, 0x88, 1, 0], mode(false, true, true)),
            // Behind a block descriptor, another page and a subpage.
            (
                &[
                    0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0x0a, 1, 9, 0x4a, 1, 0, 1, 7, 0x08, 1, 0,
                ],
                mode(false, false, false),
            ),
            // The header alone.
            (&[3, 0, 0x80, 0], mode(true, true, false)),
            (&[3, 0, 0, 200, 0x08, 1, 0], mode(true, false, false)),
            (&[6, 0, 0, 0, 0x0a, 200, 0], mode(true, false, false)),
            (&[6, 0, 0, 0, 0x48, 0], mode(true, false, false)),
            (&[3, 0, 0], None),
            (&[], None),
        ] {
            assert_eq!(Mode::parse(data), expected, "{data:?}");
        }
    }
}
