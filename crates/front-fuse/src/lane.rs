//! The front on one lane: takes requests from the lane's descriptor one by one and processes them
//! concurrently. It takes no more than it has room for; the rest wait in the kernel.

use std::{cell::Cell, io, pin::pin, rc::Rc, sync::Arc};

use engine::{
    Buf, Instant, Payload, begin,
    cross::{Receiver, Sender},
    device::Device,
    rate::Rate,
    sync::{Budget, Permit},
    task::{self, Either},
    time,
};
use rustix::io::Errno;
use unit::{CommandId, CommandKind, IoError, Permits, StageStamps};

use crate::{
    changes::Changes,
    crew,
    reply::FuseReply,
    request::{FuseOperation, FuseRequest, HEAD_BYTES, SetAttributes},
    session::{FileProperties, FuseWork, Handling},
    transfer::{LUN, Transfer},
};

/// The most requests that a lane processes at a time.
pub(crate) const REQUESTS_MAX: usize = 64;
/// Write data of up to this many bytes are copied out of the receive buffer. That buffer is as long as
/// the longest write, and is then free for the next request.
const COPIED_MAX_BYTES: usize = 32 << 10;

/// The kernel's protocol version, from its INIT request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Greeting {
    pub(crate) version: (u32, u32),
    /// Whether we can serve that version.
    pub(crate) is_taken: bool,
}

/// Why a lane has ended.
#[derive(Debug)]
pub(crate) enum LaneEnd {
    /// It was told to stop.
    Stopped,
    /// Somebody has unmounted the file.
    Unmounted,
    /// Somebody has aborted the connection through `/sys/fs/fuse`.
    Aborted,
    /// The device failed.
    Failed(io::Error),
}

/// How work has ended.
enum Done {
    /// By what the permits pay for.
    Data(Payload, Permits),
    Reply(FuseReply),
}

/// The front on one lane.
pub(crate) struct LaneFront {
    device: Device,
    session: FileProperties,
    transfer: Transfer,
    changes: Arc<Changes>,
    /// One permit per request in progress.
    places: Rc<Budget>,
    crew: crew::Membership,
    greet: Sender<Greeting>,
    /// Rate limit for logging what programs are refused.
    refusals: Cell<Rate>,
}

impl LaneFront {
    pub(crate) fn new(
        device: Device,
        session: FileProperties,
        transfer: Transfer,
        changes: Arc<Changes>,
        (crew, greet): (crew::Membership, Sender<Greeting>),
    ) -> Rc<LaneFront> {
        Rc::new(LaneFront {
            device,
            session,
            transfer,
            changes,
            places: Budget::new(REQUESTS_MAX),
            crew,
            greet,
            refusals: Cell::default(),
        })
    }

    /// Serves until `stop` closes or the mount has ended, and then until all requests already taken
    /// have been answered.
    pub(crate) async fn serve(self: &Rc<Self>, stop: Receiver<()>) -> LaneEnd {
        let end = self.take_all(stop).await;
        self.places.take(REQUESTS_MAX).await;
        end
    }

