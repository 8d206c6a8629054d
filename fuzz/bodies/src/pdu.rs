//! Framing and headers, both directions: the input is a TCP stream as recorded or made up. Each
//! frame is held against a reading of the standard's figures; each PDU goes to a target and to an
//! initiator that are in full feature phase.

use iscsi::frame::{DataDigest, Digests, FrameLimits, frame};
use iscsi::pdu::{RequestPdu, ResponsePdu};
use iscsi::{Direction, Error, RxData, TargetEvent};

use crate::initiator_side::InitiatorSide;
use crate::input::Input;
use crate::stream::Side;
use crate::target_side::{Seen, TargetSide};
use crate::{initiator, target, wire};

/// Bound for additional headers: an extended CDB of 260 bytes and a read length.
const AHS_LEN_MAX: usize = 272;

/// A choice of digests and limits, then the stream.
pub fn pdu(input: &[u8]) {
    let mut input = Input::new(input);
    let choice = input.u8();
    let limits = FrameLimits {
        digests: Digests {
            header: choice & 1 != 0,
            data: choice & 2 != 0,
        },
        data_segment_len_max: [512, 8192, 262_144, 0xff_ffff][usize::from(choice >> 2 & 3)],
        inline_len_max: if choice & 0x10 == 0 { 8192 } else { 1024 },
    };
    let mut target = target::logged_in();
    let mut initiator = initiator::logged_in();
    for direction in [Direction::Read, Direction::Write] {
        initiator.submit(&[0x88; 16], direction, 2048, vec![0; 2048]);
        while initiator.transmit().is_some() {}
    }
    let mut stream = input.bytes(usize::MAX);
    while let Some(total_len) = check_frame(stream, &limits, &mut target, &mut initiator) {
        let Some(rest) = stream.get(total_len..) else {
            break;
        };
        stream = rest;
    }
    target.finish();
    initiator.finish();
}

/// Checks what stands in front of `stream`; gives the PDU's length if there is one.
fn check_frame(
    stream: &[u8],
    limits: &FrameLimits,
    target: &mut TargetSide,
    initiator: &mut InitiatorSide,
) -> Option<usize> {
    let found = frame(stream, limits);
    let Some(bhs) = stream.first_chunk::<48>() else {
        assert_eq!(found, Ok(None), "no frame without 48 bytes");
        return None;
    };
    assert_eq!(frame(bhs, limits), found, "the header alone says it all");
    check_header(bhs);
    let (ahs_len, len) = (usize::from(bhs[4]) * 4, wire::length(bhs));
    let payload = matches!(wire::opcode(bhs), 0x01 | 0x05 | 0x25);
    let most = match payload {
        true => limits.data_segment_len_max,
        false => limits.data_segment_len_max.min(limits.inline_len_max),
    };
    let pdu = match found {
        Ok(pdu) => pdu.expect("48 bytes are a frame"),
        Err(Error::AhsTooLong { .. }) => {
            assert!(ahs_len > AHS_LEN_MAX);
            return None;
        }
        Err(error) => {
            assert!(matches!(error, Error::DataSegmentTooLong { .. }) && len > most);
            return None;
        }
    };
    assert!(ahs_len <= AHS_LEN_MAX && len <= most);
    let header_digest_len = if limits.digests.header { 4 } else { 0 };
    let padded = len.next_multiple_of(4) as usize;
    let digested = limits.digests.data && len > 0;
    assert_eq!(
        (pdu.header_len, pdu.ahs()),
        (48 + ahs_len, 48..48 + ahs_len)
    );
    assert_eq!(pdu.data_offset, pdu.header_len + header_digest_len);
    assert_eq!(pdu.data(), pdu.data_offset..pdu.data_offset + len as usize);
    assert_eq!(
        pdu.data_digest_offset,
        digested.then_some(pdu.data_offset + padded)
    );
    let digest_len = if digested { 4 } else { 0 };
    assert_eq!(pdu.total_len, pdu.data_offset + padded + digest_len);
    assert_eq!(pdu.payload, payload);
    if stream.len() < pdu.data_offset {
        return None;
    }
    if limits.digests.header {
        check_header_digest(&pdu, &stream[..pdu.data_offset]);
    }
    let data = match stream.get(pdu.data()) {
        Some(data) => RxData::Inline(data),
        None => RxData::Length(len),
    };
    let ahs = &stream[pdu.ahs()];
    target.receive(bhs, ahs, data);
    target.follow_events();
    if let Some(Seen::Event(TargetEvent::Command(request))) = target.log.last() {
        let (extended, read_len) = read_ahs(ahs);
        assert_eq!(request.cdb[16..], *extended, "the extended CDB");
        if request.direction == Direction::Bidirectional {
            assert_eq!(request.read_len, read_len);
        }
    }
    target.log.clear();
    initiator.receive(bhs, ahs, data);
    initiator.follow_events();
    while target.transmit().is_some() {}
    while initiator.transmit().is_some() {}
    Some(pdu.total_len)
}

