//! The floor: what TCP alone costs for the same bytes. The server answers requests of one length with replies
//! of another and does nothing else; the client keeps as many requests in flight as the load has. Both use
//! plain blocking calls, each as large as the socket allows. At depth 1 both poll instead, so that the round
//! trip contains no sleep.

use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use super::Case;
use crate::{
    Error, Result,
    load::{Done, Operation},
    programs::own_command,
};

/// Length of an iSCSI header, in bytes.
const HEADER_BYTES: usize = 48;
const BUFFER_BYTES: usize = 256 << 10;

/// Serves the floor's protocol on a free port, which it prints, until standard input ends.
///
/// # Errors
/// When nothing can be bound.
pub fn serve() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || drop(answer(stream)));
        }
    });
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}

/// Lengths of request and reply in bytes, and whether to poll; sent first on each connection.
#[derive(Clone, Copy)]
struct Terms {
    request: usize,
    reply: usize,
    poll: bool,
}

impl Terms {
    fn of(case: Case) -> Terms {
        let (mut request, mut reply) = (HEADER_BYTES, HEADER_BYTES);
        match case.load.operation {
            Operation::Read => reply += case.load.size_bytes,
            Operation::Write => request += case.load.size_bytes,
        }
        Terms {
            request,
            reply,
            poll: case.load.depth == 1,
        }
    }

    fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[0..4].copy_from_slice(&(self.request as u32).to_be_bytes());
        bytes[4..8].copy_from_slice(&(self.reply as u32).to_be_bytes());
        bytes[8] = self.poll.into();
        bytes
    }

    fn decode(bytes: [u8; 12]) -> Terms {
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
        };
        Terms {
            request: word(0).max(1),
            reply: word(4),
            poll: bytes[8] != 0,
        }
    }
}

/// A socket that either sleeps or polls when it reads and writes.
struct Pipe {
    stream: TcpStream,
}

impl Pipe {
    fn new(stream: TcpStream, poll: bool) -> io::Result<Pipe> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(poll)?;
        Ok(Pipe { stream })
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buf) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                result => return result,
            }
        }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                result => bytes = &bytes[result?..],
            }
        }
        Ok(())
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut terms = [0; 12];
    stream.read_exact(&mut terms)?;
    let terms = Terms::decode(terms);
    let mut pipe = Pipe::new(stream, terms.poll)?;
    let mut buf = vec![0; BUFFER_BYTES];
    let replies = vec![0; terms.reply * (BUFFER_BYTES / terms.request).max(1)];
    let mut pending = 0;
    loop {
        match pipe.read(&mut buf)? {
            0 => return Ok(()),
            n => pending += n,
        }
        let requests = pending / terms.request;
        pending %= terms.request;
        for batch in batches(requests, replies.len() / terms.reply) {
            pipe.write_all(&replies[..batch * terms.reply])?;
        }
    }
}

/// Splits `count` into pieces of at most `longest`.
fn batches(count: usize, longest: usize) -> impl Iterator<Item = usize> {
    (0..count)
        .step_by(longest.max(1))
        .map(move |start| longest.min(count - start))
}

/// The server, running in its own process.
pub(super) struct Floor {
    child: Child,
    address: SocketAddr,
}

impl Floor {
    pub(super) fn start(binary: &Path) -> Result<Floor> {
        let what = "starting the floor's server";
        let mut child = own_command(binary)
            .args(["lab", "floor"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Error::bench_io(what, e))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(|e| Error::bench_io(what, e))?;
        }
        let address = line.trim().parse();
        let address = address.map_err(|_| Error::bench(format!("{what}: it said {line:?}")))?;
        Ok(Floor { child, address })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Runs one case.
    pub(super) fn run(&self, case: Case, duration: Duration) -> Result<Done> {
        let address = self.address;
        let began = Instant::now();
        let clients: Vec<_> = (0..case.sessions)
            .map(|_| thread::spawn(move || exchange(address, case, duration)))
            .collect();
        let mut latency_ns =
            Histogram::new_with_bounds(100, 60_000_000_000, 2).expect("valid bounds");
        for client in clients {
            let result = client
                .join()
                .map_err(|_| Error::bench("the floor's client panicked"))?;
            latency_ns += result.map_err(|e| Error::bench_io("the floor", e))?;
        }
        Ok(Done::of_latencies(began.elapsed(), latency_ns))
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps the case's depth of requests in flight on one connection.
fn exchange(address: SocketAddr, case: Case, duration: Duration) -> io::Result<Histogram<u64>> {
    let terms = Terms::of(case);
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&terms.encode())?;
    let mut pipe = Pipe::new(stream, terms.poll)?;
    let mut latency_ns = Histogram::new_with_bounds(100, 60_000_000_000, 2).expect("valid bounds");
    let mut buf = vec![0; BUFFER_BYTES];
    let requests = vec![0; terms.request * case.load.depth];
    let mut sent: VecDeque<Instant> = VecDeque::new();
    let deadline = Instant::now() + duration;
    let (mut free, mut pending) = (case.load.depth, 0);
    loop {
        let now = Instant::now();
        if now < deadline && free > 0 {
            pipe.write_all(&requests[..free * terms.request])?;
            sent.extend(std::iter::repeat_n(now, free));
            free = 0;
        }
        if sent.is_empty() {
            return Ok(latency_ns);
        }
        match pipe.read(&mut buf)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => pending += n,
        }
        let now = Instant::now();
        for _ in 0..pending / terms.reply {
            let began = sent.pop_front().unwrap_or(now);
            latency_ns.saturating_record((now - began).as_nanos() as u64);
            free += 1;
        }
        pending %= terms.reply;
    }
}
