//! What only the simulation can do: power cuts, partitions, injected errors, and replaying a run
//! from its seed.

mod determinism;
mod disks;
mod machines;
mod networks;
mod stores;

use engine::{
    Buf, Gather,
    fs::{File, OpenOptions, SharedFile},
    net::TcpStream,
    sim::Random,
};

/// `n` random bytes, determined by `salt`.
fn pattern(n: usize, salt: u64) -> Buf {
    let mut buf = Buf::new(n);
    Random::new(salt).fill(&mut buf);
    buf
}

fn open(path: &str) -> File {
    let options = OpenOptions {
        write: true,
        create: true,
        ..OpenOptions::default()
    };
    SharedFile::open(path.as_ref(), &options)
        .expect("a file")
        .on_lane()
}

async fn send(stream: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let mut gather = Gather::new();
    gather.push_bytes(bytes);
    stream.send_all(gather).await.0
}