/// A header digest that is right is taken, and one that is not is not.
fn check_header_digest(pdu: &iscsi::frame::Frame, headers: &[u8]) {
    let (header, digest) = headers.split_at(pdu.header_len);
    let mut right = DataDigest::default();
    right.update(header);
    let right = right.finish();
    assert_eq!(pdu.verify_header(headers).is_ok(), digest == right);
    let mut mended = [header, &right[..]].concat();
    assert_eq!(pdu.verify_header(&mended), Ok(()));
    mended[pdu.header_len / 2] ^= 0x10;
    assert!(
        pdu.verify_header(&mended).is_err(),
        "a bit flipped unnoticed"
    );
}

/// Additional headers as RFC 7143 §11.2.2 has them: the extended CDB and the read length.
fn read_ahs(ahs: &[u8]) -> (&[u8], u32) {
    let (mut extended, mut read_len, mut at): (&[u8], u32, usize) = (&[], 0, 0);
    while at + 4 <= ahs.len() {
        let len = usize::from(u16::from_be_bytes([ahs[at], ahs[at + 1]]));
        // AHSLength counts from the byte after the type.
        let body = &ahs[at + 4..at + 3 + len];
        match ahs[at + 2] & 0x3f {
            1 => extended = body,
            2 => read_len = u32::from_be_bytes(body.try_into().expect("four bytes")),
            kind => panic!("an additional header of type {kind} was taken"),
        }
        at += (3 + len).next_multiple_of(4);
    }
    (extended, read_len)
}

/// Each header is read by the role that its opcode belongs to, in place and without loss.
fn check_header(bhs: &[u8; 48]) {
    let request = match RequestPdu::parse(bhs) {
        Ok(RequestPdu::NopOut(pdu)) => Some(pdu.to_bytes()),
        Ok(RequestPdu::ScsiCommand(pdu)) => {
            assert_eq!(pdu.cdb, bhs[32..]);
            assert_eq!(pdu.expected_data_transfer_length.get(), wire::word(bhs, 20));
            Some(pdu.to_bytes())
        }
        Ok(RequestPdu::TaskManagement(pdu)) => Some(pdu.to_bytes()),
        Ok(RequestPdu::Login(pdu)) => Some(pdu.to_bytes()),
        Ok(RequestPdu::Text(pdu)) => Some(pdu.to_bytes()),
        Ok(RequestPdu::DataOut(pdu)) => {
            assert_eq!(pdu.buffer_offset.get(), wire::word(bhs, 40));
            Some(pdu.to_bytes())
        }
        Ok(RequestPdu::Logout(pdu)) => Some(pdu.to_bytes()),
        Ok(RequestPdu::Snack) => Some(*bhs),
        Err(_) => None,
    };
    let response = match ResponsePdu::parse(bhs) {
        Ok(ResponsePdu::NopIn(pdu)) => Some(pdu.to_bytes()),
        Ok(ResponsePdu::ScsiResponse(pdu)) => Some(pdu.to_bytes()),
        Ok(ResponsePdu::TaskManagement(pdu)) => Some(pdu.to_bytes()),
        Ok(ResponsePdu::Login(pdu)) => Some(pdu.to_bytes()),
        Ok(ResponsePdu::Text(pdu)) => Some(pdu.to_bytes()),
        Ok(ResponsePdu::DataIn(pdu)) => Some(pdu.to_bytes()),
        Ok(ResponsePdu::Logout(pdu)) => Some(pdu.to_bytes()),
        Ok(ResponsePdu::R2t(pdu)) => {
            assert_eq!(pdu.desired_data_transfer_length.get(), wire::word(bhs, 44));
            Some(pdu.to_bytes())
        }
        Ok(ResponsePdu::Async(pdu)) => Some(pdu.to_bytes()),
        Ok(ResponsePdu::Reject(pdu)) => Some(pdu.to_bytes()),
        Err(_) => None,
    };
    let is_request = matches!(wire::opcode(bhs), 0x00..=0x06 | 0x10);
    let is_response = matches!(wire::opcode(bhs), 0x20..=0x26 | 0x31 | 0x32 | 0x3f);
    assert_eq!(request, is_request.then_some(*bhs));
    assert_eq!(response, is_response.then_some(*bhs));
}