    async fn take_all(self: &Rc<Self>, stop: Receiver<()>) -> LaneEnd {
        let mut stopped = pin!(stop.receive());
        let room = self.session.io_max_bytes as usize;
        let (mut head, mut body) = (Buf::new(HEAD_BYTES), Buf::new(room));
        let mut idle = 0;
        loop {
            let place = self.crew.wait_for(self.places.take(1)).await;
            idle = match self.in_hand() {
                // The previous request may still be in progress: few volumes answer within the same turn.
                1 | 2 => idle + 1,
                _ => 0,
            };
            let result = match self.crew.may_rest(idle) {
                true => self.device.take_now(&mut head, &mut body),
                false => {
                    let take = self.device.take(head, body);
                    let result;
                    (result, head, body) = match task::either(stopped.as_mut(), take).await {
                        Either::Other(taken) => taken,
                        Either::One(_) => return LaneEnd::Stopped,
                    };
                    Some(result)
                }
            };
            let Some(result) = result else {
                match task::either(stopped.as_mut(), self.crew.rest()).await {
                    Either::Other(()) => idle = 0,
                    Either::One(_) => return LaneEnd::Stopped,
                }
                continue;
            };
            let len = match result {
                // The other end is closed.
                Ok(0) => return LaneEnd::Unmounted,
                Ok(len) => len,
                Err(error) => match Errno::from_io_error(&error) {
                    // The request was interrupted before we read it, or another lane was faster.
                    Some(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                    Some(Errno::NODEV) => return LaneEnd::Unmounted,
                    Some(Errno::CONNABORTED) => return LaneEnd::Aborted,
                    _ => return LaneEnd::Failed(error),
                },
            };
            self.crew.took(self.in_hand());
            let (first, rest) = (len.min(HEAD_BYTES), len.saturating_sub(HEAD_BYTES));
            let request = match FuseRequest::parse(&head[..first], &body[..rest]) {
                Ok(request) => request,
                Err(malformed) => {
                    tracing::warn!(%malformed, "the kernel sent a malformed request");
                    if let Some(unique) = malformed.unique {
                        self.reply_beside(unique, FuseReply::Error(Errno::INVAL), place);
                    }
                    continue;
                }
            };
            let step = self.session.step(&request.operation, self.len_bytes());
            match step {
                Handling::Nothing => {}
                Handling::Reply(reply) => {
                    self.note(&request, &reply);
                    self.reply_beside(request.unique, reply, place);
                }
                Handling::Attributes(set) => {
                    let len_bytes = self.len_bytes();
                    let times = self.changes.times(len_bytes, set);
                    let reply = self.session.attributes(len_bytes, times);
                    self.reply_beside(request.unique, reply, place);
                }
                Handling::Work(work) => {
                    let received = time::turn_began();
                    let data = match work {
                        FuseWork::Write { len, .. } => {
                            let len = len as usize;
                            let taken = self.data(body, len).await;
                            body = taken.1;
                            Some(taken.0)
                        }
                        _ => None,
                    };
                    let front = self.clone();
                    let unique = request.unique;
                    begin(async move { front.work(unique, (work, received), data, place).await });
                }
            }
        }
    }

    /// Returns the first `len` bytes of `body`, once they are paid for, and a buffer for the next request.
    async fn data(&self, body: Buf, len: usize) -> ((Payload, Permits), Buf) {
        let nexus = &self.transfer.nexus;
        if len <= COPIED_MAX_BYTES {
            let paid = self.crew.wait_for(nexus.take_memory(LUN, len)).await;
            return ((Buf::copy_of(&body[..len]).into(), paid), body);
        }
        let room = body.len();
        let paid = self.crew.wait_for(nexus.take_memory(LUN, room)).await;
        let data = Payload::from(body).slice(0..len);
        ((data, paid), Buf::new(room))
    }

    /// The number of requests in progress, including the one about to be taken.
    fn in_hand(&self) -> usize {
        REQUESTS_MAX - self.places.left()
    }

    fn len_bytes(&self) -> u64 {
        let unit = self.transfer.nexus.unit(LUN);
        unit.map_or(0, |unit| unit.len_bytes())
    }

    /// Reports an INIT request to whoever waits for it, and logs a refusal that programs do not explain.
    fn note(&self, request: &FuseRequest, reply: &FuseReply) {
        match (request.operation, reply) {
            (FuseOperation::Init { major, minor, .. }, _) => {
                let _ = self.greet.send(Greeting {
                    version: (major, minor),
                    is_taken: matches!(reply, FuseReply::Init { .. }),
                });
            }
            (
                FuseOperation::Open { .. }
                | FuseOperation::SetAttributes(SetAttributes { size: Some(_), .. }),
                FuseReply::Error(Errno::PERM),
            ) => self.tell_not_truncated(request.process),
            _ => {}
        }
    }

    fn tell_not_truncated(&self, process: u32) {
        let mut rate = self.refusals.get();
        if let Some(suppressed) = rate.take(time::now()) {
            tracing::warn!(
                process,
                suppressed,
                "a program tried to truncate or lengthen the file and was refused: a volume keeps its length. Have it \
                 write in place, as `dd conv=notrunc` and `qemu-img convert -n` do"
            );
        }
        self.refusals.set(rate);
    }

    /// Processes a request, answers it, then counts it.
    async fn work(
        self: Rc<Self>,
        unique: u64,
        (work, received): (FuseWork, Instant),
        data: Option<(Payload, Permits)>,
        _place: Permit,
    ) {
        let complete = time::turn_began();
        let data = data.as_ref().map(|(data, _paid)| data);
        let done = self.perform(CommandId(unique), work, data).await;
        // Even if it has failed, part of it may have been done.
        if let FuseWork::Write { .. } | FuseWork::Zero { .. } = work {
            self.changes.mark(self.crew.lane());
        }
        let times = StageStamps::of_block_operation(received, complete);
        match done {
            Ok(Done::Data(data, _paid)) => self.send_data(unique, data).await,
            Ok(Done::Reply(reply)) => self.send(unique, reply).await,
            Err(error) => {
                tracing::debug!(%error, ?work, "a request failed");
                self.send(unique, FuseReply::Error(errno(error))).await;
            }
        }
        let moved = match work {
            FuseWork::Read { len, .. } => (CommandKind::Read, len.into()),
            FuseWork::Write { len, .. } => (CommandKind::Write, len.into()),
            FuseWork::Zero { .. } | FuseWork::Flush => (CommandKind::Other, 0),
        };
        let Transfer { units, nexus, .. } = &self.transfer;
        units.count(nexus, LUN, moved, &times, time::now());
    }

    async fn perform(
        &self,
        id: CommandId,
        work: FuseWork,
        data: Option<&Payload>,
    ) -> Result<Done, IoError> {
        let transfer = &self.transfer;
        let reply = match (work, data) {
            (FuseWork::Read { at, len }, _) => {
                let (data, paid) = transfer.read(id, at, len).await?;
                return Ok(Done::Data(data, paid));
            }
            (FuseWork::Write { at, len, durable }, Some(data)) => {
                transfer.write(id, at, data.clone(), durable).await?;
                FuseReply::Written(len)
            }
            (FuseWork::Write { .. }, None) => unreachable!("a write has its data"),
            (
                FuseWork::Zero {
                    at,
                    len,
                    may_discard,
                },
                _,
            ) => {
                transfer.zero(id, at, len, may_discard).await?;
                FuseReply::Done
            }
            (FuseWork::Flush, _) => {
                transfer.flush(id).await?;
                FuseReply::Done
            }
        };
        Ok(Done::Reply(reply))
    }

    fn reply_beside(self: &Rc<Self>, unique: u64, reply: FuseReply, place: Permit) {
        let front = self.clone();
        begin(async move {
            front.send(unique, reply).await;
            drop(place);
        });
    }

    async fn send(&self, unique: u64, reply: FuseReply) {
        let bytes = Buf::copy_of(&reply.to_bytes(unique));
        match self.device.send(bytes.into()).await {
            Err(error) if !is_over(&error) => {
                tracing::error!(%error, ?reply, "the kernel refused a reply");
            }
            _ => {}
        }
    }

    async fn send_data(&self, unique: u64, data: Payload) {
        let header = FuseReply::Data(data.len() as u32).to_bytes(unique);
        let mut message = Payload::from(Buf::copy_of(&header));
        message.append(data);
        match self.device.send(message).await {
            Err(error) if !is_over(&error) => {
                tracing::error!(%error, "the kernel refused the data of a read");
                // Answer anyway, or the reader would wait forever.
                self.send(unique, FuseReply::Error(Errno::IO)).await;
            }
            _ => {}
        }
    }
}

/// Whether an answer comes too late: its request was interrupted, or the mount has ended.
fn is_over(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::CONNABORTED)
    )
}

