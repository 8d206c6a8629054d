//! Children that did not open with their parent, which goes on without them: they are looked for again, and take their place
//! when they open.

use std::sync::{Arc, Weak};

use engine::{Duration, Instant, LaneHandle, time};

use super::{Graph, child_paths, volume_of};
use crate::{
    kinds::{Node, Volumes},
    part::{Part, is_within},
};

/// Between two looks at one that is missing, at first and at most: each may begin sessions with the disks that it is made of.
const LOOK_FIRST: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(30);

/// One of them.
#[derive(Debug)]
pub(super) struct MissingChild {
    path: String,
    lanes: Vec<LaneHandle>,
    /// What stands in for it, as long as its parent is open.
    part: Weak<Part>,
    /// When it is looked for again, and how long after the last time.
    next: Instant,
    pause: Duration,
}

impl MissingChild {
    /// The child at `path`, which would live on `lanes`, and in whose place `part` is.
    pub(super) fn new(path: String, lanes: Vec<LaneHandle>, part: &Arc<Part>) -> MissingChild {
        MissingChild {
            path,
            lanes,
            part: Arc::downgrade(part),
            next: time::now() + LOOK_FIRST,
            pause: LOOK_FIRST,
        }
    }

    /// Whether it is still wanted, and is not there yet: nothing stands in for what another disk has the place of.
    fn is_missing(&self) -> bool {
        let part = self.part.upgrade();
        let vacancy = part.as_ref().and_then(|part| part.vacancy());
        vacancy.is_some_and(|vacancy| vacancy.part().is_none())
    }
}

impl Graph {
    /// When a child is looked for that did not open with its parent, at the earliest; `None`: there is none.
    pub fn looks_for_missing_at(&self) -> Option<Instant> {
        let missing = self.missing.iter();
        let missing = missing.filter(|child| child.is_missing());
        missing.map(|child| child.next).min()
    }

    /// Looks for missing children again soon: what kept them away may be mended.
    pub(super) fn look_soon(&mut self) {
        for child in &mut self.missing {
            (child.next, child.pause) = (time::now() + LOOK_FIRST, LOOK_FIRST);
        }
    }

    /// Whether the node at `path` is, or is part of, a child that did not open with its parent: it will be opened as it is
    /// described then.
    pub(super) fn is_missing(&self, path: &str) -> bool {
        let volume = volume_of(path);
        let open = self.named.get(volume);
        let is_open = open.is_some_and(|part| part.strong_count() > 0);
        let mut missing = self.missing.iter().filter(|child| child.is_missing());
        missing.any(|child| {
            let name = node_at(&self.volumes, &child.path).and_then(Node::name);
            let is_named = name.is_some_and(|name| self.volumes.parts(name).contains(volume));
            is_within(path, &child.path) || is_named && !is_open
        })
    }

    /// Looks for the children that did not open with their parents, as far as it is time for that; those that open now take
    /// their places. Returns whether there are any.
    pub async fn look_for_missing(&mut self) -> bool {
        self.missing.retain(MissingChild::is_missing);
        let mut is_any = false;
        for at in 0..self.missing.len() {
            let child = &mut self.missing[at];
            if time::now() < child.next {
                continue;
            }
            child.next = time::now() + child.pause;
            child.pause = (child.pause * 2).min(LOOK_MAX);
            let (path, lanes, part) = (child.path.clone(), child.lanes.clone(), child.part.clone());
            // As it is described now.
            let Some(node) = node_at(&self.volumes, &path).cloned() else {
                continue;
            };
            let before = (self.context.may_make, self.context.may_wait);
            (self.context.may_make, self.context.may_wait) = (false, false);
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            self.context.former_owners = self.context.handles.get(parent).cloned();
            let opened = self.open_below(&node, &path, &lanes, true).await;
            self.context.former_owners = None;
            (self.context.may_make, self.context.may_wait) = before;
            let Some(part) = part.upgrade() else { continue };
            let vacancy = part.vacancy().expect("it stands in for the child");
            let volume = path;
            match opened {
                Ok(part) => {
                    tracing::info!(volume, "it is there now");
                    vacancy.fill(part);
                    is_any = true;
                }
                Err(error) if vacancy.stays(&error) => {
                    tracing::warn!(volume, %error, "it is not there yet");
                }
                Err(_) => {}
            }
        }
        is_any
    }
}

/// The node at `path`, without those that are described under a name of their own.
fn node_at<'a>(volumes: &'a Volumes, path: &str) -> Option<&'a Node> {
    let (mut node, mut at) = (volumes.0.get(volume_of(path))?, volume_of(path).to_owned());
    while at != path {
        let kind = node.inline()?;
        let below = format!("{at}/{}", kind.name());
        let mut children = child_paths(kind, &below);
        (node, at) = children.find(|(_, child)| is_within(path, child))?;
    }
    Some(node)
}
