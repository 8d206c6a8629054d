//! The history of one case as a single sequence of events: what the initiators sent and received, and what the medium
//! did. A recorder that sees something no order of events can justify adds a fault.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::time;

use super::script::{Command, Ending, Function};

/// A moment: which event it was, and the virtual time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct At {
    /// How many events came before.
    pub(super) index: u64,
    /// Virtual time in nanoseconds.
    pub(super) ns: u64,
}

/// One session, from its login on: an I_T nexus.
#[derive(Debug)]
pub(super) struct Nexus {
    /// The initiator.
    pub(super) who: usize,
    /// The login was answered.
    pub(super) begun: At,
    /// When the initiator ended it.
    pub(super) ended: Option<At>,
    /// How it was ended.
    pub(super) ended_by: Option<Ending>,
    /// When the end was complete: the logout, or the next login, was answered.
    pub(super) gone: Option<At>,
    /// The unit attentions it received: disk, code and qualifier.
    pub(super) told: Vec<(u32, [u8; 2])>,
    /// When each disk first answered without a unit attention.
    pub(super) quiet: BTreeMap<u32, At>,
    /// When the disks were asked for any remaining unit attentions.
    pub(super) probed: Option<At>,
    /// The last step of the script that was sent.
    pub(super) last_sent: u32,
}

/// A command or function that was sent, by its Initiator Task Tag.
#[derive(Debug)]
pub(super) struct Sent {
    /// The number of its session.
    pub(super) nexus: usize,
    /// Its position among everything the session sent.
    pub(super) place: u64,
    /// The number of its segment.
    pub(super) segment: u64,
    /// When it was about to be handed to the network.
    pub(super) at: At,
    /// When its segment had been handed to the network.
    pub(super) out: Option<At>,
    /// What it is.
    pub(super) what: SentWhat,
    /// When its unsolicited data were sent.
    pub(super) unsolicited: Option<At>,
    /// How it was answered.
    pub(super) answer: Option<Answer>,
    /// The latest of R2T, Data-In and answer.
    pub(super) last: Option<At>,
    /// When each R2T came, and when it was answered.
    pub(super) r2ts: Vec<(At, Option<At>)>,
    /// Read data.
    pub(super) data: Vec<u8>,
}

/// What was sent.
#[derive(Clone, Debug)]
pub(super) enum SentWhat {
    /// A command of the script.
    Command(Command),
    /// TEST UNIT READY or REGISTER in addition to the script, for this disk.
    Beside(u32),
    /// A function.
    Function(Function),
}

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// When it came.
    pub(super) at: At,
    /// SCSI status, or the response of a function; `None`: the PDU was rejected.
    pub(super) status: Option<u8>,
    /// Sense key, code, qualifier.
    pub(super) sense: [u8; 3],
}

/// What the medium was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Read,
    Write,
    Flush,
}

/// One call of the medium.
#[derive(Debug)]
pub(super) struct Io {
    /// Disk.
    pub(super) lun: u32,
    /// What.
    pub(super) call: Call,
    /// The tag of the command that it serves; 0 for a flush.
    pub(super) task: u32,
    /// First block and number of blocks.
    pub(super) blocks: (u64, u64),
    /// It began.
    pub(super) began: At,
    /// It ended.
    pub(super) ended: Option<At>,
    /// With FUA.
    pub(super) is_fua: bool,
    /// The data a read returned.
    pub(super) data: Vec<u8>,
}

/// The whole history.
#[derive(Debug, Default)]
pub(super) struct History {
    index: u64,
    /// Sessions.
    pub(super) nexuses: Vec<Nexus>,
    /// Commands and functions by their tags.
    pub(super) sent: BTreeMap<u32, Sent>,
    /// Calls of the medium.
    pub(super) ios: Vec<Io>,
    /// How often the target has announced, unasked, that a window is open again.
    pub(super) windows_told: u64,
    /// Rules that were broken.
    pub(super) faults: Vec<String>,
    /// The events in readable form.
    pub(super) trace: Vec<String>,
}

/// A history that all parts of a case write to.
#[derive(Clone, Default)]
pub(super) struct Shared(Arc<Mutex<History>>);

impl Shared {
    /// Locks it for reading or writing.
    pub(super) fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl History {
    /// Records that initiator `who` has logged in; returns the number of the session.
    pub(super) fn begin(&mut self, who: usize) -> usize {
        let nexus = self.nexuses.len();
        let begun = self.note(format_args!("{nexus} <-- initiator {who} is logged in"));
        self.nexuses.push(Nexus {
            who,
            begun,
            ended: None,
            ended_by: None,
            gone: None,
            told: Vec::new(),
            quiet: BTreeMap::new(),
            probed: None,
            last_sent: 0,
        });
        nexus
    }

    /// Records an event, described in words.
    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) -> At {
        self.index += 1;
        let ns = time::now().as_ns();
        self.trace
            .push(format!("{:>5} {:>9} µs  {what}", self.index, ns / 1000));
        At {
            index: self.index,
            ns,
        }
    }

    /// Records that a rule was broken.
    pub(super) fn fault(&mut self, what: String) {
        self.note(format_args!("!! {what}"));
        self.faults.push(what);
    }
}
