//! The receive side of a session: each PDU goes to the protocol machine, its payload straight into the task's memory,
//! and the resulting events to whoever waits for them.

use std::rc::Rc;

use engine::{task, time};
use iscsi::{InitiatorEvent, TaskResult};
use iscsi_stream::Receiver;
use smallvec::SmallVec;

use super::{Port, Session, broken};
use crate::{Error, ErrorKind, Result, kinds::iscsi::ended};

const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// PDUs received before yielding the lane.
const TURN_PDUS: u64 = 256;
/// The event code of an Asynchronous Message by which a target asks for a logout (RFC 7143 §11.9.1).
const LOGOUT_REQUEST: u8 = 1;
/// The reason code of a Reject for a PDU whose data does not match its digest (RFC 7143 §11.17.1).
const DATA_DIGEST_ERROR: u8 = 2;

pub(super) async fn read(session: Rc<Session>) {
    let mut receiver = Receiver::new(session.stream.clone(), RECEIVE_BUFFER_BYTES);
    for count in 1u64.. {
        if session.is_over() {
            return;
        }
        // Yields even if more PDUs are at hand, so that others get the lane.
        if count % TURN_PDUS == 0 {
            task::yield_now().await;
        }
        match read_pdu(&session, &mut receiver).await {
            Ok(()) => {}
            Err(error) => session.end(error),
        }
        session.submit();
        if !session.machine.borrow().wants_read() {
            // The answers it owes have to be sent first.
            let sent = session.sent.wait_for(|| {
                let free = session.machine.borrow().wants_read();
                (free || session.is_over()).then_some(())
            });
            sent.await;
        }
    }
}

async fn read_pdu(session: &Rc<Session>, receiver: &mut Receiver) -> Result<()> {
    let limits = session.machine.borrow().frame_limits();
    receiver.next(&limits).await.map_err(broken)?;
    let now = time::turn_began();
    session.last_heard.set(now);
    session.silence.end();
    {
        let (header, ahs, data) = receiver.head();
        let mut machine = session.machine.borrow_mut();
        machine.receive(now.as_ns(), header, ahs, data);
    }
    // The machine has freed the slots of completed tasks, and a new command may reuse one while payload is awaited.
    // So all events are moved to their entries before that.
    let (mut payload_of, mut ends) = (None, SmallVec::<[_; 1]>::new());
    loop {
        let event = session.machine.borrow_mut().poll_event();
        let Some(event) = event else { break };
        match event {
            InitiatorEvent::LoggedIn {
                portal_group_tag, ..
            } => {
                session.port.set(Port {
                    group: portal_group_tag,
                    ..session.port.get()
                });
                session.logged_in.set(true);
                session.changed.notify();
            }
            InitiatorEvent::DataIn { task, offset, len } => {
                let range = offset as usize..offset as usize + len as usize;
                payload_of = session.tasks.borrow().key_of(task).map(|key| (key, range));
            }
            // The PDU was damaged on its way, and the command may stay behind as a gap in the order of commands: only
            // another session goes on (error recovery level 0, RFC 7143 §7.3).
            InitiatorEvent::Rejected {
                reason: DATA_DIGEST_ERROR,
            }
            | InitiatorEvent::Done {
                result:
                    TaskResult::Rejected {
                        reason: DATA_DIGEST_ERROR,
                    },
                ..
            } => {
                let message = "the target has received a PDU with a wrong data digest";
                return Err(Error::new(ErrorKind::Unreachable, message));
            }
            InitiatorEvent::Done { task, result } => {
                let key = session.tasks.borrow().key_of(task);
                ends.extend(key.map(|key| (key, result)));
            }
            InitiatorEvent::TaskManagementDone { task, response } => {
                session.aborts.borrow_mut().answered(task);
                session.ask_to_abort();
                session.answered.set(Some((task, response)));
                session.changed.notify();
            }
            InitiatorEvent::Targets(targets) => {
                session.found.replace(Some(Ok(targets)));
                session.changed.notify();
            }
            InitiatorEvent::Rejected { reason } => {
                let message = format!("the target rejected the request (reason {reason:02x}h)");
                let refused = Error::new(ErrorKind::Protocol, message);
                session.found.replace(Some(Err(refused)));
                session.changed.notify();
            }
            InitiatorEvent::AsyncMessage {
                event: LOGOUT_REQUEST,
                ..
            } => {
                session.is_asked_to_log_out.set(true);
                session.changed.notify();
            }
            InitiatorEvent::AsyncMessage { event, .. } => {
                // Logged once per event code, because a target may send any number of them.
                let (told, kind) = (session.messages_told.get(), 1 << event.min(7));
                if told & kind == 0 {
                    session.messages_told.set(told | kind);
                    tracing::info!(event, "the target sent an asynchronous message");
                }
            }
            InitiatorEvent::Closed(reason) => {
                session.redirection.replace(ended::redirection_of(&reason));
                return Err(ended::error_of(&reason));
            }
            _ => {}
        }
    }
    if let Some((key, range)) = payload_of {
        let buf = session.tasks.borrow_mut().take_buf(key);
        if let Some(buf) = buf {
            let buf = receiver.place(buf, range).await.map_err(broken)?;
            session.tasks.borrow_mut().put_buf(key, buf);
        }
    }
    receiver.finish().await.map_err(broken)?;
    for (key, result) in ends {
        session.done(key, result);
    }
    Ok(())
}
