//! Network links that can be cut: a network namespace, standing for another machine, connected by veth pairs.
//!
//! They can fail as cables do: they have a rate ([`Links::limit`]), lose their carrier ([`Links::cut`]), are taken down
//! by an administrator ([`Links::take_down`]), or swallow every packet while both ends believe that they work
//! ([`Links::swallow`]). This needs root and iproute2, and nftables for swallowing; without them tests are
//! [skipped](crate::skip).

use crate::process::find_program;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A private namespace with links to it, removed when dropped.
#[derive(Debug)]
pub struct Links {
    ip: PathBuf,
    numbers: Range<u32>,
}

/// What a link has carried since it was created, in bytes on the wire, as counted at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Received at this end.
    pub received: u64,
    /// Sent from this end.
    pub sent: u64,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// To the namespace that stands for another machine.
    FarEnd,
    /// From there.
    NearEnd,
}

impl Carried {
    /// In both directions.
    pub fn both(self) -> u64 {
        self.received + self.sent
    }
}

impl Links {
    /// Makes the namespace and `count` links; `None` where that is not allowed or there is no `ip`.
    pub fn new(count: u32) -> Option<Links> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let ip = find_program("ip")?;
        let first = std::process::id() * 4 % 30_000 + NEXT.fetch_add(count, Ordering::Relaxed);
        let links = Links {
            ip,
            numbers: first..first + count,
        };
        let namespace = links.namespace();
        // The first failing step ends the setup, and dropping the links removes what earlier steps created.
        let made = links.ip(&["netns", "add", &namespace])
            && (0..count).all(|link| links.make(link, &namespace));
        made.then_some(links)
    }

    fn make(&self, link: u32, namespace: &str) -> bool {
        let (near, far) = (self.near_port(link), self.far_port(link));
        let near_ip = format!("{}/30", self.near_address(link));
        let far_ip = format!("{}/30", self.far_address(link));
        let pair: [&[&str]; 5] = [
            &[
                "link", "add", &near, "type", "veth", "peer", "name", &far, "netns", namespace,
            ],
            &["address", "add", &near_ip, "dev", &near],
            &["link", "set", &near, "up"],
            &["-n", namespace, "address", "add", &far_ip, "dev", &far],
            &["-n", namespace, "link", "set", &far, "up"],
        ];
        pair.iter().all(|step| self.ip(step))
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.numbers.len() as u32
    }

    /// The address at this end of a link.
    pub fn near_address(&self, link: u32) -> String {
        self.address(link, 1)
    }

    /// The address at the far end of a link.
    pub fn far_address(&self, link: u32) -> String {
        self.address(link, 2)
    }

    /// The network interface at this end of it.
    pub fn near_port(&self, link: u32) -> String {
        format!("ss{}a", self.number(link))
    }

    /// A command that runs a program at the far end.
    ///
    /// It enters the network's namespace alone. `ip netns exec` would give the program a copy of the mounts that are
    /// there, and with it hold the volumes that other tests have attached to its end.
    pub fn command(&self) -> Command {
        let nsenter = find_program("nsenter").expect("it comes with util-linux");
        let mut command = Command::new(nsenter);
        command.arg(format!("--net=/run/netns/{}", self.namespace()));
        command.arg("--");
        command
    }

    /// Gives every link this rate in each direction, in Mbit/s.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn limit(&self, rate_mbit: u32) {
        let rate = format!("{rate_mbit}mbit");
        // The burst is 2 ms at this rate, but never less than the longest segment that the kernel hands over.
        let burst = (u64::from(rate_mbit) * 250).max(128 << 10).to_string();
        for link in 0..self.count() {
            for (namespace, port) in [
                (None, self.near_port(link)),
                (Some(self.namespace()), self.far_port(link)),
            ] {
                let mut tc = Command::new(find_program("tc").expect("tc comes with ip"));
                if let Some(namespace) = namespace {
                    tc.args(["-n", &namespace]);
                }
                tc.args(["qdisc", "replace", "dev", &port, "root", "tbf"]);
                tc.args(["rate", &rate, "burst", &burst, "latency", "20ms"]);
                let status = tc.status().expect("tc runs");
                assert!(status.success(), "tc cannot limit {port}");
            }
        }
    }

    /// Cuts a link at its far end: it loses its carrier, and packets from this end are lost, as when a switch loses
    /// power.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn cut(&self, link: u32) {
        assert!(self.set_far(link, "down"), "the link cannot be cut");
    }

    /// Mends it.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn mend(&self, link: u32) {
        assert!(self.set_far(link, "up"), "the link cannot be mended");
    }

    /// Takes a link down at this end: this machine then refuses to send on it.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn take_down(&self, link: u32) {
        let down = self.ip(&["link", "set", &self.near_port(link), "down"]);
        assert!(down, "the link cannot be taken down");
    }

    /// Brings it up again.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn bring_up(&self, link: u32) {
        let up = self.ip(&["link", "set", &self.near_port(link), "up"]);
        assert!(up, "the link cannot be brought up");
    }

    /// From now on a link drops every packet in both directions, while both ends believe that it works.
    ///
    /// # Panics
    /// If there is no `nft`, or the system refuses.
    pub fn swallow(&self, link: u32) {
        self.swallow_towards(link, Towards::FarEnd);
        self.swallow_towards(link, Towards::NearEnd);
    }

    /// From now on a link drops every packet in one direction, while both ends believe that it works.
    ///
    /// # Panics
    /// Like [`Links::swallow`].
    pub fn swallow_towards(&self, link: u32, towards: Towards) {
        let (hook, interface) = match towards {
            Towards::FarEnd => ("input", "iifname"),
            Towards::NearEnd => ("output", "oifname"),
        };
        let port = self.far_port(link);
        self.nft(&format!(
            "table inet hole_{hook} {{\n\
               chain drops {{ type filter hook {hook} priority 0; {interface} \"{port}\" drop; }}\n\
             }}\n"
        ));
    }

    /// Lets packets through again, on every link.
    ///
    /// # Panics
    /// Like [`Links::swallow`].
    pub fn let_through(&self) {
        self.nft("flush ruleset\n");
    }

    /// What a link has carried.
    ///
    /// # Panics
    /// If the system does not report it.
    pub fn carried(&self, link: u32) -> Carried {
        let port = self.near_port(link);
        let counter = |name: &str| {
            let file = format!("/sys/class/net/{port}/statistics/{name}");
            let text = std::fs::read_to_string(&file);
            let count = text.ok().and_then(|text| text.trim().parse().ok());
            count.unwrap_or_else(|| panic!("{file} holds no number"))
        };
        Carried {
            received: counter("rx_bytes"),
            sent: counter("tx_bytes"),
        }
    }

    fn nft(&self, rules: &str) {
        let nft =
            find_program("nft").expect("Debian's package nftables, which `make test` installs");
        let mut command = self.command();
        command.arg(nft).args(["-f", "-"]).stdin(Stdio::piped());
        let mut nft = command.spawn().expect("nft runs");
        let mut input = nft.stdin.take().expect("it is piped");
        input.write_all(rules.as_bytes()).expect("nft reads");
        drop(input);
        let status = nft.wait().expect("it was started");
        assert!(status.success(), "nft refuses:\n{rules}");
    }

    fn set_far(&self, link: u32, state: &str) -> bool {
        let far = self.far_port(link);
        self.ip(&["-n", &self.namespace(), "link", "set", &far, state])
    }

    fn namespace(&self) -> String {
        format!("sanstone-test-{}", self.numbers.start)
    }

    fn far_port(&self, link: u32) -> String {
        format!("ss{}b", self.number(link))
    }

    fn number(&self, link: u32) -> u32 {
        assert!(link < self.count(), "there is no link {link}");
        self.numbers.start + link
    }

    /// From 198.18.0.0/15, which RFC 2544 reserves for network tests.
    fn address(&self, link: u32, end: u32) -> String {
        let host = self.number(link) * 4 + end;
        let (high, low) = (host >> 8 & 0xff, host & 0xff);
        format!("198.{}.{high}.{low}", 18 + (host >> 16 & 1))
    }

    fn ip(&self, arguments: &[&str]) -> bool {
        let mut command = Command::new(&self.ip);
        command.args(arguments).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for link in 0..self.count() {
            self.ip(&["link", "delete", &self.near_port(link)]);
        }
        self.ip(&["netns", "delete", &self.namespace()]);
    }
}
