//! An I_T nexus: one initiator port at one target port, by its number and by its name.

use std::sync::Arc;

use crate::saved::MALFORMED;

/// An I_T nexus: one initiator port at one target port; in iSCSI, one session. The transport assigns the numbers and
/// does not reuse one while anything still remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub u64);

/// An I_T nexus, identified by the names of its ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NexusName {
    /// The initiator port: `<iSCSI name>,i,0x<ISID>` (RFC 7143 §4.4.4). Contains no white space.
    pub(crate) initiator_port: Arc<str>,
    /// Relative target port identifier.
    pub(crate) target_port: u16,
}

impl NexusName {
    /// As text without a line break, which [`NexusName::parse`] reads.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.target_port, self.initiator_port)
    }

    pub(crate) fn parse(line: &str) -> Option<NexusName> {
        let (port, initiator) = line.split_once(' ')?;
        NexusName::restore(port, initiator).ok()
    }

    pub(crate) fn restore(port: &str, initiator: &str) -> Result<NexusName, &'static str> {
        let target_port = port.parse().map_err(|_| MALFORMED)?;
        if initiator.is_empty() {
            return Err(MALFORMED);
        }
        Ok(NexusName {
            initiator_port: initiator.into(),
            target_port,
        })
    }
}
