//! A scripted target that does what a test wants, including what no target should do. It is the one that the `iscsi`
//! leaf's unit tests use, but over real sockets, on a lane in its own thread.

use crate::initiator::on_lane;
use engine::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use volume::foreign::{Claims, Foreign, Group, Instead};

/// A running one; it runs until the test program ends.
#[derive(Debug)]
pub struct ForeignTarget {
    port: u16,
    hostile: Arc<AtomicBool>,
}

impl ForeignTarget {
    /// Serves the disk that `make` changes. While it is [hostile](ForeignTarget::be_hostile),
    /// commands end as `instead` says.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn serve(
        claims: Claims,
        make: impl FnOnce(&Foreign) + Send + 'static,
        instead: Instead,
    ) -> ForeignTarget {
        let hostile = Arc::new(AtomicBool::new(false));
        let asked = hostile.clone();
        let choose = move |_: &[u8]| asked.load(Ordering::Relaxed).then(|| instead.clone());
        ForeignTarget {
            port: started(claims, make, choose),
            hostile,
        }
    }

    /// Serves a disk of this length that has no persistent reservations.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn serve_without_reservations(len_bytes: u64) -> ForeignTarget {
        const PERSISTENT_RESERVE: [u8; 2] = [0x5E, 0x5F];
        const INVALID_COMMAND_OPERATION_CODE: [u8; 3] = [0x05, 0x20, 0];
        let make = move |foreign: &Foreign| foreign.len_blocks.set(len_bytes / 512);
        let choose = |cdb: &[u8]| {
            let is_theirs = PERSISTENT_RESERVE.contains(&cdb[0]);
            is_theirs.then_some(Instead::Sense(INVALID_COMMAND_OPERATION_CODE))
        };
        ForeignTarget {
            port: started(Claims::default(), make, choose),
            hostile: Arc::default(),
        }
    }

    /// The URL of its disk.
    pub fn url(&self) -> String {
        format!(
            "iscsi://127.0.0.1:{}/iqn.2026-11.example:foreign/0",
            self.port
        )
    }

    /// Switches hostile behaviour on or off.
    pub fn be_hostile(&self, hostile: bool) {
        self.hostile.store(hostile, Ordering::Relaxed);
    }
}

/// Starts one that answers as `choose` says; returns its port.
fn started(
    claims: Claims,
    make: impl FnOnce(&Foreign) + Send + 'static,
    choose: impl FnMut(&[u8]) -> Option<Instead> + Send + 'static,
) -> u16 {
    let (ready, port) = mpsc::channel();
    std::thread::spawn(move || {
        on_lane(async {
            let foreign = Rc::new(Foreign::new(claims));
            make(&foreign);
            foreign.answer(choose);
            let listener = TcpListener::bind(([127, 0, 0, 1], 0).into());
            let listener = listener.expect("a free port");
            let port = listener.local_addr().port();
            foreign.serve(listener, Group(1));
            ready.send(port).expect("the test waits for it");
            std::future::pending::<()>().await;
        });
    });
    port.recv().expect("it has a port")
}
