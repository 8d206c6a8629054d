//! What `push` gathers, `Receiver` receives, over a real socket.

use engine::{
    Buf, Gather, Lane, LaneConfig, Payload,
    net::{TcpListener, TcpStream},
    spawn,
};
use iscsi::{
    RxData, TaskId, Transmit, TransmitData,
    frame::{Digests, FrameLimits},
    pdu::opcode,
};

use crate::{Forgotten, ReceiveError, Receiver, push};

const TASK: TaskId = TaskId::new(3, 7);
/// Not a multiple of four, so padding follows; and larger than the receiver's buffer.
const PAYLOAD_LEN: usize = 70_001;
const BUFFER_BYTES: usize = 4096;

fn limits(digests: Digests) -> FrameLimits {
    FrameLimits {
        digests,
        data_segment_len_max: 1 << 20,
        inline_len_max: 8192,
    }
}

fn all_digests() -> impl Iterator<Item = Digests> {
    let pairs = [(false, false), (false, true), (true, false), (true, true)];
    let digests = pairs.map(|(header, data)| Digests { header, data });
    digests.into_iter()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

/// The payload in two slices.
fn payload() -> Payload {
    let bytes = bytes(PAYLOAD_LEN);
    let mut payload = Payload::from(Buf::copy_of(&bytes[..1000]));
    payload.push(Buf::copy_of(&bytes[1000..]).freeze());
    payload
}

fn pdu(opcode: u8, data: TransmitData, digests: Digests) -> Transmit {
    let mut pdu = Transmit {
        header: [0; 48],
        data,
        digests,
        ends: None,
    };
    pdu.header[0] = opcode;
    let len = pdu.data_len() as u32;
    pdu.header[5..8].copy_from_slice(&len.to_be_bytes()[1..]);
    pdu
}

/// A NOP-In that carries `len` bytes.
fn ping(len: usize, digests: Digests) -> Transmit {
    pdu(opcode::NOP_IN, TransmitData::Inline(bytes(len)), digests)
}

/// A Data-In PDU with a part of the task's payload.
fn data_in(offset: usize, len: usize, digests: Digests) -> Transmit {
    let (task, offset, len) = (TASK, offset as u32, len as u32);
    let data = TransmitData::Task { task, offset, len };
    pdu(opcode::SCSI_DATA_IN, data, digests)
}

fn gathered(pdus: &[Transmit]) -> Vec<u8> {
    let (mut gather, payload) = (Gather::new(), payload());
    for pdu in pdus {
        let data_of = |task| (task == TASK).then_some(&payload);
        push(&mut gather, pdu, data_of).expect("it has data");
    }
    gather.chunks().flatten().copied().collect()
}

/// A receiver for a stream of exactly `bytes`.
async fn receiver_of(bytes: &[u8]) -> Receiver {
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = TcpListener::bind(any).expect("a free port");
    let sender = TcpStream::connect(listener.local_addr()).await;
    let sender = sender.expect("somebody listens");
    let stream = listener.accept().await.expect("somebody has come");
    let mut gather = Gather::new();
    gather.push_bytes(bytes);
    spawn(async move {
        let _ = sender.send_all(gather).await;
        sender.shutdown();
    });
    Receiver::new(stream, BUFFER_BYTES)
}

fn on_lane(work: impl Future<Output = ()>) {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(work);
}

/// Receives a PDU as a driver does: places half of its payload in two parts and skips the rest.
async fn receive_half(receiver: &mut Receiver, digests: Digests) -> Result<Vec<u8>, ReceiveError> {
    receiver.next(&limits(digests)).await?;
    let (_, _, data) = receiver.head();
    let len = match data {
        RxData::Inline(data) => return Ok(data.to_vec()),
        RxData::Length(len) => len as usize,
    };
    let half = len / 2;
    let mut buf = Buf::zeroed(half);
    if !receiver.place_at_hand(&mut buf[..half / 3]) {
        buf = receiver.place(buf, 0..half / 3).await?;
    }
    let buf = receiver.place(buf, half / 3..half).await?;
    receiver.finish().await?;
    Ok(buf.to_vec())
}

#[test]
fn what_is_sent_is_received_in_parts_or_as_a_whole() {
    on_lane(async {
        for digests in all_digests() {
            let (begin, len) = (900, PAYLOAD_LEN - 900);
            let sent = [
                ping(5, digests),
                data_in(begin, len, digests),
                ping(0, digests),
                data_in(0, 1, digests),
                data_in(0, 900, digests),
                ping(8192, digests),
            ];
            let stream = gathered(&sent);
            let lens = sent.each_ref().map(Transmit::wire_len);
            assert_eq!(stream.len(), lens.iter().sum::<usize>());

            let mut receiver = receiver_of(&stream).await;
            let half = bytes(PAYLOAD_LEN)[begin..begin + len / 2].to_vec();
            let halves = [bytes(0), bytes(450), bytes(8192)];
            for expected in [bytes(5), half, bytes(0)].into_iter().chain(halves) {
                let received = receive_half(&mut receiver, digests).await;
                assert_eq!(received.expect("a right PDU"), expected);
            }
            let over = receive_half(&mut receiver, digests).await;
            assert!(matches!(over, Err(ReceiveError::Ended)), "{over:?}");

            let mut receiver = receiver_of(&stream).await;
            let all = bytes(PAYLOAD_LEN)[begin..].to_vec();
            let expected = [5, 0, 1, 900, 8192].map(bytes);
            let [first, others @ ..] = expected;
            let expected = [first, all].into_iter().chain(others);
            for (pdu, expected) in sent.iter().zip(expected) {
                let received = receiver.next_whole(&limits(digests)).await;
                let (header, ahs, data) = received.expect("a right PDU");
                assert_eq!((header, ahs, data), (&pdu.header, &[][..], &expected[..]));
            }
        }
    });
}

#[test]
fn a_damaged_pdu_is_refused_where_its_digest_tells() {
    on_lane(async {
        let digests = Digests {
            header: true,
            data: true,
        };
        for pdu in [ping(5, digests), data_in(3, 4001, digests)] {
            let whole = gathered(std::slice::from_ref(&pdu));
            let data_at = 48 + 4;
            // A header byte, placed data, skipped data, and the digests themselves.
            for at in [
                9,
                48,
                data_at,
                data_at + pdu.data_len() - 1,
                whole.len() - 1,
            ] {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x10;
                let in_header = at < data_at;
                let refusals = [
                    receive_half(&mut receiver_of(&damaged).await, digests)
                        .await
                        .err(),
                    receiver_of(&damaged)
                        .await
                        .next_whole(&limits(digests))
                        .await
                        .err(),
                ];
                for refusal in refusals {
                    let Some(ReceiveError::Protocol(error)) = refusal else {
                        panic!("byte {at}: {refusal:?}");
                    };
                    match (*error, in_header) {
                        (iscsi::Error::HeaderDigest { .. }, true)
                        | (iscsi::Error::DataDigest { .. }, false) => {}
                        (error, _) => panic!("byte {at}: {error}"),
                    }
                }
            }
        }
    });
}

#[test]
fn a_stream_that_ends_within_a_pdu_has_ended() {
    on_lane(async {
        for digests in all_digests() {
            let whole = gathered(&[data_in(0, 41, digests)]);
            for len in 0..whole.len() {
                let mut receiver = receiver_of(&whole[..len]).await;
                let ended = receive_half(&mut receiver, digests).await;
                assert!(
                    matches!(ended, Err(ReceiveError::Ended)),
                    "{len}: {ended:?}"
                );
            }
        }
    });
}

#[test]
fn data_of_a_command_that_nobody_knows_are_not_made_up() {
    on_lane(async {
        let pdu = data_in(0, 1, Digests::default());
        let pushed = push(&mut Gather::new(), &pdu, |_| None::<&Payload>);
        assert_eq!(pushed, Err(Forgotten));
    });
}

#[test]
#[should_panic(expected = "a PDU promises another DataSegmentLength")]
fn a_pdu_with_more_or_less_data_than_it_promises_is_not_sent() {
    let data = TransmitData::Inline(bytes(8));
    let mut pdu = pdu(opcode::NOP_IN, data, Digests::default());
    pdu.header[7] = 4;
    let mut gather = Gather::default();
    let _ = push(&mut gather, &pdu, |_| None::<&Payload>);
}
