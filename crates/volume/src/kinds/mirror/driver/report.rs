//! What a driver tells of its mirror: why requests fail, and how it is.

use ::mirror::{CopyId, CopySet, MirrorPhase, Stand, Stopped};
use engine::{Duration, time};

use super::Driver;
use crate::{
    Error, ErrorKind,
    kinds::mirror::status::{CopyStatus, MirrorStatus},
};

/// How long the register may take to change before that is told.
const REGISTER_PATIENCE: Duration = Duration::from_secs(2);

impl Driver {
    /// Why a request has failed.
    pub(super) fn why(&self) -> Error {
        if let Err(ended) = self.check() {
            return ended;
        }
        let trouble_of = |id: CopyId| {
            let copy = self.copy(id);
            copy.trouble().map(|trouble| copy.blame(trouble))
        };
        // A request fails for what a copy in sync has answered, or has not; others are in trouble for longer.
        let in_sync = self.machine(|it| it.record().in_sync);
        let others = CopySet::first(self.copies.len()).without(in_sync);
        let trouble = in_sync.iter().chain(others.iter()).find_map(trouble_of);
        // A copy that fails leaves first.
        let trouble = trouble.map(|trouble| match self.register_trouble() {
            Some(register) => trouble.context(format_args!(
                "the mirror cannot go on without it ({register})"
            )),
            None => trouble,
        });
        match trouble {
            Some(trouble) => trouble.context(format_args!("mirror {}", self.name)),
            None => {
                let limit = time::brief(self.limits.request);
                let message = format!("mirror {}: no answer within {limit:?}", self.name);
                Error::new(ErrorKind::TimedOut, message)
            }
        }
    }

    pub(super) fn stopped(&self, stopped: &Stopped) -> Error {
        let name = &self.name;
        let message = match stopped {
            Stopped::Register(record) => format!(
                "mirror {name} was taken over by node {} (epoch {}): this volume now refuses all I/O; stop this daemon, and \
                 to use it here again, stop the other owner and run `sanstone volume take-over -c FILE NAME`",
                record.owner, record.epoch
            ),
            Stopped::Fenced(copy) => format!(
                "mirror {name} was taken over: {} refuses this owner; this volume now refuses all I/O; stop this daemon, and \
                 to use it here again, stop the other owner and run `sanstone volume take-over -c FILE NAME`",
                self.copy(*copy).name
            ),
            Stopped::RegisterIsOlder { copy, seen } => format!(
                "mirror {name}: {} has seen version {seen} of the mirror's record, which {} does not have: it was restored \
                 from an older state, or the mirror has another owner; put back the right one, or run `sanstone volume \
                 take-over -c FILE NAME`",
                self.copy(*copy).name,
                self.register.describe()
            ),
        };
        Error::new(ErrorKind::Preempted, message)
    }

    /// Why the register has not changed yet as it shall, if that takes long.
    pub(in super::super) fn register_trouble(&self) -> Option<String> {
        let swapping = self.swapping.borrow();
        let (began, error) = swapping.as_ref()?;
        let waited = time::now() - *began;
        match error {
            Some(error) => Some(error.to_string()),
            None if waited < REGISTER_PATIENCE => None,
            None => Some(format!(
                "{} has not answered for {:?}",
                self.register.describe(),
                Duration::from_secs(waited.as_secs())
            )),
        }
    }

    /// Tells those outside how it is.
    pub(in super::super) fn report(&self) {
        let machine = self.machine.borrow();
        self.told.set(machine.in_sync());
        let copies = self.copies.iter().enumerate().map(|(place, copy)| {
            let copy = copy.borrow();
            let stand = match self.check() {
                Ok(()) => machine.stand(CopyId::new(place)),
                Err(_) => Stand::Out, // Nobody here uses it any more.
            };
            CopyStatus {
                name: copy.name.clone(),
                stand,
                trouble: copy.trouble_told(),
            }
        });
        let is_serving = machine.phase() == MirrorPhase::Serving;
        self.handle.set(MirrorStatus {
            epoch: machine.record().epoch,
            version: machine.record().version,
            copies: copies.collect(),
            marked_bytes: match is_serving {
                true => machine.marked() as u64 * self.header.region_bytes,
                false => 0,
            },
            in_doubt_bytes: machine.in_doubt() * self.block_bytes(),
            left_to_fill_bytes: machine.left_to_fill() * self.block_bytes(),
            register_trouble: self.register_trouble(),
            stopped: self.ended.borrow().as_ref().map(Error::to_string),
        });
    }
}
