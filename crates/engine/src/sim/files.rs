//! File operations on the simulated disks: opening, and the timing of operations. [`super::disk`]
//! holds the content.

use std::{io, path::Path, time::Duration};

use super::{
    Random,
    disk::{
        DiskEvent, FaultKind, Sparse,
        medium::{MediumChange, SECTOR},
    },
    keys::{FlightKey, HostId},
    state::{Flight, SimFile, WorldEvent, WorldState},
};
use crate::{
    extent::Extent,
    handle::Handle,
    op::{AllocateMode, Op},
    reactor::{self, AccessRequest, FileMark, OpenOptions, OpenedFile, PathKind},
};

/// The most segments one write takes, as on Linux (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

impl WorldState {
    pub(super) fn open(
        &mut self,
        host: HostId,
        path: &Path,
        options: &OpenOptions,
    ) -> io::Result<OpenedFile> {
        self.settle();
        let error = |errno| Err(io::Error::from_raw_os_error(errno));
        let disk = &mut self.host(host).disk;
        disk.has_power()?;
        let file = match disk.names.file(path) {
            Some(_) if options.create_new => return error(libc::EEXIST),
            Some(file) => file,
            None if !disk.names.has_place_for(path) => return error(libc::ENOENT),
            None if options.create || options.create_new => {
                disk.take_step()?;
                disk.create(path)
            }
            None => return error(libc::ENOENT),
        };
        self.open_found(host, file, options)
    }

    /// Opens the file behind an open handle again.
    pub(super) fn reopen(&mut self, raw: i32, options: &OpenOptions) -> io::Result<OpenedFile> {
        self.settle();
        let open = self.files.get(&raw);
        let open = open.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let (host, file) = (open.host, open.file);
        self.open_found(host, file, options)
    }

    /// Whether `path` leads to the file behind an open handle.
    pub(super) fn is_at(&self, raw: i32, path: &Path) -> bool {
        let open = self.files.get(&raw);
        open.is_some_and(|open| {
            let names = &self.hosts[open.host.0].disk.names;
            names.file(path) == Some(open.file)
        })
    }

    fn open_found(
        &mut self,
        host: HostId,
        file: usize,
        options: &OpenOptions,
    ) -> io::Result<OpenedFile> {
        let state = &self.hosts[host.0].disk.files[file];
        state.check_access(AccessRequest {
            read: true,
            write: options.write,
            execute: false,
        })?;
        if state.kind != PathKind::File {
            return Err(io::Error::from_raw_os_error(libc::ENXIO));
        }
        let io_align_bytes = if options.direct {
            self.config.disk.io_align_bytes
        } else {
            1
        };
        let in_the_way = |other: &SimFile| {
            other.host == host
                && other.file == file
                && other.options.lock
                && (other.options.write || options.write)
        };
        if options.lock && self.files.values().any(in_the_way) {
            return Err(io::Error::from_raw_os_error(libc::EWOULDBLOCK));
        }
        let raw = self.fresh_raw();
        self.files.insert(
            raw,
            SimFile {
                host,
                file,
                options: options.clone(),
            },
        );
        Ok(OpenedFile {
            keeper: self.keeper(raw),
            raw,
            len_bytes: self.hosts[host.0].disk.files[file].current.len(),
            is_regular: true,
            io_align_bytes,
            // Writes here land sector by sector.
            atomic_write_bytes: None,
            write_max_bytes: None,
            waits: false,
            sector_bytes: self.config.disk.sector_bytes,
            physical_bytes: 1,
            state: self.state_of(host, file, options.direct),
        })
    }

