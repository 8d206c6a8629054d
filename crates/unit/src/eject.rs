//! START STOP UNIT that ejects the medium: what is cached is made durable first.

use engine::Payload;
use scsi::{Eject, Ending};

use crate::{disk::Unit, medium, nexus::Nexus};

/// Flushes and ejects, unless the command is not `wanted` any more by then, which gives `None`.
pub(crate) async fn eject(
    nexus: &Nexus,
    unit: &Unit,
    eject: &Eject,
    wanted: impl FnOnce() -> bool,
) -> Option<Ending> {
    let volume = &*unit.disk.volume;
    let flushed = medium::perform(volume, &eject.flush, Payload::new(), &nexus.steps).await;
    wanted().then(|| eject.flushed(&unit.logical.borrow(), flushed.map(drop)))
}
