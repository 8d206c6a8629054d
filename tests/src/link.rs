//! A link that can be cut: a network namespace with a pair of virtual Ethernet ports to it.
//!
//! What is cut is the far end, so that this end sends into the void, as it does when a switch
//! loses power. It needs root and iproute2; tests that cannot have it are [skipped](crate::skip).

use crate::process::find_program;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A namespace of a test's own, removed at its end.
#[derive(Debug)]
pub struct Link {
    ip: PathBuf,
    number: u32,
}

impl Link {
    /// Makes the namespace and the link; `None` where that is not allowed or there is no `ip`.
    pub fn new() -> Option<Link> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let ip = find_program("ip")?;
        let number = std::process::id() * 4 % 30_000 + NEXT.fetch_add(1, Ordering::Relaxed);
        let link = Link { ip, number };
        let (namespace, near, far) = (link.namespace(), link.port('a'), link.port('b'));
        let (near_ip, far_ip) = (link.address(1), link.address(2));
        let steps: [&[&str]; 6] = [
            &["netns", "add", &namespace],
            &[
                "link", "add", &near, "type", "veth", "peer", "name", &far, "netns", &namespace,
            ],
            &["address", "add", &format!("{near_ip}/30"), "dev", &near],
            &["link", "set", &near, "up"],
            &[
                "-n",
                &namespace,
                "address",
                "add",
                &format!("{far_ip}/30"),
                "dev",
                &far,
            ],
            &["-n", &namespace, "link", "set", &far, "up"],
        ];
        // A step that fails ends it, and dropping the link takes away what the others have made.
        steps.iter().all(|step| link.ip(step)).then_some(link)
    }

    /// The address at the far end.
    pub fn far_address(&self) -> String {
        self.address(2)
    }

    /// A command that runs a program at the far end.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.ip);
        command.args(["netns", "exec", &self.namespace()]);
        command
    }

    /// Cuts the link: from now on nothing arrives in either direction.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn cut(&self) {
        assert!(self.set_far("down"), "the link cannot be cut");
    }

    /// Mends it.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn mend(&self) {
        assert!(self.set_far("up"), "the link cannot be mended");
    }

    fn set_far(&self, state: &str) -> bool {
        let far = self.port('b');
        self.ip(&["-n", &self.namespace(), "link", "set", &far, state])
    }

    fn namespace(&self) -> String {
        format!("sanstone-test-{}", self.number)
    }

    fn port(&self, end: char) -> String {
        format!("ss{}{end}", self.number)
    }

    /// From 198.18.0.0/15, which RFC 2544 sets aside for tests of networks.
    fn address(&self, end: u32) -> String {
        let host = self.number * 4 + end;
        let (high, low) = (host >> 8 & 0xff, host & 0xff);
        format!("198.{}.{high}.{low}", 18 + (host >> 16 & 1))
    }

    fn ip(&self, arguments: &[&str]) -> bool {
        let mut command = Command::new(&self.ip);
        command.args(arguments).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.ip(&["link", "delete", &self.port('a')]);
        self.ip(&["netns", "delete", &self.namespace()]);
    }
}
