//! The medium of a case: memory with the latency that the script says. It applies a write in two halves, knows which
//! command each call serves, and records everything.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use engine::{Buf, LaneFuture, Payload, time};
use volume::{
    Durability, Len, Result, Shape, Volume, fallback,
    member::{Order, Report},
};

use super::{
    history::{Call, Io, Shared},
    script::{DISK_BLOCKS, Op, Script, What},
};
use crate::content::{self, SECTOR_BYTES};

/// Which command reads this extent of this disk.
type Readers = BTreeMap<(u32, u64, u64), u32>;

/// State shared by all disks of a case.
#[derive(Clone)]
pub(super) struct Medium {
    history: Shared,
    /// The version of each block of each disk.
    versions: Arc<Mutex<Vec<[u64; DISK_BLOCKS as usize]>>>,
    readers: Arc<Readers>,
    latency_ns: Arc<BTreeMap<u32, [u64; 2]>>,
}

/// One lane's view of one disk.
pub(super) struct Disk {
    medium: Medium,
    lun: u32,
    shape: Shape,
}

/// The sector number that `content` uses for a block.
pub(super) fn sector(lun: u32, lba: u64) -> u64 {
    u64::from(lun) << 32 | lba
}

/// `blocks` blocks as the command `version` writes them.
pub(super) fn bytes(lun: u32, lba: u64, blocks: u64, version: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    (lba..lba + blocks).for_each(|lba| content::append(sector(lun, lba), version, &mut bytes));
    bytes
}

impl Medium {
    /// Disks that read as zeroes.
    pub(super) fn new(script: &Script, history: Shared) -> Medium {
        let mut readers = Readers::new();
        let mut latency_ns = BTreeMap::new();
        for step in &script.steps {
            let What::Command(command) = &step.what else {
                continue;
            };
            latency_ns.insert(step.id, command.latency_ns);
            match command.op {
                Op::Read { lba, blocks } => {
                    readers.insert((command.lun, lba, blocks.into()), step.id);
                }
                Op::CompareAndWrite { lba, .. } => {
                    readers.insert((command.lun, lba, 1), step.id);
                }
                _ => {}
            }
        }
        let disks = script.setup.luns as usize;
        Medium {
            history,
            versions: Arc::new(Mutex::new(vec![[0; DISK_BLOCKS as usize]; disks])),
            readers: Arc::new(readers),
            latency_ns: Arc::new(latency_ns),
        }
    }

    /// A lane's view of disk `lun`.
    pub(super) fn disk(&self, lun: u32) -> Disk {
        Disk {
            medium: self.clone(),
            lun,
            shape: Shape {
                block_size_bytes: SECTOR_BYTES as u32,
                physical_block_bytes: SECTOR_BYTES as u32,
                len: Len::new(DISK_BLOCKS * SECTOR_BYTES as u64),
                volatile_cache: false,
                read_only: volume::ReadOnly::default(),
                discard: None,
                optimal_io_bytes: 0,
                compare_and_write_max_bytes: 0,
            },
        }
    }
}

impl Disk {
    fn begin(&self, call: Call, task: u32, (lba, blocks): (u64, u64), is_fua: bool) -> usize {
        let mut history = self.medium.history.lock();
        let lun = self.lun;
        let began = history.note(format_args!(
            "       medium {lun}: {call:?} {lba}+{blocks} for {task} begins"
        ));
        history.ios.push(Io {
            lun,
            call,
            task,
            blocks: (lba, blocks),
            began,
            ended: None,
            is_fua,
            data: Vec::new(),
        });
        history.ios.len() - 1
    }

    fn end(&self, io: usize, data: Vec<u8>) {
        let mut history = self.medium.history.lock();
        let Io { call, task, .. } = history.ios[io];
        let lun = self.lun;
        let at = history.note(format_args!(
            "       medium {lun}: {call:?} for {task} ends"
        ));
        let io = &mut history.ios[io];
        (io.ended, io.data) = (Some(at), data);
    }

    async fn pause(&self, task: u32, index: usize) {
        let latency = self.medium.latency_ns.get(&task);
        let ns = latency.map_or(100_000, |latency| latency[index]);
        time::sleep(Duration::from_nanos(ns)).await;
    }

    fn on_versions<T>(&self, look: impl FnOnce(&mut [u64]) -> T) -> T {
        let versions = self.medium.versions.lock();
        let mut versions = versions.unwrap_or_else(PoisonError::into_inner);
        look(&mut versions[self.lun as usize])
    }

    fn fault(&self, what: String) {
        self.medium.history.lock().fault(what);
    }

    async fn do_read(&self, at: u64, len: usize) -> Payload {
        let (lba, blocks) = (at / SECTOR_BYTES as u64, (len / SECTOR_BYTES) as u64);
        let reader = self.medium.readers.get(&(self.lun, lba, blocks)).copied();
        if reader.is_none() {
            self.fault(format!(
                "disk {}: no command reads {lba}+{blocks}",
                self.lun
            ));
        }
        let task = reader.unwrap_or(0);
        let io = self.begin(Call::Read, task, (lba, blocks), false);
        self.pause(task, 0).await;
        let mut data = Vec::with_capacity(len);
        self.on_versions(|versions| {
            for lba in lba..lba + blocks {
                content::append(sector(self.lun, lba), versions[lba as usize], &mut data);
            }
        });
        self.pause(task, 1).await;
        self.end(io, data.clone());
        Buf::copy_of(&data).into()
    }

    async fn do_write(&self, at: u64, data: Payload, durability: Durability) {
        let (lba, data) = (at / SECTOR_BYTES as u64, data.to_vec());
        let blocks = (data.len() / SECTOR_BYTES) as u64;
        let mut task = 0;
        for (lba, bytes) in (lba..).zip(data.chunks(SECTOR_BYTES)) {
            match content::version_of(sector(self.lun, lba), bytes) {
                Ok(version) if lba == at / SECTOR_BYTES as u64 || version == u64::from(task) => {
                    task = version as u32;
                }
                other => self.fault(format!(
                    "disk {}: block {lba} is written as nobody wrote it, beside {task}: {other:?}",
                    self.lun
                )),
            }
        }
        let io = self.begin(
            Call::Write,
            task,
            (lba, blocks),
            durability == Durability::Fua,
        );
        self.pause(task, 0).await;
        let (start, half) = (lba as usize, (blocks / 2) as usize);
        let set = |from: usize, to: usize| {
            self.on_versions(|versions| versions[start + from..start + to].fill(task.into()));
        };
        set(0, half);
        self.pause(task, 1).await;
        set(half, blocks as usize);
        self.end(io, Vec::new());
    }
}

impl Volume for Disk {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move { Ok(self.do_read(at, len).await) })
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.do_write(at, data, durability).await;
            Ok(())
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            let io = self.begin(Call::Flush, 0, (0, 0), false);
            self.pause(0, 0).await;
            self.end(io, Vec::new());
            Ok(())
        })
    }

    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        fallback::member(self, order)
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        self.fault(format!("nobody discards, and {len} bytes at {at} are"));
        LaneFuture::new(async { Ok(()) })
    }

    volume::fall_back!();
}
