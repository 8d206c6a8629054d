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
        let (ready, port) = mpsc::channel();
        std::thread::spawn(move || {
            on_lane(async {
                let foreign = Rc::new(Foreign::new(claims));
                make(&foreign);
                foreign.answer(move |_| asked.load(Ordering::Relaxed).then(|| instead.clone()));
                let listener = TcpListener::bind(([127, 0, 0, 1], 0).into());
                let listener = listener.expect("a free port");
                let port = listener.local_addr().port();
                foreign.serve(listener, Group(1));
                ready.send(port).expect("the test waits for it");
                std::future::pending::<()>().await;
            });
        });
        ForeignTarget {
            port: port.recv().expect("it has a port"),
            hostile,
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