    pub(super) fn submit_to_disk(&mut self, key: FlightKey) {
        let short = self.random.chance(self.config.disk.short_probability);
        let Some(flight) = self.flights.get(&key) else {
            return;
        };
        let Some(file) = file_of(&flight.op) else {
            unreachable!("network operations go to the network");
        };
        let Some(open) = self.files.get(&file.raw) else {
            return self.complete(key, -libc::EBADF);
        };
        let align = if open.options.direct {
            self.config.disk.io_align_bytes as usize
        } else {
            1
        };
        let is_aligned = |at: u64, address: usize, len: usize| {
            at % align as u64 == 0 && address % align == 0 && len % align == 0
        };
        let changes = self.hosts[flight.host.0].disk.changes;
        let (event, moved) = match &flight.op {
            Op::Read { at, buf, start, .. } => {
                let room = &buf[*start..];
                if !is_aligned(*at, room.as_ptr() as usize, room.len()) {
                    return self.complete(key, -libc::EINVAL);
                }
                (DiskEvent::Read(room.len()), room.len())
            }
            Op::Write {
                at, data, start, ..
            } => {
                let pieces = written_pieces(data, *start);
                if !open.options.write {
                    return self.complete(key, -libc::EBADF);
                }
                if !pieces
                    .iter()
                    .all(|piece| is_aligned(*at, piece.as_ptr() as usize, piece.len()))
                {
                    return self.complete(key, -libc::EINVAL);
                }
                let len = pieces.iter().map(|piece| piece.len()).sum();
                (DiskEvent::Write(len), len)
            }
            Op::Sync { .. } => (DiskEvent::Sync(changes + 1), 0),
            Op::Allocate { at, len, .. } => {
                if !open.options.write {
                    return self.complete(key, -libc::EBADF);
                }
                let sector = u64::from(self.config.disk.sector_bytes);
                let is_whole = at % sector == 0 && len % sector == 0;
                if *len == 0 || at.checked_add(*len).is_none() || !is_whole {
                    return self.complete(key, -libc::EINVAL);
                }
                (DiskEvent::Allocate, 0)
            }
            _ => unreachable!("matched above"),
        };
        let event = match event {
            DiskEvent::Read(len) if short => DiskEvent::Read(shorter(len, align, &mut self.random)),
            // A page cache takes whole sectors, or the rest. Splitting within a sector would let a
            // power cut tear what no disk tears.
            DiskEvent::Write(len) if short => {
                DiskEvent::Write(shorter(len, align.max(SECTOR), &mut self.random))
            }
            event => event,
        };
        if let DiskEvent::Read(len) | DiskEvent::Write(len) = event {
            self.occurred.short_transfers += u64::from(len < moved);
        }
        let disk = &self.config.disk;
        let mut latency = if matches!(event, DiskEvent::Sync(_)) {
            self.random.within(&disk.sync_latency_ns)
        } else {
            self.random.within(&disk.latency_ns)
        };
        if self.random.chance(disk.slow_probability) {
            latency *= 50;
        }
        latency += moved as u64 / 4; // 4 GB/s
        let mut after = Duration::from_nanos(latency);
        let disk = &self.hosts[flight.host.0].disk;
        if matches!(event, DiskEvent::Sync(_)) {
            after += disk.stall;
        }
        if let (DiskEvent::Write(_), Some(hangs)) = (&event, &disk.hangs) {
            if self.random.chance(hangs.probability) {
                self.occurred.writes_hung += 1;
                after += Duration::from_nanos(self.random.within(&hangs.longer_ns));
            }
        }
        self.after(after, WorldEvent::Disk(key, event));
    }

