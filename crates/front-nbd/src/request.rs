//! Requests on their way to the unit and back. Each is a task, and those of one connection run concurrently. A task
//! runs to its end even if its connection ends, so that fencing the client off can wait for it.

use std::rc::Rc;

use engine::{Instant, Payload, spend, time};
use nbd::{AllocationExtent, ErrorCode, NbdCommand, NbdRequest};
use unit::{CommandKind, IoError, Nexus, Permits, StageStamps};

use crate::{
    connection::{Connection, OutgoingReply},
    service::LUN,
};

/// How often the volume is queried for one block status request; the client asks again for the rest.
const LOOKS_MAX: usize = 256;
/// The cost of one such query, expressed in bytes moved, for the scheduler's accounting.
const LOOK_COST_BYTES: usize = 8 << 10;

/// Begins a request without data.
pub(crate) fn begin(connection: &Rc<Connection>, request: NbdRequest, received: Instant) {
    begin_write(
        connection,
        request,
        received,
        (Payload::new(), Permits::new()),
    );
}

/// Begins a request with its data and the memory permits for the data.
pub(crate) fn begin_write(
    connection: &Rc<Connection>,
    request: NbdRequest,
    received: Instant,
    data: (Payload, Permits),
) {
    connection.begin();
    let connection = connection.clone();
    let complete = time::turn_began();
    engine::begin(async move {
        let nexus = connection
            .nexus()
            .expect("requests come after the handshake");
        let moved = match request.command() {
            NbdCommand::Read { len, .. } => (CommandKind::Read, len.into()),
            NbdCommand::Write { len, .. } => (CommandKind::Write, len.into()),
            _ => (CommandKind::Other, 0),
        };
        let mut outgoing = perform(&connection, nexus, request, data).await;
        let times = StageStamps::of_block_operation(received, complete);
        outgoing.counted = Some((moved, times));
        connection.answer(outgoing);
    });
}

/// Performs `request` and builds its reply.
async fn perform(
    connection: &Connection,
    nexus: &Rc<Nexus>,
    request: NbdRequest,
    (data, permits): (Payload, Permits),
) -> OutgoingReply {
    let units = &connection.service.units;
    let operation = connection.next_operation();
    let done = match request.command() {
        NbdCommand::Read { at, len } => match units.read(nexus, operation, (at, len)).await {
            Ok((data, permits)) => {
                return OutgoingReply {
                    head: request.data(),
                    data,
                    permits,
                    counted: None,
                };
            }
            Err(error) => Err(error),
        },
        NbdCommand::BlockStatus { at, len, one } => {
            match extents(connection, nexus, (at, len), one).await {
                Ok(extents) => return reply(request.extents(&extents)),
                Err(error) => Err(error),
            }
        }
        NbdCommand::Write { at, fua, .. } => {
            let written = units.write(nexus, operation, at, data, fua).await;
            drop(permits);
            written
        }
        NbdCommand::Flush => units.flush(nexus, operation).await,
        NbdCommand::Trim { at, len, fua } => {
            let trimmed = units.discard(nexus, operation, (at, len.into())).await;
            and_flush(connection, nexus, fua, trimmed).await
        }
        NbdCommand::WriteZeroes {
            at,
            len,
            fua,
            may_discard,
        } => {
            let range = (at, len.into());
            let zeroed = units
                .write_zeroes(nexus, operation, range, may_discard)
                .await;
            and_flush(connection, nexus, fua, zeroed).await
        }
    };
    reply(match done {
        Ok(()) => request.done(),
        Err(error) => request.fail(code(error), &error.to_string()),
    })
}

fn reply(head: nbd::ReplyBytes) -> OutgoingReply {
    OutgoingReply {
        head,
        ..OutgoingReply::default()
    }
}

/// Flushes what was just written, if the request asks for that.
async fn and_flush(
    connection: &Connection,
    nexus: &Rc<Nexus>,
    fua: bool,
    done: Result<(), IoError>,
) -> Result<(), IoError> {
    match (fua, done) {
        (true, Ok(())) => {
            let operation = connection.next_operation();
            connection.service.units.flush(nexus, operation).await
        }
        (_, done) => done,
    }
}

/// The allocation status of `len` bytes at byte `at`, or of a first part of them.
async fn extents(
    connection: &Connection,
    nexus: &Rc<Nexus>,
    (mut at, len): (u64, u32),
    one: bool,
) -> Result<Vec<AllocationExtent>, IoError> {
    let shape = connection.service.luns[&LUN].shape();
    let holes_are_zero = shape.discard.is_some_and(|discard| discard.reads_zeroes);
    let end = at + u64::from(len);
    let mut extents: Vec<AllocationExtent> = Vec::new();
    for _ in 0..LOOKS_MAX {
        spend(LOOK_COST_BYTES).await;
        let operation = connection.next_operation();
        let units = &connection.service.units;
        let found = units.allocation(nexus, operation, (at, end - at)).await?;
        // Within the requested range, whose length is a u32.
        let len_bytes = found.len_bytes.min(end - at) as u32;
        let is_hole = !found.is_mapped;
        match extents.last_mut() {
            Some(last) if last.is_hole == is_hole => last.len_bytes += len_bytes,
            Some(_) if one => break,
            _ => extents.push(AllocationExtent {
                len_bytes,
                is_hole,
                is_zero: is_hole && holes_are_zero,
            }),
        }
        at += u64::from(len_bytes);
        if at == end {
            break;
        }
    }
    Ok(extents)
}

/// The NBD error code for a failure.
fn code(error: IoError) -> ErrorCode {
    match error {
        IoError::OutOfRange | IoError::Misaligned | IoError::TooLong => ErrorCode::Invalid,
        // NBD has no code for "another one has it". The server runs and reaches the disk, so ESHUTDOWN, on which clients
        // wait and connect anew, would be wrong.
        IoError::ReservationConflict
        | IoError::ReservedBelow
        | IoError::Preempted
        | IoError::WriteProtected => ErrorCode::Permission,
        IoError::NoSpace => ErrorCode::NoSpace,
        IoError::NoUnit
        | IoError::NoMedium
        | IoError::Sanitizing { .. }
        | IoError::Unreachable
        | IoError::TimedOut => ErrorCode::Shutdown,
        IoError::ReadFailed
        | IoError::WriteFailed
        | IoError::FlushFailed
        | IoError::WritesLost
        | IoError::StorageFailed
        | IoError::SanitizeFailed
        | IoError::Miscompare { .. }
        | IoError::OutcomeUnknown
        | IoError::Aborted => ErrorCode::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_one_has_is_not_permitted_rather_than_broken_or_gone() {
        for error in [
            IoError::ReservationConflict,
            IoError::ReservedBelow,
            IoError::Preempted,
        ] {
            assert_eq!(code(error), ErrorCode::Permission, "{error}");
        }
        assert_eq!(code(IoError::Unreachable), ErrorCode::Shutdown);
        assert_eq!(code(IoError::WriteFailed), ErrorCode::Io);
    }
}
