//! Requests as the kernel might send them: bytes that are right but for their content, that are cut
//! anywhere, and that are nothing. What is taken for a request is one whatever its cut, asks for nothing
//! beyond the file, and its answer says how long it is.

use front_fuse::{
    FileProperties, FileTimes, FuseOperation, FuseReply, FuseRequest, FuseWork, HEAD_BYTES,
    Handling,
};

use crate::input::Input;

const LEN_BYTES: u64 = 1 << 20;
const IO_MAX_BYTES: u32 = 64 << 10;

/// A choice of session, then requests: how each is made, and its bytes.
pub fn fuse(input: &[u8]) {
    let mut input = Input::new(input);
    let choice = input.u8();
    let session = FileProperties {
        read_only: choice & 1 != 0,
        takes_discards: choice & 2 == 0,
        io_max_bytes: IO_MAX_BYTES,
        max_background: 64,
        mode: 0o600,
        uid: 0,
        gid: 0,
    };
    while !input.is_empty() {
        let opcode = u32::from(input.u8());
        let body_len = usize::from(input.u8());
        let cut = usize::from(input.u8());
        let unique = u64::from(input.u32());
        let body = input.bytes(body_len);
        let mut bytes = vec![0; 40];
        let len = 40 + body.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
        bytes.extend_from_slice(body);
        let request = check(&session, &bytes, cut);
        if let Some(request) = request {
            assert_eq!(request.unique, unique);
        }
        // Without the header that fits.
        check(&session, body, cut);
    }
}

/// Reads a request out of `bytes`, and looks what becomes of it.
fn check(session: &FileProperties, bytes: &[u8], cut: usize) -> Option<FuseRequest> {
    let parse = |at: usize| {
        let (head, rest) = bytes.split_at(at.min(bytes.len()));
        FuseRequest::parse(head, rest)
    };
    let request = parse(HEAD_BYTES);
    match (&request, parse(cut)) {
        (Ok(request), Ok(other)) => assert_eq!(*request, other),
        // The data of a write have one place only.
        (Ok(request), Err(_)) => assert!(matches!(request.operation, FuseOperation::Write { .. })),
        (Err(malformed), Err(other)) => assert_eq!(malformed.unique, other.unique),
        (Err(_), Ok(other)) => assert!(matches!(other.operation, FuseOperation::Write { .. })),
    }
    let request = request.ok()?;
    for len_bytes in [LEN_BYTES, 0, u64::MAX] {
        match session.step(&request.operation, len_bytes) {
            Handling::Reply(reply) => check_reply(&reply, request.unique),
            Handling::Attributes(_) => {
                let reply = session.attributes(len_bytes, FileTimes::default());
                check_reply(&reply, request.unique);
                check_length(&request.operation, len_bytes);
            }
            Handling::Work(work) => check_work(session, work, len_bytes),
            Handling::Nothing => assert_eq!(request.operation, FuseOperation::Forget),
        }
    }
    Some(request)
}

/// What changes the length is not answered with success.
fn check_length(operation: &FuseOperation, len_bytes: u64) {
    if let FuseOperation::SetAttributes(set) = operation {
        assert!(set.size.is_none_or(|size| size == len_bytes));
    }
}

fn check_reply(reply: &FuseReply, unique: u64) {
    let bytes = reply.to_bytes(unique);
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let data = match reply {
        FuseReply::Data(len) => *len,
        _ => 0,
    };
    assert_eq!(word(0), bytes.len() as u32 + data);
    assert_eq!(bytes[8..16], unique.to_ne_bytes());
    let is_error = matches!(reply, FuseReply::Error(_));
    assert_eq!((word(4) as i32) < 0, is_error);
}

fn check_work(session: &FileProperties, work: FuseWork, len_bytes: u64) {
    let (at, len) = match work {
        FuseWork::Read { at, len } | FuseWork::Write { at, len, .. } => {
            assert!(len <= IO_MAX_BYTES);
            (at, len.into())
        }
        FuseWork::Zero { at, len, .. } => (at, len),
        FuseWork::Flush => return,
    };
    assert!(len > 0);
    assert!(at.checked_add(len).is_some_and(|end| end <= len_bytes));
    assert!(matches!(work, FuseWork::Read { .. }) || !session.read_only);
}
