//! How a session receives: each PDU goes to the protocol machine, its payload straight into the memory
//! of its task, and what the machine makes of it to whoever waits.

use std::{ops::Range, rc::Rc};

use engine::{net::FramedReader, task, time};
use iscsi::{
    InitiatorEvent, RxData,
    frame::{DataDigest, Frame, frame},
};
use smallvec::SmallVec;

use super::{Port, Session, protocol};
use crate::{Error, ErrorKind, Result, kinds::iscsi::ended};

const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// PDUs that are received in one turn of the lane.
const TURN_PDUS: u64 = 256;

pub(super) async fn read(session: Rc<Session>) {
    let mut reader = FramedReader::new(session.stream.clone(), RECEIVE_BUFFER_BYTES);
    for count in 1u64.. {
        if session.error().is_some() {
            return;
        }
        // However many PDUs are at hand, others have the lane in between.
        if count % TURN_PDUS == 0 {
            task::yield_now().await;
        }
        match read_pdu(&session, &mut reader).await {
            Ok(()) => {}
            Err(error) => session.end(error),
        }
        session.submit();
        if !session.machine.borrow().wants_read() {
            // Its answers have to leave first.
            let sent = session.sent.wait_for(|| {
                let free = session.machine.borrow().wants_read();
                (free || session.error().is_some()).then_some(())
            });
            sent.await;
        }
    }
}

async fn read_pdu(session: &Rc<Session>, reader: &mut FramedReader) -> Result<()> {
    require(reader, iscsi::pdu::BHS_LEN).await?;
    let now = time::turn_began();
    session.last_heard.set(now);
    let limits = session.machine.borrow().frame_limits();
    let Some(pdu) = frame(reader.bytes(), &limits).map_err(protocol)? else {
        return Ok(());
    };
    let at_hand = if pdu.payload {
        pdu.data_offset
    } else {
        pdu.total_len
    };
    require(reader, at_hand).await?;
    pdu.verify_header(reader.bytes()).map_err(protocol)?;
    {
        let bytes = reader.bytes();
        let data = match pdu.payload {
            true => RxData::Length(pdu.data_len as u32),
            false => {
                if let Some(at) = pdu.data_digest_offset {
                    let mut digest = DataDigest::default();
                    digest.update(&bytes[pdu.data()]);
                    let received = *bytes[at..].first_chunk().expect("the frame counts it");
                    digest.verify(received).map_err(protocol)?;
                }
                RxData::Inline(&bytes[pdu.data()])
            }
        };
        let bhs = bytes.first_chunk().expect("48 bytes are at hand");
        session
            .machine
            .borrow_mut()
            .receive(now.as_ns(), bhs, &bytes[pdu.ahs()], data);
    }
    reader.consume(at_hand);
    // The machine has freed the slots of tasks that have ended, and a new command may take one
    // while payload is awaited: everything is brought home to its entry before that.
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
            InitiatorEvent::Done { task, result } => {
                let key = session.tasks.borrow().key_of(task);
                ends.extend(key.map(|key| (key, result)));
            }
            InitiatorEvent::TaskManagementDone { task, response } => {
                session.answered.set(Some((task, response)));
                session.changed.notify();
            }
            InitiatorEvent::AsyncMessage { event, .. } => {
                // Once for each kind: a target may send as many as it likes.
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
    if pdu.payload {
        receive_payload(session, reader, &pdu, payload_of).await?;
    }
    for (key, result) in ends {
        session.done(key, result);
    }
    Ok(())
}

/// Receives the data segment of a PDU, into the memory of the task whose key is given, and what
/// follows it; checks the digest.
async fn receive_payload(
    session: &Session,
    reader: &mut FramedReader,
    pdu: &Frame,
    payload_of: Option<(usize, Range<usize>)>,
) -> Result<()> {
    let mut left = pdu.data_len;
    let mut digest = pdu.data_digest_offset.map(|_| DataDigest::default());
    if let Some((key, range)) = payload_of {
        let buf = session.tasks.borrow_mut().take_buf(key);
        if let Some(buf) = buf {
            let (result, buf) = reader.read_into(buf, range.clone()).await;
            result.map_err(|error| Error::io("receiving data", &error))?;
            left -= range.len();
            if let Some(digest) = &mut digest {
                digest.update(&buf[range]);
            }
            session.tasks.borrow_mut().put_buf(key, buf);
        }
    }
    finish_payload(reader, left, iscsi::frame::padding(pdu.data_len), digest).await
}

/// Reads past what nobody wanted and the padding; checks the digest.
async fn finish_payload(
    reader: &mut FramedReader,
    mut left: usize,
    padding: usize,
    digest: Option<DataDigest>,
) -> Result<()> {
    let io = |error: std::io::Error| Error::io("receiving data", &error);
    let Some(mut digest) = digest else {
        return reader.skip(left + padding).await.map_err(io);
    };
    while left > 0 {
        require(reader, 1).await?;
        let n = reader.bytes().len().min(left);
        digest.update(&reader.bytes()[..n]);
        reader.consume(n);
        left -= n;
    }
    reader.skip(padding).await.map_err(io)?;
    require(reader, 4).await?;
    let received = *reader
        .bytes()
        .first_chunk()
        .expect("four bytes are at hand");
    reader.consume(4);
    digest.verify(received).map_err(protocol)
}

async fn require(reader: &mut FramedReader, len: usize) -> Result<()> {
    match reader.fill(len).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::new(
            ErrorKind::Unreachable,
            "the target closed the connection",
        )),
        Err(error) => Err(Error::new(
            ErrorKind::Unreachable,
            format!("the connection was lost: {error}"),
        )),
    }
}