    /// The run of allocated or unallocated pages around byte `at` of an open file.
    pub(super) fn extent(&self, raw: i32, at: u64) -> io::Result<Extent> {
        let content = self.content(raw)?;
        match at < content.len() {
            true => Ok(content.extent(at)),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    pub(super) fn len_bytes(&self, raw: i32) -> io::Result<u64> {
        Ok(self.content(raw)?.len())
    }

    /// What the system says about a file that is open, for direct I/O or not.
    fn state_of(&self, host: HostId, file: usize, is_direct: bool) -> reactor::FileState {
        reactor::FileState {
            is_direct: is_direct && self.config.disk.confirms_direct,
            is_read_only: self.hosts[host.0].disk.files[file].mode & 0o200 == 0,
        }
    }

    /// What the system says about an open file.
    pub(super) fn state(&self, raw: i32) -> io::Result<reactor::FileState> {
        let open = self.files.get(&raw);
        let open = open.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        Ok(self.state_of(open.host, open.file, open.options.direct))
    }

    /// Gives an open file this length, durably.
    pub(super) fn set_len_bytes(&mut self, raw: i32, len_bytes: u64) -> io::Result<()> {
        let open = self.files.get(&raw);
        let open = open.filter(|open| open.options.write);
        let open = open.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let file = open.file;
        let disk = &mut self.hosts[open.host.0].disk;
        disk.take_step()?;
        let len = disk.files[file].current.len();
        let range = len.min(len_bytes)..len.max(len_bytes);
        if let Some(errno) = disk.fault(FaultKind::Allocate, file, &range, &mut self.occurred) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let what = match len_bytes < len {
            true => MediumChange::Truncate,
            false => MediumChange::Extend,
        };
        disk.change(file, len_bytes, what, false);
        disk.take_step()?;
        disk.sync_file(file);
        Ok(())
    }

    /// Removes the mark of an open file, if it has one.
    pub(super) fn remove_mark(&mut self, raw: i32, which: FileMark) -> io::Result<()> {
        let open = self.files.get(&raw);
        let open = open.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let file = open.file;
        let disk = &mut self.hosts[open.host.0].disk;
        disk.take_step()?;
        if let Some(errno) = disk.fault(FaultKind::Mark, file, &(0..u64::MAX), &mut self.occurred) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        disk.files[file].marks[which as usize] = None;
        Ok(())
    }

    fn content(&self, raw: i32) -> io::Result<&Sparse> {
        let open = self.files.get(&raw);
        let open = open.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        Ok(&self.hosts[open.host.0].disk.files[open.file].current)
    }

    pub(super) fn disk_done(&mut self, key: FlightKey, event: &DiskEvent) {
        let Some(flight) = self.flights.get_mut(&key) else {
            return;
        };
        let Some(file) = file_of(&flight.op) else {
            return;
        };
        let Some(open) = self.files.get(&file.raw) else {
            return self.complete(key, -libc::EBADF);
        };
        let (id, always_durable) = (open.file, open.options.durable);
        let disk = &mut self.hosts[flight.host.0].disk;
        let occurred = &mut self.occurred;
        let powered = match event {
            DiskEvent::Read(_) => disk.has_power(),
            DiskEvent::Write(_) | DiskEvent::Sync(_) | DiskEvent::Allocate => disk.take_step(),
        };
        if powered.is_err() {
            return self.complete(key, -libc::EIO);
        }
        let result = match (&mut flight.op, event) {
            (Op::Read { at, buf, start, .. }, DiskEvent::Read(len)) => {
                let content = &disk.files[id].current;
                let left = content.len().saturating_sub(*at);
                let n = (*len).min(usize::try_from(left).unwrap_or(usize::MAX));
                match disk.fault(FaultKind::Read, id, &(*at..*at + n.max(1) as u64), occurred) {
                    Some(errno) => -errno,
                    None => {
                        let content = &disk.files[id].current;
                        content.read(*at, &mut buf[*start..*start + n]);
                        n as i32
                    }
                }
            }
            (
                Op::Write {
                    at,
                    data,
                    start,
                    durable,
                    ..
                },
                DiskEvent::Write(len),
            ) => {
                let bytes = data.slice(*start..*start + *len).to_vec();
                let is_durable = *durable || always_durable;
                match disk.write(id, *at, bytes, is_durable, &mut self.random, occurred) {
                    Some(errno) => -errno,
                    None => *len as i32,
                }
            }
            (Op::Sync { .. }, DiskEvent::Sync(before)) => {
                match disk.fault(FaultKind::Sync, id, &(0..u64::MAX), occurred) {
                    Some(errno) => {
                        disk.files[id].lose_before(*before, &mut self.random);
                        -errno
                    }
                    None => {
                        disk.files[id].keep_before(*before);
                        disk.names.sync_file(id);
                        0
                    }
                }
            }
            (Op::Allocate { mode, at, len, .. }, DiskEvent::Allocate) => {
                match disk.fault(FaultKind::Allocate, id, &(*at..*at + *len), occurred) {
                    Some(errno) => -errno,
                    None => {
                        match mode {
                            AllocateMode::PunchHole | AllocateMode::Zero => {
                                disk.change(id, *at, MediumChange::Zero(*len), always_durable);
                            }
                            AllocateMode::Reserve => {
                                disk.change(id, *at + *len, MediumChange::Extend, always_durable);
                            }
                        }
                        0
                    }
                }
            }
            _ => unreachable!("an operation keeps its kind"),
        };
        self.complete(key, result);
    }

    /// What happens to the files of a machine whose software stops with `flights` in progress.
    pub(super) fn stop_disk(&mut self, host: HostId, flights: &[Flight], power_cut: bool) {
        let WorldState {
            hosts,
            files,
            random,
            occurred,
            ..
        } = self;
        let disk = &mut hosts[host.0].disk;
        let is_write = |flight: &Flight| matches!(flight.op, Op::Write { .. });
        if flights.iter().any(is_write) {
            match power_cut {
                true => occurred.cuts_during_writes += 1,
                false => occurred.kills_during_writes += 1,
            }
        }
        for flight in flights {
            let (file, at, what) = match &flight.op {
                Op::Write {
                    file,
                    at,
                    data,
                    start,
                    ..
                } => {
                    let bytes = data.slice(*start..data.len()).to_vec();
                    (file.raw, *at, MediumChange::Write(bytes))
                }
                Op::Allocate {
                    file,
                    mode: AllocateMode::PunchHole | AllocateMode::Zero,
                    at,
                    len,
                } => (file.raw, *at, MediumChange::Zero(*len)),
                _ => continue,
            };
            // A kernel that stays alive either completes what was in flight or never began it.
            if let Some(open) = files.get(&file) {
                if power_cut || random.chance(0.5) {
                    disk.change(open.file, at, what, false);
                }
            }
        }
        if power_cut {
            for file in &mut disk.files {
                file.cut_power(random, occurred);
            }
            disk.names.cut_power(random);
        }
        disk.changes_left = None;
    }
}

/// The file of an operation; `None` for sockets.
fn file_of(op: &Op) -> Option<&Handle> {
    match op {
        Op::Read { file, .. }
        | Op::Write { file, .. }
        | Op::Sync { file }
        | Op::Allocate { file, .. } => Some(file),
        _ => None,
    }
}

/// The pieces of a payload that one write takes, from byte `start` on.
fn written_pieces(data: &crate::Payload, start: usize) -> Vec<&[u8]> {
    let mut skip = start;
    data.slices()
        .iter()
        .filter_map(|slice| {
            let from = skip.min(slice.len());
            skip -= from;
            (from < slice.len()).then(|| &slice[from..])
        })
        .take(PIECES_MAX)
        .collect()
}

/// A random part of `len` bytes in whole units, or all if there is only one unit.
fn shorter(len: usize, unit: usize, random: &mut Random) -> usize {
    let units = len / unit;
    if units < 2 {
        return len;
    }
    (1 + random.index(units - 1)) * unit
}
