//! The FUSE device as a lane sees it. Whoever has it open takes a file system's requests from it, one
//! whole message at a time, and writes answers back. A [`SharedDevice`] may move to any lane;
//! [`SharedDevice::on_lane`] gives the handle through which a lane takes and sends messages.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
    rc::Rc,
    sync::Arc,
};

use crate::{
    buf::{Buf, Payload},
    handle::{Handle, Keeper},
    lane::submit,
    op::{Op, to_result},
};

/// Path of the FUSE device.
const PATH: &str = "/dev/fuse";
/// The most slices a message may have: each message is one vectored call, and a call takes no more.
const SLICES_MAX: usize = 1024;

/// A descriptor of the device that can be passed between lanes.
#[derive(Clone, Debug)]
pub struct SharedDevice(Arc<OwnedFd>);

impl SharedDevice {
    /// Opens the device: a connection to the kernel, which a mount then uses.
    ///
    /// # Errors
    /// Any error the system reports.
    pub fn open() -> io::Result<SharedDevice> {
        let mut options = fs::OpenOptions::new();
        options
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK);
        let file = options.open(Path::new(PATH))?;
        Ok(SharedDevice(Arc::new(file.into())))
    }

    /// Takes over a descriptor that somebody else has opened and mounted.
    ///
    /// # Errors
    /// Any error the system reports.
    pub fn adopt(fd: OwnedFd) -> io::Result<SharedDevice> {
        // SAFETY: no memory arguments; the result is checked.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedDevice(Arc::new(fd)))
    }

    /// Another descriptor of the same mount (FUSE_DEV_IOC_CLONE). Requests taken through it must be
    /// answered through it, independently of the other descriptors.
    ///
    /// # Errors
    /// Any error the system reports, for instance that this process may not open the device.
    pub fn another(&self) -> io::Result<SharedDevice> {
        /// `_IOR(229, 0, uint32_t)`
        const CLONE: libc::c_ulong = 0x8004_e500;
        let other = SharedDevice::open()?;
        let of = self.0.as_raw_fd() as u32;
        // SAFETY: passes a live u32, which is what this call reads.
        if unsafe { libc::ioctl(other.0.as_raw_fd(), CLONE as _, &raw const of) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(other)
    }

    /// The device for use on the current lane.
    pub fn on_lane(&self) -> Device {
        let keeper = Keeper::Fd(self.0.clone());
        Device(Rc::new(Handle::new(self.0.as_raw_fd(), keeper)))
    }
}

impl AsFd for SharedDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The device on one lane.
#[derive(Clone, Debug)]
pub struct Device(Rc<Handle>);

impl Device {
    /// Waits for the next message: the beginning fills `head`, the rest goes into `body`. Returns
    /// its length and both buffers. Dropping the future may lose a message.
    pub async fn take(&self, head: Buf, body: Buf) -> (io::Result<usize>, Buf, Buf) {
        let device = self.0.clone();
        match submit(Op::Take { device, head, body }).await {
            (Op::Take { head, body, .. }, result) => (to_result(result), head, body),
            _ => unreachable!("a reactor gives back the operation that it took"),
        }
    }

    /// Takes a message if there is one now; `None` if not. Call it before you stop waiting for a while:
    /// one wake-up may stand for several messages, a waiter takes only one of them, and nobody else is
    /// woken for the rest.
    pub fn take_now(&self, head: &mut Buf, body: &mut Buf) -> Option<io::Result<usize>> {
        crate::cost::count_system_call();
        let mut parts = [io::IoSliceMut::new(head), io::IoSliceMut::new(body)];
        // Not through the ring, which would wait for a message.
        // SAFETY: an IoSliceMut is an iovec; both live until the call returns.
        let len = unsafe { libc::readv(self.0.raw, parts.as_mut_ptr().cast(), 2) };
        if len >= 0 {
            return Some(Ok(len as usize));
        }
        let error = io::Error::last_os_error();
        (error.kind() != io::ErrorKind::WouldBlock).then_some(Err(error))
    }

    /// Sends `message` as one whole.
    ///
    /// # Errors
    /// Any error the system reports, for instance that nobody waits for this answer any more.
    pub async fn send(&self, message: Payload) -> io::Result<()> {
        let message = match message.slices().len() > SLICES_MAX {
            true => message.into_buf().into(),
            false => message,
        };
        let op = Op::Write {
            file: self.0.clone(),
            at: 0,
            data: message,
            start: 0,
            durable: false,
            atomic: false,
        };
        let (_, result) = submit(op).await;
        to_result(result).map(drop)
    }
}
