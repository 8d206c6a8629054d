//! A private instance of istgt, FreeBSD's old target, with its configuration, portal and files in
//! a directory of the test's own.
//!
//! It serves one initiator's discovery session badly: `iscsi-ls -s` logs in for the LUN list and
//! then waits for ever. Everything else of libiscsi and QEMU works with it.

use crate::directory::Directory;
use crate::process::{Daemon, find_program};
use std::process::Command;

/// The name of the target it serves.
pub const IQN: &str = "iqn.2026-11.io.sanstone:istgt";

/// A running istgt with one disk as LUN 0.
#[derive(Debug)]
pub struct Istgt {
    daemon: Daemon,
    port: u16,
    _directory: Directory,
}

impl Istgt {
    /// Starts istgt with a disk of `size_bytes` (whole MiB) in a sparse file. `None` where the
    /// program is missing: newer releases may not package it, so tests then [skip](crate::skip).
    ///
    /// # Panics
    /// If it is there but does not come up.
    pub fn start(size_bytes: u64) -> Option<Istgt> {
        let istgt = find_program("istgt")?;
        let directory = Directory::new();
        let (port, control_port) = (crate::free_port(), crate::free_port());
        directory.sparse("disk.img", size_bytes);
        directory.write("auth.conf", "");
        let here = directory.path().display();
        let mebibytes = size_bytes >> 20;
        let configuration = directory.write(
            "istgt.conf",
            format!(
                "[Global]\n\
                 NodeBase \"iqn.2026-11.io.sanstone\"\n\
                 PidFile {here}/istgt.pid\n\
                 AuthFile {here}/auth.conf\n\
                 MediaDirectory {here}\n\
                 Timeout 30\n\
                 NopInInterval 20\n\
                 DiscoveryAuthMethod None\n\
                 MaxSessions 64\n\
                 MaxConnections 4\n\
                 MaxR2T 32\n\
                 MaxOutstandingR2T 16\n\
                 DefaultTime2Wait 2\n\
                 DefaultTime2Retain 60\n\
                 FirstBurstLength 262144\n\
                 MaxBurstLength 1048576\n\
                 MaxRecvDataSegmentLength 262144\n\
                 InitialR2T Yes\n\
                 ImmediateData Yes\n\
                 DataPDUInOrder Yes\n\
                 DataSequenceInOrder Yes\n\
                 ErrorRecoveryLevel 0\n\
                 [UnitControl]\n\
                 AuthMethod None\n\
                 Portal UC1 127.0.0.1:{control_port}\n\
                 Netmask 127.0.0.1\n\
                 [PortalGroup1]\n\
                 Portal DA1 127.0.0.1:{port}\n\
                 [InitiatorGroup1]\n\
                 InitiatorName \"ALL\"\n\
                 Netmask ALL\n\
                 [LogicalUnit1]\n\
                 TargetName \"{IQN}\"\n\
                 Mapping PortalGroup1 InitiatorGroup1\n\
                 AuthMethod None\n\
                 UseDigest Auto\n\
                 UnitType Disk\n\
                 QueueDepth 32\n\
                 LUN0 Storage {here}/disk.img {mebibytes}MB\n"
            ),
        );
        let mut command = Command::new(istgt);
        command.args(["-D", "-c"]).arg(configuration);
        let mut daemon = Daemon::start(&command, directory.join("istgt.log"));
        daemon.wait_for_port(port);
        Some(Istgt {
            daemon,
            port,
            _directory: directory,
        })
    }

    /// The disk as libiscsi and QEMU write it.
    pub fn url(&self) -> String {
        format!("iscsi://127.0.0.1:{}/{IQN}/0", self.port)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }
}
