//! A mirror on the lane that is measured, whose copies are compared.

use std::{path::Path, sync::mpsc::TryRecvError};

use engine::{Duration, LaneHandle, store, time};
use uuid::Uuid;
use volume::{
    MirrorHandle,
    claim::Owner,
    graph::{Graph, NewStripe, Tree},
};

const HOME: &str = "/srv";

/// An open mirror of two files of 2 MiB of data.
pub(crate) struct Mirror {
    tree: Tree,
    graph: Graph,
}

impl Mirror {
    /// Makes it and opens it on the current lane, which `lane` reaches.
    pub(crate) async fn open(lane: LaneHandle) -> Mirror {
        let copy = |name| {
            format!(
                "{{ file = {{ path = \"{name}\", size = \"3MiB\", cache = \"write-through\" }} }}"
            )
        };
        let text = format!("db.mirror = {{ of = [{}, {}] }}", copy("a"), copy("b"));
        store::make_directory(Path::new(HOME), true).expect("room");
        let graph = || {
            let volumes = toml::from_str(&text).expect("it parses");
            let mut graph = Graph::new(volumes, Path::new(HOME)).expect("it is valid");
            graph.set_state_directory(Path::new(HOME));
            graph.set_owner(Owner::new(Uuid::from_u128(1), Uuid::nil(), "the machine"));
            graph
        };
        let new = NewStripe {
            uuid: Uuid::from_u128(2),
            created_unix_s: 0,
            force: false,
            from: None,
        };
        let mut made = graph();
        made.create_stripe("db", &lane, &new)
            .await
            .expect("blank files");
        made.close().await;
        let mut graph = graph();
        let tree = graph.open("db", &lane).await.expect("it was made");
        Mirror { tree, graph }
    }

    /// Compares all of its copies.
    pub(crate) async fn compare(&self) {
        let handle = self.graph.handles().get::<MirrorHandle>("db/mirror");
        let compared = handle.expect("it is open").compare(0);
        let compared = loop {
            match compared.try_recv() {
                Err(TryRecvError::Empty) => time::sleep(Duration::from_millis(10)).await,
                answer => break answer.expect("it goes on").expect("both copies are there"),
            }
        };
        assert_eq!(compared.next_bytes, compared.len_bytes);
        assert!(compared.differ.is_empty());
    }

    /// Ends it.
    pub(crate) async fn close(self) {
        let Mirror { tree, mut graph } = self;
        drop(tree);
        graph.close().await;
    }
}
