//! A whole world in one thread: machines with lanes, disks and a network, driven by a seed and by a
//! virtual clock that jumps to the next event.
//!
//! A [`World`] drives real [`crate::Lane`]s on a simulated reactor. They run production code:
//! [`crate::net`], [`crate::fs`], [`crate::time`] and [`crate::task`] cannot tell the difference.
//! One seed decides which lane and which of its tasks runs next, how long a packet or a write
//! takes, where transfers are split and what a power cut leaves. So a failure can be replayed by
//! its seed ([`seeds`] prints the command).
//!
//! ```
//! use engine::{net::{TcpListener, TcpStream}, sim::World};
//!
//! let world = World::new(7);
//! let (server, client) = (world.host("server"), world.host("client"));
//! let addr = std::net::SocketAddr::new(server.ip(), 3260);
//! server.spawn(async move {
//!     let listener = TcpListener::bind(addr).unwrap();
//!     let _stream = listener.accept().await.unwrap();
//! });
//! world.block_on(&client, async move {
//!     let stream = loop {
//!         // The server may not listen yet: a refused connection, as in life.
//!         match TcpStream::connect(addr).await {
//!             Ok(stream) => break stream,
//!             Err(_) => engine::time::sleep(std::time::Duration::from_millis(1)).await,
//!         }
//!     };
//!     assert_eq!(stream.addresses().unwrap().1, addr);
//! });
//! ```

mod config;
mod connection;
mod disk;
mod driver;
mod files;
mod host;
mod keys;
mod net;
mod occurred;
mod random;
mod reactor;
mod seeds;
mod socket;
mod state;
mod store;
mod watchdog;
mod world;

pub use config::{DiskConfig, NetConfig, WorldConfig};
pub use connection::TrafficDirection;
pub use disk::{FaultKind, InjectedFault};
pub use host::Host;
pub use occurred::Occurred;
pub use random::Random;
pub use seeds::{replay, seeds};
pub use world::World;
