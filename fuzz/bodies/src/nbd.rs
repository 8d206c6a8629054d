//! The NBD server's machine: a handshake and a transmission in the client's choice of options, requests and nonsense.
//! Each input runs twice, its bytes whole and cut anywhere; both times the same becomes of it. What is handed over lies
//! within the export, and everything that is told has an end.

use nbd::{
    BlockSizes, Export, NbdCommand, NbdEvent, OPTIONS_MAX, RECEIVE_MAX_BYTES, ReceiveOutcome,
    Server,
};

use crate::input::{Input, Sizes};

const LEN_BYTES: u64 = 1 << 20;
const PAYLOAD_MAX_BYTES: u32 = 64 << 10;
/// What the driver of this machine throws away at most in one go.
const SKIP_MAX_BYTES: u32 = 32 << 20;

/// Choices of the export, then messages.
pub fn nbd(input: &[u8]) {
    let mut input = Input::new(input);
    let choice = input.u8();
    let cuts = u64::from(input.u16());
    let export = Export {
        name: "db".into(),
        len_bytes: LEN_BYTES,
        block: BlockSizes {
            minimum: if choice & 1 == 0 { 512 } else { 4096 },
            preferred: 4096,
            payload_max: PAYLOAD_MAX_BYTES,
        },
        is_read_only: choice & 2 != 0,
        can_trim: choice & 4 != 0,
    };
    let has_tls = choice & 8 != 0;
    let stream = stream(&mut input);
    let whole = play(&export, has_tls, &stream, |_| stream.len());
    let mut sizes = Sizes::new(cuts);
    let cut = play(&export, has_tls, &stream, |arrived| {
        arrived + sizes.next(60)
    });
    assert_eq!(whole, cut, "it matters how the bytes come");
}

/// What the client sends.
fn stream(input: &mut Input<'_>) -> Vec<u8> {
    let mut stream = vec![0, 0, 0, input.u8() & 7];
    while !input.is_empty() {
        let begin = stream.len();
        match input.u8() {
            kind @ 0..=0x3f => option(input, u32::from(kind % 13), &mut stream),
            kind @ 0x40..=0xdf => request(input, u16::from(kind % 9), &mut stream),
            _ => stream.extend_from_slice(input.bytes(16)),
        }
        if input.u8() >= 0xf0 {
            input.harm(&mut stream[begin..]);
        }
    }
    stream
}

fn option(input: &mut Input<'_>, option: u32, stream: &mut Vec<u8>) {
    let name: &[u8] = match input.u8() {
        0..=0x7f => b"",
        0x80..=0xdf => b"db",
        _ => input.bytes(9),
    };
    let mut data = Vec::new();
    let string = |text: &[u8], data: &mut Vec<u8>| {
        data.extend((text.len() as u32).to_be_bytes());
        data.extend_from_slice(text);
    };
    match option {
        1 => data.extend_from_slice(name),
        6 | 7 => {
            string(name, &mut data);
            let count = input.below(5) as u16;
            data.extend(count.to_be_bytes());
            (0..count).for_each(|_| data.extend([0, input.u8() & 7]));
        }
        9 | 10 => {
            string(name, &mut data);
            let count = input.below(5) as u32;
            data.extend(count.to_be_bytes());
            for _ in 0..count {
                let queries = [&b"base:allocation"[..], b"base:", b"x:"];
                string(queries[input.below(3)], &mut data);
            }
        }
        _ => {
            let len = usize::from(input.u8() & 15);
            data.extend_from_slice(input.bytes(len));
        }
    }
    let len = match input.u8() {
        0..=0xef => data.len() as u32,
        _ => input.length(),
    };
    stream.extend_from_slice(b"IHAVEOPT");
    stream.extend(option.to_be_bytes());
    stream.extend(len.to_be_bytes());
    stream.extend(data);
}

fn request(input: &mut Input<'_>, kind: u16, stream: &mut Vec<u8>) {
    let flags = u16::from(input.u8() & 31);
    let at = u64::from(input.u16()) * 512;
    let len = input.length();
    stream.extend([0x25, 0x60, 0x95, 0x13]);
    stream.extend(flags.to_be_bytes());
    stream.extend(kind.to_be_bytes());
    stream.extend(u64::from(input.u8()).to_be_bytes());
    stream.extend(at.to_be_bytes());
    stream.extend(len.to_be_bytes());
    if kind == 1 {
        let data = len.min(8192) as usize;
        stream.resize(stream.len() + data, 0xee);
    }
}

/// Gives the machine `stream`, of which `until(n)` says how much has come when `n` bytes were not enough; gives what
/// became of it.
fn play(
    export: &Export,
    has_tls: bool,
    stream: &[u8],
    mut until: impl FnMut(usize) -> usize,
) -> Vec<String> {
    let mut server = Server::new(export.clone(), has_tls);
    let mut said = Vec::new();
    let (mut taken, mut arrived, mut skip, mut sent) = (0, 0, 0, 0);
    loop {
        while let Some(event) = server.poll_event() {
            match event {
                NbdEvent::Skip(len) => {
                    assert!(len <= SKIP_MAX_BYTES);
                    skip += len as usize;
                }
                NbdEvent::Request(request) => {
                    let command = request.command();
                    check(export, command);
                    said.push(format!("{command:?}"));
                    if let NbdCommand::Write { len, .. } = command {
                        skip += len as usize;
                    }
                }
                NbdEvent::Send(bytes) => {
                    sent += usize::from(!server.is_in_transmission());
                    assert!(bytes.len() < 1024 && sent < OPTIONS_MAX as usize + 2);
                    said.push(format!("{bytes:02x?}"));
                }
                other => said.push(format!("{other:?}")),
            }
        }
        let skipped = skip.min(arrived - taken);
        (skip, taken) = (skip - skipped, taken + skipped);
        match server.receive(&stream[taken..arrived]) {
            Ok(ReceiveOutcome::Took(len)) if len > 0 => taken += len,
            Ok(received) => {
                if let ReceiveOutcome::Needs(len) = received {
                    assert!(len > arrived - taken && len <= RECEIVE_MAX_BYTES);
                }
                if arrived == stream.len() {
                    return said;
                }
                arrived = until(arrived).min(stream.len());
            }
            Err(violation) => {
                said.push(violation.to_string());
                return said;
            }
        }
    }
}

/// What is handed over can be done.
fn check(export: &Export, command: NbdCommand) {
    let (at, len, changes) = match command {
        NbdCommand::Flush => return,
        NbdCommand::Read { at, len } => {
            assert!(len <= PAYLOAD_MAX_BYTES);
            (at, len, false)
        }
        NbdCommand::BlockStatus { at, len, .. } => (at, len, false),
        NbdCommand::Write { at, len, .. } => {
            assert!(len <= PAYLOAD_MAX_BYTES);
            (at, len, true)
        }
        NbdCommand::Trim { at, len, .. } => {
            assert!(export.can_trim);
            (at, len, true)
        }
        NbdCommand::WriteZeroes { at, len, .. } => (at, len, true),
    };
    let block = u64::from(export.block.minimum);
    assert!(len > 0 && at % block == 0 && u64::from(len) % block == 0);
    assert!(at + u64::from(len) <= export.len_bytes);
    assert!(!(changes && export.is_read_only));
}