/// The errno that a program gets for `error`.
fn errno(error: IoError) -> Errno {
    match error {
        IoError::OutOfRange | IoError::Misaligned | IoError::TooLong => Errno::INVAL,
        IoError::ReservationConflict | IoError::ReservedBelow => Errno::BUSY,
        // As of a file that was opened before its server lost it: opening it anew is what helps.
        IoError::Preempted => Errno::STALE,
        IoError::WriteProtected => Errno::ROFS,
        IoError::NoSpace => Errno::NOSPC,
        IoError::NoUnit
        | IoError::NoMedium
        | IoError::Sanitizing { .. }
        | IoError::Unreachable
        | IoError::TimedOut => Errno::NODEV,
        IoError::ReadFailed
        | IoError::WriteFailed
        | IoError::FlushFailed
        | IoError::WritesLost
        | IoError::StorageFailed
        | IoError::SanitizeFailed
        | IoError::Miscompare { .. }
        | IoError::OutcomeUnknown
        | IoError::Aborted => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_can_tell_a_reservation_a_takeover_and_a_failure_apart() {
        assert_eq!(errno(IoError::ReservationConflict), Errno::BUSY);
        assert_eq!(errno(IoError::ReservedBelow), Errno::BUSY);
        assert_eq!(errno(IoError::Preempted), Errno::STALE);
        assert_eq!(errno(IoError::Unreachable), Errno::NODEV);
        assert_eq!(errno(IoError::WriteFailed), Errno::IO);
    }
}
