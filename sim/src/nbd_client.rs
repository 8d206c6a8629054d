//! An NBD client for tests. It shares no code with the server, and neither times out nor recovers.

use std::{cell::RefCell, collections::BTreeMap, io, net::SocketAddr, rc::Rc};

use engine::{
    Gather,
    net::{FramedReader, TcpStream},
    spawn,
    sync::Notify,
};

/// NBD_CMD_READ
pub const READ: u16 = 0;
/// NBD_CMD_WRITE
pub const WRITE: u16 = 1;
/// NBD_CMD_DISC
pub const DISCONNECT: u16 = 2;
/// NBD_CMD_FLUSH
pub const FLUSH: u16 = 3;
/// NBD_CMD_TRIM
pub const TRIM: u16 = 4;
/// NBD_CMD_WRITE_ZEROES
pub const WRITE_ZEROES: u16 = 6;
/// NBD_CMD_FLAG_FUA
pub const FUA: u16 = 1;
/// NBD_EPERM
pub const PERMISSION: u32 = 1;
/// NBD_EIO
pub const IO: u32 = 5;
/// NBD_ESHUTDOWN
pub const SHUTDOWN: u32 = 108;
/// NBD_ENOSPC
pub const NO_SPACE: u32 = 28;

/// What a client sends first: that it knows the fixed newstyle, and no zeroes.
pub const FLAGS: [u8; 4] = [0, 0, 0, 3];

/// The outcome of a request: its data or its error. `None`: the connection ended first.
pub type Answer = Option<Result<Vec<u8>, u32>>;

/// A connection in the transmission phase.
pub struct NbdClient {
    stream: TcpStream,
    state: RefCell<State>,
    transmit: Notify,
    answered: Notify,
}

#[derive(Default)]
struct State {
    cookie: u64,
    outgoing: Vec<u8>,
    /// How much data a simple reply carries, by cookie.
    open: BTreeMap<u64, usize>,
    answers: BTreeMap<u64, Result<Vec<u8>, u32>>,
    is_over: bool,
}

/// Connects and reads the greeting.
pub async fn connect(addr: SocketAddr) -> io::Result<(TcpStream, FramedReader)> {
    let stream = TcpStream::connect(addr).await?;
    let mut reader = FramedReader::new(stream.clone(), 256 << 10);
    let greeting = take(&mut reader, 18).await?;
    assert_eq!(greeting, b"NBDMAGICIHAVEOPT\0\x03");
    Ok((stream, reader))
}

async fn take(reader: &mut FramedReader, len: usize) -> io::Result<Vec<u8>> {
    if !reader.fill(len).await? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let taken = reader.bytes()[..len].to_vec();
    reader.consume(len);
    Ok(taken)
}

