//! What the system says about an open file and may say otherwise later: whether its I/O is direct, and whether it takes writes.
//! It is asked when the file is opened, on request (SIGHUP), when a write is refused, and before the next one is.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use engine::{blocking, fs::FileState};

use super::OpenFile;

impl OpenFile {
    /// Whether reads and writes exclude each other, because they go through the page cache.
    pub(super) fn excludes(&self) -> bool {
        self.excluding.load(Relaxed)
    }

    /// What the system says now about the open file. Blocks for as long as its file system takes.
    ///
    /// # Errors
    /// Any error the system reports.
    pub fn state_now(&self) -> io::Result<FileState> {
        self.backing.io.state_now()
    }

    /// Adopts what the system was `found` to say. Returns a message for people if that is a change.
    pub fn follow_state(&self, found: FileState) -> Option<String> {
        let shown = self.path.display();
        if !found.is_direct && !self.is_read_only && !self.excluding.swap(true, Relaxed) {
            tracing::warn!(file = %shown, "its file system no longer does direct I/O: requests that overlap wait for each other from now on");
        }
        if self.is_read_only || self.shape.read_only.is_on() == found.is_read_only {
            return None;
        }
        self.shape.read_only.set(found.is_read_only);
        self.announcer.tell();
        Some(match found.is_read_only {
            true => format!(
                "{shown} has become read-only: its disk is write-protected until it is writable again"
            ),
            false => format!("{shown} is writable again, and so is its disk"),
        })
    }

    /// Whether it is read-only by itself, which may have ended.
    pub(super) fn may_be_writable_again(&self) -> bool {
        self.shape.read_only.is_on() && !self.is_read_only
    }

    /// Finds out whether the file has become read-only, as a refused write may mean, or is writable again.
    pub(super) async fn look_again(self: &Arc<Self>) {
        let file = self.clone();
        let found = blocking::run(blocking::WorkKind::Looks, move || file.state_now()).await;
        if let Ok(Ok(found)) = found
            && let Some(message) = self.follow_state(found)
        {
            match found.is_read_only {
                true => tracing::error!("{message}"),
                false => tracing::info!("{message}"),
            }
        }
    }
}
