//! The target of Linux's own kernel (LIO) in a virtual machine, one for all tests of a program. QEMU forwards two ports
//! of 127.0.0.1 to its two portals, and `tests/linux/guest/lio.sh` configures it through configfs.

use crate::guest::Guest;
use crate::sanstone::binary;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// The guest's portals, as its target reports them in discovery.
pub const PORTALS_INSIDE: [&str; 2] = ["10.0.2.15:3260", "10.0.2.15:3261"];

/// What backs a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A file through the page cache: volatile write cache, thin.
    File,
    /// Memory.
    Ram,
    /// A block device, here a loop device: thin.
    Device,
}

impl Backing {
    /// All of them.
    pub const ALL: [Backing; 3] = [Backing::File, Backing::Ram, Backing::Device];

    fn name(self) -> &'static str {
        match self {
            Backing::File => "file",
            Backing::Ram => "ram",
            Backing::Device => "device",
        }
    }
}

struct Machine {
    guest: Guest,
    has_target: bool,
    portals: [SocketAddr; 2],
}

static MACHINE: LazyLock<Machine> = LazyLock::new(|| {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("linux/guest");
    let ports = [3260, 3261].map(|inside| (crate::free_port(), inside));
    let guest = Guest::boot("lio", &scripts, &binary(), &ports);
    let begun = guest.run("has_module iscsi_target_mod && lio_begin || echo none");
    Machine {
        guest,
        has_target: begun.success().is_empty(),
        portals: ports.map(|(here, _)| (Ipv4Addr::LOCALHOST, here).into()),
    }
});

/// Held while a target comes or goes. One that goes resets the threads of its portals, and for that time the kernel finds
/// them by their address no more: another would open them a second time, and be refused.
static CHANGE: Mutex<()> = Mutex::new(());

/// A target with one disk, LUN 0, at two portals in a portal group each.
#[derive(Debug)]
pub struct Lio {
    /// The target's name.
    pub iqn: String,
    backing: Backing,
}

impl Lio {
    /// Serves a disk of zeroes of `size_bytes` (whole MiB) to every initiator. Without a virtual machine, or if its
    /// kernel lacks the target, the test is [skipped](crate::skip).
    ///
    /// # Panics
    /// If it does not come up.
    pub fn serve(backing: Backing, size_bytes: u64, block_size_bytes: u32) -> Option<Lio> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        if !Guest::is_possible() {
            crate::skip("the guest's packages are for x86-64");
            return None;
        }
        if !MACHINE.has_target {
            crate::skip("the guest's kernel has no LIO");
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let iqn = format!("iqn.2026-11.io.sanstone:lio{number}");
        let (kind, size_mib) = (backing.name(), size_bytes >> 20);
        let serve = format!("lio_serve {iqn} {kind} {size_mib} {block_size_bytes}");
        let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        MACHINE.guest.run(&serve).success();
        Some(Lio { iqn, backing })
    }

    /// Its two portals, as this machine reaches them.
    pub fn portals(&self) -> [SocketAddr; 2] {
        MACHINE.portals
    }

    /// The disk over the first portal, as libiscsi and QEMU write it.
    pub fn url(&self) -> String {
        format!("iscsi://{}/{}/0", MACHINE.portals[0], self.iqn)
    }

    /// Sets an operational parameter of RFC 7143 §13, for sessions that begin from now on.
    ///
    /// # Panics
    /// If the kernel refuses it.
    pub fn set(&self, key: &str, value: &str) {
        let set = format!("lio_set {} {key} {value}", self.iqn);
        MACHINE.guest.run(&set).success();
    }

    /// How many commands have reached the disk through portal 0 or 1.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn commands(&self, portal: usize) -> u64 {
        let count = format!("lio_commands {} {}", self.iqn, portal + 1);
        let count = MACHINE.guest.run(&count).success();
        count.trim().parse().expect("a number")
    }

    /// Whether persistent reservations are kept through a loss of power now (APTPL).
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn keeps_registrations(&self) -> bool {
        let ask = format!("lio_aptpl {} {}", self.iqn, self.backing.name());
        MACHINE.guest.run(&ask).success().contains("Activated")
    }

    /// The process that emulates its machine.
    pub fn pid(&self) -> u32 {
        MACHINE.guest.pid()
    }

    /// Sets the access state (SPC-4 6.37) of the target port group behind portal 0 or 1.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn set_state(&self, portal: usize, state: u8) {
        let (iqn, kind, group) = (&self.iqn, self.backing.name(), portal + 1);
        let set = format!("lio_state {iqn} {kind} {group} {state}");
        MACHINE.guest.run(&set).success();
    }
}

impl Drop for Lio {
    fn drop(&mut self) {
        let remove = format!("lio_remove {} {}", self.iqn, self.backing.name());
        let change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = MACHINE.guest.run(&remove);
        drop(change);
        if std::thread::panicking() {
            MACHINE.guest.run("dmesg");
        } else {
            removed.success();
        }
    }
}