/// Sends `bytes` as they are.
pub async fn send(stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut gather = Gather::new();
    gather.push_bytes(bytes);
    stream.send_all(gather).await.0
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Encodes an option of the handshake.
pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Encodes a request without its data.
pub fn request(kind: u16, flags: u16, cookie: u64, at: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(at.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

/// Goes through the handshake; with `is_structured` replies come in chunks.
pub async fn negotiate(
    stream: &TcpStream,
    reader: &mut FramedReader,
    is_structured: bool,
) -> io::Result<()> {
    send(stream, &FLAGS).await?;
    choose(stream, reader, is_structured).await
}

/// The rest of the handshake, once the [flags](FLAGS) are sent.
pub async fn choose(
    stream: &TcpStream,
    reader: &mut FramedReader,
    is_structured: bool,
) -> io::Result<()> {
    let options: &[(u32, &[u8])] = match is_structured {
        true => &[(8, &[]), (7, &[0; 6])],
        false => &[(7, &[0; 6])],
    };
    for (number_of, data) in options {
        send(stream, &option(*number_of, data)).await?;
        loop {
            let header = take(reader, 20).await?;
            take(reader, number(&header[16..]) as usize).await?;
            match number(&header[12..16]) {
                1 => break,
                3 => {}
                other => panic!("option {number_of} was answered with {other:#x}"),
            }
        }
    }
    Ok(())
}

impl NbdClient {
    /// Connects and enters the transmission phase.
    pub async fn start(addr: SocketAddr, is_structured: bool) -> io::Result<Rc<NbdClient>> {
        let (stream, mut reader) = connect(addr).await?;
        negotiate(&stream, &mut reader, is_structured).await?;
        let client = Rc::new(NbdClient {
            stream,
            state: RefCell::default(),
            transmit: Notify::new(),
            answered: Notify::new(),
        });
        let (receiver, sender) = (client.clone(), client.clone());
        spawn(async move {
            let _ = receiver.receive_all(&mut reader).await;
            receiver.state.borrow_mut().is_over = true;
            receiver.answered.notify();
            receiver.transmit.notify();
        });
        spawn(async move { sender.send_all().await });
        Ok(client)
    }

    /// Ends the connection at once.
    pub fn end(&self) {
        self.stream.shutdown();
    }

    /// Sends a request; returns the cookie that the answer will carry.
    pub fn submit(&self, (kind, flags): (u16, u16), (at, len): (u64, u32), data: &[u8]) -> u64 {
        let mut state = self.state.borrow_mut();
        state.cookie += 1;
        let cookie = state.cookie;
        let bytes = request(kind, flags, cookie, at, len);
        state.outgoing.extend(bytes);
        state.outgoing.extend(data);
        let data_len = if kind == READ { len as usize } else { 0 };
        state.open.insert(cookie, data_len);
        self.transmit.notify();
        cookie
    }

    /// Waits for an answer.
    pub async fn answer(&self, cookie: u64) -> Answer {
        self.answered
            .wait_for(|| {
                let mut state = self.state.borrow_mut();
                match state.answers.remove(&cookie) {
                    Some(answer) => Some(Some(answer)),
                    None => state.is_over.then_some(None),
                }
            })
            .await
    }

    /// Sends a request without data and waits for its answer.
    pub async fn ask(&self, kind: (u16, u16), at: u64, len: u32) -> Answer {
        let cookie = self.submit(kind, (at, len), &[]);
        self.answer(cookie).await
    }

    /// Writes, and waits for the answer.
    pub async fn write(&self, at: u64, data: &[u8], flags: u16) -> Answer {
        let cookie = self.submit((WRITE, flags), (at, data.len() as u32), data);
        self.answer(cookie).await
    }

    async fn send_all(&self) {
        loop {
            let bytes = self
                .transmit
                .wait_for(|| {
                    let mut state = self.state.borrow_mut();
                    let bytes = std::mem::take(&mut state.outgoing);
                    (state.is_over || !bytes.is_empty()).then_some(bytes)
                })
                .await;
            if bytes.is_empty() || send(&self.stream, &bytes).await.is_err() {
                return;
            }
        }
    }

    async fn receive_all(&self, reader: &mut FramedReader) -> io::Result<()> {
        loop {
            let head = take(reader, 4).await?;
            let (cookie, answer) = match number(&head) {
                0x6744_6698 => {
                    let rest = take(reader, 12).await?;
                    let (error, cookie) = (number(&rest[..4]) as u32, number(&rest[4..]));
                    let len = self.state.borrow().open.get(&cookie).copied();
                    let len = len.expect("a reply to what was asked");
                    match error {
                        0 => (cookie, Ok(take(reader, len).await?)),
                        error => (cookie, Err(error)),
                    }
                }
                0x668e_33ef => {
                    let rest = take(reader, 16).await?;
                    assert_eq!(rest[..2], [0, 1], "this server has one chunk for a reply");
                    let (kind, cookie) = (number(&rest[2..4]), number(&rest[4..12]));
                    let payload = take(reader, number(&rest[12..]) as usize).await?;
                    match kind {
                        1 => (cookie, Ok(payload[8..].to_vec())),
                        0x8001 => (cookie, Err(number(&payload[..4]) as u32)),
                        other => panic!("a chunk of type {other:#x}"),
                    }
                }
                other => panic!("a reply begins with {other:#x}"),
            };
            let mut state = self.state.borrow_mut();
            let was_open = state.open.remove(&cookie);
            assert!(was_open.is_some(), "a request is answered once: {cookie}");
            state.answers.insert(cookie, answer);
            self.answered.notify();
        }
    }
}
