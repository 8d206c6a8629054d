//! A disk that could not be reached when its user, which goes on without it, was opened. It is opened when it is asked for
//! something, as often as it takes; until then it has no length.

use std::{
    cell::{OnceCell, RefCell},
    path::PathBuf,
    rc::{Rc, Weak},
};

use engine::{
    LaneFuture, LaneHandle,
    sync::{Budget, Permit},
};

use super::{
    IscsiConfig, IscsiDisk,
    config::{LoginTerms, Sessions},
    isids::Isids,
};
use crate::{Error, ErrorKind, ReadOnly, Result, Shape, Volume};

/// A disk of an open volume, which may not be there yet.
#[derive(Clone, Debug)]
pub(super) enum KeptDisk {
    Open(Weak<IscsiDisk>),
    Late(Weak<Late>),
}

impl KeptDisk {
    /// It, if it is there.
    pub(super) fn disk(&self) -> Option<Rc<IscsiDisk>> {
        match self {
            KeptDisk::Open(disk) => disk.upgrade(),
            KeptDisk::Late(late) => late.upgrade()?.found().cloned(),
        }
    }

    /// What is not there yet.
    pub(super) fn late(&self) -> Option<Rc<Late>> {
        match self {
            KeptDisk::Open(_) => None,
            KeptDisk::Late(late) => late.upgrade().filter(|late| late.found().is_none()),
        }
    }
}

/// Who hears of a disk that has come.
type Tell = Box<dyn Fn(&Rc<IscsiDisk>)>;

/// A disk that may not be there yet.
pub(super) struct Late {
    config: RefCell<IscsiConfig>,
    /// Where other processes are shown that this one has it, and as what.
    claims: Option<(Isids, PathBuf)>,
    lanes: Vec<LaneHandle>,
    /// Called with the disk when it is there.
    tell: Tell,
    disk: OnceCell<Rc<IscsiDisk>>,
    /// One attempt at a time.
    attempts: Rc<Budget>,
    is_closed: std::cell::Cell<bool>,
    shape: Shape,
}

impl Late {
    /// The disk of `config`, which is shown in `claims` and whose home is the first of `lanes`; `tell` is called with it when it is there.
    pub(super) fn new(
        config: IscsiConfig,
        claims: Option<(Isids, PathBuf)>,
        lanes: Vec<LaneHandle>,
        tell: impl Fn(&Rc<IscsiDisk>) + 'static,
    ) -> Late {
        Late {
            config: RefCell::new(config),
            claims,
            lanes,
            tell: Box::new(tell),
            disk: OnceCell::new(),
            attempts: Budget::new(1),
            is_closed: std::cell::Cell::new(false),
            shape: Shape::absent(ReadOnly::new(false)),
        }
    }

    /// The disk, if it is there.
    pub(super) fn found(&self) -> Option<&Rc<IscsiDisk>> {
        self.disk.get()
    }

    /// Waits until no attempt is made to open it; none begins while the result lives.
    pub(super) async fn turn(&self) -> Permit {
        self.attempts.take(1).await
    }

    /// From now on it is looked for with these.
    pub(super) fn adopt(&self, terms: LoginTerms, sessions: &Sessions) {
        let mut config = self.config.borrow_mut();
        config.adopt(terms);
        config.adopt_sessions(sessions);
    }

    /// The disk, opened if it can be reached.
    async fn disk(&self) -> Result<&Rc<IscsiDisk>> {
        if let Some(disk) = self.disk.get() {
            return Ok(disk);
        }
        let _turn = self.turn().await;
        if self.is_closed.get() {
            let why = "the volume has been closed";
            return Err(Error::new(ErrorKind::Unreachable, why));
        }
        if self.disk.get().is_none() {
            if let Some((isids, claims)) = &self.claims {
                isids.show(claims).await?;
            }
            let config = self.config.borrow().clone();
            let disk = IscsiDisk::open_on(config, &self.lanes).await?;
            (self.tell)(&disk);
            assert!(self.disk.set(disk).is_ok(), "one attempt at a time");
        }
        Ok(self.disk.get().expect("it was just opened"))
    }
}

impl Volume for Late {
    crate::pass_on_once_there! { self => self.disk().await }

    fn shape(&self) -> &Shape {
        self.disk.get().map_or(&self.shape, |disk| disk.shape())
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            self.is_closed.set(true);
            match self.disk.get() {
                Some(disk) => Volume::close(&**disk).await,
                None => Ok(()),
            }
        })
    }
}
